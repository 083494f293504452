"""Ring store: mini-batches over many ranks; each holds all weights and owns the state of one range of keys.

A step is one synchronous mini-batch. Gradients travel to the owners of their keys, owners move their rows,
and the moved rows travel back to everyone. A header with sums and stop flags goes with them. How gradients
travel depends on their size, which all ranks know, so that all take the same way:

    small table      the whole table and the header in one message, from everyone to everyone
    few pairs        key and row pairs, from everyone to everyone
    more pairs       key and row pairs, to their owners only
    many pairs       the whole table by reduce-scatter round the ring
    with a codec     key and row pairs, to their owners only, in fewer bytes (ring/packed.py)

Moved rows always come back as they are, so that all ranks have the same bits.
Sums are taken in an order that depends on the number of ranks only: equal runs give equal bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..config import RingOptions
from ..kernels import rows as rows_kernels
from ..kernels import sparse
from ..models.base import Model
from ..optim.base import Optimizer
from ..shard import Shard
from ..stores import Gradient, Replica, StepSums
from .allgather import all_gather
from .fusion import Fused
from .packed import Packed
from .reduce_scatter import reduce_scatter
from .segments import Scratch, segments
from .sparse import all_gather_rows, exchange_by_owner

HEADER = 6  # loss, weight, rows, gradient of the bias, stop flag, unique keys
# Up to here everyone gets all that all ranks send: it is the number of messages that costs, not their length.
FUSED_BYTES = 1 << 18  # whole tables of all ranks
PAIRS_BYTES = 1 << 18  # pairs of all ranks


class Ring(Replica):
    """The exact ring: the result of a step is that of one process with the same global batch."""

    def __init__(
        self,
        comm: Any,
        model: Model,
        optimizer: Optimizer,
        keys: np.ndarray,
        seed: int,
        batch_size: int,
        options: RingOptions,
    ):
        self.comm, self.rank, self.size = comm, comm.Get_rank(), comm.Get_size()
        bounds = segments(len(keys), self.size)
        owned = (int(bounds[self.rank]), int(bounds[self.rank + 1]))
        super().__init__(Shard(model, optimizer, keys, seed, owned), batch_size)
        self.bounds = bounds
        self._arrays = Scratch()
        self._dense_above = options.dense_above
        self._table: np.ndarray | None = None
        self._fused: Fused | None = None
        self._packed: Packed | None = None
        table = 4 * len(keys) * model.width
        if options.codec != "float32" or options.top_k < 1:
            self._packed = Packed(comm, options, model.width, bounds, self._arrays)
        elif table * self.size <= FUSED_BYTES:
            self._fused = Fused(np.uint8).layout({"header": (8 * HEADER,), "table": (table,)})

    @property
    def saturated(self) -> int:
        """Values of gradients of this rank that the codec had to clip."""
        return 0 if self._packed is None else self._packed.codec.saturated

    def push(self, gradient: Gradient) -> StepSums:
        if self._packed is not None:
            return self._push_packed(gradient, self._packed)
        if self._fused is not None:
            return self._push_fused(gradient, self._fused)
        sums, dbias, counts = _read(self._exchange_headers(gradient))
        touched = int(counts.sum())
        if 4 * touched * (1 + self.shard.model.width) <= PAIRS_BYTES:
            self._push_pairs(gradient, counts, dbias, sums.weight)
        elif touched > self._dense_above * len(self.shard.keys):
            self._push_dense(gradient, dbias, sums.weight)
        else:
            self._push_sparse(gradient, dbias, sums.weight)
        return sums

    def _push_fused(self, gradient: Gradient, fused: Fused) -> StepSums:
        """Header and whole table of gradients in one message. Sums of losses keep their 64 bits."""
        shard, width = self.shard, self.shard.model.width
        fused["header"].view(np.float64)[:] = _header(gradient)
        table = fused["table"].view(np.float32).reshape(-1, width)
        table.fill(0.0)
        sparse.scatter_add_rows(table, gradient.ids, gradient.rows)
        everyone = self._arrays.array("everyone", (self.size, len(fused.buffer)), np.uint8)
        self.comm.Allgather(fused.buffer, everyone)
        headers = everyone[:, : 8 * HEADER].copy().view(np.float64)
        sums, dbias, _ = _read(headers)
        first = fused.offsets["table"] + 4 * width * shard.first
        owned = everyone[:, first : first + 4 * width * (shard.end - shard.first)]
        total = owned[0].view(np.float32).copy()
        for part in owned[1:]:
            total += part.view(np.float32)
        self._apply_dense(total.reshape(-1, width), dbias, sums.weight)
        return sums

    def _exchange_headers(self, gradient: Gradient) -> np.ndarray:
        headers = np.empty((self.size, HEADER), np.float64)
        self.comm.Allgather(_header(gradient), headers)
        return headers

    def _push_dense(self, gradient: Gradient, dbias: float, samples: float) -> None:
        """Whole tables: one buffer of all gradients round the ring, owners apply, weights round the ring."""
        shard, width = self.shard, self.shard.model.width
        if self._table is None:
            self._table = np.empty((len(shard.keys), width), np.float32)
        table = self._table
        table.fill(0.0)
        sparse.scatter_add_rows(table, gradient.ids, gradient.rows)
        reduce_scatter(self.comm, table.reshape(-1), self.bounds * width, self._arrays)
        self._apply_dense(table[shard.first : shard.end], dbias, samples)

    def _apply_dense(self, total: np.ndarray, dbias: float, samples: float) -> None:
        """Move the owned rows by the sums of their gradients (float32[owned, width]); weights to everyone."""
        shard = self.shard
        moved = rows_kernels.nonzero_rows(total, 0, len(total))
        shard.apply(moved + np.int32(shard.first), total[moved], dbias, samples)
        all_gather(self.comm, shard.rows.reshape(-1), self.bounds * shard.model.width)

    def _push_pairs(self, gradient: Gradient, counts: np.ndarray, dbias: float, samples: float) -> None:
        """Key and row pairs of all ranks to everyone, so that moved rows come back without their keys."""
        shard, width = self.shard, self.shard.model.width
        ends = np.concatenate([[0], np.cumsum(counts)])
        pairs = self._arrays.array("pairs", (int(ends[-1]), 1 + width), np.int32)
        own = pairs[ends[self.rank] : ends[self.rank + 1]]
        own[:, 0], own[:, 1:] = gradient.ids, gradient.rows.view(np.int32)
        all_gather(self.comm, pairs.reshape(-1), ends * (1 + width))
        ids, local = sparse.localize(np.ascontiguousarray(pairs[:, 0]), self._scratch)
        sums = np.zeros((len(ids), width), np.float32)
        sparse.scatter_add_rows(sums, local, np.ascontiguousarray(pairs[:, 1:]).view(np.float32))
        cuts = np.searchsorted(ids, self.bounds)
        owned = slice(cuts[self.rank], cuts[self.rank + 1])
        shard.apply(ids[owned], sums[owned], dbias, samples)
        sparse.gather_rows(shard.rows, ids[owned], sums[owned])
        all_gather(self.comm, sums.reshape(-1), cuts * width)
        sparse.scatter_set_rows(shard.rows, ids, sums)

    def _push_sparse(self, gradient: Gradient, dbias: float, samples: float) -> None:
        """Key and row pairs: each to its owner, who adds them in rank order; moved rows to everyone."""
        ids, summed = exchange_by_owner(self.comm, gradient.ids, gradient.rows, self.bounds, self._arrays)
        self._apply_owned(ids, summed, dbias, samples)

    def _apply_owned(self, ids: np.ndarray, summed: np.ndarray, dbias: float, samples: float) -> None:
        """Move owned rows by the sums of their gradients (float32[len(ids), width]); weights to everyone."""
        shard = self.shard
        shard.apply(ids, summed, dbias, samples)
        all_ids, moved = all_gather_rows(self.comm, ids, shard.rows[ids], self._arrays)
        sparse.scatter_set_rows(shard.rows, all_ids, moved)

    def _push_packed(self, gradient: Gradient, packed: Packed) -> StepSums:
        """As `_push_sparse`, through the codec.

        Where the optimizer averages a batch, that is done first: what is kept back may be applied with a
        batch of another size.
        """
        sums, dbias, _ = _read(self._exchange_headers(gradient))
        scale = self.shard.optimizer.scale(sums.weight)
        if scale != 1.0:
            np.multiply(gradient.rows, np.float32(scale), out=gradient.rows)
        ids, summed = packed.exchange(gradient.ids, gradient.rows)
        self._apply_owned(ids, summed, scale * dbias, 1.0)
        return sums

    def finish(self) -> StepSums:
        """Apply, as one step, all that the ranks have kept back; all of them call it. Nothing is, then."""
        if self._packed is not None:
            ids, rows = self._packed.drain()
            ids, summed = exchange_by_owner(self.comm, ids, rows, self.bounds, self._arrays)
            self._apply_owned(ids, summed, 0.0, 1.0)
        return StepSums()


def _header(gradient: Gradient) -> np.ndarray:
    """float64[HEADER] of this rank."""
    own = gradient.sums
    return np.array([own.loss, own.weight, own.rows, gradient.dbias, own.stop, len(gradient.ids)], np.float64)


def _read(headers: np.ndarray) -> tuple[StepSums, float, np.ndarray]:
    """Sums over the ranks, the gradient of the bias, and int64[size] unique keys of each rank."""
    loss, weight, rows, dbias, stop, _ = headers.sum(axis=0).tolist()
    return StepSums(loss, weight, int(rows), stop > 0), dbias, headers[:, 5].astype(np.int64)
