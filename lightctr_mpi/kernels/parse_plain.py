"""The usual entries of libffm and libsvm text, eight bytes at a time.

What is read here is what `parse.parse_sparse` would read with care, byte by byte; anything unusual (blanks
other than single ones, comments, malformed entries, values between two float32, the end of the data) is left
to it. So this file knows no errors.

Functions that are handed arrays are not inlined by Numba here but by LLVM: Numba's inlining counts references
to an array, atomically, wherever the inlined body branches.
"""

from __future__ import annotations

import numpy as np

from .jit import inline_exact, jit_exact
from .parse_number import GOOD, read_float
from .words import trailing_zeros, word_at

_0, _1, _2, _3, _4, _8, _16, _32, _64 = (np.uint64(n) for n in (0, 1, 2, 3, 4, 8, 16, 32, 64))
_ZEROS = np.uint64(0x3030303030303030)  # "00000000"
_TO_TOP = np.uint64(0x7676767676767676)  # takes bytes above 9 beyond 127
_TOPS = np.uint64(0x8080808080808080)
_PAIRS, _FOURS = np.uint64(0x00FF00FF00FF00FF), np.uint64(0x0000FFFF0000FFFF)
_BY_10, _BY_100, _BY_10000 = np.uint64(10 << 8 | 1), np.uint64(100 << 16 | 1), np.uint64(10000 << 32 | 1)
_E4, _E8 = np.uint64(10**4), np.uint64(10**8)
_MOST_E4, _MOST_REST = np.uint64((2**64 - 1) // 10**4), np.uint64((2**64 - 1) % 10**4)
_BYTE, _THREE = np.uint64(0xFF), np.uint64(0xFFFFFF)
_COLON, _HASH = np.uint64(58), np.uint64(35)
_ONE_BLANK = np.uint64(ord(":") | ord("1") << 8 | ord(" ") << 16)
_ONE_NEWLINE = np.uint64(ord(":") | ord("1") << 8 | ord("\n") << 16)
_NO_TEXT = np.uint64(2**64 - 1)

REACH = 48  # bytes that one entry may be looked at behind the blank before it, but for its value
_POSITIONS = 64  # entries of a row whose fields are remembered, a power of two
_LAST = np.uint64(4 * _POSITIONS - 1)
_TEXT, _MASK, _LENGTH, _FIELD = _0, _1, _2, _3


@inline_exact
def _not_digits(digits):
    """The lowest one of the result is the top bit of the first byte above 9; 0 if there is none."""
    return ((digits + _TO_TOP) | digits) & _TOPS


@inline_exact
def _number(digits):
    """The number of eight bytes 0 to 9, the first (lowest) of which counts most: neighbours join, thrice."""
    digits = (digits * _BY_10) >> _8
    digits = ((digits & _PAIRS) * _BY_100) >> _16
    return ((digits & _FOURS) * _BY_10000) >> _32


@inline_exact
def _leading(digits, other):
    """(number, length) of the digits before the first other byte."""
    bits = trailing_zeros(other) - np.uint64(7)
    return _number((digits << _1) << (np.uint64(63) - bits)), bits >> _3


@jit_exact
def _read_long(data, i):
    """A number that begins with eight digits. Returns (number, position behind it, whether it is read)."""
    number = _number(word_at(data, i) ^ _ZEROS)
    i += _8
    digits = word_at(data, i) ^ _ZEROS
    other = _not_digits(digits)
    if other:
        rest, length = _leading(digits, other)
        for _ in range(length):
            number *= np.uint64(10)
        return number + rest, i + length, True
    number = number * _E8 + _number(digits)
    i += _8
    digits = word_at(data, i) ^ _ZEROS
    other = _not_digits(digits)
    if other == _0:
        return number, i, False
    rest, length = _leading(digits, other)
    good = length < _4 or (
        length == _4 and (number < _MOST_E4 or (number == _MOST_E4 and rest <= _MOST_REST))
    )
    for _ in range(length):
        number *= np.uint64(10)
    return number + rest, i + length, good


@jit_exact
def _learn_field(data, i, known, position):
    """Remembers the field at i; returns whether it has a plain form: 1 to 7 digits and a colon."""
    word = word_at(data, i)
    digits = word ^ _ZEROS
    other = _not_digits(digits)
    if other == _0:
        return False
    number, length = _leading(digits, other)
    if length == _0 or (word >> (_8 * length)) & _BYTE != _COLON:
        return False
    mask = _NO_TEXT >> (np.uint64(56) - _8 * length)
    known[position + _TEXT] = word & mask
    known[position + _MASK] = mask
    known[position + _LENGTH] = length + _1
    known[position + _FIELD] = number
    return True


def _no_fields():
    """uint64[4 * _POSITIONS]: the field that the last row had at each position; none yet."""
    known = np.zeros(4 * _POSITIONS, np.uint64)
    known[0::4] = _NO_TEXT  # at _TEXT: no word has these bits under a mask of 0
    return known


no_fields = jit_exact(_no_fields)


@jit_exact
def fill_ones(values, e):
    """The values of the first e entries, not written down as long as all were 1. Returns True."""
    for earlier in range(e):
        values[earlier] = 1.0
    return True


@jit_exact
def read_plain(data, i, safe, e, with_fields, known, fields, ids, values, not_one):
    """Reads entries from i, the end of a token, on, as long as they are plain.

    Args:
        data, with_fields, fields, ids, values: as for `parse.parse_sparse`.
        safe: len(data) - REACH, or 0 for shorter data.
        e: entries so far.
        known: of `no_fields`, kept from row to row.
        not_one: whether some value so far is not 1, so that values are written.

    Returns (position behind the last entry read, entries, not_one).
    """
    position = _0
    while i < safe and data[i] == 32:
        at = i + _1
        word = word_at(data, at)
        if with_fields:
            text = word & known[position + _MASK]
            if text != known[position + _TEXT] and not _learn_field(data, at, known, position):
                break
            fields[e] = known[position + _FIELD]
            at += known[position + _LENGTH]
            word = word_at(data, at)
            position = (position + _4) & _LAST
        digits = word ^ _ZEROS
        other = _not_digits(digits)
        if other == _0:
            key, at, good = _read_long(data, at)
            if not good:
                break
        else:
            key, length = _leading(digits, other)
            if length == _0:
                break
            at += length
        tail = word_at(data, at) & _THREE
        value = 1.0
        if tail == _ONE_BLANK or tail == _ONE_NEWLINE:  # noqa: SIM109 - no tuples in kernels
            at += _2
        elif tail & _BYTE == _COLON:
            value, at, status = read_float(data, at + _1)
            if status != GOOD or data[at] > _HASH:
                break
        elif with_fields or tail & _BYTE > _HASH:
            break
        ids[e] = key
        if value != 1.0 and not not_one:
            not_one = fill_ones(values, e)
        if not_one:
            values[e] = value
        e += _1
        i = at
    return i, e, not_one
