"""Rows of numbers in columns to CSR arrays, without the zeros."""

from __future__ import annotations

import numpy as np

from .jit import inline_exact, jit_exact
from .parse import (
    BAD_LABEL,
    DONE,
    ENTRIES,
    FULL,
    N_CLOSE,
    NOT_ONE,
    OFFSET,
    ROWS,
    SKIPPED,
    keep_close,
    line_end,
)
from .parse_number import BAD, CLOSE, read_float, read_label

BAD_CELL, BAD_WIDTH = 11, 12

_1 = np.uint64(1)
_NEWLINE, _RETURN, _ZERO = 10, 13, 48


@inline_exact
def _skip_blanks(data, i, separator):
    """Position of the first byte from i on that is no space, tab (unless tabs separate) or return."""
    while (data[i] == 32 or data[i] == 9 or data[i] == _RETURN) and data[i] != separator:
        i += _1
    return i


@inline_exact
def _cell_end(data, i, separator):
    """End of the text that starts at i, without blanks before the separator or the end of the line."""
    end = i
    while data[i] != separator and data[i] != _NEWLINE:
        i += _1
        if data[i - _1] != 32 and data[i - _1] != 9 and data[i - _1] != _RETURN:
            end = i
    return end


@jit_exact
def parse_dense(
    data, begin, separator, width, label_at, skip, rule, indptr, at, labels, ids, values, close, state
):
    """Reads rows of `width` cells between separators, one of them the label; zeros are not stored.

    Args:
        data: uint8[m], ends with a newline.
        begin: offset of the first row.
        separator: byte between cells.
        width: cells of a row.
        label_at: position of the label among them, 0 or width - 1. The other cells are counted from 0 as ids.
        skip, rule, indptr, at, labels, ids, values, close, state: as for `parse.parse_sparse`.

    Returns DONE, FULL, BAD_LABEL, BAD_CELL with the offset of the cell or BAD_WIDTH with that of the row.
    """
    i = np.uint64(begin)
    row, e = np.int64(0), np.uint64(0)
    indptr[0] = 0
    not_one = False
    while i < np.uint64(len(data)):
        i = _skip_blanks(data, i, separator)
        if data[i] != _NEWLINE:
            n_close = state[N_CLOSE]
            at[row] = i
            code, column = DONE, np.int64(0)
            while code == DONE:
                i = start = _skip_blanks(data, i, separator)
                if column == label_at:
                    i = _cell_end(data, start, separator)
                    labels[row], status = read_label(data, start, i, rule)
                    if status == BAD:
                        code = BAD_LABEL
                    elif status == CLOSE:
                        keep_close(close, state, -1 - row, start)
                elif data[i] == _ZERO and data[i + _1] == separator:
                    i += _1
                else:
                    value, i, status = read_float(data, i)
                    if status == BAD:
                        code = BAD_CELL
                    elif status == CLOSE:
                        keep_close(close, state, np.int64(e), start)
                    values[e] = value
                    if values[e] != 0.0:
                        ids[e] = column - (label_at == 0)
                        not_one |= value != 1.0
                        e += _1
                i = _skip_blanks(data, i, separator)
                column += 1
                if code == DONE and data[i] != separator:
                    code = BAD_CELL if data[i] != _NEWLINE else DONE if column == width else BAD_WIDTH
                    break
                i += _1
            if code == DONE:
                row += 1
                indptr[row] = e
            elif skip:
                e = np.uint64(indptr[row])
                state[N_CLOSE] = n_close
                state[SKIPPED] += 1
                i = np.uint64(at[row])
            else:
                state[OFFSET] = at[row] if code == BAD_WIDTH else start
                return code
        i = line_end(data, i) + _1
    state[ROWS], state[ENTRIES], state[NOT_ONE] = row, e, not_one
    return FULL if state[N_CLOSE] > len(close) else DONE
