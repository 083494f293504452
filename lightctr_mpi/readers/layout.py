"""Columns of one delimited file: found by its header or by their places, and set out for the kernel."""

from __future__ import annotations

import contextlib
import csv
import io

import numpy as np

from ..errors import UserError
from ..kernels import parse_delimited as kernel
from ..kernels.hashing import hash_text
from .schema import Schema, listed


def split(line: bytes, schema: Schema) -> list[str]:
    """The cells of a line, without blanks around them."""
    separator, quotes = schema.separator, schema.quotes
    text = line.decode("utf-8", "surrogateescape")
    cells = text.split(separator)
    if quotes and quotes in text:
        rows = csv.reader([text], delimiter=separator, quotechar=quotes, skipinitialspace=separator != " ")
        with contextlib.suppress(csv.Error):  # a cell beyond its limit of 128 KiB: data, not a header
            cells = next(rows, cells)
    return [cell.strip(" \t\r".replace(separator, "")) for cell in cells]


def has_header(schema: Schema, cells: list[str]) -> bool:
    """Whether the first line of a file names the columns."""
    if schema.header != "auto":
        return schema.header == "yes"
    if schema.columns:
        named = sum(cell in schema.columns for cell in cells)
        return 2 * named > len(cells) or (named > 0 and all(name in cells for name in schema.features))
    return not all(name.isdigit() for name in schema.named())


def resolve(schema: Schema, first_line: bytes, file: str) -> Schema:
    """The schema bound to the columns of the file that starts with this line; raises UserError."""
    cells = split(first_line, schema)
    if schema.columns or has_header(schema, cells):
        return schema.resolve(schema.columns or cells, file)
    bound = schema.resolve((str(i) for i in range(1, len(cells) + 1)), file)
    return bound.without_header()


def sample(schema: Schema) -> bytes:
    """A row, behind a header if there is one; empty while the columns are not known."""
    if not schema.is_resolved:
        return b""
    cells = {schema.label: next(iter(schema.labels), "1")}
    cells |= dict.fromkeys(schema.numeric, "3") | dict.fromkeys((schema.weight, schema.group), "1")
    rows = [schema.columns] if schema.header != "no" else []
    rows.append(tuple(cells.get(name, "a") for name in schema.columns))
    if not schema.quotes:
        return "".join(schema.separator.join(row) + "\n" for row in rows).encode("utf-8", "surrogateescape")
    text = io.StringIO()
    writer = csv.writer(text, delimiter=schema.separator, quotechar=schema.quotes, lineterminator="\n")
    writer.writerows(rows)
    return text.getvalue().encode("utf-8", "surrogateescape")


class Layout:
    """What the kernel does with the columns of one file.

    Args:
        schema: resolved.
        first_line: of the file.
        file: its name.

    Attributes:
        header: the first line is a header.
        names: the columns of this file in order.
        expected: how many cells a row must have, for messages.
        n_features: columns that are features.
        marks, columns, missing: arguments of `kernel.parse_rows`.

    Raises UserError when the header lacks a column; label, weight and group may be lacking together.
    """

    def __init__(self, schema: Schema, first_line: bytes, file: str):
        cells = split(first_line, schema)
        self.header = has_header(schema, cells)
        self.expected = f"{len(schema.columns)} columns"
        if self.header:
            self.names = _checked(cells, schema, file)
            self.expected = f"{len(cells)} columns, as in the first line"
        else:
            self.names = list(schema.columns)
            if schema.label:
                self.expected += f" (or {len(schema.columns) - 1} without the label)"
                if len(cells) == len(schema.columns) - 1:
                    self.names.remove(schema.label)
        self.n_features = len(schema.features)
        self.marks = (
            np.int64(ord(schema.separator)),
            np.int64(ord(schema.quotes) if schema.quotes else -1),
            np.uint64(64 - schema.hash_bits),
        )
        self.columns = _columns(self.names, schema)
        texts = [text.encode() for text in schema.missing]
        ends = np.cumsum([0, *(len(text) for text in texts)], dtype=np.int64)
        self.missing = (np.array(bytearray(b"".join(texts)), np.uint8), ends)

    def has(self, action: int) -> bool:
        """Whether some column does this."""
        return bool((self.columns[0] == action).any())


def _checked(names: list[str], schema: Schema, file: str) -> list[str]:
    """The names of a header, if the columns that the schema needs are there once each."""
    twice = [name for name in names if names.count(name) > 1 and name in schema.columns]
    if twice:
        raise UserError(f"{file}: two columns are called {twice[0]!r}")
    needed = list(schema.features)
    if schema.label in names:
        needed += [name for name in (schema.weight, schema.group) if name]
    lacking = [name for name in needed if name not in names]
    if lacking:
        raise UserError(f"{file}: the first line does not name {listed(lacking)}; it names {listed(names)}")
    return names


def _columns(names: list[str], schema: Schema) -> tuple[np.ndarray, ...]:
    """Action int8, field int32, seed uint64 and length of the suffix int64 of each column."""
    actions = {schema.label: kernel.LABEL, schema.weight: kernel.WEIGHT, schema.group: kernel.GROUP}
    actions |= dict.fromkeys(schema.categorical, kernel.CATEGORY)
    kinds = {"log": kernel.LOG, "value": kernel.VALUE}
    actions |= {name: kinds[kind] for name, kind in schema.numeric.items()}
    actions.pop("", None)
    fields = {name: number for number, name in enumerate(schema.features)}
    seeds = [hash_text(name.encode("utf-8", "surrogateescape"), schema.hash_seed) for name in names]
    return (
        np.array([actions.get(name, kernel.SKIP) for name in names], np.int8),
        np.array([fields.get(name, -1) for name in names], np.int32),
        np.array(seeds, np.uint64),
        np.array([schema.suffix.get(name, 0) for name in names], np.int64),
    )
