"""Entries of a row that name the same (field, id): their values add up."""

from __future__ import annotations

import numpy as np

from .jit import inline_exact, jit_exact

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2^64 divided by the golden ratio: Fibonacci hashing
_32 = np.uint64(32)
_FEW_SLOTS = 1 << 13  # 64 kB: a row of 40 entries is free of collisions in 9 of 10 cases


@inline_exact
def _slot(field, key, mask):
    """Start of the search for (field, key) in a table of mask + 1 slots."""
    mixed = (key ^ (np.uint64(field) << _32)) * _GOLDEN
    return np.int64((mixed ^ (mixed >> _32)) & np.uint64(mask))


@jit_exact
def grows(indptr, fields, ids, has_fields):
    """Whether fields (without any: ids) strictly grow in all rows, as in most files: then nothing repeats.

    All pairs of neighbours are compared at once, then those on both sides of a row's start are let off.
    """
    falls = 0
    if has_fields:
        for e in range(1, indptr[-1]):
            falls += fields[e] <= fields[e - 1]
    else:
        for e in range(1, indptr[-1]):
            falls += ids[e] <= ids[e - 1]
    for row in range(len(indptr) - 1):
        e = indptr[row]
        if 0 < e < indptr[row + 1]:
            falls -= fields[e] <= fields[e - 1] if has_fields else ids[e] <= ids[e - 1]
    return falls == 0


@jit_exact
def _surely_distinct(fields, ids, begin, end, kept, slots):
    """Whether no two entries of a row share a slot; else the slots are left as they were, or stale.

    No branch depends on the data. Entries are noted as if the first of them became number `kept`.
    """
    mask = len(slots) - 1
    clashes = 0
    for e in range(begin, end):
        at = _slot(fields[e], ids[e], mask)
        clashes += slots[at] >= kept
        slots[at] = kept + e - begin
    if clashes == 0:
        return True
    for e in range(begin, end):
        slots[_slot(fields[e], ids[e], mask)] = -1
    return False


def slots_for(longest: int) -> np.ndarray:
    """Room for `merge_rows` on rows of up to `longest` entries."""
    return np.full(max(2 << max(longest - 1, 0).bit_length(), _FEW_SLOTS), -1, np.int64)


@jit_exact
def merge_rows(indptr, fields, ids, values, ones, slots, bad, start):
    """Merges equal (field, id) of each row in place; the first occurrence keeps its position.

    Args:
        indptr: int64[n + 1], rewritten.
        fields: int32[nnz], or int32[nnz] of any one value where the format has none.
        ids: uint64[nnz].
        values: float32[nnz], or float32[0] when `ones`.
        ones: every value is 1: stop at the first repetition instead of merging it.
        slots: of `slots_for`. Holds entry numbers of merged rows; as these grow from row to row, what an
            earlier row left is known to be stale and needs no clearing.
        bad: uint8[n], 0; becomes 1 for a row in which a sum overflowed float32.
        start: row to begin with; before it nothing repeats.

    Returns the number of entries left, or -1 - row if `ones` and something repeats in this row (nothing is
    changed then).
    """
    mask = len(slots) - 1
    kept = indptr[start]
    end = indptr[start]
    for row in range(start, len(indptr) - 1):
        begin = end
        end = indptr[row + 1]
        first = kept
        if (end - begin) ** 2 < len(slots) and _surely_distinct(fields, ids, begin, end, kept, slots):
            if kept == begin:
                kept = end
            else:
                for e in range(begin, end):
                    fields[kept], ids[kept] = fields[e], ids[e]
                    values[kept] = values[e]
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
                    return -1 - row
                else:
                    values[seen] += values[e]
                    bad[row] |= not np.isfinite(values[seen])
        indptr[row + 1] = kept
    return kept
