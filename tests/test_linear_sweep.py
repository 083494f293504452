"""The sweep of logistic regression, 8 entries at a time, against the definition entry by entry."""

import numpy as np
import pytest

from lightctr_mpi.kernels.linear import make_sweep
from lightctr_mpi.kernels.losses import LOGISTIC
from lightctr_mpi.kernels.steps import ADAGRAD

RATE, L2, L1 = 0.3, 0.01, 0.02
N_KEYS = 40


def make_rows(distinct: int, with_values: bool, seed: int):
    """Rows of 0 to 29 entries whose ids are drawn from `distinct` and -1: the fewer, the more repeat."""
    rng = np.random.default_rng(seed)
    lengths = np.arange(30).repeat(4)
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    ids = rng.integers(0, distinct, indptr[-1]).astype(np.int32)
    ids[rng.random(len(ids)) < 0.02] = -1
    for a in indptr[:-1:2]:  # every second row: at most 8 in a row from a run of different ids
        ids[a : a + 8] = np.sort(rng.permutation(N_KEYS)[: len(ids[a : a + 8])])
    values = rng.normal(size=len(ids)) if with_values else np.zeros(0)
    values[rng.random(len(values)) < 0.02] = 0
    norms, labels = rng.uniform(0.2, 1, len(lengths)), rng.integers(0, 2, len(lengths))
    order = rng.permutation(len(lengths))
    return indptr, ids, *(x.astype(np.float32) for x in (values, norms, labels)), order


def learn(indptr, ids, values, norms, labels, order, w, s, bias, l1):
    """Rows one by one, entries one by one, in float64. Returns the sum of the losses."""
    total = 0.0
    for i in order:
        entries = range(indptr[i], indptr[i + 1])
        x = {e: norms[i] * (values[e] if len(values) else 1.0) for e in entries if ids[e] >= 0}
        z = bias[0] + sum(x[e] * w[ids[e]] for e in x)
        total += np.log1p(np.exp(z)) - labels[i] * z
        kappa = 1 / (1 + np.exp(-z)) - labels[i]
        for e in x:
            j = ids[e]
            if x[e] != 0:
                g = kappa * x[e] + L2 * w[j] + l1 * np.sign(w[j])
                s[j] += g * g
                w[j] -= RATE * g / np.sqrt(s[j])
        bias[1] += kappa * kappa
        bias[0] -= RATE * kappa / np.sqrt(bias[1])
    return total


@pytest.mark.parametrize("with_values", [False, True])
@pytest.mark.parametrize("l1", [0.0, L1])
@pytest.mark.parametrize("distinct", [3, N_KEYS])
def test_repeated_ids_move_one_after_the_other(distinct, l1, with_values):
    *data, order = make_rows(distinct, with_values, seed=distinct)
    indptr, ids, values, norms, labels = data
    w, s, bias = np.linspace(-1, 1, N_KEYS), np.linspace(0.5, 2, N_KEYS), np.array([0.1, 1.0])
    table, moved = np.stack([w, s], 1).astype(np.float32), bias.astype(np.float32)
    target, sums = (labels, np.zeros(0, np.float32)), np.zeros(2)
    hyper, penalty = np.array([RATE, 1, 0, 0], np.float32), (np.float32(L2), np.float32(l1))
    sweep = make_sweep(ADAGRAD, LOGISTIC, int(l1 > 0), 1)
    sweep((indptr, ids, values, norms), target, order, table, 1, moved, hyper, penalty, sums)

    total = learn(*data, order, w, s, bias, l1)
    np.testing.assert_allclose(table[:, 0], w, rtol=0, atol=2e-5)
    np.testing.assert_allclose(table[:, 1], s, rtol=2e-5)
    np.testing.assert_allclose(moved, bias, rtol=0, atol=2e-5)
    np.testing.assert_allclose(sums, [total, len(order)], rtol=1e-5)
