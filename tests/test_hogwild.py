"""Threads that share one model: what they compute where they do not meet, and how well where they do."""

from __future__ import annotations

import numpy as np
import pytest

from lightctr_mpi import models, optim
from lightctr_mpi.block import Block
from lightctr_mpi.config import ModelOptions, OptimizerOptions
from lightctr_mpi.shard import Shard
from lightctr_mpi.stores import Sequential

FIELDS = 3


class Rows:
    """A Block in place of BoundRows."""

    def __init__(self, ids: np.ndarray, labels: np.ndarray):
        n = len(ids)
        fields = np.tile(np.arange(FIELDS, dtype=np.int32), n)
        indptr = np.arange(0, FIELDS * n + 1, FIELDS, dtype=np.int64)
        self.block = Block(indptr, ids.ravel().astype(np.int32), fields, None, labels.astype(np.float32))
        self.block.norms = np.ones(n, np.float32)

    def window(self, rows):
        return self.block, rows


def store(name: str, threads: int, n_keys: int, bias: bool) -> Sequential:
    options = ModelOptions(name=name, k=0 if name == "lr" else 4, init_scale=0.2, bias=bias)
    model = models.build(options, FIELDS, "logistic")
    optimizer = optim.build(OptimizerOptions(name="adagrad", lr=0.2, l2=1e-4), name)
    return Sequential(Shard(model, optimizer, np.arange(n_keys, dtype=np.uint64), 1), threads)


@pytest.mark.parametrize("name", ["lr", "fm", "ffm"])
@pytest.mark.parametrize("threads", [2, 3])
def test_threads_that_share_no_key_compute_what_one_does(name, threads):
    rng, n, keys = np.random.default_rng(0), 300, 10
    ids = rng.integers(0, keys, (n, FIELDS)) + keys * np.arange(FIELDS)
    part = np.repeat(np.arange(threads), np.diff([i * n // threads for i in range(threads + 1)]))
    ids += part[:, None] * keys * FIELDS  # each thread's rows have keys of their own, and there is no bias
    data, order = Rows(ids, rng.integers(0, 2, n)), np.arange(n)
    one, many = (store(name, t, threads * keys * FIELDS, bias=False) for t in (1, threads))
    for _ in range(2):
        a, b = one.learn(data, order, False), many.learn(data, order, False)
        assert (a.rows, a.weight) == (b.rows, b.weight) == (n, n)
        assert a.loss == pytest.approx(b.loss, rel=1e-12)
    assert one.shard.rows.tobytes() == many.shard.rows.tobytes()


@pytest.mark.parametrize("name", ["lr", "fm", "ffm"])
def test_threads_that_meet_learn_as_well(name):
    """Every row counts once, and the planted weights are found although updates can be lost."""
    rng, n, keys = np.random.default_rng(1), 6000, 60
    ids = rng.integers(0, keys, (n, FIELDS)) + keys * np.arange(FIELDS)
    planted = rng.normal(size=keys * FIELDS)
    labels = rng.random(n) < 1 / (1 + np.exp(-planted[ids].sum(axis=1)))
    data = Rows(ids, labels)
    losses = []
    for threads in (1, 4):
        learner = store(name, threads, keys * FIELDS, bias=True)
        sums = [learner.learn(data, np.arange(n), False) for _ in range(4)]
        assert all(s.rows == n and s.weight == n for s in sums)
        losses.append(sums[-1].loss / n)
    assert losses[1] < 0.6 < np.log(2)
    assert losses[1] == pytest.approx(losses[0], abs=0.02)
