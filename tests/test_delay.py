"""Delay compensation against the formulas in NumPy's float64, and gathering ahead of use."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightctr_mpi.kernels.delay import compensate, compensate_adaptive, fetch, gather_ahead

F = np.float32


def case(seed: int, u: int, width: int, extra: int = 0):
    """gradients, rows, numbers with some of -1, and backups of those rows."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(2 * u + 3, width + extra + 2)).astype(F)
    numbers = rng.permutation(len(rows))[:u].astype(np.int32)
    numbers[rng.random(u) < 0.2] = -1
    grads, backup = (rng.normal(size=(u, width)).astype(F) for _ in range(2))
    return grads, rows, numbers, backup


def test_constant_by_hand() -> None:
    """g + lambda g g (w - b) = 2 + 0.5 * 4 * (1.5 - 1) = 3, and -2 + 0.5 * 4 * 0.5 = -1."""
    grads = np.array([[2, -2]], F)
    compensate(grads, np.array([[1.5, 1.5, 9]], F), np.zeros(1, np.int32), np.ones((1, 2), F), F(0.5))
    assert grads.tolist() == [[3, -1]]


def test_adaptive_by_hand() -> None:
    """m = 0.75 * 8 + 0.25 * 4^2 = 10, lambda = 2 / sqrt(10), at g = 4 and w - b = 0.5."""
    grads, rows = np.array([[4]], F), np.array([[1.5, 7, 8]], F)
    compensate_adaptive(grads, rows, np.zeros(1, np.int32), np.ones((1, 1), F), 2, F(2), F(0.75))
    assert rows.tolist() == [[1.5, 7, 10]]
    assert grads[0, 0] == pytest.approx(4 + 2 / 10**0.5 * 16 * 0.5, rel=1e-6)


@settings(deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 30), st.integers(1, 40), st.floats(0, 10, width=32))
def test_constant_follows_the_formula(seed: int, u: int, width: int, lam: float) -> None:
    grads, rows, numbers, backup = case(seed, u, width)
    g, before = grads.astype(float), rows.copy()
    wanted = g + lam * g * g * (rows[numbers, :width].astype(float) - backup)
    wanted[numbers < 0] = g[numbers < 0]
    compensate(grads, rows, numbers, backup, F(lam))
    scale = 1 + lam * g * g * (np.abs(rows[numbers, :width]) + np.abs(backup))  # terms that may cancel
    assert (np.abs(grads - wanted) <= 1e-6 * (np.abs(g) + scale)).all()
    np.testing.assert_array_equal(rows, before)


@settings(deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 30), st.integers(1, 40), st.integers(1, 5))
def test_adaptive_follows_the_formula_over_several_steps(seed: int, u: int, width: int, steps: int) -> None:
    grads, rows, numbers, backup = case(seed, u, width, extra=width)
    col, there = width + 1, numbers >= 0
    rows[:, col : col + width] = 0
    before, m = rows.copy(), np.zeros((u, width))
    for step in range(steps):
        grads = np.random.default_rng([seed, step]).normal(size=(u, width)).astype(F)
        g = grads.astype(float)
        m = 0.95 * m + 0.05 * g * g
        late = 2 / np.sqrt(m + 1e-7) * g * g
        wanted = g + late * (rows[numbers, :width].astype(float) - backup)
        wanted[~there] = g[~there]
        compensate_adaptive(grads, rows, numbers, backup, col, F(2), F(0.95))
        scale = 1 + late * (np.abs(rows[numbers, :width]) + np.abs(backup))
        assert (np.abs(grads - wanted) <= 2e-6 * (np.abs(g) + scale)).all()
    moved = numbers[there]
    np.testing.assert_allclose(rows[moved, col : col + width], m[there], rtol=1e-5)
    rows[moved, col : col + width] = 0
    np.testing.assert_array_equal(rows, before)  # nothing else was written to


@pytest.mark.parametrize("size", [0.0, 1e-30, 1.0, 1e15, 3e38])
def test_gradients_that_are_not_late_stay_what_they_are(size: float) -> None:
    grads, rows, numbers, _ = case(3, 20, 9)
    grads = np.clip(grads, -1, 1) * F(size)
    backup = np.ascontiguousarray(rows[numbers, :9])
    before = grads.copy()
    compensate(grads, rows, numbers, backup, F(0.04))
    np.testing.assert_array_equal(grads, before)


def test_adaptive_is_finite_where_no_gradient_has_been() -> None:
    grads, rows = np.zeros((1, 3), F), np.zeros((1, 6), F)
    compensate_adaptive(grads, rows, np.zeros(1, np.int32), np.ones((1, 3), F), 3, F(2), F(0.95))
    assert grads.tolist() == [[0, 0, 0]] and not rows.any()


@settings(deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 60), st.integers(1, 50))
def test_gather_takes_rows_and_zeros(seed: int, u: int, width: int) -> None:
    _, rows, numbers, out = case(seed, u, width)
    before = rows.copy()
    fetch(rows, numbers, width)
    gather_ahead(rows, numbers, out)
    np.testing.assert_array_equal(out, np.where(numbers[:, None] >= 0, before[numbers, :width], F(0)))
    np.testing.assert_array_equal(rows, before)
