"""How a command line calls what the site server's protocol has: errors name what their reader has written."""

from __future__ import annotations

from pydantic import ValidationError

from egs_core.errors import InputError
from egs_core.validation_words import problem_of

OPTIONS = {
    "after": "--after",
    "cpus": "--cpus",
    "deadline_s": "--deadline",
    "expected_s": "--expect",
    "expires_s": "--expires",
    "flavors": "--flavor",
    "for_s": "--for",
    "gang": "--gang",
    "gpu_memory_bytes": "--gpu-memory",
    "gpus": "--gpus",
    "grace_s": "--grace",
    "host": "--host",
    "hosts": "--hosts",
    "idle_timeout_s": "--idle-timeout",
    "inside": "--in",
    "memory_bytes": "--memory",
    "more_s": "--for",
    "name": "--name",
    "on": "--on",
    "priority": "--priority",
    "reason": "--reason",
    "requeue": "--requeue",
    "role": "--role",
    "saving": "--checkpoint-signal",
    "team": "--team",
}
"""Field of a request -> option. Not in it: queue, of which the server says how it is chosen."""


def option_of(field: str) -> str:
    return OPTIONS.get(field, f"--{field.replace('_', '-')}")


def option_error(error: ValidationError) -> InputError:
    """The first wrong field of a request, by its option."""
    first = error.errors()[0]
    path = first["loc"]
    inner: dict[tuple[int | str, ...], str] = {
        ("gang", "wait_s"): "gang_wait",
        ("saving", "takes_s"): "checkpoint_takes",
    }
    field = inner.get(path, str(path[0]))
    return InputError(option_of(field), problem_of(first))


def with_options(text: str) -> str:
    """A server's refusal, which may begin with a field's name.

    >>> with_options("for_s: too long"), with_options("run 3 has ended")
    ('--for: too long', 'run 3 has ended')
    """
    field, colon, rest = text.partition(": ")
    return f"{OPTIONS[field]}: {rest}" if colon and field in OPTIONS else text
