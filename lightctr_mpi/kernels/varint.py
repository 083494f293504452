"""Ascending keys as LEB128 numbers: 7 bits to a byte, the lowest first, bit 7 set on all bytes but the last.

What is written is the first key and then the difference of each key to the one before. Numbers have one form
only: no more bytes than they need.
"""

from __future__ import annotations

import numpy as np

from .jit import inline_exact, jit_exact
from .words import trailing_zeros, word_at

MOST_BYTES = 10  # of one number of 64 bits

# What `decode` and `encode` return in place of a count.
TORN, OVERLONG, NOT_ASCENDING = -1, -2, -3

_ONE, _2, _3, _4, _7, _63 = (np.uint64(i) for i in (1, 2, 3, 4, 7, 63))
_LOW7, _MORE = np.uint64(0x7F), np.uint64(0x80)
_ONES = np.uint64(0x0101010101010101)
_TOPS = np.uint64(0x8080808080808080)
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
# Masks of the 7-bit groups at even and odd places, then of pairs of groups, then of fours.
_EVEN1, _ODD1 = np.uint64(0x007F007F007F007F), np.uint64(0x7F007F007F007F00)
_EVEN2, _ODD2 = np.uint64(0x00003FFF00003FFF), np.uint64(0x3FFF00003FFF0000)
_EVEN4, _ODD4 = np.uint64(0x000000000FFFFFFF), np.uint64(0x0FFFFFFF00000000)


@inline_exact
def _join(word):
    """The 56 bits of 8 groups of 7, one in each byte of the word."""
    word = (word & _EVEN1) | ((word & _ODD1) >> _ONE)
    word = (word & _EVEN2) | ((word & _ODD2) >> _2)
    return (word & _EVEN4) | ((word & _ODD4) >> _4)


@jit_exact
def encode(keys, out):
    """Write keys, uint64[n], into out, uint8[>= 10 n]; the number of bytes, or NOT_ASCENDING."""
    at, before = np.uint64(0), np.uint64(0)
    for i in range(len(keys)):
        rest = keys[i] - before
        if i > 0 and keys[i] <= before:
            return np.int64(NOT_ASCENDING)
        before = keys[i]
        if rest < np.uint64(1 << 14):
            # Two bytes without a branch between them: which of the two forms it is, nobody can foretell.
            long = np.uint64(rest > _LOW7)
            out[at] = (rest & _LOW7) | (long << _7)
            out[at + _ONE] = rest >> _7
            at += _ONE + long
            continue
        while rest > _LOW7:
            out[at] = (rest & _LOW7) | _MORE
            rest >>= _7
            at += _ONE
        out[at] = rest
        at += _ONE
    return np.int64(at)


@inline_exact
def _read(data, at):
    """(number, position behind it), byte by byte; a position of TORN or OVERLONG where there is none."""
    number, shift = np.uint64(0), np.uint64(0)
    while at < len(data):
        byte = np.uint64(data[at])
        at += 1
        if shift == _63 and byte > _ONE:
            return number, np.int64(OVERLONG)
        number |= (byte & _LOW7) << shift
        if byte < _MORE:
            return number, np.int64(OVERLONG) if byte == 0 and shift > 0 else at
        shift += _7
    return number, np.int64(TORN)


@inline_exact
def _read8(word, before, keys, i):
    """Write the 8 keys whose differences are the bytes of the word to keys[i:]; the last of them."""
    key = before
    for j in range(8):
        key += (word >> np.uint64(8 * j)) & _LOW7
        keys[i + j] = key
    return key


@jit_exact
def decode(data, keys):
    """Read len(keys) keys, uint64[n], from data, uint8[m].

    Returns:
        The number of bytes read, or TORN, OVERLONG (a number above 2^64 - 1, or in more bytes than it needs),
        NOT_ASCENDING (a difference of 0, or a key above 2^64 - 1). No byte outside of `data` is looked at.
    """
    i, n, at, before = 0, len(keys), np.int64(0), np.uint64(0)
    while i < n:
        stops = np.uint64(0)
        if at + 8 <= len(data):
            word = word_at(data, at)
            stops = ~word & _TOPS
            if stops == _TOPS and i <= n - 8 and (word - _ONES) & _TOPS == 0:  # no byte is 0
                key = _read8(word, before, keys, i)
                if key < before:
                    return np.int64(NOT_ASCENDING)
                before = key
                at += 8
                i += 8
                continue
        if stops != 0:
            last = trailing_zeros(stops)  # of the number's last byte, bit 7
            word &= _ALL >> (_63 - last)
            if word >> (last - _7) == 0 and last > _7:
                return np.int64(OVERLONG)
            rest = _join(word)
            at += np.int64(last >> _3) + 1
        else:
            rest, end = _read(data, at)
            if end < 0:
                return end
            at = end
        key = before + rest
        if i > 0 and key <= before:
            return np.int64(NOT_ASCENDING)
        keys[i] = before = key
        i += 1
    return at
