"""Asking memory for table rows before they are needed: rows of data touch them at random."""

from __future__ import annotations

import numpy as np

from .jit import inline
from .simd import prefetch

LINE = 16  # float32 in a cache line


@inline
def fetch_entries(table, ids, a, b, columns):
    """Ask for the first columns of the rows ids[a:b] of a table; an id of -1 does no harm.

    table: float32[n, stride]; ids: int32[nnz].
    """
    stride = table.shape[1]
    for e in range(a, b):
        start = np.int64(ids[e]) * stride
        for c in range(0, columns, LINE):
            prefetch(table, start + c)


@inline
def fetch_row(csr, target, i):
    """Ask for what the row i of data itself consists of: rows are visited in random order.

    csr: indptr, ids, fields, values, norms; target: labels, weights; empty where there are none. Bounds of
    the row have to be at hand.
    """
    (indptr, ids, fields, values, norms), (labels, weights) = csr, target
    a, b = indptr[i], indptr[i + 1]
    for e in range(a, b + LINE - 1, LINE):
        prefetch(ids, e)
        if fields.size > 0:
            prefetch(fields, e)
        if values.size > 0:
            prefetch(values, e)
    prefetch(norms, i)
    prefetch(labels, i)
    if weights.size > 0:
        prefetch(weights, i)
