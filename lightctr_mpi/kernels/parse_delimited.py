"""Delimited text (CSV, TSV) to sparse rows, in one pass over the bytes.

As in `parse_number`, the data end with a newline and positions are uint64.
"""

from __future__ import annotations

import numpy as np

from .hashing import hash_bytes, hash_int
from .jit import inline_exact, jit_exact
from .parse_number import BAD, CLOSE, GOOD, read_float, read_label, read_unsigned
from .words import find_end

# What a column does.
SKIP, LABEL, GROUP, WEIGHT, CATEGORY, LOG, VALUE = range(7)
# What is wrong with a row. FULL: nothing, but `close` has no room left.
FINE, COLUMNS, BAD_CELL, FULL, OPEN_QUOTE, AFTER_QUOTE = range(6)

_0, _1 = np.uint64(0), np.uint64(1)
_NEWLINE = 10
_FEWEST = -(2.0**62)  # smaller numbers share one bin
_INT64 = np.uint64(2**63)


@inline_exact
def _is_blank(byte, separator):
    return byte <= 32 and (byte == 32 or byte == 9 or byte == 13) and byte != separator


@jit_exact
def _quoted(data, buffer, at, separator, quote):
    """The cell whose opening quote stands at `at`; doubled quotes are undone in place, through `buffer`.

    Returns (begin, end, position of the separator or newline behind it, FINE or what is wrong).
    """
    at += _1
    begin = end = at
    while data[at] != _NEWLINE:
        if data[at] == quote:
            if data[at + _1] != quote:
                break
            at += _1
        if end != at:
            buffer[end] = data[at]
        end += _1
        at += _1
    if data[at] == _NEWLINE:
        return begin, end, at, OPEN_QUOTE
    at += _1
    while _is_blank(data[at], separator):
        at += _1
    wrong = FINE if data[at] == separator or data[at] == _NEWLINE else AFTER_QUOTE
    while wrong != FINE and data[at] != _NEWLINE:
        at += _1
    return begin, end, at, wrong


@inline_exact
def _cell(data, buffer, at, separator, quote):
    """The cell that starts at `at`, without the blanks around it. Returns as `_quoted` does."""
    while _is_blank(data[at], separator):
        at += _1
    if data[at] == quote:
        begin, end, at, wrong = _quoted(data, buffer, at, separator, quote)
    else:
        begin = at
        wrong = FINE
        at = end = find_end(data, at, np.uint64(separator))
        while end > begin and _is_blank(data[end - _1], separator):
            end -= _1
    return begin, end, at, wrong


@jit_exact
def _is_missing(data, begin, end, texts, ends):
    """Whether the cell is one of the texts, which stand one after the other."""
    found = False
    for k in range(len(ends) - 1):
        if np.int64(end - begin) == ends[k + 1] - ends[k]:
            same = True
            for i in range(ends[k + 1] - ends[k]):
                same &= data[begin + np.uint64(i)] == texts[ends[k] + i]
            found |= same
    return found


@inline_exact
def log_bin(value):
    """Bin of a count: up to 2, the integer below it; above, 3 + floor(log(value)^2).

    The squared logarithm is that of the winners of the Criteo challenge of 2014 (Juan, Zhuang, Chin: "3
    Idiots' Approach"); adding 3 keeps its bins apart from those of the small integers.
    """
    if value > 2.0:
        return 3 + np.int64(np.log(value) ** 2)
    return np.int64(np.floor(max(value, _FEWEST)))


@inline_exact
def _start(begin, end, suffix):
    """Where the last `suffix` bytes of a cell start, or the cell where that is 0."""
    start = np.int64(begin)
    return max(start, np.int64(end) - suffix) if suffix else start


@jit_exact
def _group(data, begin, end, seed):
    """An integer of 64 bits as it is, any other text by its hash."""
    negative = data[begin] == 45
    number, behind, good = read_unsigned(data, begin + (_1 if negative else _0))
    if good and behind == end and number < _INT64:
        return -np.int64(number) if negative else np.int64(number)
    return np.int64(hash_bytes(data, np.int64(begin), np.int64(end), seed))


@inline_exact
def _keep_close(close, n, action, place, begin, end):
    """Notes a number to be read again with care. Returns FINE or FULL, and how many there are."""
    if n == len(close):
        return FULL, n
    close[n, 0], close[n, 1] = action, place
    close[n, 2], close[n, 3] = np.int64(begin), np.int64(end)
    return FINE, n + 1


