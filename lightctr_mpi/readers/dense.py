"""Dense text: rows "label,x1,x2,..." of numbers, as tables of measurements and images come."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..block import Block
from ..config import DataOptions
from ..errors import DataError
from ..kernels import parse, parse_dense
from .base import NUMBER, Reader, Where, excerpt
from .textrows import as_lines, kept_values, read_close, run

_SEPARATORS = b",\t;"


class DenseReader(Reader):
    """Numbers in columns between commas, tabs or semicolons (the first of these that the first line has).

    The label is the first or the last column (`data.label_column`); the others are numbered from 0 and the
    number is the feature. Zeros are not stored. Every row has as many cells as the first line of its file,
    and every file as many as the first one that was read: without the label, a feature would be taken for it.

    The first line is a header, and left out, when `data.header` is yes, or is auto and no cell of it is a
    number. Every other cell that is not a number is an error, an empty one too.
    """

    name = "dense"
    has_fields = False

    def __init__(self, options: DataOptions, task: str):
        super().__init__(options, task)
        self.columns = 0  # with the label; 0: not known yet

    @property
    def sample(self) -> bytes:  # type: ignore[override]
        rows = []
        for label, *features in ((b"1", b"0", b"2.5"), (b"0", b"1e-3", b"1")):
            n_features = max(self.columns - 1, 0) if self.columns else len(features)
            cells = (features + [b"0"] * n_features)[:n_features]
            cells.insert(0 if self.options.label_column == "first" else n_features, label)
            rows.append(b",".join(cells) + b"\n")
        return b"".join(rows)

    def settings(self) -> dict[str, Any]:
        more = {"header": self.options.header, "label_column": self.options.label_column}
        return super().settings() | more | {"columns": self.columns}

    def recall(self, settings: Mapping[str, Any]) -> None:
        self.columns = int(settings.get("columns", 0))

    def prepare(self, first_line: bytes, file: str) -> None:
        if not self.columns and first_line:
            self.columns = _width(first_line)[1]

    def parse(self, data: bytes, where: Where, policy: str = "") -> Block:
        skip = self.skips(policy)
        first = where.first_line()
        separator, width = _width(first)
        if first and self.columns and width != self.columns:
            line = where.line_of(max(data.find(first), 0)) if where.at_start else 1
            expected = f"{self.columns} as in the data that came first, label included"
            raise DataError(where.file, line, f"{width} columns", expected)
        label_at = 0 if self.options.label_column == "first" else width - 1
        begin = self._rows_begin(data, first, separator) if where.at_start else 0
        arrays = _arrays(data)
        place = (begin, separator, width, label_at)
        code, state, close = run(
            parse_dense.parse_dense, as_lines(data), *place, skip, self.labels.arrays, *arrays
        )
        if code != parse.DONE:
            raise self._error(code, data, int(state[parse.OFFSET]), where, separator, width)
        indptr, at, labels, ids, values = arrays
        n, nnz = int(state[parse.ROWS]), int(state[parse.ENTRIES])
        read_close(data, close, labels, values, b"\r\n \t" + bytes([separator]))
        return Block(
            indptr[: n + 1],
            ids[:nnz],
            None,
            kept_values(values[:nnz], state),
            labels[:n],
            skipped=int(state[parse.SKIPPED]),
        )

    def _rows_begin(self, data: bytes, first: bytes, separator: int) -> int:
        """Offset of the first row of a file: behind the header, if it has one."""
        header = self.options.header == "yes"
        if self.options.header == "auto" and first:
            cells = first.split(bytes([separator]))
            header = not any(NUMBER.fullmatch(cell.strip()) for cell in cells)
        start = data.find(first)
        if not header or not first or start < 0:
            return 0
        return min(start + len(first) + 1, len(data))

    def _error(
        self, code: int, data: bytes, offset: int, where: Where, separator: int, width: int
    ) -> DataError:
        line = where.line_of(offset)
        cut = bytes([separator]) + b"\r\n"
        found, expected = excerpt(data, offset, cut), "a finite number"
        if code == parse.BAD_LABEL:
            expected = self.labels.expected
        elif code == parse_dense.BAD_WIDTH:
            row = data[offset:].split(b"\n", 1)[0]
            found = f"{row.count(separator) + 1} columns"
            expected = f"{width}, as in the first line of the file"
        if line == 1 and code != parse_dense.BAD_WIDTH and not NUMBER.fullmatch(data[offset : offset + 1]):
            expected += " (is this line a header? then give data.header yes)"
        return DataError(where.file, line, found, expected)


def _width(line: bytes) -> tuple[int, int]:
    """(byte between the cells, number of cells) of a line."""
    separator = next((byte for byte in _SEPARATORS if byte in line), _SEPARATORS[0])
    return separator, line.count(separator) + 1


def _arrays(data: bytes) -> tuple[np.ndarray, ...]:
    """Room for all rows and cells the data can hold. What is not written to takes no memory."""
    n, nnz = data.count(b"\n") + 1, len(data) // 2 + 1
    return (
        np.empty(n + 1, np.int64),
        np.empty(n, np.int64),
        np.empty(n, np.float32),
        np.empty(nnz, np.uint64),
        np.empty(nnz, np.float32),
    )
