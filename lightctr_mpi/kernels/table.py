"""Numbering of 64-bit keys: an open-addressing hash table, and the merge of sorted key lists.

The table is one array `slots`, uint64[c] with c a power of two. An empty slot is 0; a used one holds the
upper half of the key's hash beside the key's number plus 1. The keys themselves stand in `keys` in order of
arrival, so that a probe reads one word of 8 bytes and looks at a key only where 32 bits of hash agree, and a
larger table is built from the keys alone. Collisions go to the next slot (linear probing, Knuth, TAOCP vol.
3, 6.4), at most half of the slots are used. The hash is the finaliser of MurmurHash3, a bijection of 64-bit
words: low bits that many keys share (multiples of a power of two, ids that count up) do not cluster.
"""

from __future__ import annotations

import numpy as np

from .hashing import fmix64
from .jit import inline_exact, jit_exact, own
from .simd import prefetch

_LEAST = 1 << 10
_LOW = np.uint64(0xFFFFFFFF)
_HIGH = np.uint64(0xFFFFFFFF00000000)
_ONE = np.uint64(1)
_NEAR, _FAR = 8, 16  # queries that the memory is asked for ahead of time
MOST_KEYS = 2**30  # the numbers are int32


@inline_exact
def _seek(slots, keys, key):
    """(slot, number): where the key stands, or the empty slot where it belongs and -1."""
    mask = np.uint64(len(slots) - 1)
    hashed = fmix64(key)
    tag = hashed & _HIGH
    at = hashed & mask
    number = np.int64(-1)
    while slots[at] != 0:
        slot = slots[at]
        if slot & _HIGH == tag:
            candidate = np.int64(slot & _LOW) - 1
            if keys[candidate] == key:
                number = candidate
                break
        at = (at + _ONE) & mask
    return at, number


@inline_exact
def _look_ahead(slots, keys, queries, i):
    """Fetch what the queries after i will need: first the slot, a little later the key it points to."""
    mask = np.uint64(len(slots) - 1)
    if i + _FAR < len(queries):
        prefetch(slots, np.int64(fmix64(queries[i + _FAR]) & mask))
        slot = slots[fmix64(queries[i + _NEAR]) & mask]
        prefetch(keys, np.int64(slot & _LOW) - 1)


@jit_exact
def insert(slots, keys, n, queries, start, numbers):
    """Number the keys queries[start:], new ones by order of arrival, until the table is half full.

    Args:
        slots: uint64[c], c a power of two.
        keys: uint64[>= c / 2]; the first n are in the table.
        n: keys in the table.
        queries: uint64[m].
        start: first query to look at.
        numbers: int32[m], filled from `start`.

    Returns:
        (n, next): keys now in the table; the first query not done, m when all are.
    """
    limit = len(slots) // 2
    for i in range(start, len(queries)):
        _look_ahead(slots, keys, queries, i)
        key = queries[i]
        at, number = _seek(slots, keys, key)
        if number < 0:
            if n == limit:
                return n, i
            number = n
            keys[n] = key
            n += 1
            slots[at] = (fmix64(key) & _HIGH) | np.uint64(n)
        numbers[i] = number
    return n, len(queries)


@jit_exact
def find(slots, keys, queries, numbers):
    """numbers[i] = number of queries[i], -1 where it is not in the table. uint64[m] -> int32[m]."""
    for i in range(len(queries)):
        _look_ahead(slots, keys, queries, i)
        _, number = _seek(slots, keys, queries[i])
        numbers[i] = number


@jit_exact
def rebuild(slots, keys, n):
    """Enter the distinct keys keys[:n] into the empty table `slots`."""
    mask = np.uint64(len(slots) - 1)
    for number in range(n):
        if number + _FAR < n:
            prefetch(slots, np.int64(fmix64(keys[number + _FAR]) & mask))
        hashed = fmix64(keys[number])
        at = hashed & mask
        while slots[at] != 0:
            at = (at + _ONE) & mask
        slots[at] = (hashed & _HIGH) | np.uint64(number + 1)


@jit_exact
def merge(a, b, out):
    """Union of two sorted lists of distinct keys, sorted, into out uint64[>= len(a) + len(b)]; its length."""
    i = j = n = 0
    while i < len(a) and j < len(b):
        x, y = a[i], b[j]
        out[n] = min(x, y)
        i += x <= y
        j += y <= x
        n += 1
    while i < len(a):
        out[n] = a[i]
        i += 1
        n += 1
    while j < len(b):
        out[n] = b[j]
        j += 1
        n += 1
    return n


class Dictionary:
    """Keys (uint64) and their numbers 0, 1, ... (int32) in order of arrival.

    Memory: 24 to 48 bytes a key, following the number of distinct keys and not their size.
    """

    def __init__(self, keys: np.ndarray | None = None):
        """`keys`: distinct keys to begin with, numbered as they stand."""
        start = np.empty(0, np.uint64) if keys is None else own(keys, np.uint64)
        capacity = _LEAST
        while capacity < 2 * len(start):
            capacity *= 2
        self._n = len(start)
        self._keys = np.empty(capacity // 2, np.uint64)
        self._keys[: self._n] = start
        self._slots = np.zeros(capacity, np.uint64)
        rebuild(self._slots, self._keys, self._n)

    def __len__(self) -> int:
        return self._n

    @property
    def keys(self) -> np.ndarray:
        """uint64[n], by number; a view that the next `add` may leave behind."""
        return self._keys[: self._n]

    @property
    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """(slots, keys) as kernels take them; the next `add` may leave them behind."""
        return self._slots, self._keys

    @property
    def nbytes(self) -> int:
        return self._slots.nbytes + self._keys.nbytes

    def add(self, queries: np.ndarray) -> np.ndarray:
        """Numbers int32[m] of `queries` uint64[m]; unknown keys are entered.

        Raises:
            OverflowError: more than 2^30 distinct keys.
        """
        queries = own(queries, np.uint64)
        numbers = np.empty(len(queries), np.int32)
        self._n, done = insert(self._slots, self._keys, self._n, queries, 0, numbers)
        while done < len(queries):
            self._grow()
            self._n, done = insert(self._slots, self._keys, self._n, queries, done, numbers)
        return numbers

    def find(self, queries: np.ndarray) -> np.ndarray:
        """Numbers int32[m] of `queries` uint64[m], -1 for unknown keys."""
        queries = own(queries, np.uint64)
        numbers = np.empty(len(queries), np.int32)
        find(self._slots, self._keys, queries, numbers)
        return numbers

    def clear(self) -> None:
        """Forget all keys and free their memory."""
        self._n = 0
        self._keys = np.empty(_LEAST // 2, np.uint64)
        self._slots = np.zeros(_LEAST, np.uint64)

    def _grow(self) -> None:
        capacity = 2 * len(self._slots)
        if capacity // 2 > MOST_KEYS:
            raise OverflowError(f"more than {MOST_KEYS} distinct keys")
        self._slots = np.empty(0, np.uint64)  # free the old table before the new one is asked for
        keys = np.empty(capacity // 2, np.uint64)
        keys[: self._n] = self._keys[: self._n]
        self._keys = keys
        self._slots = np.zeros(capacity, np.uint64)
        rebuild(self._slots, self._keys, self._n)
