"""Dense parameters (the bias) cut into one segment for each server."""

from __future__ import annotations

import numpy as np

from ..models.base import Model
from ..optim.base import Optimizer
from ..ring.segments import segments


class Dense:
    """A server's segment of the dense parameters.

    Attributes:
        values: float32[n]; state: float32[slots, n].
    """

    def __init__(self, optimizer: Optimizer, n: int):
        self.optimizer = optimizer
        self.values = np.zeros(n, np.float32)
        self.state = np.zeros((optimizer.slots, n), np.float32)
        for i in range(n):
            optimizer.init_state(self.state[None, :, i], self.values[None, i : i + 1])

    def apply(self, grad: np.ndarray, scale: float) -> None:
        """Move along scale * grad (float32[n])."""
        if len(grad):
            state = self.state.reshape(-1)
            self.optimizer.apply_dense(self.values, state, np.array(grad, np.float32), scale)


def dense_bounds(model: Model, servers: int) -> np.ndarray:
    """int64[servers + 1]: the segments of the dense parameters, of which the models have the bias alone."""
    return segments(1 if model.bias else 0, servers)
