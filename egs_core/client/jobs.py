"""What `egs run` was asked for, and where it is kept, so that `egs redo` can ask again.

The server knows no command. Its user's own `egs run` writes it into a file that is this user's alone (mode 600): the
arguments, the folder, the wishes; not the environment, which is that of whoever says `egs redo`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from egs_core.client import messages as c
from egs_core.client.gang_env import gang_variables
from egs_core.client.phases import Wish
from egs_core.described import describe
from egs_core.errors import EgsError
from egs_core.places import data_folder

KEPT_S = 31 * 86400.0
NOT_STARTED_CODES = (126, 127)  # the command is not there, or cannot be executed: it will not be there again
NO_GPUS: dict[str, Any] = {"gpus": 0, "gpu_memory_bytes": 0, "flavors": []}
INDEX, SIZE, TRY = "EGS_ARRAY_INDEX", "EGS_ARRAY_SIZE", "EGS_TRY"


class Job(msgspec.Struct, frozen=True, omit_defaults=True):
    """fields: of `RunRequest`, but key and supervisor. retries: how often a command that fails is started again, where
    its exit code is one of retry_on (none: any code). index, size: of an array's member; size 0: of none. is_split:
    it has its GPUs only inside of `with egs.gpu():`. has_terminal: it gets one (`--pty`).
    idle_s: after so long without work it is ended. torch_env: one of a gang finds what PyTorch's env:// wants.
    or_flavors: of GPUs, on which it is tried again, in order, when it ends for lack of a GPU's memory. mlflow_loss: the
    metric that it logs to MLflow whose latest value is its loss; "": none. suspends: where it is evicted its processes
    are put aside and go on later. preload: modules that its Python imports while it waits; keep_ready: so many
    processes that have imported them may stand ready between its runs."""

    command: list[str]
    folder: str
    fields: dict[str, Any]
    retries: int = 0
    retry_on: list[int] = []
    index: int = 0
    size: int = 0
    is_detached: bool = False
    is_split: bool = False
    has_terminal: bool = False
    idle_s: float | None = None
    torch_env: bool = False
    or_flavors: list[str] = []
    mlflow_loss: str = ""
    suspends: bool = False
    preload: list[str] = []
    keep_ready: int = 0

    @property
    def request(self) -> dict[str, Any]:
        """Fields of its own request: what is split asks for its GPUs later."""
        return {**self.fields, **NO_GPUS} if self.is_split else self.fields

    def wish(self, run: str) -> Wish:
        """What the GPU phases of something split ask for."""
        kept = ("gpus", "gpu_memory_bytes", "queue", "priority", "flavors")
        fields = {name: self.fields[name] for name in kept if name in self.fields}
        return Wish(run, {**fields, "name": f"{self.fields['name']} (GPU, of run {run})"})

    def variables(self, starts: int, gang: c.GangView | None, environment: Mapping[str, str]) -> dict[str, str]:
        """What it finds in its environment at this start, the first of which is 1, beside what its user has set."""
        found = {INDEX: str(self.index), SIZE: str(self.size)} if self.size else {}
        found |= {TRY: str(starts)} if self.starts_again else {}
        return found | gang_variables(gang, self.torch_env, environment)

    @property
    def starts_again(self) -> bool:
        """Whether it may be started more than once."""
        return bool(self.retries or self.fields.get("requeue"))

    def tries_again(self, tries: int, code: int) -> bool:
        """Whether to start again after so many tries, the last of which has ended with this exit code."""
        is_meant = code in self.retry_on if self.retry_on else code not in (0, *NOT_STARTED_CODES)
        return tries <= self.retries and is_meant


describe(Job)


def keep(job: Job, view: c.RunView) -> None:
    """Write it down, and remove what is too old to be of use. Raises OSError."""
    path = _file(view.site, view.id)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(msgspec.json.encode(job))
    for old in path.parent.iterdir():
        if old.stat().st_mtime < time.time() - KEPT_S:
            old.unlink(missing_ok=True)


def kept(view: c.RunView) -> Job:
    """What the run was asked for. Raises EgsError where this user has not asked for it here."""
    try:
        return msgspec.json.decode(_file(view.site, view.id).read_bytes(), type=Job)
    except (OSError, msgspec.MsgspecError):
        raise EgsError(f"run {view.id}: this user has no file here with its command: start it by `egs run`") from None


def waiting_for(view: c.RunView) -> Iterator[tuple[str, Job]]:
    """Runs of this user that were to start after this one, with their numbers, in order."""
    folder = _file(view.site, view.id).parent
    numbers = [path.stem.removeprefix(f"{view.site}-") for path in folder.glob(f"{view.site}-*.json")]
    for number in sorted((one for one in numbers if one.isdecimal()), key=int):
        try:
            job = msgspec.json.decode(_file(view.site, number).read_bytes(), type=Job)
        except (OSError, msgspec.MsgspecError):
            continue
        if any(one["run"] == view.id for one in job.fields.get("after", ())):
            yield number, job


def _file(site: str, run: str) -> Path:
    return data_folder() / "jobs" / f"{site}-{run}.json"
