"""What workers last pulled, kept at the server to correct the gradients that come late.

The correction is DC-ASGD's (kernels/delay.py). The moving mean of squared gradients of its adaptive form lies
in `width` more columns of a key's row, and starts anew when a run is resumed.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict

import numpy as np

from ..config import PsOptions
from ..kernels import delay
from .protocol import ProtocolError
from .table import KeyTable

LAMBDA = {"constant": 0.04, "adaptive": 2.0}
DECAY = 0.95


class Backups:
    """Rows as they were pulled, by worker and lease: `bound` bytes for each worker, the oldest go first.

    Attributes:
        missed: pushed rows that were applied as they came, because their backup had to go.
    """

    def __init__(self, kind: str, strength: float, bound: int):
        self.kind, self.strength, self.bound = kind, strength, bound
        self.on = kind != "none"
        self.missed = 0
        self._pulled: dict[int, OrderedDict[int, tuple[np.ndarray, np.ndarray]]] = defaultdict(OrderedDict)
        self._bytes: dict[int, int] = defaultdict(int)

    @classmethod
    def of(cls, options: PsOptions, workers: int) -> Backups:
        kind = options.delay
        strength = options.delay_lambda
        if strength is None:
            strength = LAMBDA.get(kind, 0.0)
        return cls(kind, strength, options.delay_memory * 2**20 // max(workers, 1))

    def extra(self, width: int) -> int:
        """Columns of a row that the correction needs beside weights and state."""
        return width if self.kind == "adaptive" else 0

    def keep(self, worker: int, lease: int, keys: np.ndarray, rows: np.ndarray) -> None:
        """Remember a pull: its keys uint64[u] and rows float32[u, width] (copied)."""
        self._forget(worker, lease)
        if len(keys):
            self._pulled[worker][lease] = keys, rows.copy()
            self._bytes[worker] += keys.nbytes + rows.nbytes
        while self._bytes[worker] > self.bound:
            self._forget(worker, next(iter(self._pulled[worker])))

    def _forget(self, worker: int, lease: int) -> tuple[np.ndarray, np.ndarray] | None:
        pulled = self._pulled[worker].pop(lease, None)
        if pulled is not None:
            self._bytes[worker] -= sum(array.nbytes for array in pulled)
        return pulled

    def correct(
        self,
        worker: int,
        lease: int,
        keys: np.ndarray,
        grads: np.ndarray,
        table: KeyTable,
        numbers: np.ndarray,
        scale: float = 1.0,
    ) -> None:
        """Correct gradients (float32[u, width]) in place; their keys, ascending, are some of the pull's.

        The gradient that is applied is `scale` times these, and it is that one which the formulas mean.

        Raises ProtocolError for keys that the pull did not have.
        """
        pulled = self._forget(worker, lease)
        if pulled is None:
            self.missed += len(keys)
            return
        known, backup = pulled
        if len(keys) != len(known):  # top-k sends some rows only
            places = np.searchsorted(known, keys)
            if len(keys) and places[-1] == len(known):
                raise self._unknown(worker, lease)
            known, backup = known[places], backup[places]
        if not np.array_equal(known, keys):
            raise self._unknown(worker, lease)
        strength, decay, factor = np.float32(self.strength), np.float32(DECAY), np.float32(scale)
        if factor != 1:
            grads *= factor
        if self.kind == "constant":
            delay.compensate(grads, table.rows, numbers, backup, strength)
        else:
            delay.compensate_adaptive(grads, table.rows, numbers, backup, table.extra_col, strength, decay)
        if factor != 1:
            grads /= factor

    def _unknown(self, worker: int, lease: int) -> ProtocolError:
        return ProtocolError(f"rank {worker} pushes keys of lease {lease} that it did not pull")
