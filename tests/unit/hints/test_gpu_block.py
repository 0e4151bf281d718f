"""`with egs.gpu():` and its provider: taken once, given back always."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

import egs_core as egs
from egs_core.errors import InputError
from egs_core.hints import gpu_provider, set_gpu_provider


class Recorder:
    """A provider that lends device `base` and writes down what happened."""

    def __init__(self, base: int = 0) -> None:
        self.base = base
        self.calls: list[str] = []

    def acquire(self, cpus: float | None = None) -> tuple[int, ...]:
        self.calls.append("acquire" if cpus is None else f"acquire {cpus:g}")
        return (self.base, self.base + 1)

    def release(self) -> None:
        self.calls.append("release")


@pytest.fixture
def provider() -> Iterator[Recorder]:
    recorder = Recorder()
    set_gpu_provider(recorder)
    yield recorder
    set_gpu_provider(None)


def test_without_a_provider_nothing_happens() -> None:
    """The block gives no devices and runs its body."""
    with egs.gpu() as devices:
        assert devices == ()


def test_a_lease_lasts_as_long_as_the_block(provider: Recorder) -> None:
    """Two blocks in a row take and give back twice; cpus reaches the provider where written."""
    with egs.gpu() as devices:
        assert devices == (0, 1)
        assert provider.calls == ["acquire"]
    with egs.gpu(cpus=2):
        pass
    assert provider.calls == ["acquire", "release", "acquire 2", "release"]


def test_a_nested_block_does_nothing(provider: Recorder) -> None:
    """The inner block sees the outer one's devices and does not give them back."""
    with egs.gpu(), egs.gpu(cpus=9) as devices:
        assert devices == (0, 1)
    assert provider.calls == ["acquire", "release"]


def test_an_exception_gives_the_gpu_back(provider: Recorder) -> None:
    """The body's exception comes through, after the release."""
    with pytest.raises(KeyError), egs.gpu():
        raise KeyError
    assert provider.calls == ["acquire", "release"]


def test_a_failed_acquire_leaves_nothing_open() -> None:
    """What the provider raises reaches the task; nothing is released that was not taken, and the next try counts."""

    class Refusing(Recorder):
        def acquire(self, cpus: float | None = None) -> tuple[int, ...]:
            devices = super().acquire(cpus)
            if len(self.calls) == 1:
                raise TimeoutError
            return devices

    refusing = Refusing()
    with gpu_provider(refusing):
        with pytest.raises(TimeoutError), egs.gpu():
            pass
        with egs.gpu():
            pass
    assert refusing.calls == ["acquire", "acquire", "release"]


def test_threads_of_a_task_share_its_lease(provider: Recorder) -> None:
    """A block in a helper thread inside the task's block joins the lease; the last one out gives it back."""
    seen: list[tuple[int | str, ...]] = []
    inside, leave = threading.Event(), threading.Event()

    def helper() -> None:
        with egs.gpu() as devices:
            seen.append(devices)
            inside.set()
            leave.wait(240)

    with egs.gpu():
        thread = threading.Thread(target=helper)
        thread.start()
        assert inside.wait(240)
    assert provider.calls == ["acquire"]
    leave.set()
    thread.join(240)
    assert (seen, provider.calls) == ([(0, 1)], ["acquire", "release"])


def test_tasks_in_one_process_keep_their_own_provider(provider: Recorder) -> None:
    """A provider set for a context is used there only, also while another task holds the process's."""
    own, seen = Recorder(base=10), []

    def other_task() -> None:
        with gpu_provider(own), egs.gpu() as devices:
            seen.append(devices)

    with egs.gpu():
        thread = threading.Thread(target=other_task)
        thread.start()
        thread.join(240)
    assert seen == [(10, 11)]
    assert own.calls == provider.calls == ["acquire", "release"]


def test_a_changed_provider_does_not_disturb_an_open_block(provider: Recorder) -> None:
    """The block gives back to the one it took from."""
    with egs.gpu():
        set_gpu_provider(None)
    assert provider.calls == ["acquire", "release"]


def test_async_with_is_a_clear_error() -> None:
    """The message tells what to write instead."""

    async def body() -> None:
        async with egs.gpu():
            pass

    with pytest.raises(InputError, match=r"write 'with egs\.gpu\(\):'"):
        asyncio.run(body())


def test_phases_hold_the_gpu_only_in_gpu_phases(provider: Recorder) -> None:
    """Of three phase functions the marked one runs between acquire and release."""
    steps = egs.phases(
        lambda: provider.calls.append("decode"),
        egs.on_gpu(lambda _: provider.calls.append("fit"), cpus=2),
        lambda _: provider.calls.append("write"),
        name="steps",
    )
    steps()
    assert provider.calls == ["decode", "acquire 2", "fit", "release", "write"]
