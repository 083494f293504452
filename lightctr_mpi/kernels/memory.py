"""Memory for tables of parameters: rows that do not straddle cache lines, on huge pages where the kernel
offers them.

A training step touches rows at random, so that on 4 KiB pages nearly every row costs a walk of the page
table.
"""

from __future__ import annotations

import contextlib
import mmap

import numpy as np

LINE = 16  # float32 in a cache line of 64 bytes


def row_stride(columns: int) -> int:
    """Floats from one row to the next: whole cache lines, or a power of two below one line."""
    if columns <= 0:
        raise ValueError(f"a row needs at least one column, not {columns}")
    if columns < LINE:
        return 1 << (columns - 1).bit_length()
    return -(-columns // LINE) * LINE


def alloc_rows(n: int, stride: int) -> np.ndarray:
    """float32[n, stride] of zeros whose pages come into being when they are first written.

    The array is C-contiguous and starts at a page; the memory goes back when the last view is gone.
    Raises MemoryError (with the size) if the address space does not hold it.
    """
    size = n * stride * 4
    if size == 0:
        return np.zeros((n, stride), np.float32)
    try:
        pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"cannot allocate {size / 2**20:.0f} MB for {n} rows of parameters") from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without transparent huge pages
            pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, np.float32).reshape(n, stride)
