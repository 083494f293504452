"""Writing a row store: one rank lays it out, every rank writes its units where they belong."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from ..comm import agreed, bcast_object, rank_of
from ..kernels.direct import translate
from ..kernels.jit import own
from .files import disk, write_all
from .layout import Meta, Origin, create
from .spool import Spool, unpacked_values


class Writer:
    """Writes slices of columns at their places in a laid-out store."""

    def __init__(self, path: Path, meta: Meta, offsets: dict[str, int]):
        self._columns, self._offsets = meta.columns(), offsets
        self._file = os.open(path, os.O_WRONLY)

    def put(self, name: str, first: int, array: np.ndarray) -> None:
        """Write elements first, first + 1, ... of a column; one that the store has not is passed over."""
        if name in self._columns and len(array):
            dtype, _ = self._columns[name]
            write_all(
                self._file, array.astype(dtype, copy=False), self._offsets[name] + first * dtype.itemsize
            )

    def unit(
        self, columns: dict[str, np.ndarray], row: int, entry: int, ids: np.ndarray, fields: np.ndarray
    ) -> None:
        """Write a unit that begins at this row and entry; what it lacks is 1 (groups: -1)."""
        n, nnz = len(columns["lengths"]), len(columns["ids"])
        self.put("indptr", row + 1, entry + np.cumsum(columns["lengths"]))
        self.put("ids", entry, _translated(columns["ids"], ids))
        if "fields" in columns:
            self.put("fields", entry, _translated(columns["fields"], fields))
        if "values" in self._columns:
            self.put("values", entry, unpacked_values(columns, np.ones(nnz, np.float32)))
        self.put("labels", row, columns["labels"])
        if "weights" in self._columns:
            self.put("weights", row, columns.get("weights", np.ones(n, np.float32)))
        if "groups" in self._columns:
            self.put("groups", row, columns.get("groups", np.full(n, -1, np.int64)))

    def close(self) -> None:
        try:
            os.fsync(self._file)
        finally:
            os.close(self._file)


def _translated(numbers: np.ndarray, table: np.ndarray) -> np.ndarray:
    """table[numbers], int32[n]."""
    out = np.empty(len(numbers), np.int32)
    translate(own(numbers, np.int32), table, out)
    return out


def write(
    comm: Any,
    path: Path,
    meta: Meta,
    origin: Origin,
    spool: Spool,
    places: dict[int, tuple[int, int]],
    keys: tuple[np.ndarray, np.ndarray],
    fields: tuple[np.ndarray, np.ndarray],
) -> None:
    """Lay out a store in `path` and fill it; called by all ranks.

    Args:
        spool: this rank's units, with ids and fields as the rank numbers them.
        places: unit -> its first row and first entry in the store.
        keys: sorted keys of the store, uint64[n] (on rank 0), and int32[m] from this rank's numbers to
            positions among them.
        fields: the same for fields.
    """
    offsets: dict[str, int] = {}
    with agreed(comm), disk(path):
        if rank_of(comm) == 0:
            offsets = create(path, meta, origin)
    offsets = bcast_object(comm, offsets)
    with agreed(comm), disk(path):
        writer = Writer(path, meta, offsets)
        try:
            if rank_of(comm) == 0:
                writer.put("indptr", 0, np.zeros(1, np.int64))
                writer.put("dictionary/keys", 0, keys[0])
                writer.put("dictionary/fields", 0, fields[0])
            for piece in spool.drain():
                writer.unit(piece.columns, *places[piece.unit], keys[1], fields[1])
        finally:
            writer.close()
