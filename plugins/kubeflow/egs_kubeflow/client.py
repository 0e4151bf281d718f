"""A `kfp.Client` that submits each pipeline as it is written for a site.

    client = egs_kubeflow.client.Client(host="https://kfp.example", profile="site.yaml")
    client.create_run_from_pipeline_func(my_pipeline, {"epochs": 3})

Runs, recurring runs and uploads are rewritten, from a file or a function. What fails in the rewriting costs a warning:
the pipeline is then submitted as it is; with `strict=True` it is an error, and nothing is submitted. A run that is
started from the web page does not come by here: upload the pipeline with this client, or compile it with `egs kubeflow
compile`. `EGS_MODE=observe` submits what it was given, and says what would be changed; `EGS_MODE=off` says nothing.
"""

from __future__ import annotations

import inspect
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import kfp

from egs_core.errors import InputError
from egs_core.mode import current_mode
from egs_core.notices import warn
from egs_kubeflow.convert.documents import dump_documents, load_documents
from egs_kubeflow.rewrite.changes import Rewritten
from egs_kubeflow.rewrite.history import load_history
from egs_kubeflow.rewrite.pipeline import rewrite
from egs_kubeflow.rewrite.profile import Profile, load_profile

PACKAGE = "pipeline_package_path"


class Client(kfp.Client):  # type: ignore[misc]  # kfp ships no types
    """See the module. profile: the file of the site; history: where durations are, as `egs kubeflow compile` takes it;
    strict: a profile that cannot be read, now or later, or a pipeline that cannot be rewritten, is an InputError; all
    else is `kfp.Client`'s."""

    def __init__(
        self,
        *args: Any,
        profile: str | Path | None = None,
        history: str | None = None,
        strict: bool = False,
        **kwargs: Any,
    ) -> None:
        if strict:
            _profile_of(profile)
        super().__init__(*args, **kwargs)
        self._profile, self._history, self._strict = profile, history, strict

    def run_pipeline(self, *args: Any, **kwargs: Any) -> Any:
        """As kfp's; `create_run_from_pipeline_package` and `…_func` come here too."""
        return self._submit(super().run_pipeline, args, kwargs, is_run=True)

    def create_recurring_run(self, *args: Any, **kwargs: Any) -> Any:
        """As kfp's."""
        return self._submit(super().create_recurring_run, args, kwargs)

    def upload_pipeline(self, *args: Any, **kwargs: Any) -> Any:
        """As kfp's; `upload_pipeline_from_pipeline_func` comes here too."""
        return self._submit(super().upload_pipeline, args, kwargs)

    def upload_pipeline_version(self, *args: Any, **kwargs: Any) -> Any:
        """As kfp's; `upload_pipeline_version_from_pipeline_func` comes here too."""
        return self._submit(super().upload_pipeline_version, args, kwargs)

    def _submit(self, submit: Callable[..., Any], args: Any, kwargs: Any, *, is_run: bool = False) -> Any:
        """Call one of kfp's methods with the rewritten package in the place of the given one."""
        try:
            given = inspect.signature(submit).bind(*args, **kwargs)
        except TypeError:
            return submit(*args, **kwargs)  # which says what is wrong with them
        path = given.arguments.get(PACKAGE)
        mode = current_mode(default="on")  # who makes this client has asked for it
        if path is None or mode == "off":
            return submit(*args, **kwargs)
        # Names that are a run's own only where there is one run, and its arguments only where nobody changes them.
        run_id, arguments = (uuid.uuid4().hex[:8], given.arguments.get("params")) if is_run else ("", None)
        if mode == "observe":
            self._observe(str(path), arguments or {}, run_id)
            return submit(*args, **kwargs)
        with self._rewritten(str(path), arguments or {}, run_id) as package:
            given.arguments[PACKAGE] = package
            return submit(*given.args, **given.kwargs)

    def _observe(self, path: str, arguments: Mapping[str, Any], run_id: str) -> None:
        """Say what mode on would change."""
        try:
            found = self._found(path, arguments, run_id)
        except Exception as error:  # whatever it is, the user's run comes first
            warn(f"{path} could not be rewritten: {error}")
            return
        tasks = len({change.task for change in found.changes})
        warn(
            f"observing: {path} is submitted as it is; on, {len(found.changes)} fields of {tasks} tasks would be "
            "written (egs kubeflow compile --diff shows them)"
        )

    @contextmanager
    def _rewritten(self, path: str, arguments: Mapping[str, Any], run_id: str) -> Iterator[str]:
        """The path of the rewritten package while it is submitted; the given one where that fails."""
        with TemporaryDirectory(prefix="egs-kubeflow-") as folder:
            package = Path(folder) / Path(path).with_suffix(".yaml").name
            try:
                found = self._found(path, arguments, run_id)
                package.write_text(dump_documents(found.documents))
                path = str(package)
                for note in found.notes:
                    warn(note)
            except Exception as error:  # whatever it is, the user's run comes first
                if self._strict:
                    raise
                warn(f"{path} is submitted as it is: {error}")
            yield path

    def _found(self, path: str, arguments: Mapping[str, Any], run_id: str) -> Rewritten:
        documents, profile = load_documents(path), _profile_of(self._profile)
        history = load_history(self._history, documents.name) if self._history is not None else None
        return rewrite(documents, profile, history, arguments, run_id, path)


def _profile_of(path: str | Path | None) -> Profile:
    if path is None:
        raise InputError("Client", "has no profile of the site", "Client(profile='site.yaml')")
    return load_profile(path)
