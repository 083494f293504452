"""Small kernels on rows of a table and on columns of a block."""

from __future__ import annotations

import numpy as np

from .jit import jit_exact


@jit_exact
def _translate(source, table, out):
    for i in range(len(source)):
        at = source[i]
        out[i] = table[at] if at >= 0 else -1


def translate(source: np.ndarray, table: np.ndarray) -> np.ndarray:
    """int32[n]: table[source], with -1 staying -1."""
    out = np.empty(len(source), np.int32)
    _translate(np.ascontiguousarray(source), table, out)
    return out


@jit_exact
def _nonzero_rows(table, first, end, out):
    n = 0
    for i in range(first, end):
        for d in range(table.shape[1]):
            if table[i, d] != 0.0:
                out[n] = i
                n += 1
                break
    return n


def nonzero_rows(table: np.ndarray, first: int, end: int) -> np.ndarray:
    """int32[m]: the rows in [first, end) of a float32 table that have an entry other than 0."""
    out = np.empty(end - first, np.int32)
    return out[: _nonzero_rows(table, first, end, out)]


@jit_exact
def _all_finite(rows, width):
    for i in range(len(rows)):
        for d in range(width):
            if not np.isfinite(rows[i, d]):
                return False
    return True


def all_finite(rows: np.ndarray, width: int) -> bool:
    """Whether the first `width` columns hold finite numbers only."""
    return bool(_all_finite(rows, width))


@jit_exact
def longest_row(indptr, rows):
    """The largest number of entries of the given rows, at least 1."""
    longest = 1
    for i in rows:
        longest = max(longest, indptr[i + 1] - indptr[i])
    return longest
