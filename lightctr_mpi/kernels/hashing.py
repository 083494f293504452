"""Hashes that turn text and numbers into 64-bit keys.

MurmurHash3 (Austin Appleby, public domain), the variant x64_128, of which the first 64 bits serve as the key.
The seed is 64 bits wide here; for seeds below 2^32 the values are those of the published function. That some
two of n features share a key has a probability of about n^2 / 2^65: 3e-6 for ten million features.
"""

from __future__ import annotations

import numpy as np

from .jit import inline_exact, jit_exact
from .words import word_at

_C1 = np.uint64(0x87C37B91114253D5)
_C2 = np.uint64(0x4CF5AD432745937F)
_ADD1 = np.uint64(0x52DCE729)
_ADD2 = np.uint64(0x38495AB5)
_MIX1 = np.uint64(0xFF51AFD7ED558CCD)
_MIX2 = np.uint64(0xC4CEB9FE1A85EC53)
_FIVE = np.uint64(5)
_27, _31, _33, _64 = np.uint64(27), np.uint64(31), np.uint64(33), np.uint64(64)
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)


@jit_exact
def fmix64(key):
    """A bijection of uint64 that spreads every input bit over all output bits (MurmurHash3's finaliser)."""
    key ^= key >> _33
    key *= _MIX1
    key ^= key >> _33
    key *= _MIX2
    key ^= key >> _33
    return key


@jit_exact
def _rotate(word, bits):
    return (word << bits) | (word >> (_64 - bits))


@jit_exact
def _mix1(word):
    return _rotate(word * _C1, _31) * _C2


@jit_exact
def _mix2(word):
    return _rotate(word * _C2, _33) * _C1


@inline_exact
def _part(data, at, n_bytes):
    """1 to 8 bytes from position `at` on as a little-endian number."""
    if at + 8 <= len(data):
        return word_at(data, at) & (_ALL >> np.uint64(64 - 8 * n_bytes))
    word = np.uint64(0)
    for i in range(n_bytes):
        word |= np.uint64(data[at + i]) << np.uint64(8 * i)
    return word


@inline_exact
def murmur3_128(data, begin, end, seed):
    """MurmurHash3 x64_128 of data[begin:end].

    Args:
        data: uint8[n].
        begin, end: int64, 0 <= begin <= end <= n.
        seed: uint64, the start of both halves.

    Returns:
        The two halves (h1, h2), uint64 each.
    """
    h1 = h2 = seed
    at = begin
    while at + 16 <= end:
        h1 ^= _mix1(word_at(data, at))
        h1 = (_rotate(h1, _27) + h2) * _FIVE + _ADD1
        h2 ^= _mix2(word_at(data, at + 8))
        h2 = (_rotate(h2, _31) + h1) * _FIVE + _ADD2
        at += 16
    rest = end - at
    if rest > 8:
        h2 ^= _mix2(_part(data, at + 8, rest - 8))
    if rest > 0:
        h1 ^= _mix1(_part(data, at, min(rest, 8)))
    return _finish(h1, h2, np.uint64(end - begin))


@jit_exact
def _finish(h1, h2, length):
    h1 ^= length
    h2 ^= length
    h1 += h2
    h2 += h1
    h1 = fmix64(h1)
    h2 = fmix64(h2)
    h1 += h2
    h2 += h1
    return h1, h2


@inline_exact
def hash_bytes(data, begin, end, seed):
    """First half of murmur3_128: the key of a text. Same arguments, returns uint64."""
    return murmur3_128(data, begin, end, seed)[0]


@jit_exact
def hash_int(number, seed):
    """The key of a number: hash_bytes of its 8 bytes, least significant first.

    Args:
        number: int64.
        seed: uint64.

    Returns:
        uint64.
    """
    return _finish(seed ^ _mix1(np.uint64(number)), seed, np.uint64(8))[0]


@jit_exact
def _digest(data, out):
    out[0], out[1] = murmur3_128(data, 0, len(data), np.uint64(0))


def digest(data: bytes) -> bytes:
    """The 16 bytes of murmur3_128 with seed 0: tells a text that has changed from what it was."""
    out = np.empty(2, np.uint64)
    _digest(np.frombuffer(data, np.uint8), out)
    return out.astype("<u8").tobytes()


def hash_text(text: bytes, seed: int) -> int:
    """hash_bytes for a Python object; for the few texts outside of kernels."""
    return int(hash_bytes(np.frombuffer(text, np.uint8), 0, len(text), np.uint64(seed)))
