"""Rows of a CSR matrix, picked in any order."""

from __future__ import annotations

from .jit import jit_exact
from .simd import prefetch

AHEAD = 8  # rows that memory is asked for in advance
LINE = 16  # entries in a cache line


@jit_exact
def copy_rows(indptr, column, rows, places, starts, out):
    """out[starts[p] : ...] = the entries of row rows[i], for p = places[i].

    Args:
        indptr: int64[n + 1].
        column: int32[nnz] (a float32 column is handed as its bits, so that one compiled kernel serves all).
        rows: int64[m], each in [0, n).
        places: int64[m] positions in `starts`.
        starts: int64[>= max(places) + 1].
        out: int32[...].
    """
    for i in range(len(rows)):
        if i + AHEAD < len(rows):
            later = rows[i + AHEAD]
            for e in range(indptr[later], indptr[later + 1], LINE):
                prefetch(column, e)
        first = indptr[rows[i]]
        to = starts[places[i]]
        for e in range(indptr[rows[i] + 1] - first):
            out[to + e] = column[first + e]
