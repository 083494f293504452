"""Optimizers against numbers worked out by hand and against the published per-coordinate updates."""

import math

import numpy as np
import pytest
import reference

from lightctr_mpi import defaults, optim
from lightctr_mpi.config import OptimizerOptions, TrainOptions
from lightctr_mpi.registry import NAMES


def build(**options):
    return optim.build(OptimizerOptions(**{"lr": 0.1, "l2": 0.0, **options}))


def column(*values):
    return np.array([[value] for value in values], np.float32)


def apply(optimizer, weight, grad, state, scale=1.0):
    """One step of a table of one row and one column."""
    rows, grads = column(weight), column(grad)
    table = np.array([state], np.float32).reshape(1, -1)
    one = np.zeros(1, np.int32)
    optimizer.apply_rows(rows, one, table, one, 0, 1, grads, scale)
    return rows[0, 0], table[0]


def test_sgd_by_hand():
    weight, _ = apply(build(name="sgd"), 1.0, 4.0, [0.0], scale=0.5)
    assert weight == pytest.approx(1 - 0.1 * 0.5 * 4)


def test_adagrad_by_hand():
    weight, state = apply(build(name="adagrad"), 1.0, 2.0, [1.0])
    assert state[0] == 5
    assert weight == pytest.approx(1 - 0.1 * 2 / math.sqrt(5), rel=1e-6)


def test_ftrl_by_hand():
    """w = 0.5 with n = 9, gradient 4, alpha 0.1, beta 1, l1 = 1, l2 = 2: sigma = (5 - 3) / 0.1 = 20."""
    weight, (z, n) = apply(build(name="ftrl", alpha=0.1, l1=1.0, l2=2.0), 0.5, 4.0, [-7.0, 9.0])
    assert (z, n) == (pytest.approx(-7 + 4 - 20 * 0.5), 25)
    assert weight == pytest.approx(-(-13 + 1) / ((1 + 5) / 0.1 + 2), rel=1e-6)


def test_ftrl_weight_within_l1_is_exactly_zero():
    weight, (z, _) = apply(build(name="ftrl", alpha=0.1, l1=1.0), 0.0, 0.5, [0.0, 0.0])
    assert (weight, z) == (0.0, 0.5)


@pytest.mark.parametrize("name", NAMES["optimizer"])
def test_a_series_of_steps_follows_the_reference(name):
    rng, n, steps = np.random.default_rng(1), 40, 25
    options = OptimizerOptions(name=name, lr=0.3, l2=0.01, l1=0.02, beta=0.7)
    mine = optim.build(options, "lr")
    if name == "sgd":
        other = reference.SGD(0.3)
    elif name == "adagrad":
        other = reference.Adagrad(0.3)
    else:
        other = reference.FTRL(0.3, 0.7, 0.01, 0.02)
    rows = np.zeros((n, 1 + mine.slots), np.float32)
    rows[:, 0] = rng.normal(size=n)
    mine.init_state(rows[:, 1:], rows[:, :1])
    weight = rows[:, 0].astype(np.float64)
    state, every = other.start(weight), np.arange(n, dtype=np.int32)
    for _ in range(steps):
        grads = rng.normal(size=(n, 1)).astype(np.float32)
        mine.apply_rows(rows, every, rows, every, 1, 1, grads, 0.5)
        other.step(weight, 0.5 * grads[:, 0].astype(np.float64), state)
    np.testing.assert_allclose(rows[:, 0], weight, rtol=2e-4, atol=1e-5)


@pytest.mark.parametrize("name", NAMES["optimizer"])
def test_state_in_an_array_of_its_own_moves_rows_as_state_beside_the_weights(name):
    rng, optimizer, width = np.random.default_rng(2), build(name=name, l2=0.1, l1=0.01), 3
    beside = np.zeros((10, 16), np.float32)
    beside[:, :width] = rng.normal(size=(10, width))
    optimizer.init_state(beside[:, width : width * (1 + optimizer.slots)], beside[:, :width])
    alone = np.ascontiguousarray(beside[:, :width])
    owned = np.ascontiguousarray(beside[4:, width : width * (1 + optimizer.slots)])
    before = beside.copy()
    ids, grads = np.array([5, -1, 9], np.int32), rng.normal(size=(3, width)).astype(np.float32)
    optimizer.apply_rows(beside, ids, beside, ids, width, width, grads, 1.0)
    optimizer.apply_rows(alone, ids, owned, ids - np.int32(4), 0, width, grads, 1.0)
    np.testing.assert_array_equal(alone, beside[:, :width])
    np.testing.assert_array_equal(owned, beside[4:, width : width * (1 + optimizer.slots)])
    moved = np.isin(np.arange(10), [5, 9])
    assert (beside[moved, :width] != before[moved, :width]).all()
    np.testing.assert_array_equal(beside[~moved], before[~moved])


