"""Numbers to text: predictions, and rows of one-hot data in the libffm and libsvm formats."""

from __future__ import annotations

import numpy as np

from .jit import inline_exact, jit_exact

DECIMALS = 8
_SCALE = 10**DECIMALS
_LARGEST = 9e10  # times the scale, these are still int64
_ZERO, _ONE = np.uint8(48), np.uint8(49)
_DOT, _MINUS, _SPACE, _COLON, _NEWLINE = (np.uint8(ord(c)) for c in ".- :\n")


@inline_exact
def _put_unsigned(number, least_digits, out, at):
    """Write a number >= 0 with at least so many digits; returns the place behind it."""
    digits = 1
    rest = number // 10
    while rest > 0:
        digits += 1
        rest //= 10
    digits = max(digits, least_digits)
    end = at + digits
    for i in range(digits):
        out[end - 1 - i] = _ZERO + np.uint8(number % 10)
        number //= 10
    return end


@jit_exact
def _format_fixed(numbers, out):
    """Write each of float32[n] with 8 decimals and a newline; returns the bytes used, -1 if one is too large.

    The product with 10^8 has at most 24 + 19 significant bits, so it is exact in float64, and rounding it to
    the nearest (even) integer is the correct rounding of the decimal.
    """
    at = 0
    for number in numbers:
        if not abs(number) <= _LARGEST:
            return -1
        scaled = np.int64(np.rint(np.float64(number) * _SCALE))
        if scaled < 0:
            out[at] = _MINUS
            at += 1
            scaled = -scaled
        at = _put_unsigned(scaled // _SCALE, 1, out, at)
        out[at] = _DOT
        at = _put_unsigned(scaled % _SCALE, DECIMALS, out, at + 1)
        out[at] = _NEWLINE
        at += 1
    return at


def format_probabilities(numbers: np.ndarray) -> bytes:
    """One line a number: float32[n] with 8 decimals, correctly rounded, as "%.8f" gives it, but without -0.

    Any number is accepted, so that the predictions of a regression can be written too; NaN is "nan".
    """
    out = np.empty(len(numbers) * (DECIMALS + 14), np.uint8)
    used = _format_fixed(np.require(numbers, np.float32, ("C", "W")), out)
    if used >= 0:
        return out[:used].tobytes()
    return "".join(f"{number:z.8f}\n" for number in numbers.tolist()).encode()


@jit_exact
def _format_one_hot(labels, keys, first_key, with_fields, out):
    """Write rows `label [field:]key:1 ...`; returns the bytes used.

    Args:
        labels: uint8[n], 0 or 1.
        keys: int32[n, fields], in column f the key of field f.
        first_key: int64 added to every key.
        with_fields: libffm, else libsvm.
        out: uint8[...], large enough.
    """
    at = 0
    for i in range(len(labels)):
        out[at] = _ZERO + labels[i]
        at += 1
        for f in range(keys.shape[1]):
            out[at] = _SPACE
            at += 1
            if with_fields:
                at = _put_unsigned(np.int64(f), 1, out, at)
                out[at] = _COLON
                at += 1
            at = _put_unsigned(np.int64(keys[i, f]) + first_key, 1, out, at)
            out[at] = _COLON
            out[at + 1] = _ONE
            at += 2
        out[at] = _NEWLINE
        at += 1
    return at


def format_one_hot(labels: np.ndarray, keys: np.ndarray, first_key: int, with_fields: bool) -> memoryview:
    """Text of one-hot rows: libffm with fields, libsvm without; arguments as in `_format_one_hot`."""
    n, fields = keys.shape
    largest = (int(keys.max()) if keys.size else 0) + first_key
    entry = len(str(largest)) + len(" :1") + (len(str(fields)) + 1 if with_fields else 0)
    out = np.empty(n * (2 + fields * entry), np.uint8)
    return out[: _format_one_hot(labels, keys, first_key, with_fields, out)].data
