"""Memory that the ranks of one node share: an MPI window, mapped once more so that it can lie on huge pages.

Rows of a table are touched at random, so that on pages of 4 KiB a step walks the page table for most of them
(kernels/memory.py). The kernel can put shared memory on huge pages where an address and its place in the
segment agree modulo 2 MB. Neither MPICH nor Open MPI sees to that on all ranks, so each rank maps the segment
of its window a second time, at such an address. The window is then given back at once: the memory goes with
the last rank that has it mapped, in whatever way the ranks end.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
from typing import Any

import numpy as np

from ..comm import any_rank, on_some
from ..errors import UserError

HUGE, CACHE_LINE = 2 << 20, 64  # bytes
BACKING = "OMPI_MCA_osc_sm_backing_directory"
# Where MPICH and Open MPI keep the segments of windows, without names as soon as all ranks have mapped them.
FOLDER = os.environ.get(BACKING, "/dev/shm")
SPARE = 1.05  # Open MPI refuses a segment that would leave less than this
# Numbers of Linux that Python 3.11 has no names for.
MREMAP_MAYMOVE, MREMAP_FIXED = 1, 2
MAP_NORESERVE = 0x4000
MADV_POPULATE_WRITE, MADV_COLLAPSE = 23, 25


def shared_floats(node: Any, windows: Any, n: int) -> np.ndarray:
    """float32[n] of zeros, the same memory on all ranks of a node; it starts at a cache line.

    Args:
        node: communicator of the ranks of the node, all of which call this.
        windows: MPI's class of windows.

    Raises:
        UserError: on all ranks; the node's folder of shared memory is too small.
    """
    first, size = node.Get_rank() == 0, 4 * n + CACHE_LINE
    on_some(node, first, lambda: _check_room(size))
    try:
        window = windows.Allocate_shared(size if first else 0, 1, comm=node)
    except RuntimeError as problem:  # which not all ranks need to see
        raise UserError(f"{_too_small(size)} (the MPI says: {problem})") from problem
    view = np.frombuffer(window.Shared_query(0)[0], np.uint8)[:size]
    again = _map_again(view.ctypes.data, size)
    if any_rank(node, again is None):  # the window is left to the end of MPI
        on_some(node, first, lambda: view.fill(0))
        start = -view.ctypes.data % CACHE_LINE  # of a single rank it is no page
        return view[start : start + 4 * n].view(np.float32)
    assert again is not None
    pages, at = again
    window.Free()
    memory = np.frombuffer(pages, np.uint8)[at : at + size]

    def begin() -> None:
        _take(pages, at, size)
        memory.fill(0)
        _use_huge_pages(pages, at, size)

    on_some(node, first, begin)
    if not first:
        _use_huge_pages(pages, at, size)
    return memory[: 4 * n].view(np.float32)


def _check_room(size: int) -> None:
    """Before the window is made: where it does not fit, Open MPI hangs and MPICH dies of its first use."""
    try:
        stat = os.statvfs(FOLDER)
    except OSError:
        return  # the MPI has another place
    if stat.f_bavail * stat.f_frsize < SPARE * size + HUGE:
        raise _too_small(size, stat.f_bavail * stat.f_frsize)


def _too_small(size: int, free: int | None = None) -> UserError:
    has = "" if free is None else f", {free / 2**20:,.0f} MB are free"
    return UserError(
        f"ring.replica = node: the model takes {size / 2**20:,.0f} MB of shared memory in {FOLDER}{has}; "
        "enlarge it (for containers: --shm-size), or let each rank hold the model (--ring.replica rank)"
    )


def _map_again(address: int, size: int) -> tuple[mmap.mmap, int] | None:
    """The shared memory at an address mapped a second time: the mapping, and where in it the memory begins.

    A byte's address there agrees with its place in the segment modulo HUGE. None where that cannot be done.
    """
    place = _place_in_segment(address, size)
    if place is None:
        return None
    pages = mmap.mmap(-1, size + 2 * HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
    start = np.frombuffer(pages, np.uint8).ctypes.data
    at = (place - start) % HUGE
    inside = at % mmap.PAGESIZE
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mremap.restype = ctypes.c_void_p
    libc.mremap.argtypes = (ctypes.c_void_p, *[ctypes.c_size_t] * 2, ctypes.c_int, ctypes.c_void_p)
    flags, target = MREMAP_MAYMOVE | MREMAP_FIXED, start + at - inside
    # From a shared mapping, the old size 0 makes another mapping of the same pages.
    moved = libc.mremap(address - inside, 0, size + inside, flags, target)
    return (pages, at) if moved == target else None


def _place_in_segment(address: int, size: int) -> int | None:
    """Byte of its segment that lies at an address; None where the memory is not in one shared mapping."""
    with contextlib.suppress(OSError), open("/proc/self/maps") as lines:
        for line in lines:
            extent, rights, offset = line.split()[:3]
            low, high = (int(text, 16) for text in extent.split("-"))
            if low <= address and address + size <= high:
                return address - low + int(offset, 16) if rights[3] == "s" else None
    return None


def _take(pages: mmap.mmap, at: int, size: int) -> None:
    """Make the memory of all pages exist. Without, a folder that filled up meanwhile ends the process."""
    try:
        _advise(pages, mmap.MADV_HUGEPAGE, at, size)
        _advise(pages, MADV_POPULATE_WRITE, at, size)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a kernel that lacks it
            raise _too_small(size) from error


def _use_huge_pages(pages: mmap.mmap, at: int, size: int) -> None:
    """Ask for huge pages now: as it is usually set (shmem_enabled: never), the kernel makes none later."""
    with contextlib.suppress(OSError):
        _advise(pages, MADV_COLLAPSE, at, size)


def _advise(pages: mmap.mmap, advice: int, at: int, size: int) -> None:
    inside = at % mmap.PAGESIZE
    pages.madvise(advice, at - inside, size + inside)