@pytest.mark.parametrize("name", NAMES["optimizer"])
def test_a_bias_moves_as_a_weight_that_is_not_regularised(name):
    free, penalised = build(name=name), build(name=name, l2=0.5, l1=0.2)
    for _ in range(3):
        rows, zero = np.zeros((1, 1 + free.slots), np.float32), np.zeros(1, np.int32)
        free.init_state(rows[:, 1:], rows[:, :1])
        bias = rows[0].copy()
        free.apply_rows(rows, zero, rows, zero, 1, 1, column(0.7), 0.5)
        penalised.apply_dense(bias[:1], bias[1:], np.array([0.7], np.float32), 0.5)
        np.testing.assert_array_equal(bias, rows[0])


def test_ftrl_starts_at_the_initial_weights_and_a_step_of_gradient_zero_keeps_them():
    optimizer = build(name="ftrl", alpha=0.1, l1=0.3, l2=0.4)
    weights = np.random.default_rng(3).normal(size=(6, 2)).astype(np.float32)
    rows = np.hstack([weights, np.zeros((6, 4), np.float32)])
    optimizer.init_state(rows[:, 2:], rows[:, :2])
    every = np.arange(6, dtype=np.int32)
    optimizer.apply_rows(rows, every, rows, every, 2, 2, np.zeros((6, 2), np.float32), 1.0)
    np.testing.assert_allclose(rows[:, :2], weights, rtol=1e-5)
    optimizer.init_state(rows[:, 2:])
    assert not rows[:, 2:].any()


def test_reduction_of_a_batch():
    assert build(name="sgd").scale(50) == 1 / 50
    assert build(name="sgd").scale(0) == 1
    assert build(name="adagrad").scale(50) == build(name="ftrl").scale(50) == 1


def test_penalty_is_part_of_the_gradient_or_of_the_closed_form():
    assert build(name="adagrad", l2=0.3, l1=0.2).penalty == (0.3, 0.2)
    assert build(name="ftrl", l2=0.3, l1=0.2).penalty == (0.0, 0.0)


def test_unset_options_take_the_defaults_of_the_model_and_set_ones_stay():
    assert set(defaults.RATES) == {(m, o) for m in NAMES["model"] for o in NAMES["optimizer"]}
    lr, l2 = defaults.RATES["fm", "adagrad"]
    assert optim.build(OptimizerOptions(name="adagrad"), "fm").hyper[0] == np.float32(lr)
    slow, fast = (defaults.optimizer(OptimizerOptions(name="sgd"), "fm", batch).lr for batch in (1, 64))
    assert fast == 8 * slow
    kept = defaults.optimizer(OptimizerOptions(name="ftrl", lr=0.7, l2=0.0), "lr")
    assert (kept.lr, kept.l2, kept.alpha) == (0.7, 0.0, 0.7)
    with pytest.raises(ValueError, match="unset"):
        optim.build(OptimizerOptions(name="adagrad"))


@pytest.mark.parametrize(
    ("name", "epochs", "patience", "validated", "expected"),
    [
        ("lr", None, None, True, (100, 5)),
        ("fm", None, None, True, (30, 2)),
        ("ffm", None, None, False, (5, 2)),
        ("lr", None, 0, True, (5, 0)),
        ("lr", 7, 1, True, (7, 1)),
    ],
)
def test_the_course_of_a_training_depends_on_the_model(name, epochs, patience, validated, expected):
    found = defaults.course(TrainOptions(epochs=epochs, patience=patience), name, validated)
    assert (found.epochs, found.patience) == expected
