"""Memory of a context: zeros that cost nothing until they are touched, and few page faults then."""

from __future__ import annotations

import contextlib
import mmap

import numpy as np

HUGE = 2 << 20
"""Bytes of a huge page (x86-64; aarch64 and riscv64 with base pages of 4 KB)."""


def zeros(nbytes: int) -> np.ndarray:
    """uint8[nbytes] of zeros; its whole huge pages are asked for as such, where the system has them.

    A first touch then brings in 2 MB at once instead of 4 KB, and a step needs fewer entries of the TLB. Raises MemoryError or
    OSError when there is no room.
    """
    if nbytes < HUGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return np.zeros(nbytes, np.uint8)
    pages = mmap.mmap(-1, nbytes + HUGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    whole = np.frombuffer(pages, np.uint8)
    start = -whole.ctypes.data % HUGE
    with contextlib.suppress(OSError):  # a kernel without them
        pages.madvise(mmap.MADV_HUGEPAGE, start, nbytes // HUGE * HUGE)
    return whole[start : start + nbytes]
