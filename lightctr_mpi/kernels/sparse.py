"""From the ids of a batch to the rows of a table and back."""

from __future__ import annotations

import numpy as np

from .jit import jit, jit_exact
from .memory import alloc_rows, row_stride
from .simd import prefetch

__all__ = [
    "alloc_rows",
    "gather_rows",
    "localize",
    "row_norms",
    "row_stride",
    "scatter_add_rows",
    "scatter_set_rows",
    "take_rows",
]


_AHEAD = 32  # entries that memory is asked for in advance


@jit_exact
def _mark(ids, scratch, found):
    """Write each distinct non-negative id once into `found` and mark it in `scratch`; returns how many."""
    u = 0
    for e in range(len(ids)):
        if e + _AHEAD < len(ids):
            prefetch(scratch, ids[e + _AHEAD])
        j = ids[e]
        if j >= 0 and scratch[j] < 0:
            scratch[j] = 0
            found[u] = j
            u += 1
    return u


@jit_exact
def _number(ids, unique, scratch, local):
    """local[e] = position of ids[e] in `unique`; `scratch` is left as it was found, full of -1."""
    for u in range(len(unique)):
        scratch[unique[u]] = u
    for e in range(len(ids)):
        if e + _AHEAD < len(ids):
            prefetch(scratch, ids[e + _AHEAD])
        local[e] = scratch[ids[e]] if ids[e] >= 0 else -1
    for u in range(len(unique)):
        scratch[unique[u]] = -1


def localize(ids: np.ndarray, scratch: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct ids of a batch in ascending order, and the position of each entry among them.

    Args:
        ids: int32[nnz] compact ids, -1 for unseen.
        scratch: int32[n_keys] full of -1; it is so again afterwards, and only entries in use are touched.

    Returns:
        unique int32[u], local int32[nnz] with unique[local] == ids, -1 where the id is -1.
    """
    found = np.empty(min(len(ids), len(scratch)), np.int32)
    unique = found[: _mark(ids, scratch, found)]
    unique.sort()
    local = np.empty(len(ids), np.int32)
    _number(ids, unique, scratch, local)
    return unique, local


@jit
def gather_rows(rows, ids, out):
    """out[i] = first columns of rows[ids[i]]; zeros for an id of -1.

    rows: float32[n, stride]; ids: int32[u]; out: float32[u, width], width <= stride.
    """
    for i in range(len(ids)):
        j = ids[i]
        if j >= 0:
            for c in range(out.shape[1]):
                out[i, c] = rows[j, c]
        else:
            for c in range(out.shape[1]):
                out[i, c] = 0


@jit
def scatter_set_rows(rows, ids, source):
    """First columns of rows[ids[i]] = source[i]. rows: float32[n, stride]; source: float32[u, width]."""
    for i in range(len(ids)):
        j = ids[i]
        if j >= 0:
            for c in range(source.shape[1]):
                rows[j, c] = source[i, c]


@jit
def scatter_add_rows(rows, ids, source):
    """First columns of rows[ids[i]] += source[i], in the order of i. Shapes as in `scatter_set_rows`."""
    for i in range(len(ids)):
        j = ids[i]
        if j >= 0:
            for c in range(source.shape[1]):
                rows[j, c] += source[i, c]


@jit_exact
def _row_norms(indptr, values, out, on):
    for i in range(len(out)):
        total = 0.0
        if on and values.size > 0:
            for e in range(indptr[i], indptr[i + 1]):
                total += np.float64(values[e]) * np.float64(values[e])
        elif on:
            total = float(indptr[i + 1] - indptr[i])
        out[i] = 1.0 / np.sqrt(total) if total > 0.0 else 1.0


def row_norms(indptr: np.ndarray, values: np.ndarray | None, out: np.ndarray, on: bool) -> None:
    """out[i] = 1 / sqrt(sum of squares of the values of row i), or 1 where that sum is 0 or `on` is False.

    Args:
        indptr: int64[n + 1]; values: float32[nnz], None or empty when every value is 1; out: float32[n].
        The sum is float64, so that counts of 1e20 do not overflow.
    """
    _row_norms(indptr, np.empty(0, np.float32) if values is None else values, out, bool(on))


@jit_exact
def _row_ends(indptr, rows, out):
    """out = indptr of the gathered rows."""
    out[0] = 0
    for i in range(len(rows)):
        out[i + 1] = out[i] + indptr[rows[i] + 1] - indptr[rows[i]]


@jit_exact
def _take_entries(indptr, rows, ends, ids, fields, values, out_ids, out_fields, out_values):
    """Copy the entries of the rows; an empty `fields` or `values` is not there."""
    for i in range(len(rows)):
        start, first, last = ends[i], indptr[rows[i]], indptr[rows[i] + 1]
        for e in range(last - first):
            out_ids[start + e] = ids[first + e]
        if fields.size > 0:
            for e in range(last - first):
                out_fields[start + e] = fields[first + e]
        if values.size > 0:
            for e in range(last - first):
                out_values[start + e] = values[first + e]


def take_rows(
    indptr: np.ndarray,
    ids: np.ndarray,
    fields: np.ndarray | None,
    values: np.ndarray | None,
    rows: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, np.ndarray | None]:
    """Gather rows of a CSR matrix in the given order, repeats allowed.

    Args:
        indptr: int64[n + 1]; ids: int32[nnz]; fields: int32[nnz] or None; values: float32[nnz] or None.
        rows: int64[m] row numbers.

    Returns:
        indptr int64[m + 1], ids, fields, values of the gathered rows, freshly allocated.
    """
    ends = np.empty(len(rows) + 1, np.int64)
    _row_ends(indptr, rows, ends)
    nnz = int(ends[-1])
    no_fields, no_values = np.empty(0, np.int32), np.empty(0, np.float32)
    out_ids = np.empty(nnz, np.int32)
    out_fields = no_fields if fields is None else np.empty(nnz, np.int32)
    out_values = no_values if values is None else np.empty(nnz, np.float32)
    _take_entries(
        indptr,
        rows,
        ends,
        ids,
        no_fields if fields is None else fields,
        no_values if values is None else values,
        out_ids,
        out_fields,
        out_values,
    )
    return ends, out_ids, None if fields is None else out_fields, None if values is None else out_values
