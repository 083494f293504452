"""The numbers that one rank gives to keys while it reads."""

from __future__ import annotations

import numpy as np

from ..kernels.direct import SMALL, mark, mark_fields, mark_small
from ..kernels.jit import own
from ..kernels.table import Dictionary

_LEAST_WORDS = 4


class Numbers:
    """Keys (uint64) and their numbers (int32): keys below SMALL are their own, others count up from there."""

    def __init__(self) -> None:
        self._seen = np.zeros(_LEAST_WORDS, np.uint64)  # a bit for each small key
        self._large = Dictionary()

    def add(self, keys: np.ndarray) -> np.ndarray:
        """Numbers int32[m] of `keys` uint64[m]; unknown ones are entered.

        Raises OverflowError: more than 2^30 distinct keys from SMALL on.
        """
        keys = own(keys, np.uint64)
        numbers = np.empty(len(keys), np.int32)
        done = 0
        while (done := mark(keys, done, self._seen, numbers)) < len(keys) and keys[done] < SMALL:
            self._make_room(int(keys[done]))
        if done < len(keys):
            self._make_room(SMALL - 1)
            large, places = np.empty(len(keys), np.uint64), np.empty(len(keys), np.int64)
            n = mark_small(keys, done, self._seen, numbers, large, places)
            numbers[places[:n]] = self._large.add(large[:n]) + np.int32(SMALL)
        return numbers

    def add_fields(self, fields: np.ndarray) -> np.ndarray:
        """`add` for keys that are int32[m], from 0 on; gives the array itself where all are small."""
        top = int(fields.max(initial=0))
        if top >= SMALL:
            return self.add(fields.astype(np.uint64))
        self._make_room(top)
        mark_fields(own(fields, np.int32), self._seen)
        return fields

    def sorted(self) -> tuple[np.ndarray, np.ndarray]:
        """The keys so far, uint64[n] ascending, and their numbers, int32[n]."""
        bits = np.unpackbits(self._seen.astype("<u8", copy=False).view(np.uint8), bitorder="little")
        small = np.flatnonzero(bits)
        by_key = np.argsort(self._large.keys)
        keys = np.concatenate((small.astype(np.uint64), self._large.keys[by_key]))
        return keys, np.concatenate((small, by_key + SMALL)).astype(np.int32)

    def clear(self) -> None:
        """Forget all keys and free their memory."""
        self._seen = np.zeros(_LEAST_WORDS, np.uint64)
        self._large.clear()

    def _make_room(self, key: int) -> None:
        """Lengthen the bits to reach a small key."""
        words = len(self._seen)
        while 64 * words <= key:
            words *= 2
        if words > len(self._seen):
            seen = np.zeros(words, np.uint64)
            seen[: len(self._seen)] = self._seen
            self._seen = seen
