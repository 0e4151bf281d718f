"""The pages of the YAML files that users write. A key's meaning is the string below it in its model."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any, get_args, get_origin, get_type_hints

from pydantic_core import PydanticUndefined

import egs_core.cluster_file
import egs_core.cost.prices
import egs_core.model.instance
import egs_core.oidc
import egs_core.queues
import egs_core.watch_rules
import egs_kubeflow.rewrite.profile
from egs_core.yaml_file import FileModel
from scripts.reference.markdown import MissingText, code, table
from scripts.reference.types import type_name


def queues_file_page() -> str:
    """Queues and quotas."""
    intro = "Queues and their quotas, in one YAML file. An error names the file, the line and the key."
    used = "Used by `egs serve --queues FILE`, `egs simulate --queues FILE` and `egs_ray.Options(queues=…)`."
    return _page("The queues file", f"{intro} {used}", egs_core.queues, egs_core.queues.Queues)


def cluster_file_page() -> str:
    """A simulated cluster."""
    intro = "The nodes of a simulated cluster and their kinds of hardware (flavors), in one YAML file."
    model = egs_core.cluster_file._File  # the file's own model has no public name
    return _page("The cluster file", f"{intro} Used by `egs simulate --cluster FILE`.", egs_core.cluster_file, model)


def devices_file_page() -> str:
    """What a model is split over."""
    intro = "The devices that a model is split over, and the link between each two of them, in one YAML file."
    used, instance = "Used by `egs split-model --devices FILE`.", egs_core.model.instance
    return _page("The devices file", f"{intro} {used}", instance, instance.Devices)


def prices_file_page() -> str:
    """What GPUs cost."""
    intro = (
        "What a GPU costs for an hour, by flavor and from which day on. An error names the file, the line and the key."
    )
    prices = egs_core.cost.prices
    return _page("The prices file", f"{intro} Used by `egs cost --prices FILE`.", prices, prices.PriceFile)


def rules_file_page() -> str:
    """Rules that watch."""
    intro = "Rules by which a site server watches GPUs and runs. An error names the file, the line and the key."
    used, rules = "Used by `egs serve --rules FILE` and `egs watch check FILE`.", egs_core.watch_rules
    return _page("The file of rules", f"{intro} {used}", rules, rules.WatchFile)


def oidc_file_page() -> str:
    """Whose tokens count."""
    intro = (
        "Whose tokens a site server knows people by, and what they may. An error names the file, the line and the key."
    )
    used, oidc = "Used by `egs serve --oidc FILE`.", egs_core.oidc
    return _page("The file of a provider of tokens", f"{intro} {used}", oidc, oidc.OidcFile)


def profile_page() -> str:
    """A Kubeflow site."""
    intro = "What a site has that runs Kubeflow Pipelines: node pools, queues, priority classes, time limits."
    used = "Used by `egs kubeflow compile` and `manifests` (`--profile FILE`) and by `egs_kubeflow.Client`."
    profile = egs_kubeflow.rewrite.profile
    return _page("The profile of a Kubeflow site", f"{intro} {used}", profile, profile.Profile)


def _page(title: str, intro: str, module: Any, top: type[FileModel]) -> str:
    parts = [f"# {title}\n\n{intro}\n\n```yaml\n{example_in(module)}\n```\n"]
    for model in models_below(top):
        heading = "At the top of the file" if model is top else model.__name__
        parts.append(f"## {heading}\n\n" + table(("key", "value", "default", "meaning"), rows_of(model)))
    return "\n".join(parts)


def example_in(module: Any) -> str:
    """The YAML in a module's docstring: all but the prose, which ends in a full stop or a colon."""
    paragraphs = textwrap.dedent(inspect.getdoc(module) or "").split("\n\n")
    shown = [textwrap.dedent(part) for part in paragraphs if not part.rstrip().endswith((".", "written:", "more:"))]
    return "\n\n".join(shown[:1] if module is egs_kubeflow.rewrite.profile else shown)


def models_below(top: type[FileModel]) -> Iterator[type[FileModel]]:
    """The model and those of its values, each once, parents first."""
    found: dict[type[FileModel], None] = {top: None}
    for model in iter(queue := [top]):
        for annotation in get_type_hints(model, include_extras=True).values():
            for inner in _models_in(annotation):
                if inner not in found:
                    found[inner] = None
                    queue.append(inner)
    return iter(found)


def _models_in(annotation: Any) -> Iterator[type[FileModel]]:
    if isinstance(annotation, type) and get_origin(annotation) is None:
        if issubclass(annotation, FileModel):
            yield annotation
        return
    for inner in get_args(annotation):
        yield from _models_in(inner)


def rows_of(model: type[FileModel]) -> Iterator[tuple[str, str, str, str]]:
    """One row a key: its name, type, default and meaning. Raises MissingText for a key without a meaning."""
    meanings, hints = attribute_docs(model), get_type_hints(model, include_extras=True)
    for name, field in model.model_fields.items():
        if name not in meanings:
            place = f"{model.__module__}.{model.__name__}.{name}"
            raise MissingText(f"{place} has no description: add a string below the field")
        default = "required" if field.is_required() else _default(field.default)
        yield code(field.alias or name), type_name(hints[name]), default, meanings[name]


def _default(value: object) -> str:
    if isinstance(value, float) and value.is_integer():
        return code(int(value))
    return "" if value in (None, (), PydanticUndefined) or isinstance(value, FileModel) else code(value)


def attribute_docs(cls: type) -> dict[str, str]:
    """The string that stands below each annotated attribute of a class."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(tree, ast.ClassDef)
    docs: dict[str, str] = {}
    for field, after in zip(tree.body, tree.body[1:], strict=False):
        text = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else None
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, str):
            docs[field.target.id] = inspect.cleandoc(text)
    return docs
