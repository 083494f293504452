"""Rows in the numbers of a model: ids and fields of a text to rows and fields of its table, in one pass."""

from __future__ import annotations

import numpy as np

from .jit import inline_exact, jit_exact, own
from .simd import prefetch
from .table import Dictionary, _look_ahead, _seek

_DENSE = 8  # numbers of 4 bytes for each key; a `Dictionary` takes 24 to 48 bytes
_AHEAD = 16
_NO_FIELDS = np.empty(0, np.int32)


@inline_exact
def _place_of(field, guess, fields):
    """Place of a field among ascending ones, -1 without one; rows mostly have them in order: try `guess`."""
    if guess < len(fields) and fields[guess] == field:
        return guess
    a, b = 0, len(fields)
    while a < b:
        middle = (a + b) // 2
        if fields[middle] < field:
            a = middle + 1
        else:
            b = middle
    return a if a < len(fields) and fields[a] == field else -1


@jit_exact
def look_up(direct, table, indptr, queries, fields, known, ids, places, counts):
    """Translate entries; unknown ones become -1.

    Args:
        direct: int32[m], number of each key below m, or -1; empty: look into the table.
        table: (slots, keys) of a `Dictionary`.
        indptr: int64[n + 1]; queries: uint64[nnz]; fields: int32[nnz], or empty: no fields.
        known: int32[f], ascending fields of the model.
        ids: int32[nnz]; places: int32[nnz], or empty as `fields`: written to.
        counts: int64[3], added to: rows with something unknown, unknown ids, unknown fields.
    """
    slots, keys = table
    for row in range(len(indptr) - 1):
        unknown_ids, unknown_fields, place = np.int64(0), np.int64(0), np.int64(-1)
        for e in range(indptr[row], indptr[row + 1]):
            if direct.size > 0:
                if e + _AHEAD < len(queries):
                    prefetch(direct, np.int64(min(queries[e + _AHEAD], np.uint64(len(direct)))))
                number = np.int64(direct[queries[e]]) if queries[e] < np.uint64(len(direct)) else np.int64(-1)
            else:
                _look_ahead(slots, keys, queries, e)
                _, number = _seek(slots, keys, queries[e])
            ids[e] = number
            unknown_ids += number < 0
            if fields.size > 0:
                place = _place_of(fields[e], place + 1, known)
                places[e] = place
                unknown_fields += place < 0
        counts[0] += unknown_ids + unknown_fields > 0
        counts[1] += unknown_ids
        counts[2] += unknown_fields


class Lookup:
    """The keys and fields of a model; many threads may look them up.

    Args:
        keys: uint64[n], distinct, numbered as they stand.
        fields: int32[f], ascending; None for a model without fields.
    """

    def __init__(self, keys: np.ndarray, fields: np.ndarray | None):
        largest = int(keys.max()) if len(keys) else 0
        self._direct = np.empty(0, np.int32)
        if largest < _DENSE * len(keys):  # no larger than the table would be, and no hashing
            self._direct = np.full(largest + 1, -1, np.int32)
            self._direct[keys] = np.arange(len(keys), dtype=np.int32)
        self._table = Dictionary(None if self._direct.size else keys).arrays
        self._fields = None if fields is None else own(fields, np.int32)

    def __call__(
        self, indptr: np.ndarray, keys: np.ndarray, fields: np.ndarray | None, counts: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Numbers int32[nnz] of the keys and of the fields (None where there are none), -1 for unknown ones.

        Args: indptr, counts: as in `look_up`; keys: uint64[nnz]; fields: int32[nnz] or None.
        """
        ids = np.empty(len(keys), np.int32)
        if fields is None or self._fields is None:
            wanted = places = known = _NO_FIELDS
        else:
            wanted, places, known = own(fields, np.int32), np.empty(len(keys), np.int32), self._fields
        own_keys = own(keys, np.uint64)
        rows = own(indptr, np.int64)
        look_up(self._direct, self._table, rows, own_keys, wanted, known, ids, places, counts)
        return ids, None if fields is None or self._fields is None else places
