"""Entries of a row that name the same (field, id): their values add up."""

from __future__ import annotations

import numpy as np

from .jit import inline_exact, jit_exact

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2^64 divided by the golden ratio: Fibonacci hashing
_32 = np.uint64(32)


@inline_exact
def _slot(field, key, mask):
    """Start of the search for (field, key) in a table of mask + 1 slots."""
    mixed = (key ^ (np.uint64(field) << _32)) * _GOLDEN
    return np.int64((mixed ^ (mixed >> _32)) & np.uint64(mask))


@inline_exact
def _grows(fields, ids, begin, end):
    """Whether (field, id) strictly grows from entry to entry, as in most files: then nothing repeats."""
    for e in range(begin + 1, end):
        if fields[e] < fields[e - 1] or (fields[e] == fields[e - 1] and ids[e] <= ids[e - 1]):
            return False
    return True


@jit_exact
def merge_rows(indptr, fields, ids, values, ones, slots, bad):
    """Merges equal (field, id) of each row in place; the first occurrence keeps its position.

    Args:
        indptr: int64[n + 1], rewritten.
        fields: int32[nnz], or int32[nnz] of any one value where the format has none.
        ids: uint64[nnz].
        values: float32[nnz], or float32[0] when `ones`.
        ones: every value is 1: stop at the first repetition instead of merging it.
        slots: int64[power of two >= 2 * longest row], all -1. Holds entry numbers of merged rows; as these
            grow from row to row, what an earlier row left is known to be stale and needs no clearing.
        bad: uint8[n], 0; becomes 1 for a row in which a sum overflowed float32.

    Returns the number of entries left, or -1 if `ones` and something repeats (nothing is changed then).
    """
    mask = len(slots) - 1
    kept = 0
    end = indptr[0]
    for row in range(len(indptr) - 1):
        begin = end
        end = indptr[row + 1]
        first = kept
        if _grows(fields, ids, begin, end):
            if kept == begin:
                kept = end
            else:
                for e in range(begin, end):
                    fields[kept], ids[kept], values[kept] = fields[e], ids[e], values[e]
                    kept += 1
        else:
            for e in range(begin, end):
                at = _slot(fields[e], ids[e], mask)
                seen = slots[at]
                while seen >= first and (ids[seen] != ids[e] or fields[seen] != fields[e]):
                    at = (at + 1) & mask
                    seen = slots[at]
                if seen < first:
                    slots[at] = kept
                    if kept != e:
                        fields[kept], ids[kept], values[kept] = fields[e], ids[e], values[e]
                    kept += 1
                elif ones:
                    return -1
                else:
                    values[seen] += values[e]
                    bad[row] |= not np.isfinite(values[seen])
        indptr[row + 1] = kept
    return kept
