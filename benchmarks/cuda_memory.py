"""Device memory without a package: CUDA's driver library through ctypes, and what a device has in use as NVML says.

What `gpu_paths` and the test on a real GPU need: a context, some memory in it, and a look from outside. The functions
are those of cuda.h; each returns 0 when it went well.
"""

from __future__ import annotations

import ctypes
import os
import time
from typing import Any

LIBRARY = "libcuda.so.1"
LAUNCH_CYCLES = 50_000_000
"""Of a launch of `compute`: some 30 ms at 1.7 GHz."""
SPIN = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry spin(.param .u64 cycles)
{
    .reg .u64 %rd<5>;
    .reg .pred %p;
    ld.param.u64 %rd1, [cycles];
    mov.u64 %rd2, %clock64;
AGAIN:
    mov.u64 %rd3, %clock64;
    sub.u64 %rd4, %rd3, %rd2;
    setp.lt.u64 %p, %rd4, %rd1;
    @%p bra AGAIN;
    ret;
}
"""
_kept: list[Any] = []


class CudaError(RuntimeError):
    """A call of the driver library that did not go well."""


def why_no_gpu() -> str:
    """Why there is no device to use here; "" when there is one. Initialises CUDA in this process."""
    try:
        cuda = ctypes.CDLL(LIBRARY)
    except OSError:
        return f"no {LIBRARY}: no NVIDIA driver on this machine"
    count = ctypes.c_int()
    if code := cuda.cuInit(0):
        return f"cuInit: error {code}"
    if code := cuda.cuDeviceGetCount(ctypes.byref(count)):
        return f"cuDeviceGetCount: error {code}"
    return "" if count.value else "the driver shows no device"


def take_device_memory(size_bytes: int) -> int:
    """Make this process's primary context on the first device it sees and take memory there; the device's total memory.
    Both stay until the process ends, as with the libraries that people use."""
    cuda = ctypes.CDLL(LIBRARY)
    _check("cuInit", cuda.cuInit(0))
    device, context = ctypes.c_int(), ctypes.c_void_p()
    _check("cuDeviceGet", cuda.cuDeviceGet(ctypes.byref(device), 0))
    _check("cuDevicePrimaryCtxRetain", cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
    _check("cuCtxSetCurrent", cuda.cuCtxSetCurrent(context))
    memory = ctypes.c_uint64()
    _check("cuMemAlloc", cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(size_bytes)))
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    _check("cuMemGetInfo", cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
    _kept.append((cuda, context, memory, size_bytes))
    return total.value


def fill_device(word: int) -> None:
    """Fill the memory that was taken with a 32-bit word."""
    cuda, _, memory, size_bytes = _kept[-1]
    _check("cuMemsetD32", cuda.cuMemsetD32_v2(memory, ctypes.c_uint(word), ctypes.c_size_t(size_bytes // 4)))
    _check("cuCtxSynchronize", cuda.cuCtxSynchronize())


def words_on_device() -> set[int]:
    """The 32-bit words in the first, a middle and the last MiB of the memory that was taken."""
    cuda, _, memory, size_bytes = _kept[-1]
    piece = (ctypes.c_uint * (1 << 18))()
    found = set[int]()
    for at in (0, size_bytes // 2 & ~3, size_bytes - ctypes.sizeof(piece)):
        begin = ctypes.c_uint64(memory.value + at)
        _check("cuMemcpyDtoH", cuda.cuMemcpyDtoH_v2(piece, begin, ctypes.c_size_t(ctypes.sizeof(piece))))
        found |= set(piece)
    return found


def copy_to_device(data: bytearray) -> None:
    """Copy host memory into device memory that was taken before."""
    cuda, _, memory, _ = _kept[-1]
    source = (ctypes.c_char * len(data)).from_buffer(data)
    _check("cuMemcpyHtoD", cuda.cuMemcpyHtoD_v2(memory, source, ctypes.c_size_t(len(data))))


def compute(seconds: float) -> None:
    """Keep the device that was taken at work: one block of threads that only reads its clock, launched again and again
    until so many seconds are over. NVML counts the time in which a kernel runs, however small."""
    cuda, module, kernel = _kept[-1][0], ctypes.c_void_p(), ctypes.c_void_p()
    _check("cuModuleLoadData", cuda.cuModuleLoadData(ctypes.byref(module), ctypes.c_char_p(SPIN)))
    _check("cuModuleGetFunction", cuda.cuModuleGetFunction(ctypes.byref(kernel), module, b"spin"))
    cycles = ctypes.c_uint64(LAUNCH_CYCLES)
    arguments = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(cycles), ctypes.c_void_p))
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        launched = cuda.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, None, arguments, None)
        _check("cuLaunchKernel", launched)
        _check("cuCtxSynchronize", cuda.cuCtxSynchronize())


def visible_count() -> int:
    """How many devices CUDA shows this process: 0 also where it finds none to initialise."""
    cuda, count = ctypes.CDLL(LIBRARY), ctypes.c_int()
    if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)):
        return 0
    return count.value


def used_bytes(device: int | str) -> int | None:
    """Memory of a device that is in use, by whomever; None without nvidia-ml-py, or where NVML does not say."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        try:
            by_number = isinstance(device, int)
            handle = (pynvml.nvmlDeviceGetHandleByIndex if by_number else pynvml.nvmlDeviceGetHandleByUUID)(device)
            return int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return None


def in_sight() -> str:
    return os.environ.get("CUDA_VISIBLE_DEVICES", "unset")


def _check(what: str, code: int) -> None:
    if code:
        raise CudaError(f"{what}: error {code}")
