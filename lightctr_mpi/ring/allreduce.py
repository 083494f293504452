"""Ring all-reduce: reduce-scatter, then all-gather."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..comm import size_of
from .allgather import all_gather
from .reduce_scatter import reduce_scatter
from .segments import SMALL_BYTES, Scratch, segments


def all_reduce(comm: Any, buf: np.ndarray, scratch: Scratch | None = None) -> None:
    """Sum a 1-D C-contiguous array over the ranks, in place; all ranks get the same bits.

    Args:
        comm: communicator, None for one rank.
        buf: array of equal length and dtype on all ranks.
        scratch: work arrays to reuse from call to call.
    """
    segs = segments(len(buf), size_of(comm))
    reduce_scatter(comm, buf, segs, scratch)
    if buf.nbytes > SMALL_BYTES:  # a smaller one is complete on every rank already
        all_gather(comm, buf, segs)
