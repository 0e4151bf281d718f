"""For which errors Ray starts a task again that may run elsewhere: as Ray asks, in a process without EGS."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

import ray

from egs_ray.settings import chosen_retry
from egs_ray.worker.moving import mark, marked, retried

ELSEWHERE = """
import pickle, sys
sys.modules["egs_ray"] = None
chosen, error = pickle.load(sys.stdin.buffer)
print(isinstance(error, chosen), isinstance(error, chosen), isinstance(KeyError(), chosen), str(error))
"""


def test_an_error_that_is_marked_counts_once_and_stays_what_it_is() -> None:
    """Ray asks by `isinstance`, with a class that it has pickled. A second time, as of a task that only waited for it,
    the same error is none to start again for."""
    error = ValueError("mine")
    mark(error)
    given = ray.cloudpickle.dumps((marked(), error))
    done = subprocess.run([sys.executable, "-c", ELSEWHERE], input=given, capture_output=True)
    assert done.stdout.decode().split() == ["True", "False", "False", "mine"], done.stderr.decode()
    chosen: Any = marked()
    assert isinstance(error, chosen)
    assert pickle.loads(pickle.dumps(error)).__dict__ == {}


def test_what_its_user_has_said_of_retries_stays() -> None:
    """All errors, some, or none: those that are marked come to these."""
    assert retried(True) is True
    assert retried((KeyError,))[0] is KeyError
    assert len(retried((KeyError,))) == 2
    assert len(retried(False)) == len(retried(None)) == 1


def test_the_variable_is_on_or_off(monkeypatch: Any) -> None:
    """Anything else is off, with what is wrong with it."""
    for said, is_on in (("", False), ("off", False), (" ON ", True)):
        monkeypatch.setenv("EGS_RETRY_OUT_OF_MEMORY", said)
        assert chosen_retry() == (is_on, "")
    monkeypatch.setenv("EGS_RETRY_OUT_OF_MEMORY", "yes")
    assert chosen_retry() == (False, "EGS_RETRY_OUT_OF_MEMORY='yes' is none of off, on: off")
