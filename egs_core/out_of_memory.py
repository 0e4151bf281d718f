"""Whether an attempt ended because memory was not enough, and which: a GPU's, or the host's. By its error's type and
text, as libraries have them; what cannot be told so is no lack of memory.

    torch.OutOfMemoryError: CUDA out of memory. Tried to allocate …      a GPU's: one with more would do
    MemoryError, a worker that was killed for its host's memory          the host's: the task asks for more
"""

from __future__ import annotations

from collections.abc import Iterator

GPU = "out of GPU memory"
HOST = "out of main memory"
"""How the reason of an end begins."""
MOST_CAUSES = 10
ON_A_GPU = (
    "cuda out of memory",
    "cuda error: out of memory",
    "cuda_error_out_of_memory",
    "hip out of memory",
    "cudaerrormemoryallocation",
    "cublas_status_alloc_failed",
    "resource_exhausted: out of memory",
    "cupy.cuda.memory.outofmemoryerror",
)
LACKS = "OutOfMemoryError"
"""Name of torch's and CuPy's error, and of those of frameworks that end a process for its host's memory."""
OF_GPUS = ("torch", "cupy")


def lack_of(error: BaseException) -> str:
    """GPU or HOST with the error's first line, "" for an error of another kind.

    >>> lack_of(RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"))
    'out of GPU memory: CUDA out of memory. Tried to allocate 2 GiB'
    >>> lack_of(MemoryError()), lack_of(OSError("no such file"))
    ('out of main memory', '')
    """
    for one in _causes(error):
        text = str(one).strip()
        line = text.splitlines()[0][:200] if text else ""
        if any(words in text.lower() for words in ON_A_GPU):
            said = next((part for part in text.splitlines() if any(words in part.lower() for words in ON_A_GPU)), line)
            return f"{GPU}: {said.strip()[:200]}"
        kinds = [(kind.__module__, kind.__name__) for kind in type(one).__mro__]
        lacking = [module for module, name in kinds if name == LACKS]
        if isinstance(one, MemoryError) or lacking:
            is_of_a_gpu = any(module.partition(".")[0] in OF_GPUS for module in lacking)
            kind = GPU if is_of_a_gpu else HOST
            return f"{kind}: {line}" if line else kind
    return ""


def gpu_lack_in(text: str) -> str:
    """GPU with the last line that says so, of what a command has printed; "" where none does.

    >>> gpu_lack_in("step 3\\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\\n")
    'out of GPU memory: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB'
    """
    found = [line.strip()[:200] for line in text.splitlines() if any(words in line.lower() for words in ON_A_GPU)]
    return f"{GPU}: {found[-1]}" if found else ""


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error, and what it came of. A framework may keep that in `cause`: then its own error's text is a traceback,
    in which lines of source may say anything, and it is left out."""
    one: object = error
    for _ in range(MOST_CAUSES):
        if not isinstance(one, BaseException):
            return
        told = getattr(one, "cause", None)
        if not isinstance(told, BaseException):
            yield one
        one = told or one.__cause__ or one.__context__
