"""Error feedback: what a message leaves out of a gradient is added to the next gradient of the same keys.

Seide, Fu, Droppo, Li and Yu (2014), "1-bit stochastic gradient descent and its application to data-parallel
distributed training of speech DNNs"; Karimireddy, Rebjock, Stich and Jaggi (2019), "Error feedback fixes
SignSGD and other gradient compression schemes", show that the training converges as without compression.

Gradients of one Feedback must be in one unit: where an optimizer divides a batch by its size, do that before.
"""

from __future__ import annotations

import math

import numpy as np

from ..kernels.memory import alloc_rows
from ..kernels.packing import add_gathered
from ..kernels.rows import nonzero_rows
from ..kernels.sparse import scatter_set_rows
from ..kernels.table import Dictionary
from .base import Codec
from .topk import top_rows

_LEAST = 1024


class Feedback:
    """Rows kept back, by key.

    A push has two phases, as it may fail on its way. `prepare` adds what was kept back and picks the rows to
    send; `Outgoing.encode` makes messages of them; `Outgoing.commit` keeps what they left out. Until then
    nothing that was kept back has changed, and preparing anew forgets the push before.

    Args:
        width: values of a row.
    """

    def __init__(self, width: int):
        self.width = width
        self._keys = Dictionary()
        self._kept = alloc_rows(0, width)
        self._left = np.empty((0, width), np.float32)  # of the push under way
        self._current: Outgoing | None = None

    def __len__(self) -> int:
        """Keys that have a place, whether or not something is kept for them now."""
        return len(self._keys)

    @property
    def nbytes(self) -> int:
        """Memory: for each key since `drain` 24 to 48 bytes and 4 to 8 a value; and the rows of a push."""
        return self._keys.nbytes + self._kept.nbytes + self._left.nbytes

    def prepare(self, keys: np.ndarray, grads: np.ndarray, share: float = 1.0) -> Outgoing:
        """Begin a push.

        Args:
            keys: uint64[n], distinct.
            grads: float32[n, width], C-contiguous; what was kept back for the keys is added in place, and
                the array must stay as it is until the push is committed or given up.
            share: of the rows that are sent, the largest (`top_rows`), rounded up; with 1 all of them.
        """
        if grads.shape != (len(keys), self.width) or not grads.flags.c_contiguous:
            raise ValueError(f"{len(keys)} rows of {self.width} values are not of shape {grads.shape}")
        numbers = self._keys.add(keys)
        self._grow()
        add_gathered(grads, self._kept, numbers)
        picked = None if share >= 1.0 else top_rows(grads, math.ceil(share * len(keys) - 1e-9))
        self._current = Outgoing(self, keys, grads, numbers, picked)
        return self._current

    def drain(self) -> tuple[np.ndarray, np.ndarray]:
        """Keys uint64[m], ascending, and rows float32[m, width] of all that is kept back; nothing is, then.

        A push under way is given up.
        """
        found = nonzero_rows(self._kept, 0, len(self))
        keys = self._keys.keys[found]
        order = np.argsort(keys)
        result = keys[order], self._kept[found[order]]
        self._keys.clear()
        self._kept = alloc_rows(0, self.width)
        self._current = None
        return result

    def _grow(self) -> None:
        if len(self) > len(self._kept):
            kept = alloc_rows(max(_LEAST, 1 << (len(self) - 1).bit_length()), self.width)
            kept[: len(self._kept)] = self._kept
            self._kept = kept

    def _room(self, n: int) -> np.ndarray:
        """float32[n, width], uninitialised."""
        if n > len(self._left):
            self._left = np.empty((n + n // 4, self.width), np.float32)
        return self._left[:n]

    def _check(self, outgoing: Outgoing) -> None:
        if self._current is not outgoing:
            raise RuntimeError("this push was committed before, or another one was prepared after it")

    def _commit(self, numbers: np.ndarray, left: np.ndarray) -> None:
        scatter_set_rows(self._kept, numbers, left)
        self._current = None


class Outgoing:
    """A push under way: rows to send, and what the receivers will not see of them.

    Attributes:
        picked: int32[k] ascending positions among the keys of the gradient.
        keys: uint64[k] keys to send, in the order of the gradient.
        rows: float32[k, width]: gradient and what was kept back.
    """

    def __init__(
        self,
        feedback: Feedback,
        keys: np.ndarray,
        grads: np.ndarray,
        numbers: np.ndarray,
        picked: np.ndarray | None,
    ):
        self._feedback, self._grads, self._numbers = feedback, grads, numbers
        self._all = picked is None
        if picked is None:
            self.picked, self.keys, self.rows = np.arange(len(keys), dtype=np.int32), keys, grads
        else:
            self.picked, self.keys, self.rows = picked, keys[picked], grads[picked]
        self._left = feedback._room(len(self.rows))
        self._open = len(self.rows)

    def encode(self, codec: Codec, a: int, b: int, out: np.ndarray) -> None:
        """Write the message of rows a to b (uint8[codec.nbytes(b - a, width)], see `Codec.encode`).

        Raises RuntimeError if the push is no longer the latest.
        """
        self._feedback._check(self)
        codec.encode(self.rows[a:b], out)
        if codec.lossy:
            left = self._left[a:b]
            codec.decode(out, left)
            with np.errstate(invalid="ignore"):  # infinity - infinity, in a run that diverges
                np.subtract(self.rows[a:b], left, out=left)
            self._open -= b - a
        else:
            self.whole(a, b)

    def whole(self, a: int, b: int) -> None:
        """Rows a to b are received as they are."""
        self._feedback._check(self)
        self._left[a:b] = 0
        self._open -= b - a

    def commit(self) -> None:
        """The push is sent: what it left out is kept.

        Raises RuntimeError if not every row has been dealt with once, or if the push is no longer the latest.
        """
        self._feedback._check(self)
        if self._open:
            raise RuntimeError(f"{self._open} rows of a push are in no message")
        left = self._left
        if not self._all:
            scatter_set_rows(self._grads, self.picked, left)
            left = self._grads
        self._feedback._commit(self._numbers, left)
