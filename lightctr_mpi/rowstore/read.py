"""RowStore: a row store opened for reading, mapped into memory or read piece by piece."""

from __future__ import annotations

import mmap
import os
from collections import OrderedDict
from pathlib import Path

import numpy as np

from ..block import Block
from ..errors import UserError
from ..kernels.gather import copy_rows
from .check import check_content, memory_limit
from .files import read_into
from .layout import Layout, Meta, load

BLOCK_ROWS = 4096  # rows that are read together when rows are picked from a store that is not mapped
KEEP_BYTES = 192 << 20
_HDF5 = b"\x89HDF\r\n\x1a\n"


def is_rowstore(path: str | Path) -> bool:
    """Whether a file is HDF5, hence no text: a row store, or its opening will say what is wrong with it."""
    try:
        with open(path, "rb") as file:
            return file.read(len(_HDF5)) == _HDF5
    except OSError:
        return False


class RowStore:
    """Rows with compact ids.

    Blocks have indptr int64, ids int32 (positions in `keys`), fields int32 (positions in `fields`) or None,
    values float32 or None (all 1), labels float32, weights, groups; norms is None.

    Made by `RowStore.open`.
    """

    def __init__(self, path: Path, layout: Layout, mapped: bool, keep_bytes: int):
        self.path, self.mapped = path, mapped
        self.meta: Meta = layout.meta
        self.origin = layout.origin
        self._columns, self._offsets = self.meta.columns(), layout.offsets
        self._file = os.open(path, os.O_RDONLY)
        self._map = mmap.mmap(self._file, 0, access=mmap.ACCESS_COPY) if mapped else None
        self._kept: OrderedDict[int, Block] = OrderedDict()  # stretches of rows, the latest last
        self._room = keep_bytes

    @classmethod
    def open(
        cls, path: str | Path, memory: str = "auto", *, keep_bytes: int = KEEP_BYTES, check: bool = False
    ) -> RowStore:
        """Open a file that `convert` has written.

        Args:
            memory: "map": the file is mapped, slices are views (private: writing to them changes nobody's
                data); "stream": slices are read into fresh arrays, picked rows come from stretches of
                BLOCK_ROWS rows of which the latest are kept; "auto": map unless the store is larger than half
                of the memory.
            keep_bytes: memory for the stretches that are kept in stream mode.
            check: look through the whole file for what cannot be right (files that others may have made).

        Raises:
            UserError: not a complete row store of this version, or `check` found something.
        """
        path = Path(path)
        layout = load(path)
        mapped = memory == "map" or (memory == "auto" and layout.meta.nbytes() <= memory_limit() // 2)
        store = cls(path, layout, mapped, keep_bytes)
        if check:
            check_content(store)
        return store

    @property
    def n_rows(self) -> int:
        return self.meta.n_rows

    @property
    def nnz(self) -> int:
        return self.meta.nnz

    @property
    def n_keys(self) -> int:
        return self.meta.n_keys

    @property
    def n_fields(self) -> int:
        return self.meta.n_fields

    @property
    def keys(self) -> np.ndarray:
        """uint64[n_keys]: the keys as they stood in the text, sorted."""
        return self.column("dictionary/keys", 0, self.n_keys)

    @property
    def fields(self) -> np.ndarray | None:
        """int32[n_fields]: the fields as they stood in the text, sorted; None for formats without fields."""
        return self.column("dictionary/fields", 0, self.n_fields) if self.meta.has_fields else None

    def slice(self, a: int, b: int) -> Block:
        """Rows a to b, 0 <= a <= b <= n_rows."""
        indptr = self.column("indptr", a, b + 1)
        first, end = int(indptr[0]), int(indptr[-1])
        return Block(
            indptr - first if first else indptr,
            self.column("ids", first, end),
            self._optional("fields", first, end),
            self._optional("values", first, end),
            self.column("labels", a, b),
            self._optional("weights", a, b),
            self._optional("groups", a, b),
            has_labels=self.meta.has_labels,
        )

    def block(self, rows: np.ndarray, with_fields: bool = True) -> Block:
        """The given rows (int64[m], any order, repetitions allowed) as a Block of their own.

        with_fields: False leaves the fields out, for models that do not look at them.
        """
        rows = np.ascontiguousarray(rows, np.int64)
        if len(rows) and (rows.min() < 0 or rows.max() >= self.n_rows):
            raise IndexError(f"rows {rows.min()} to {rows.max()} of a store of {self.n_rows}")
        if self.mapped:
            places = np.arange(len(rows))
            return self._gather(rows, [places] if len(rows) else [], self.n_rows, with_fields)
        stretch = rows // BLOCK_ROWS
        order = np.argsort(stretch, kind="stable")
        cuts = np.flatnonzero(np.diff(stretch[order])) + 1
        groups = [places for places in np.split(order, cuts) if len(places)]
        return self._gather(rows, groups, BLOCK_ROWS, with_fields)

    def close(self) -> None:
        """Let go of the file; views of a mapped store stay valid as long as somebody holds them."""
        self._kept.clear()
        self._map = None
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> RowStore:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_file", -1) >= 0:
            self.close()

    def column(self, name: str, first: int, end: int) -> np.ndarray:
        """Elements first to end of a column: a view of the map, or a fresh array."""
        dtype, _ = self._columns[name]
        place = self._offsets[name] + first * dtype.itemsize
        if self._map is not None and end > first:
            return np.frombuffer(self._map, dtype, end - first, place)
        out = np.empty(end - first, dtype)
        try:
            read_into(self._file, out, place)
        except OSError as error:
            raise UserError(f"{self.path}: {error.strerror or error}") from None
        return out

    def _optional(self, name: str, first: int, end: int) -> np.ndarray | None:
        return self.column(name, first, end) if name in self._columns else None

    def _gather(self, rows: np.ndarray, groups: list[np.ndarray], size: int, with_fields: bool) -> Block:
        """The Block of `rows`; a group holds positions in `rows` that fall into one stretch of rows."""
        lengths = np.zeros(len(rows), np.int64)
        for places in groups:
            number = int(rows[places[0]]) // size
            first, part = number * size, self._kept.get(number)
            indptr = part.indptr if part else self.column("indptr", first, min(first + size, self.n_rows) + 1)
            local = rows[places] - first
            lengths[places] = indptr[local + 1] - indptr[local]
        out = self._room_for(lengths, with_fields)
        for places in groups:
            number = int(rows[places[0]]) // size
            part, local = self._stretch(number, size), rows[places] - number * size
            for name in ("ids", "fields", "values"):
                column, target = getattr(part, name), getattr(out, name)
                if target is not None:
                    bits = column.view(np.int32)
                    copy_rows(part.indptr, bits, local, places, out.indptr, target.view(np.int32))
            for name in ("labels", "weights", "groups"):
                column, target = getattr(part, name), getattr(out, name)
                if column is not None:
                    target[places] = column[local]
        return out

    def _room_for(self, lengths: np.ndarray, with_fields: bool) -> Block:
        """A Block of rows of these lengths, its arrays still to be filled."""
        indptr = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=indptr[1:])
        nnz = int(indptr[-1])

        def of(name: str, length: int) -> np.ndarray | None:
            return np.empty(length, self._columns[name][0]) if name in self._columns else None

        ids, labels = np.empty(nnz, np.int32), np.empty(len(lengths), np.float32)
        optional = (
            of("fields", nnz) if with_fields else None,
            of("values", nnz),
            labels,
            of("weights", len(lengths)),
            of("groups", len(lengths)),
        )
        return Block(indptr, ids, *optional, has_labels=self.meta.has_labels)

    def _stretch(self, number: int, size: int) -> Block:
        """Rows number * size and on, from memory if they have been read lately."""
        if number in self._kept:
            self._kept.move_to_end(number)
            return self._kept[number]
        part = self.slice(number * size, min((number + 1) * size, self.n_rows))
        self._kept[number] = part
        self._room -= 0 if self.mapped else _nbytes(part)
        while self._room < 0 and len(self._kept) > 1:
            self._room += _nbytes(self._kept.popitem(last=False)[1])
        return part


def _nbytes(block: Block) -> int:
    arrays = (block.indptr, block.ids, block.fields, block.values, block.labels, block.weights, block.groups)
    return sum(array.nbytes for array in arrays if array is not None)
