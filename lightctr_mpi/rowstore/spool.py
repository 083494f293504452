"""Spool: parsed units on their way into a row store, in memory up to a limit, else in a nameless file."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from .files import read_into, write_all


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
        self._index: list[tuple[int, list[tuple[str, np.dtype, int]]]] = []
        self._file: BinaryIO | None = None
        self._end = 0

    def append(self, piece: Piece) -> None:
        size = sum(column.nbytes for column in piece.columns.values())
        if self._file is None and size <= self._left:
            self._left -= size
            for name, column in piece.columns.items():  # a view would keep the larger array behind it alive
                piece.columns[name] = column if column.base is None else column.copy()
            self._kept.append(piece)
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
