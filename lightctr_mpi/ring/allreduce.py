"""Ring all-reduce: reduce-scatter, then all-gather."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..comm import check_buffer, size_of
from .allgather import all_gather
from .reduce_scatter import reduce_scatter, sum_small
from .segments import SMALL_BYTES, Scratch, segments


def all_reduce(comm: Any, buf: np.ndarray, scratch: Scratch | None = None) -> None:
    """Sum a 1-D C-contiguous array over the ranks, in place; all ranks get the same bits.

    Args:
        comm: communicator, None for one rank.
        buf: array of equal length and dtype on all ranks.
        scratch: work arrays to reuse from call to call.
    """
    check_buffer(buf)
    if size_of(comm) == 1:
        return
    if buf.nbytes <= SMALL_BYTES:
        sum_small(comm, buf, scratch or Scratch())
        return
    segs = segments(len(buf), size_of(comm))
    reduce_scatter(comm, buf, segs, scratch)
    all_gather(comm, buf, segs)
