"""Guesses the format of a file from its first lines. Standard library only."""

from __future__ import annotations

import os
import re

from ..errors import UserError

_LINES = 20  # looked at
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_CRITEO_INTEGER = re.compile(r"(-?[0-9]+)?")
_CRITEO_CATEGORY = re.compile(r"([0-9a-f]{1,16})?")
_N_INTEGERS, _N_CATEGORIES = 13, 26
_BY_NAME = {
    ".ffm": "libffm",
    ".libffm": "libffm",
    ".svm": "libsvm",
    ".libsvm": "libsvm",
    ".svmlight": "libsvm",
    ".libfm": "libsvm",
}


def guess(first_bytes: bytes, filename: str, schema: str = "") -> str:
    """Name of the format of a file.

    Args:
        first_bytes: its first bytes, some kilobytes. A last line that is cut off does no harm.
        filename: its name; the ending decides when the lines do not (an empty file, rows of labels only).
        schema: data.schema, which makes columns of text a csv or tsv file.

    What most of the lines look like counts: a malformed line is for the reader to report.
    Raises UserError saying what was seen when nothing fits.
    """
    lines = _whole_lines(first_bytes)
    name = _colons(lines) or _columns(lines, filename, schema)
    if name:
        return name
    root, ending = os.path.splitext(filename.lower())
    if ending == ".gz":
        ending = os.path.splitext(root)[1]
    if ending in _BY_NAME and all(len(line.split()) < 2 for line in lines):
        return _BY_NAME[ending]
    seen = f"starts with {lines[0][:60]!r}" if lines else "has no rows"
    raise UserError(
        f"{filename}: cannot tell its format ({seen}), give --data.format libffm, libsvm, dense, csv..."
    )


def _whole_lines(first_bytes: bytes) -> list[str]:
    """The first lines, without blank ones, comments and a last one that may be cut off."""
    text = first_bytes.decode("utf-8", "replace")
    lines = text.split("\n")
    if len(lines) > 1:
        lines.pop()  # empty, or without its end
    kept = (line.rstrip("\r") for line in lines)
    return [line for line in kept if line.strip() and not line.lstrip().startswith("#")][:_LINES]


def _colons(lines: list[str]) -> str:
    """libffm or libsvm, by the number of colons in most tokens after the label."""
    votes = {"libffm": 0, "libsvm": 0, "": 0}
    for line in lines:
        tokens = line.split("#")[0].split()
        if len(tokens) < 2:
            continue  # a label alone fits both
        colons = [token.count(":") for token in tokens[1:]]
        if "," in line or ":" in tokens[0]:
            votes[""] += 1
        elif 2 * colons.count(2) > len(colons):
            votes["libffm"] += 1
        elif 2 * colons.count(1) > len(colons):
            votes["libsvm"] += 1
        else:
            votes[""] += 1
    best = max(votes, key=lambda name: votes[name])
    return best if votes[best] else ""


def _columns(lines: list[str], filename: str, schema: str) -> str:
    """Formats in which every line has the same number of cells; "" when there are no such columns."""
    for separator in "\t,;":
        rows = [line.split(separator) for line in lines]
        width = len(rows[0]) if rows else 0
        if width < 2 or 2 * sum(len(row) == width for row in rows) <= len(rows):
            continue
        rows = [[cell.strip() for cell in row] for row in rows]
        if separator == "\t" and _is_criteo(rows):
            return "criteo"
        if rows[0][:2] == ["id", "click"] or rows[0][:3] == ["id", "hour", "C1"]:
            return "avazu"
        if schema:
            return "tsv" if separator == "\t" else "csv"
        numbers = [sum(bool(_NUMBER.fullmatch(cell)) for cell in row) for row in rows]
        if 2 * sum(n == len(row) for n, row in zip(numbers, rows, strict=True)) > len(rows) and numbers[0]:
            return "dense"
        kind = "tsv" if separator == "\t" else "csv"
        what = "a header" if not numbers[0] else "text in its columns"
        start = ", ".join(rows[0][:4]) + (", ..." if width > 4 else "")
        raise UserError(
            f"{filename}: looks like {kind} of {width} columns with {what} ({start}): say what the columns "
            f"are with --data.schema, or give --data.format dense if all are numbers, label first"
        )
    return ""


def _is_criteo(rows: list[list[str]]) -> bool:
    """40 columns (label, 13 integers, 26 hexadecimal categories), or 39 without the label."""
    fitting = 0
    for row in rows:
        if len(row) == 1 + _N_INTEGERS + _N_CATEGORIES:
            if row[0] not in ("0", "1"):
                continue
            row = row[1:]
        integers, categories = row[:_N_INTEGERS], row[_N_INTEGERS:]
        fitting += (
            len(categories) == _N_CATEGORIES
            and all(_CRITEO_INTEGER.fullmatch(cell) for cell in integers)
            and all(_CRITEO_CATEGORY.fullmatch(cell) for cell in categories)
        )
    return 2 * fitting > len(rows)
