"""Small random models and rows of every awkward kind, for the tests of models and optimizers."""

from __future__ import annotations

import numpy as np
import reference

from lightctr_mpi import models, optim
from lightctr_mpi.block import Block
from lightctr_mpi.config import ModelOptions, OptimizerOptions
from lightctr_mpi.kernels import sparse
from lightctr_mpi.kernels.memory import alloc_rows, row_stride

KEYS = 30

# name -> (number of fields, fields that occur, entries of a row, values: None for ones)
KINDS = {
    "one_hot": (5, range(5), 5, None),
    "several_per_field": (4, range(4), 9, "normal"),
    "absent_fields": (7, range(7), 4, "normal"),
    "few_of_many_fields": (40, (3, 17, 31, 39), 6, "normal"),
    "awkward": (5, range(5), 6, "awkward"),
}


def make_block(kind: str, n: int = 12, seed: int = 0) -> Block:
    """n rows. Awkward: empty rows, one entry, all zero, unseen ids and fields, huge and tiny values."""
    n_fields, present, length, values = KINDS[kind]
    rng = np.random.default_rng(seed)
    ids, fields, numbers, lengths = [], [], [], []
    for i in range(n):
        m = length if values != "awkward" else int(rng.integers(0, length + 1))
        f = np.array(present) if kind == "one_hot" else rng.choice(np.array(present), m)
        j, v = rng.permutation(KEYS)[:m].astype(np.int32), rng.normal(size=m)
        if values == "awkward":
            j[rng.random(m) < 0.2] = -1
            f = np.where(rng.random(m) < 0.2, -1, f)
            v = v * (0 if i % 4 == 0 else 1) * rng.choice([1, 0, 1e3, 1e-3], m)
        ids.append(j), fields.append(f), numbers.append(v), lengths.append(m)
    block = Block(
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        np.concatenate(ids).astype(np.int32),
        np.concatenate(fields).astype(np.int32),
        None if values is None else np.concatenate(numbers).astype(np.float32),
        (rng.random(n) < 0.4).astype(np.float32),
    )
    block.norms = np.empty(n, np.float32)
    sparse.row_norms(block.indptr, block.values, block.norms, True)
    return block


def make_model(name, n_fields, *, loss="logistic", seed=5, optimizer=None, **options):
    """(model, optimizer, rows, bias) with every parameter away from 0."""
    model = models.build(ModelOptions(name=name, **options), n_fields, loss)
    moves = optim.build(optimizer or OptimizerOptions(name="sgd", lr=0.1, l2=0.0), name)
    width = model.width
    rows = alloc_rows(KEYS, row_stride(width * (1 + moves.slots)))
    model.init_rows(rows, np.arange(KEYS, dtype=np.uint64) * 7, seed)
    rng, bias = np.random.default_rng(seed), np.zeros(1 + moves.slots, np.float32)
    bias[0] = 0.3 if model.bias and moves.name != "ftrl" else 0.0  # FTRL's state would have to fit it
    for _, columns, tail in model.parts():
        rows[:, columns] = rng.normal(scale=0.4, size=(KEYS, max(1, int(np.prod(tail)))))
    moves.init_state(rows[:, width : width * (1 + moves.slots)], rows[:, :width])
    moves.init_state(bias[None, 1:], bias[None, :1])
    return model, moves, rows, bias


def params_of(model, table, bias=None):
    """The reference's dict of parameters from columns of a table (weights, a gradient or one slot of
    state)."""
    params = {
        name: np.array(table[:, columns], np.float64).reshape(len(table), *tail)
        for name, columns, tail in model.parts()
    }
    if model.bias:
        params["bias"] = np.zeros(1) if bias is None else np.array(bias[:1], np.float64)
    return params


def reference_optimizer(options: OptimizerOptions):
    """The reference's own optimizer for the same settings."""
    if options.name == "sgd":
        return reference.SGD(options.lr, options.l2, options.l1)
    if options.name == "adagrad":
        return reference.Adagrad(options.lr, options.l2, options.l1, options.init)
    return reference.FTRL(options.alpha or options.lr, options.beta, options.l2, options.l1)
