"""Losses against SciPy's and against finite differences."""

import numpy as np
import pytest
from scipy.special import log_expit

from lightctr_mpi.kernels import losses
from lightctr_mpi.kernels.losses import CODES

LOGITS = np.array([-1000, -90, -3.3, -1e-4, 0, 0.7, 25, 100, 1000], np.float32)
NO_WEIGHTS = np.empty(0, np.float32)


@pytest.mark.parametrize("label", [0.0, 1.0, 0.3])
def test_logistic_loss_equals_scipy_and_is_finite_at_any_logit(label):
    labels, out = np.full(len(LOGITS), label, np.float32), np.empty(len(LOGITS))
    losses.losses(CODES["logistic"], LOGITS, labels, out)
    z, y = LOGITS.astype(np.float64), np.float64(np.float32(label))
    np.testing.assert_allclose(out, -y * log_expit(z) - (1 - y) * log_expit(-z), rtol=1e-12, atol=1e-12)


def test_squared_loss_by_hand():
    out = np.empty(2)
    losses.losses(CODES["squared"], np.array([3, -1], np.float32), np.array([1, -1], np.float32), out)
    np.testing.assert_array_equal(out, [2, 0])


@pytest.mark.parametrize("name", CODES)
def test_slopes_are_the_derivative_of_the_loss(name):
    z, y, h = 0.8, 0.3, 1e-5
    rise = losses.point_loss(CODES[name], z + h, y) - losses.point_loss(CODES[name], z - h, y)
    assert losses.point_slope(CODES[name], z, y) == pytest.approx(rise / (2 * h), rel=1e-8)


def test_slopes_saturate_without_overflow():
    out = np.empty(2, np.float32)
    losses.slopes(0, np.array([-2000, 2000], np.float32), np.array([1, 0], np.float32), NO_WEIGHTS, out)
    np.testing.assert_array_equal(out, [-1, 1])


def test_weights_multiply_losses_and_slopes():
    logit, labels = np.array([0, 0], np.float32), np.array([1, 0], np.float32)
    weights, dlogit = np.array([3, 0.5], np.float32), np.empty(2, np.float32)
    loss, weight = losses.evaluate("logistic", logit, labels, weights, dlogit)
    assert loss == pytest.approx(3.5 * np.log(2), rel=1e-12)
    assert weight == 3.5
    np.testing.assert_array_equal(dlogit, [-1.5, 0.25])
    loss, weight = losses.evaluate("logistic", logit, labels, None, dlogit)
    assert (loss, weight) == (pytest.approx(2 * np.log(2), rel=1e-12), 2.0)
    np.testing.assert_array_equal(dlogit, [-0.5, 0.5])


def test_a_logit_that_is_not_finite_shows_in_the_loss():
    dlogit = np.empty(1, np.float32)
    for bad in (np.nan, np.inf):
        logit = np.array([bad], np.float32)
        assert not np.isfinite(losses.evaluate("logistic", logit, np.ones(1, np.float32), None, dlogit)[0])


def test_predictions():
    out = np.empty(3, np.float32)
    logit = np.array([0, np.log(3), -1000], np.float32)
    losses.predictions(CODES["logistic"], logit, out)
    np.testing.assert_allclose(out, [0.5, 0.75, 0], rtol=1e-6)
    losses.predictions(CODES["squared"], logit, out)
    np.testing.assert_array_equal(out, logit)
