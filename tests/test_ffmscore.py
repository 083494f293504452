"""Logits of FFM, pair by pair in tiles, against the definition in float64."""

from __future__ import annotations

import numpy as np
import pytest

from lightctr_mpi import defaults, models
from lightctr_mpi.block import Block
from lightctr_mpi.config import ModelOptions

KEYS = 50


def pairwise(model, table, bias, row):
    """b + sum x w + sum over pairs of entries of x x' <W[j, f'], W[j', f]>, of (id, field, x) that count."""
    n_fields, k, z = model.n_fields, model.k, float(bias[0])
    entries = [(j, f, x) for j, f, x in row if j >= 0 and f >= 0]
    factors = table[:, : n_fields * k].astype(float).reshape(KEYS, n_fields, k)
    for at, (j, f, x) in enumerate(entries):
        z += x * float(table[j, model.width - 1])
        for j2, f2, x2 in entries[:at]:
            z += x * x2 * factors[j, f2] @ factors[j2, f]
    return z


def make(n_fields, k):
    options = defaults.model(ModelOptions(name="ffm", k=k))
    model = models.build(options, n_fields, "logistic")
    rng = np.random.default_rng(n_fields * 100 + k)
    table = rng.normal(size=(KEYS, model.width)).astype(np.float32)
    table[:, n_fields * k : model.width - 1] = 0  # columns that fill up a vector
    return model, table, np.array([0.3], np.float32), rng


def rows_of(n_fields, rng, kind):
    """Rows of (id, field, value)."""
    rows = []
    for i in range(20):
        order = rng.permutation(n_fields) if kind == "any order" else np.arange(n_fields)
        row = [(int(rng.integers(KEYS)), int(f), 1.0) for f in order]
        if kind == "missing":
            row = [entry for entry in row if entry[1] % n_fields != i % n_fields]
        elif kind == "unseen" and i % 3:
            row[i % n_fields] = (
                -1 if i % 2 else row[i % n_fields][0],
                -1 if i % 2 == 0 else i % n_fields,
                1.0,
            )
        elif kind == "twice":
            row.append((int(rng.integers(KEYS)), i % n_fields, 1.0))
        elif kind == "few":
            row = row[: i % 3]
        elif kind == "values":
            row = [(j, f, float(np.float32(rng.normal()))) for j, f, _ in row]
        elif kind == "zeros":
            row[i % n_fields] = (*row[i % n_fields][:2], 0.0)
        rows.append(row)
    return rows


KINDS = ["one hot", "any order", "missing", "unseen", "twice", "few", "values", "zeros"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_fields", [1, 3, 4, 5, 6, 7, 8, 9, 39])
@pytest.mark.parametrize("k", [2, 3, 4, 8])
def test_logits_are_those_of_the_definition(kind, n_fields, k):
    model, table, bias, rng = make(n_fields, k)
    rows = rows_of(n_fields, rng, kind)
    ids, fields, values = (
        np.array([entry[i] for row in rows for entry in row], dtype)
        for i, dtype in enumerate((np.int32, np.int32, np.float32))
    )
    indptr = np.cumsum([0] + [len(row) for row in rows], dtype=np.int64)
    ones = kind not in ("values", "zeros")
    norms = np.linspace(0.2, 1.0, len(rows)).astype(np.float32)
    block = Block(indptr, ids, fields, None if ones else values, np.zeros(len(rows), np.float32), norms=norms)
    logit = np.empty(len(rows), np.float32)
    model.forward(block, table, ids, bias, logit)
    scaled = [[(j, f, x * float(r)) for j, f, x in row] for row, r in zip(rows, norms, strict=True)]
    expected = [pairwise(model, table, bias, row) for row in scaled]
    size = 1 + max(sum(abs(x) for _, _, x in row) ** 2 for row in scaled)  # of what is summed up
    np.testing.assert_allclose(logit, expected, rtol=1e-5, atol=2e-6 * size)


def test_a_model_without_keys_gives_the_bias():
    model, table, bias, _ = make(4, 4)
    block = Block(np.array([0, 4]), np.full(4, -1, np.int32), np.arange(4, dtype=np.int32), None, np.zeros(1))
    block.norms, logit = np.ones(1, np.float32), np.empty(1, np.float32)
    model.forward(block, table[:0], block.ids, bias, logit)
    assert logit[0] == bias[0]
