"""Node replica: the ranks of one node learn row by row on one copy of the model, without locks.

What threads are to one rank (`stores.Sequential`), ranks are to the node: each walks a part of the rows of a
step, and all move the same memory (Hogwild: Niu, Recht, Re, Wright 2011). A rank may be a step ahead of the
others: it learns their sums, and whether one was asked to stop, of the step before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..bound import BoundRows
from ..checkpoint import Checkpoint, ModelMeta
from ..comm import any_rank, on_some, wait
from ..compact import build_shard
from ..kernels.memory import LINE
from ..models.base import Model
from ..optim.base import Optimizer
from ..shard import stride_of
from ..stores import Local, Sequential, StepSums, Store
from .window import shared_floats

PAUSE = 0.001  # seconds between two looks for the others, at most: a step is some ten milliseconds and more
Told = tuple[Any, np.ndarray, np.ndarray]  # request; sums of this rank and of all, which it fills


class NodeReplica(Local):
    """One copy of weights, state and bias for all ranks of a communicator, which are on one node.

    The first rank gives it its values, saves and loads it, while the others wait. All of them evaluate.

    Args:
        node: communicator of these ranks; windows: MPI's class of windows.
        threads: of each rank.

    Raises:
        UserError: on all ranks; the node has too little shared memory.
    """

    def __init__(
        self,
        node: Any,
        windows: Any,
        model: Model,
        optimizer: Optimizer,
        keys: np.ndarray,
        seed: int,
        threads: int = 1,
    ):
        self.comm, self.rank, self.size = node, node.Get_rank(), node.Get_size()
        stride = stride_of(model, optimizer)
        size = len(keys) * stride
        floats = shared_floats(node, windows, size + 2 * LINE)
        bias = -(-size // LINE) * LINE  # on a cache line of its own
        arrays = floats[:size].reshape(len(keys), stride), floats[bias : bias + 1 + optimizer.slots]
        self._on_first(lambda: build_shard(model, optimizer, keys, seed, arrays))
        self.shard = build_shard(model, optimizer, keys, None, arrays)
        self.bounds = np.array([0, len(keys)], np.int64)
        self._alone = Sequential(self.shard, threads)
        self.step_rows = self._alone.step_rows * self.size
        self._told: Told | None = None

    def run(self, work: Callable[[Store], None], rows: Mapping[str, BoundRows]) -> None:
        try:
            super().run(work, rows)
        finally:
            if self._told is not None:  # diverged, for instance: the message is on its way on all ranks
                wait(self._told[0], 1.0)

    def learn(self, data: BoundRows, rows: np.ndarray, stop: bool) -> StepSums:
        a, b = self.part(len(rows))
        sums = self._alone.learn(data, rows[a:b], stop) if b > a else StepSums(stop=stop)
        before, self._told = self._told, self._tell(sums)
        return self._hear(before)

    def finish(self) -> StepSums:
        before, self._told = self._told, None
        return self._hear(before)

    def _tell(self, sums: StepSums) -> Told:
        own = np.array([sums.loss, sums.weight, sums.rows, sums.stop], np.float64)
        everyone = np.empty((self.size, len(own)), np.float64)
        return self.comm.Iallgather(own, everyone), own, everyone

    def _hear(self, told: Told | None) -> StepSums:
        """Sums over all ranks of a step that this rank has told of."""
        if told is None:
            return StepSums()
        request, _, everyone = told
        wait(request, longest=PAUSE)
        loss, weight, rows, stops = everyone.sum(axis=0).tolist()
        return StepSums(loss, weight, int(rows), stops > 0)

    def all_finite(self) -> bool:
        return not any_rank(self.comm, not self.shard.all_finite(*self.part(len(self.shard.keys))))

    def save(self, path: str, meta: ModelMeta, field_keys: np.ndarray | None) -> None:
        self._on_first(lambda: self._alone.save(path, meta, field_keys))

    def load(self, source: Checkpoint, *, with_state: bool = True) -> None:
        self._on_first(lambda: self._alone.load(source, with_state=with_state))

    def _on_first(self, work: Any) -> None:
        on_some(self.comm, self.rank == 0, work)
