"""Ring store: mini-batches over many ranks, each of which holds all weights and owns the state of one range of keys.

A step is one synchronous mini-batch. Ranks first exchange a small header (sums, stop flags, size of their
gradients), from which all of them derive the same decision; then gradients travel to the owners (reduce-scatter,
over the whole table or as key and row pairs), owners move their rows, and the moved rows travel back (all-gather).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..kernels import rows as rows_kernels
from ..kernels import sparse
from ..models.base import Model
from ..optim.base import Optimizer
from ..shard import Shard
from ..stores import Gradient, Replica, StepSums
from .allgather import all_gather
from .reduce_scatter import reduce_scatter
from .segments import Scratch, segments
from .sparse import all_gather_rows, exchange_by_owner

HEADER = 6  # loss, weight, rows, gradient of the bias, stop flag, unique keys


class Ring(Replica):
    """The exact ring: the result of a step is that of one process with the same global batch."""

    def __init__(
        self,
        comm: Any,
        model: Model,
        optimizer: Optimizer,
        keys: np.ndarray,
        seed: int,
        loss: str,
        batch_size: int,
        dense_above: float,
    ):
        self.comm, self.rank, self.size = comm, comm.Get_rank(), comm.Get_size()
        bounds = segments(len(keys), self.size)
        owned = (int(bounds[self.rank]), int(bounds[self.rank + 1]))
        super().__init__(Shard(model, optimizer, keys, seed, owned), loss, batch_size)
        self.bounds = bounds
        self._arrays = Scratch()
        self._dense_above = dense_above
        self._table: np.ndarray | None = None
        self._headers = np.zeros((self.size, HEADER), np.float64)
        self._header_segments = segments(self.size * HEADER, self.size)

    def push(self, gradient: Gradient) -> StepSums:
        sums = self._exchange_headers(gradient)
        touched = int(self._headers[:, 5].sum())
        dbias = float(self._headers[:, 3].sum())
        if touched > self._dense_above * len(self.shard.keys):
            self._push_dense(gradient, dbias, sums.weight)
        else:
            self._push_sparse(gradient, dbias, sums.weight)
        return sums

    def _exchange_headers(self, gradient: Gradient) -> StepSums:
        own = gradient.sums
        self._headers[self.rank] = (
            own.loss,
            own.weight,
            own.rows,
            gradient.dbias,
            float(own.stop),
            len(gradient.ids),
        )
        all_gather(self.comm, self._headers.reshape(-1), self._header_segments)
        loss, weight, rows, _, stop, _ = self._headers.sum(axis=0)
        return StepSums(float(loss), float(weight), int(rows), stop > 0)

    def _push_dense(self, gradient: Gradient, dbias: float, samples: float) -> None:
        """Whole tables: one buffer of all gradients round the ring, owners apply, weights round the ring."""
        shard, width = self.shard, self.shard.model.width
        if self._table is None:
            self._table = np.empty((len(shard.keys), width), np.float32)
        table = self._table
        table.fill(0.0)
        sparse.scatter_add_rows(table, gradient.ids, gradient.rows)
        bounds = self.bounds * width
        reduce_scatter(self.comm, table.reshape(-1), bounds, self._arrays)
        moved = rows_kernels.nonzero_rows(table, shard.first, shard.end)
        shard.apply(moved, table[moved], dbias, samples)
        all_gather(self.comm, shard.rows.reshape(-1), bounds)

    def _push_sparse(self, gradient: Gradient, dbias: float, samples: float) -> None:
        """Key and row pairs: each to its owner, who adds them in the order of ranks; moved rows to everyone."""
        shard = self.shard
        ids, summed = exchange_by_owner(self.comm, gradient.ids, gradient.rows, self.bounds, self._arrays)
        shard.apply(ids, summed, dbias, samples)
        all_ids, moved = all_gather_rows(self.comm, ids, shard.rows[ids], self._arrays)
        sparse.scatter_set_rows(shard.rows, all_ids, moved)
