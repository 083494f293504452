"""libffm and libsvm text to CSR arrays, in one pass over the bytes."""

from __future__ import annotations

import numpy as np

from .jit import jit_exact
from .parse_number import BAD, CLOSE, GOOD, read_float, read_label, read_unsigned
from .parse_plain import REACH, fill_ones, no_fields, read_plain

# How a parse kernel ended: BAD_* with the offset of the token at fault, FULL when `close` was too short.
DONE, BAD_LABEL, BAD_ENTRY, BAD_GROUP, FULL = 0, 1, 2, 3, 4
# Places in `state` int64[8]. GROUPS: -1 before the first row, then whether rows have groups.
ROWS, ENTRIES, SKIPPED, OFFSET, N_CLOSE, NOT_ONE, GROUPS = 0, 1, 2, 3, 4, 5, 6

_1 = np.uint64(1)
_2 = np.uint64(2)
_3 = np.uint64(3)
_4 = np.uint64(4)
_NEWLINE, _RETURN, _HASH, _COLON = 10, 13, 35, 58
_MAX_FIELD = np.uint64(2**31 - 1)
_MAX_GROUP = np.uint64(2**63 - 1)


@jit_exact
def skip_blanks(data, i):
    """Position of the first byte from i on that is neither space, tab nor the return of a line end."""
    while data[i] == 32 or data[i] == 9 or (data[i] == _RETURN and data[i + _1] == _NEWLINE):
        i += _1
    return i


@jit_exact
def line_end(data, i):
    """Position of the first newline from i on."""
    while data[i] != _NEWLINE:
        i += _1
    return i


@jit_exact
def _token_end(data, i):
    while data[i] > _HASH or not (
        data[i] == 32 or data[i] == 9 or data[i] == _NEWLINE or data[i] == _RETURN or data[i] == _HASH
    ):
        i += _1
    return i


@jit_exact
def keep_close(close, state, target, start):
    """Notes a number at `start` to be read again with care; target: entry, or -1 - row for a label."""
    n = state[N_CLOSE]
    if n < len(close):
        close[n, 0] = target
        close[n, 1] = start
    state[N_CLOSE] = n + 1


@jit_exact
def _read_group(data, i, row, groups, state):
    """qid:N behind the label that ends at i. Returns (position behind it or i, DONE or BAD_GROUP)."""
    start = skip_blanks(data, i)
    has = (
        data[start] == 113
        and data[start + _1] == 105
        and data[start + _2] == 100
        and data[start + _3] == _COLON
    )
    if state[GROUPS] < 0:
        state[GROUPS] = has
    good = state[GROUPS] == has
    if has:
        number, i, valid = read_unsigned(data, start + _4)
        groups[row] = np.int64(number)
        good &= valid and number <= _MAX_GROUP and data[i] <= _HASH
    return i, DONE if good else BAD_GROUP


@jit_exact
def _read_entry(data, i, with_fields):
    """field:id:value, or id:value or id.

    Returns (field, id, value, position of the value, position behind the entry, status).
    """
    field = np.uint64(0)
    value = 1.0
    status = GOOD
    if with_fields:
        field, i, good = read_unsigned(data, i)
        if not good or field > _MAX_FIELD or data[i] != _COLON:
            status = BAD
        else:
            i += _1
    key, i, good = read_unsigned(data, i)
    at = i + _1
    if not good or status == BAD:
        status = BAD
    elif data[i] == _COLON:
        value, i, status = read_float(data, at)
    elif with_fields:
        status = BAD
    if data[i] > _HASH:
        status = BAD
    return field, key, value, at, i, status


@jit_exact
def _is_plain_label(data, i, with_fields, rule, state):
    """Whether a label at i is one digit 0 or 1, which means itself, and no qid follows where none is due."""
    return (
        (data[i] == 48 or data[i] == 49)
        and data[i + _1] == 32
        and len(rule[-1]) == 0
        and (with_fields or (state[GROUPS] == 0 and data[i + _2] != 113))
    )


@jit_exact
def parse_sparse(
    data, with_fields, skip, rule, indptr, at, labels, groups, fields, ids, values, close, state
):
    """Reads rows "label field:id:value ..." (with_fields) or "label [qid:N] id[:value] ...".

    Blanks are spaces and tabs; blank lines and what follows # do not count.

    Args:
        data: uint8[m], ends with a newline.
        with_fields: libffm, else libsvm.
        skip: leave malformed rows out and count them, else stop at the first.
        rule: LabelRule.arrays.
        indptr, at, labels, groups: int64[n + 1], int64[n] offsets of rows, float32[n], int64[n] (int64[0]
            with fields); n >= rows.
        fields, ids, values: int32[e] (int32[0] without fields), uint64[e], float32[e]; e >= entries. Values
            are written only if some are not 1 (state[NOT_ONE]).
        close: int64[c, 2], (target, position) of numbers to be read again, see `keep_close`.
        state: int64[8], zero but GROUPS = -1; the results, see ROWS and the following names.

    Returns DONE, BAD_* or FULL (state[N_CLOSE] places are needed then).
    """
    i = np.uint64(0)
    end = np.uint64(len(data))
    row = np.int64(0)
    e = np.uint64(0)
    indptr[0] = 0
    not_one = False
    safe = end - np.uint64(REACH) if len(data) > REACH else np.uint64(0)
    known = no_fields()
    while i < end:
        i = skip_blanks(data, i)
        if data[i] != _NEWLINE and data[i] != _HASH:
            n_close = state[N_CLOSE]
            at[row] = i
            code = DONE
            if _is_plain_label(data, i, with_fields, rule, state):
                labels[row] = data[i] - 48
                stop = i + _1
            else:
                stop = _token_end(data, i)
                labels[row], status = read_label(data, i, stop, rule)
                code = BAD_LABEL if status == BAD else DONE
                if status == CLOSE:
                    keep_close(close, state, -1 - row, i)
                if code == DONE and not with_fields:
                    stop, code = _read_group(data, stop, row, groups, state)
            while code == DONE:
                stop, e, not_one = read_plain(
                    data, stop, safe, e, with_fields, known, fields, ids, values, not_one
                )
                i = skip_blanks(data, stop)
                if data[i] == _NEWLINE or data[i] == _HASH:
                    break
                field, ids[e], value, start, stop, status = _read_entry(data, i, with_fields)
                if status == BAD:
                    code = BAD_ENTRY
                elif status == CLOSE:
                    keep_close(close, state, np.int64(e), start)
                if with_fields:
                    fields[e] = field
                if value != 1.0 and not not_one:
                    not_one = fill_ones(values, e)
                if not_one:
                    values[e] = value
                e += _1
            if code == DONE:
                row += 1
                indptr[row] = e
            elif skip:
                e = np.uint64(indptr[row])
                state[N_CLOSE] = n_close
                state[SKIPPED] += 1
            else:
                state[OFFSET] = i
                return code
        i = line_end(data, i) + _1
    state[ROWS] = row
    state[ENTRIES] = e
    state[NOT_ONE] = not_one
    return FULL if state[N_CLOSE] > len(close) else DONE
