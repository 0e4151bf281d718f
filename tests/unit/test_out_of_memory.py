"""Whether an error says that memory was not enough, and which: as libraries raise them, without the libraries."""

from __future__ import annotations

import pytest

from egs_core.out_of_memory import GPU, HOST, gpu_lack_in, lack_of


def error_of(module: str, name: str, text: str = "", base: type[Exception] = RuntimeError) -> Exception:
    kind: type[Exception] = type(name, (base,), {"__module__": module})
    return kind(text)


TRACEBACK = 'File "train.py", line 3\n    raise ValueError("no CUDA out of memory this time")'


def caused(cause: Exception, text: str = TRACEBACK) -> Exception:
    """As Ray hands on what a task raised."""
    error = error_of("ray.exceptions", "RayTaskError", text)
    error.cause = cause  # type: ignore[attr-defined]  # as Ray's has it
    return error


def raised_from(cause: Exception) -> Exception:
    try:
        raise ValueError("no batch fits") from cause
    except ValueError as error:
        return error


TORCH = error_of("torch", "OutOfMemoryError", "CUDA out of memory. Tried to allocate 20.00 GiB.\nGPU 0 has …")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (TORCH, f"{GPU}: CUDA out of memory. Tried to allocate 20.00 GiB."),
        (error_of("cupy.cuda.memory", "OutOfMemoryError", "Out of memory allocating 8 bytes"), GPU),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be …"), GPU),
        (error_of("jaxlib", "XlaRuntimeError", "RESOURCE_EXHAUSTED: Out of memory while trying to …"), GPU),
        (caused(TORCH), f"{GPU}: CUDA out of memory. Tried to allocate 20.00 GiB."),
        (raised_from(TORCH), GPU),
        (caused(raised_from(TORCH)), GPU),
        (MemoryError("Unable to allocate 80.0 GiB for an array"), f"{HOST}: Unable to allocate 80.0 GiB for an array"),
        (error_of("numpy._core._exceptions", "_ArrayMemoryError", "Unable to …", MemoryError), HOST),
        (
            error_of("ray.exceptions", "OutOfMemoryError", "Task was killed due to the node running low on memory."),
            HOST,
        ),
        (caused(MemoryError()), HOST),
    ],
)
def test_which_memory_was_not_enough(error: Exception, kind: str) -> None:
    assert lack_of(error).startswith(kind)


@pytest.mark.parametrize("error", [ValueError("memory"), KeyError("out"), RuntimeError("CUDA error: invalid device")])
def test_other_errors_are_none(error: Exception) -> None:
    """Nor what stands in the lines of source of a traceback."""
    assert lack_of(error) == lack_of(caused(error)) == ""


def test_errors_that_cause_each_other_come_to_an_end() -> None:
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    assert lack_of(first) == ""


@pytest.mark.parametrize(
    "line",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 16384.00 GiB. GPU 0 has a total capacity of …",
        "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 17,592,186,044,416 bytes (allocated so far: 0 …",
        "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1.00TiB with …",
    ],
)
def test_what_a_command_prints_last(line: str) -> None:
    """The lines with which programs of PyTorch 2.11, CuPy 14.2 and JAX 0.11 ended on an H200 that was too small."""
    assert gpu_lack_in(f"step 3\nTraceback (most recent call last):\n{line}\n") == f"{GPU}: {line}"


def test_what_a_command_prints_of_others() -> None:
    assert gpu_lack_in("MemoryError\nKilled: out of memory\n") == ""
