"""What all readers share: Reader, the place of a piece of data, label rules, merging of duplicates."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..block import Block
from ..config import DataOptions
from ..errors import DataError, UserError
from ..kernels.parse_merge import grows, merge_rows, slots_for

NUMBER = re.compile(rb"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
LABEL_BINARY, LABEL_SOFT, LABEL_ANY = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Where:
    """Where a piece of data comes from.

    Attributes:
        file: name of the file as the user gave it.
        line_of: line number in the file, from 1, of a byte offset in the piece. Slow: only for errors.
        first_line: the first line of the file that is not blank, without its end (b"" when there is none): it
            may name the columns, and says how many there are. Read once per file.
        at_start: the piece starts where the file starts.
    """

    file: str
    line_of: Callable[[int], int]
    first_line: Callable[[], bytes]
    at_start: bool = True

    @classmethod
    def whole(cls, file: str, data: bytes) -> Where:
        """The place of a file that is in memory as a whole."""

        def first_line() -> bytes:
            lines = (line.rstrip(b"\r") for line in data.split(b"\n"))
            return next((line for line in lines if line.strip()), b"")

        return cls(file, lambda offset: data.count(b"\n", 0, offset) + 1, first_line)


class LabelRule:
    """Which labels a task takes and the numbers they stand for.

    Args:
        options: `labels` (binary: -1, 0 and 1, where -1 means 0; soft: 0 to 1) and `label_map`.
        task: "logistic", or "squared" which takes any finite number.
        schema_labels: the label map of a schema, in force where `label_map` is empty.

    Attributes:
        expected: what a label must be, for error messages.
        arrays: the rule for kernels (`parse_number.read_label`): mode (one of LABEL_*), and for the label map
            the texts one after the other uint8[], their ends int64[m + 1], the numbers they are (float64[m],
            rounded to float32, NaN when a text is none) and the labels they stand for float32[m].

    A label is looked up in the map by its text, else by its number: 1:0 holds for 1.0 too. Raises UserError
    for a malformed map.
    """

    def __init__(self, options: DataOptions, task: str, schema_labels: Mapping[str, float] | None = None):
        pairs, source = parse_label_map(options.label_map, task, options.labels), "data.label_map"
        if schema_labels and not pairs:
            pairs, source = dict(schema_labels), "the schema"
            for label, number in pairs.items():
                check_label_number("labels of the schema", label, number, task, options.labels)
        soft = options.labels == "soft"
        if pairs:
            self.expected = "one of the labels " + ", ".join(pairs) + f" of {source}"
        elif task == "squared":
            self.expected = "a finite number as label"
        elif soft:
            self.expected = "a label from 0 to 1 (data.labels is soft)"
        else:
            self.expected = (
                "a label -1, 0 or 1 (data.labels soft takes probabilities, data.label_map translates others)"
            )
        texts = [text.encode() for text in pairs]
        numbers = [np.float32(text) if NUMBER.fullmatch(text) else math.nan for text in texts]
        self.arrays = (
            np.int64(LABEL_ANY if task == "squared" else LABEL_SOFT if soft else LABEL_BINARY),
            np.array(bytearray(b"".join(texts)), np.uint8),
            np.cumsum([0] + [len(text) for text in texts], dtype=np.int64),
            np.array(numbers, np.float64),
            np.array(list(pairs.values()), np.float32),
        )


def parse_label_map(text: str, task: str = "logistic", labels: str = "binary") -> dict[str, float]:
    """Reads "label:value,label:value"; the last colon of a pair counts. Raises UserError."""
    pairs: dict[str, float] = {}
    for pair in text.split(",") if text.strip() else ():
        label, colon, value = (part.strip() for part in pair.rpartition(":"))
        if not colon or not label or not NUMBER.fullmatch(value.encode()):
            raise UserError(f"data.label_map: found {pair.strip()!r}, expected label:value as in 1:0,2:1")
        if label in pairs:
            raise UserError(f"data.label_map: the label {label!r} is given twice")
        pairs[label] = float(value)
        check_label_number("data.label_map", label, pairs[label], task, labels)
    return pairs


def check_label_number(source: str, label: str, number: float, task: str, labels: str) -> None:
    """Raises UserError if the task has no use for the number that a label stands for."""
    if task == "squared":
        allowed, expected = math.isfinite(np.float32(number)), "a finite number"
    elif labels == "soft":
        allowed, expected = 0 <= number <= 1, "0 to 1"
    else:
        allowed, expected = number in (0, 1), "0 or 1"
    if not allowed:
        raise UserError(f"{source}: {label!r} stands for {number:g}, expected {expected}")


class Reader:
    """Turns text into Blocks; each format is a subclass in a file of its own.

    Attributes:
        name: the format.
        has_fields: whether its Blocks have fields.
        sample: a few rows that take the parser through all its kernels, for `readers.warm`.
    """

    name: ClassVar[str]
    has_fields: ClassVar[bool]
    sample: bytes

    def __init__(self, options: DataOptions, task: str):
        self.options, self.task = options, task
        self.labels = LabelRule(options, task)

    def prepare(self, first_line: bytes, file: str) -> None:
        """Learns what the first line of the first file says about all of them, for formats with columns.

        To be called on all ranks alike, before `settings`, `sample` and `parse` (which else goes by the first
        data it is given). Raises UserError when the line does not fit the schema.
        """

    def recall(self, settings: Mapping[str, Any]) -> None:
        """Takes over what `settings` of an earlier reader say beside the options.

        To be called before `prepare`.
        """

    def parse(self, data: bytes, where: Where, policy: str = "") -> Block:
        """Parses whole lines (the last one may lack its newline).

        Args:
            data: text of any number of lines.
            where: where it comes from.
            policy: "error": raise DataError at the first malformed row; "skip": leave such rows out and count
                them in Block.skipped; "": what `data.on_bad_row` says.

        Returns a Block with ids uint64 as in the file, without repeated (field, id) in a row.
        """
        raise NotImplementedError

    def skips(self, policy: str) -> bool:
        """Whether malformed rows are left out."""
        return (policy or self.options.on_bad_row) == "skip"

    def settings(self) -> dict[str, Any]:
        """All that decides what a text means, as JSON can hold it: part of cache keys and of model files."""
        names = ("labels", "label_map", "on_bad_row")
        return {"format": self.name, "task": self.task} | {
            name: getattr(self.options, name) for name in names
        }


def merge_duplicates(block: Block, where: Where, skip: bool, at: np.ndarray | None = None) -> Block:
    """Adds up the values of equal (field, id) in each row, at the place of the first; rewrites the arrays.

    Args:
        block: rows from a reader.
        where: place of the data, for the error.
        skip: leave out a row with a sum beyond float32, which else is a DataError.
        at: int64[n], byte offset of each row in the data; may be None where values are None: a sum of ones
            does not overflow.
    """
    n, nnz = block.n_rows, block.nnz
    if nnz < 2:
        return block
    fields = np.zeros(0, np.int32) if block.fields is None else block.fields
    if grows(block.indptr, fields, block.ids, block.fields is not None):
        return block
    if block.fields is None:
        fields = np.zeros(nnz, np.int32)
    slots = slots_for(int(np.diff(block.indptr).max()))
    bad = np.zeros(n, np.uint8)
    ones = block.values is None
    values = np.empty(0, np.float32) if block.values is None else block.values
    kept = merge_rows(block.indptr, fields, block.ids, values, ones, slots, bad, 0)
    if kept < 0:
        values = np.ones(nnz, np.float32)
        slots.fill(-1)
        kept = merge_rows(block.indptr, fields, block.ids, values, False, slots, bad, -1 - kept)
        ones = False
    block.ids = block.ids[:kept]
    block.fields = None if block.fields is None else fields[:kept]
    block.values = None if ones else values[:kept]
    if not bad.any():
        return block
    if not skip:
        offset = 0 if at is None else int(at[np.argmax(bad)])
        found = "values of one feature that add up to infinity"
        raise DataError(where.file, where.line_of(offset), found, "a finite sum")
    return drop_rows(block, bad != 0)


def drop_rows(block: Block, drop: np.ndarray) -> Block:
    """The Block without the rows where `drop` (bool[n]) is true; they are counted as skipped."""
    keep = ~drop
    lengths = np.diff(block.indptr)
    entries = np.repeat(keep, lengths)

    def of_rows(array: np.ndarray | None) -> np.ndarray | None:
        return None if array is None else array[keep]

    return Block(
        np.concatenate(([0], np.cumsum(lengths[keep], dtype=np.int64))),
        block.ids[entries],
        None if block.fields is None else block.fields[entries],
        None if block.values is None else block.values[entries],
        block.labels[keep],
        of_rows(block.weights),
        of_rows(block.groups),
        of_rows(block.norms),
        block.skipped + int(drop.sum()),
        block.has_labels,
    )


def excerpt(data: bytes, offset: int, ends: bytes = b" \t\r\n") -> str:
    """What stands at `offset`, up to one of the bytes `ends`, as `quote` shows it."""
    stop = offset
    while stop < len(data) and data[stop] not in ends and stop - offset < 1000:
        stop += 1
    return quote(data[offset:stop])


def quote(text: bytes, longest: int = 40) -> str:
    """Text for a message: in quotes, on one line, cut to `longest` characters; "nothing" if there is none."""
    shown = text.decode("utf-8", "backslashreplace")
    if not shown:
        return "nothing"
    return repr(shown[:longest] + "..." if len(shown) > longest else shown)
