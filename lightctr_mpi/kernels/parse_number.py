"""Numbers and labels out of bytes.

All functions take data uint8[] that ends with a newline, so that no loop needs to look for the end, and
positions as uint64: an unsigned index spares the check for negative ones.
"""

from __future__ import annotations

import numpy as np

from .jit import inline_exact, jit_exact

GOOD, BAD, CLOSE = 0, 1, 2  # CLOSE: too close to the middle of two float32 to decide here

_0, _1, _10, _19, _20 = (np.uint64(n) for n in (0, 1, 10, 19, 20))
_ZERO = np.uint64(ord("0"))
_TEN_19 = np.uint64(10**19)
_EXACT = np.uint64(2**53)  # integers up to here are float64
_LOW, _HIGH = -70, 40  # m * 10^e with m < 2^64 is 0 below and infinite above, as float32
_TENS = np.array([float(f"1e{e}") for e in range(_LOW, _HIGH + 1)])
_MARGIN = 2.0**-50
_MAX_EXPONENT = 100_000
_BINARY, _SOFT = 0, 1


@inline_exact
def digit_at(data, i):
    """Value of the digit at i, or a number above 9."""
    return np.uint64(data[i]) - _ZERO


@jit_exact
def _long_unsigned(data, start, stop):
    """Value and validity of 20 or more digits."""
    while start < stop and data[start] == 48:
        start += _1
    value = _0
    for i in range(start, stop):
        value = value * _10 + digit_at(data, i)
    length = stop - start
    # 20 digits wrap around 2^64 = 1.8e19 to less than 10^19, unless the number is below 2^64
    good = length < _20 or (length == _20 and data[start] == 49 and value >= _TEN_19)
    return value, good


@inline_exact
def read_unsigned(data, i):
    """Digits from i on.

    Returns (value uint64, position behind them, whether there are any and the value is below 2^64).
    """
    start = i
    value = _0
    digit = digit_at(data, i)
    while digit < _10:
        value = value * _10 + digit
        i += _1
        digit = digit_at(data, i)
    good = i > start
    if i - start >= _20:
        value, good = _long_unsigned(data, start, i)
    return value, i, good


@jit_exact
def _hard_float(data, start, shift):
    """Value of the digits with at most one point from `start` on, times 10^shift, by inexact arithmetic.

    The first 19 significant digits times a power of ten, in float64, differ from the true value by less than
    2^-51 of it. If all within 2^-50 rounds to one float32, so does what a correctly rounding reader gives.
    Returns (value float64, GOOD, BAD beyond float32, or CLOSE).
    """
    mantissa = _0
    i = start
    fraction = False
    while data[i] == 46 or digit_at(data, i) < _10:
        if data[i] == 46:
            fraction = True
        else:
            if mantissa < np.uint64(10**18):
                mantissa = mantissa * _10 + digit_at(data, i)
                shift -= fraction
            else:
                shift += not fraction
        i += _1
    if mantissa == _0 or shift < _LOW:
        return 0.0, GOOD
    if shift > _HIGH:
        return 0.0, BAD
    value = np.float64(mantissa) * _TENS[shift - _LOW]
    low, high = np.float32(value * (1.0 - _MARGIN)), np.float32(value * (1.0 + _MARGIN))
    if low != high:
        return value, CLOSE
    return value, GOOD if np.isfinite(high) else BAD


@jit_exact
def read_float(data, i):
    """A decimal number from i on: sign, digits with or without a point, exponent.

    Returns (value float64, position behind it, status). Rounded to float32, a GOOD value is that of the
    correctly rounded float64; BAD: no number, or beyond float32.
    """
    negative = data[i] == 45
    if negative or data[i] == 43:
        i += _1
    start = i
    mantissa = _0
    shift = np.int64(0)
    digit = digit_at(data, i)
    while digit < _10:
        mantissa = mantissa * _10 + digit
        i += _1
        digit = digit_at(data, i)
    length = i - start
    if data[i] == 46:
        i += _1
        point = i
        digit = digit_at(data, i)
        while digit < _10:
            mantissa = mantissa * _10 + digit
            i += _1
            digit = digit_at(data, i)
        length += i - point
        shift = -np.int64(i - point)
    written = np.int64(0)
    status = GOOD if length > _0 else BAD
    if data[i] | 32 == 101:
        written, i, status = _read_exponent(data, i, status)
        shift += written
    value = np.float64(mantissa)
    if status == GOOD and (length > _19 or shift != 0):
        if length > _19 or mantissa > _EXACT or shift < -22 or shift > 22:
            value, status = _hard_float(data, start, written)
        elif shift < 0:
            value /= _TENS[-shift - _LOW]
        else:
            value *= _TENS[shift - _LOW]
    return -value if negative else value, i, status


@jit_exact
def _read_exponent(data, i, status):
    """The exponent whose e stands at i. Returns (exponent int64, position behind it, status)."""
    i += _1
    negative = data[i] == 45
    if negative or data[i] == 43:
        i += _1
    exponent = np.int64(0)
    start = i
    while digit_at(data, i) < _10:
        if exponent < _MAX_EXPONENT:
            exponent = exponent * 10 + np.int64(digit_at(data, i))
        i += _1
    return -exponent if negative else exponent, i, status if i > start else BAD


@inline_exact
def _same(data, start, stop, texts, first, last):
    """Whether data[start:stop] equals texts[first:last]."""
    if np.int64(stop - start) != last - first:
        return False
    for k in range(last - first):  # noqa: SIM110 - no generators in kernels
        if data[start + np.uint64(k)] != texts[first + k]:
            return False
    return True


@jit_exact
def read_label(data, start, stop, rule):
    """The label in data[start:stop], by the `LabelRule.arrays` of readers/base.py.

    The byte at `stop` must not be able to continue a number. Returns (label float64, GOOD, BAD or CLOSE).
    """
    mode, texts, ends, numbers, labels = rule
    if start == stop:
        return 0.0, BAD
    for k in range(len(labels)):
        if _same(data, start, stop, texts, ends[k], ends[k + 1]):
            return np.float64(labels[k]), GOOD
    value, behind, status = read_float(data, start)
    if status == BAD or behind != stop:
        return 0.0, BAD
    value = np.float64(np.float32(value))
    if len(labels):
        for k in range(len(labels)):
            if numbers[k] == value:
                return np.float64(labels[k]), GOOD
        return 0.0, BAD
    if mode == _BINARY:
        return max(value, 0.0), GOOD if value == 0.0 or abs(value) == 1.0 else BAD
    if mode == _SOFT:
        return value, status if 0.0 <= value <= 1.0 else BAD
    return value, status
