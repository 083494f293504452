"""Ring all-gather: every rank's segment travels once round the ring until all have all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..comm import check_buffer, rank_of, sendrecv, size_of
from .segments import check_segments

SMALL_BYTES = 1 << 18  # below this the steps of a ring cost more than the library's own way in fewer messages


def all_gather(
    comm: Any, buf: np.ndarray, segs: np.ndarray, arrived: Callable[[int], None] | None = None
) -> None:
    """Fill `buf`, in place, with segment r of rank r for all r.

    Args:
        comm: communicator, None for one rank.
        buf: 1-D array of equal length and dtype on all ranks, C-contiguous.
        segs: int64[size + 1], see `segments`.
        arrived: called with the number of a segment as soon as it is there, the own one first. Order: rank,
            rank - 1, ... (downwards, round the ring).

    Raises:
        TypeError, ValueError: a buffer that cannot be sent or segments that do not fit it.
    """
    size, rank = size_of(comm), rank_of(comm)
    flat = check_buffer(buf)
    check_segments(segs, len(buf), size)
    order = [(rank - step) % size for step in range(size)]
    small = buf.nbytes <= SMALL_BYTES
    if small and size > 1:
        cuts = segs * (len(flat) // max(1, len(buf)))  # float16 travels as two bytes
        own = flat[cuts[rank] : cuts[rank + 1]].copy()
        comm.Allgatherv(own, [flat, (np.diff(cuts), cuts[:-1])])
    if arrived is not None:
        arrived(rank)
    right, left = (rank + 1) % size, (rank - 1) % size
    for sent, arriving in zip(order, order[1:], strict=False):
        if not small:
            into = buf[segs[arriving] : segs[arriving + 1]]
            sendrecv(comm, buf[segs[sent] : segs[sent + 1]], right, into, left)
        if arrived is not None:
            arrived(arriving)