@jit_exact
def parse_rows(data, buffer, at, marks, columns, missing, rule, skip, indptr, entries, per_row, close, out):
    """Parses every row from position `at` on.

    Args:
        data: uint8[], read-only as all parsers take it, ends with a newline.
        buffer: uint8[], the same memory to write to; of length 0 if the data have no quotes. Quoted cells are
            changed through it, so that `data` can be read-only and the number parsers have one signature.
        at: uint64, start of a line.
        marks: separator int64, quote int64 (-1 for none), shift of keys to the right uint64.
        columns: by column, action int8[c], field int32[c], seed uint64[c], length of its suffix in bytes
            int64[c] (0: all of the cell).
        missing: texts of a missing cell one after the other uint8[], their ends int64[m + 1].
        rule: `LabelRule.arrays`.
        skip: leave malformed rows out instead of stopping at the first.
        indptr: int64[most rows + 1], written.
        entries: ids uint64[most entries], fields int32[most entries], values float32[most entries] (of length
            0 when all values are 1), written.
        per_row: labels float32[most rows], weights float32[most rows], groups int64[most rows], written (a
            column that does not exist may have length 0).
        close: int64[most, 4], written: numbers too close to the middle of two float32 to be decided here, as
            (action, entry or row, begin, end).
        out: int64[9], all 0, written: rows, entries, skipped rows, numbers in `close`; then, if it stopped:
            what is wrong, start of the row, begin and end of the cell, column (of COLUMNS: how many there
            are).
    """
    separator, quote, shift = marks
    action, field, seed, suffix = columns
    texts, ends = missing
    ids, fields, values = entries
    labels, weights, groups = per_row
    row = e = n_close = np.int64(0)
    indptr[0] = 0
    while at < np.uint64(len(data)):
        line = at
        while _is_blank(data[at], separator):
            at += _1
        if data[at] == _NEWLINE:
            at += _1
            continue
        column, problem, first_close = 0, FINE, n_close
        while True:
            begin, end, at, wrong = _cell(data, buffer, at, separator, quote)
            what = action[column] if column < len(action) and wrong == FINE else SKIP
            if what >= CATEGORY and (
                begin == end or len(ends) > 1 and _is_missing(data, begin, end, texts, ends)
            ):
                what = SKIP
            value, status, place = 1.0, GOOD, row
            if what == WEIGHT or what > CATEGORY:
                value, behind, status = read_float(data, begin)
                if behind != end or status == BAD or (what == WEIGHT and value < 0.0):
                    wrong = BAD_CELL
            if what >= CATEGORY and (value != 0.0 or what == LOG):
                key = seed[column]
                if what == CATEGORY:
                    start = _start(begin, end, suffix[column])
                    key = hash_bytes(data, start, np.int64(end), key)
                elif what == LOG:
                    key = hash_int(log_bin(value), key)
                    value, status = 1.0, GOOD
                ids[e], fields[e] = key >> shift, field[column]
                if len(values):
                    values[e] = value
                place = e
                e += 1
            elif what == WEIGHT:
                weights[row] = value
            elif what == LABEL:
                value, status = read_label(data, begin, end, rule)
                labels[row] = value
                wrong = BAD_CELL if status == BAD else FINE
            elif what == GROUP:
                groups[row] = _group(data, begin, end, seed[column])
                wrong = BAD_CELL if begin == end else FINE
            if status == CLOSE and wrong == FINE:
                wrong, n_close = _keep_close(close, n_close, what, place, begin, end)
            if wrong != FINE and (problem == FINE or wrong >= OPEN_QUOTE):
                problem = wrong
                out[6], out[7], out[8] = np.int64(begin), np.int64(end), column
            column += 1
            if data[at] == _NEWLINE:
                break
            at += _1
        at += _1
        if column != len(action) and problem < OPEN_QUOTE:
            problem, out[8] = COLUMNS, column
        if problem == FINE:
            row += 1
            indptr[row] = e
            continue
        e, n_close = indptr[row], first_close
        if not skip or problem == FULL:
            out[4], out[5] = problem, np.int64(line)
            break
        out[2] += 1
    out[0], out[1], out[3] = row, e, n_close
