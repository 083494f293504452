"""Ring reduce-scatter: every rank ends with the sum over ranks of its own segment.

The ring of Patarasuk and Yuan (2009), "Bandwidth optimal all-reduce algorithms for clusters of workstations":
in P - 1 steps each rank passes on to its right-hand neighbour the partial sum it has just completed, so that
a rank sends and receives (P - 1)/P of the array whatever P is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..comm import check_buffer, rank_of, sendrecv, size_of
from .segments import SMALL_BYTES, Scratch, check_segments


def reduce_scatter(
    comm: Any,
    buf: np.ndarray,
    segs: np.ndarray,
    scratch: Scratch | None = None,
    before: Callable[[int], None] | None = None,
) -> None:
    """Sum `buf` over the ranks, in place; afterwards rank r holds the sum in its segment r.

    The other segments are left with partial sums. The order of additions depends on the number of ranks and
    the size of the buffer only, so equal inputs give equal bits. Integers wrap as NumPy's do.

    Args:
        comm: communicator, None for one rank.
        buf: 1-D array of equal length and dtype on all ranks, C-contiguous.
        segs: int64[size + 1], see `segments`.
        scratch: work arrays to reuse from call to call.
        before: called with the number of a segment before this rank's own values of it are used: segments may
            be filled while earlier ones travel. Order: rank - 1, rank - 2, ..., rank (down, round the ring).

    Raises:
        TypeError, ValueError: a buffer that cannot be sent or segments that do not fit it.
    """
    size, rank = size_of(comm), rank_of(comm)
    check_buffer(buf)
    check_segments(segs, len(buf), size)
    order = [(rank - 1 - step) % size for step in range(size)]
    if size == 1 or buf.nbytes <= SMALL_BYTES:
        if before is not None:
            for segment in order:
                before(segment)
        if size > 1:
            sum_small(comm, buf, scratch or Scratch())
        return
    room = (scratch or Scratch()).array("segment", int(np.diff(segs).max()), buf.dtype)
    right, left = (rank + 1) % size, (rank - 1) % size
    if before is not None:
        before(order[0])
    for sent, arriving in zip(order, order[1:], strict=False):
        own = buf[segs[arriving] : segs[arriving + 1]]
        partial = room[: len(own)]
        sendrecv(comm, buf[segs[sent] : segs[sent + 1]], right, partial, left)
        if before is not None:
            before(arriving)
        np.add(partial, own, out=own)


def sum_small(comm: Any, buf: np.ndarray, scratch: Scratch) -> None:
    """The whole sum on every rank, from everyone's values, added in rank order."""
    table = scratch.array("table", (size_of(comm), len(buf)), buf.dtype)
    comm.Allgather(check_buffer(buf), check_buffer(table))
    np.copyto(buf, table[0])
    for row in table[1:]:
        np.add(buf, row, out=buf)
