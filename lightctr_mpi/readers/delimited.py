"""Delimited text with a schema: csv, tsv and the formats of two well-known click data sets."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, ClassVar

import numpy as np

from ..block import Block
from ..config import DataOptions
from ..errors import DataError, UserError
from ..kernels import parse_delimited as kernel
from . import schema as schemas
from .base import LabelRule, Reader, Where, quote
from .layout import Layout, resolve, sample
from .schema import Schema
from .textrows import as_lines

_WRONG = {
    kernel.OPEN_QUOTE: (
        "a quote that is not closed on its line",
        "a closing quote; line breaks within quotes are not supported",
    ),
    kernel.AFTER_QUOTE: ("text behind a closing quote", "a separator or the end of the line"),
}


class DelimitedReader(Reader):
    """Rows of cells, one feature for each cell of a feature column that is not missing.

    The field of a feature is the place of its column among the feature columns. Its key is a hash of the
    column's name and of the cell's text (categorical) or bin (numeric, log); all numbers of a column that is
    numeric, value have the same key. docs/data.md has the rules.

    Args:
        options: `schema` names a TOML file, or is the schema itself as JSON (that is how a model keeps it).
        task: "logistic" or "squared".
    """

    has_fields = True
    separator: ClassVar[str] = ","

    def __init__(self, options: DataOptions, task: str):
        super().__init__(options, task)
        given = self._given(options.schema)
        header = options.header if options.header != "auto" else given.header
        self.schema = dataclasses.replace(given, separator=given.separator or self.separator, header=header)
        self.labels = LabelRule(options, task, self.schema.labels)
        self._layouts: dict[tuple[str, bytes], Layout] = {}

    def _given(self, text: str) -> Schema:
        if not text:
            raise UserError(
                f"format {self.name} needs data.schema, a TOML file that says what the columns are, for"
                ' instance label = "click" and rest = "categorical" (docs/data.md); columns of numbers are'
                " format dense"
            )
        if text.startswith("{"):
            return schemas.from_dict(json.loads(text), "schema of the model")
        return schemas.from_file(text)

    @property
    def sample(self) -> bytes:  # type: ignore[override]
        """Empty until `prepare` has seen the columns."""
        return sample(self.schema)

    def settings(self) -> dict[str, Any]:
        return super().settings() | {
            "schema": json.dumps(self.schema.to_dict(), sort_keys=True),
            "hashing_seed": self.schema.hash_seed,
        }

    def prepare(self, first_line: bytes, file: str) -> None:
        if first_line and not self.schema.is_resolved:
            self.schema = resolve(self.schema, first_line, file)

    def parse(self, data: bytes, where: Where, policy: str = "") -> Block:
        first = where.first_line()
        if not first:
            return _no_rows()
        layout = self._layout(first, where.file)
        begin = _behind(data) if layout.header and where.at_start else 0
        room = _Room(data, layout)
        close_room = 64
        while True:
            text, buffer = _as_lines(data, self.schema.quotes)
            close, out = np.empty((close_room, 4), np.int64), np.zeros(9, np.int64)
            arguments = (layout.marks, layout.columns, layout.missing, self.labels.arrays, self.skips(policy))
            kernel.parse_rows(
                text,
                buffer,
                np.uint64(begin),
                *arguments,
                room.indptr,
                room.entries,
                room.per_row,
                close,
                out,
            )
            if out[4] != kernel.FULL:
                break
            close_room *= 16
        if out[4] != kernel.FINE:
            raise self._error(out, text, where, layout)
        room.read_close(text, close[: out[3]])
        return room.block(layout, *out[:3].tolist())

    def _layout(self, first_line: bytes, file: str) -> Layout:
        """What the columns of one file do."""
        place = file, first_line
        if place not in self._layouts:
            self.prepare(first_line, file)
            self._layouts[place] = Layout(self.schema, first_line, file)
        return self._layouts[place]

    def _error(self, out: np.ndarray, text: np.ndarray, where: Where, layout: Layout) -> DataError:
        """The message about the row at which the kernel stopped."""
        wrong, row, begin, end, column = out[4:].tolist()
        line = where.line_of(row)
        if wrong in _WRONG:
            return DataError(where.file, line, *_WRONG[wrong])
        if wrong == kernel.COLUMNS:
            return DataError(where.file, line, f"{column} column" + "s" * (column != 1), layout.expected)
        found = f"{quote(text[begin:end].tobytes())} in column {layout.names[column]!r}"
        expected = {
            kernel.LABEL: self.labels.expected,
            kernel.GROUP: "a group",
            kernel.WEIGHT: "a sample weight, a finite number not below 0",
        }.get(int(layout.columns[0][column]), "a finite number or a missing cell")
        return DataError(where.file, line, found, expected)


class CsvReader(DelimitedReader):
    """Comma-separated text (RFC 4180) with a schema."""

    name = "csv"


class TsvReader(DelimitedReader):
    """Tab-separated text with a schema; quotes are ordinary characters unless the schema says otherwise."""

    name = "tsv"
    separator = "\t"


class PresetReader(DelimitedReader):
    """A format with a schema of its own."""

    preset: ClassVar[Any]

    def _given(self, text: str) -> Schema:
        if not text:
            return self.preset()
        if text.startswith("{"):
            return super()._given(text)
        raise UserError(f"format {self.name} has a schema of its own: use format csv or tsv with data.schema")


class CriteoReader(PresetReader):
    """Rows of 40 columns: label, 13 integers, 26 categories; 39 where there is no label."""

    name = "criteo"
    preset = staticmethod(schemas.criteo)


class AvazuReader(PresetReader):
    """Rows under a header: id, click (absent where there is no label), hour as YYMMDDHH and categories."""

    name = "avazu"
    preset = staticmethod(schemas.avazu)


class _Room:
    """Arrays that hold all rows and entries the data can have. What is not written to takes no memory."""

    def __init__(self, data: bytes, layout: Layout):
        n = data.count(b"\n") + 1
        nnz = min(n * layout.n_features, len(data) // 2 + 1)
        self.indptr = np.empty(n + 1, np.int64)
        self.entries = (
            np.empty(nnz, np.uint64),
            np.empty(nnz, np.int32),
            np.empty(nnz if layout.has(kernel.VALUE) else 0, np.float32),
        )
        self.per_row = (
            np.empty(n, np.float32),
            np.empty(n if layout.has(kernel.WEIGHT) else 0, np.float32),
            np.empty(n if layout.has(kernel.GROUP) else 0, np.int64),
        )

    def read_close(self, text: np.ndarray, close: np.ndarray) -> None:
        """Reads again, correctly rounded, the few numbers whose nearest float32 the kernel could not tell."""
        _, _, values = self.entries
        labels, weights, _ = self.per_row
        for action, place, begin, end in close.tolist():
            number = float(text[begin:end].tobytes())
            {kernel.LABEL: labels, kernel.WEIGHT: weights, kernel.VALUE: values}[action][place] = number

    def block(self, layout: Layout, n: int, nnz: int, skipped: int) -> Block:
        ids, fields, values = self.entries
        labels, weights, groups = self.per_row
        has_labels = layout.has(kernel.LABEL)
        if not has_labels:
            labels[:n] = np.nan
        return Block(
            self.indptr[: n + 1],
            ids[:nnz],
            fields[:nnz],
            values[:nnz] if layout.has(kernel.VALUE) else None,
            labels[:n],
            weights[:n] if layout.has(kernel.WEIGHT) else None,
            groups[:n] if layout.has(kernel.GROUP) else None,
            skipped=skipped,
            has_labels=has_labels,
        )


def _no_rows() -> Block:
    return Block(
        np.zeros(1, np.int64),
        np.zeros(0, np.uint64),
        np.zeros(0, np.int32),
        None,
        np.zeros(0, np.float32),
    )


def _behind(data: bytes) -> int:
    """Offset of what follows the first line that is not blank."""
    begin = 0
    while begin < len(data):
        stop = data.find(b"\n", begin)
        stop = len(data) if stop < 0 else stop + 1
        if data[begin:stop].strip():
            return stop
        begin = stop
    return begin


def _as_lines(data: bytes, quotes: str) -> tuple[np.ndarray, np.ndarray]:
    """(uint8[] read-only, the same memory to write to if there is a quote in it, else uint8[0])."""
    if not quotes or quotes.encode() not in data:
        return as_lines(data), np.empty(0, np.uint8)
    buffer = np.array(as_lines(data))
    text = buffer.view()
    text.flags.writeable = False
    return text, buffer
