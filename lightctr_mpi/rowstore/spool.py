"""Spool: parsed units on their way into a row store, in memory up to a limit, else in a nameless file."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ..kernels.memory import LINE, alloc_rows
from .files import read_into, write_all

LINE_BYTES = 4 * LINE
STRETCH = 16 << 20


@dataclass(slots=True)
class Piece:
    """One unit's columns; a column that the unit does not need is absent."""

    unit: int
    columns: dict[str, np.ndarray]


def narrow(numbers: np.ndarray) -> np.ndarray:
    """int32[n] from 0 on, in one or two bytes each if these hold them."""
    top = int(numbers.max(initial=0))
    return numbers.astype(np.uint8 if top < 1 << 8 else np.uint16 if top < 1 << 16 else np.int32, copy=False)


def packed_values(values: np.ndarray) -> dict[str, np.ndarray]:
    """Columns for float32[n] values: none when all are 1, places and values of the few others, or all."""
    others = values != 1
    n = int(np.count_nonzero(others))
    if n == 0:
        return {}
    if n > len(values) // 8:
        return {"values": values}
    places = np.flatnonzero(others)
    return {"places": places, "others": values[places]}


def has_values(columns: dict[str, np.ndarray]) -> bool:
    """Whether some value of a unit is not 1."""
    return "values" in columns or "others" in columns


def unpacked_values(columns: dict[str, np.ndarray], ones: np.ndarray) -> np.ndarray:
    """The values of a unit.

    Args:
        columns: of the unit, with what `packed_values` made.
        ones: float32[entries] of 1, of which no use is made later.
    """
    if "values" in columns:
        return columns["values"]
    if "others" in columns:
        ones[columns["places"]] = columns["others"]
    return ones


class Room:
    """Arrays one behind the other in stretches of memory that go back to the system with the last of each.

    Many arrays of a unit's size on the heap would leave it full of holes for the rest of the run.
    """

    def __init__(self) -> None:
        self._stretch, self._used = np.empty(0, np.uint8), 0

    def keep(self, array: np.ndarray) -> np.ndarray:
        """A copy of a one-dimensional array."""
        lines = -(-array.nbytes // LINE_BYTES)
        if self._used + lines * LINE_BYTES > len(self._stretch):
            rows = alloc_rows(max(lines, STRETCH // LINE_BYTES), LINE)
            self._stretch, self._used = rows.reshape(-1).view(np.uint8), 0
        copy = self._stretch[self._used : self._used + array.nbytes].view(array.dtype)
        copy[:] = array
        self._used += lines * LINE_BYTES
        return copy


class Spool:
    """Columns of units, given back in the order in which they came.

    Args:
        folder: where the temporary file goes if one is needed. It has no name and vanishes with the process.
        memory_bytes: how much stays in memory.

    Raises OSError when the disk is full.
    """

    def __init__(self, folder: Path, memory_bytes: int):
        self.folder, self._left = folder, memory_bytes
        self._kept: list[Piece] = []
        self._room = Room()
        self._index: list[tuple[int, list[tuple[str, np.dtype, int]]]] = []
        self._file: BinaryIO | None = None
        self._end = 0

    def append(self, piece: Piece) -> None:
        size = sum(column.nbytes for column in piece.columns.values())
        if self._file is None and size <= self._left:
            self._left -= size
            kept = {name: self._room.keep(column) for name, column in piece.columns.items()}
            self._kept.append(Piece(piece.unit, kept))
            return
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=self.folder, buffering=0)  # noqa: SIM115
        for column in piece.columns.values():
            write_all(self._file.fileno(), column, self._end)
            self._end += column.nbytes
        described = [(name, column.dtype, len(column)) for name, column in piece.columns.items()]
        self._index.append((piece.unit, described))

    def drain(self) -> Iterator[Piece]:
        """Every piece once; what was in memory is let go piece by piece."""
        self._kept.reverse()
        self._room = Room()
        while self._kept:
            yield self._kept.pop()
        position = 0
        for unit, described in self._index:
            columns = {}
            for name, dtype, length in described:
                columns[name] = np.empty(length, dtype)
                assert self._file is not None
                read_into(self._file.fileno(), columns[name], position)
                position += columns[name].nbytes
            yield Piece(unit, columns)

    def close(self) -> None:
        self._kept.clear()
        if self._file is not None:
            self._file.close()

    @property
    def on_disk(self) -> int:
        """Bytes in the temporary file."""
        return self._end if self._file is not None else 0
