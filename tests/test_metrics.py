"""Metrics against pairwise counting, SciPy and values worked out by hand."""

import math

import numpy as np
import pytest
import scipy.special
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from lightctr_mpi.metrics import CLASSIFICATION, Tally


def f32(*values):
    return np.array(values, np.float32)


def tally(scores, labels, weights=None, groups=None, loss="logistic", cuts=()):
    """Result of adding the rows in pieces cut at `cuts`."""
    result = Tally(loss)
    for a, b in zip([0, *cuts], [*cuts, len(scores)], strict=True):
        result.add(
            scores[a:b],
            labels[a:b],
            None if weights is None else weights[a:b],
            None if groups is None else groups[a:b],
        )
    return result.result()


def pairwise_auc(scores, labels, weights=None):
    """Every pair of a positive and a negative row, one by one; None when there is no pair."""
    weights = np.ones(len(scores)) if weights is None else weights.astype(np.float64)
    plus, minus = labels == 1, labels == 0
    higher = scores[plus][:, None] > scores[minus][None, :]
    equal = scores[plus][:, None] == scores[minus][None, :]
    pair_weights = weights[plus][:, None] * weights[minus][None, :]
    if not pair_weights.sum() > 0:
        return None
    return float(((higher + 0.5 * equal) * pair_weights).sum() / pair_weights.sum())


def pairwise_gauc(scores, labels, weights, groups):
    total, size = 0.0, 0.0
    for group in np.unique(groups):
        own = groups == group
        auc = pairwise_auc(scores[own], labels[own], weights[own])
        if auc is not None:
            total += auc * weights[own].sum(dtype=np.float64)
            size += weights[own].sum(dtype=np.float64)
    return total / size if size else None


# Few distinct values make ties; tiny steps inside [0, 0.005] would fall into one bin of a histogram.
SCORES = st.one_of(
    st.sampled_from([-1.0, 0.0, 0.5, 2.0]),
    st.integers(0, 50).map(lambda i: i * 1e-4),
    st.floats(-(2.0**99), 2.0**99, width=32),
)
ROWS = st.lists(
    st.tuples(SCORES, st.integers(0, 1), st.sampled_from([0.0, 0.25, 1.0, 3.0]), st.integers(-2, 2)),
    min_size=1,
    max_size=40,
)


@given(ROWS, st.data())
@settings(max_examples=200, deadline=None)
def test_auc_counts_pairs(rows, data):
    scores, labels, weights, groups = (
        np.array(c, t) for c, t in zip(zip(*rows, strict=True), ("f4", "f4", "f4", "i8"), strict=True)
    )
    plain = tally(scores, labels)
    expected = pairwise_auc(scores, labels)
    assert plain["auc"] == (None if expected is None else pytest.approx(expected, rel=1e-15))
    assert ("auc" in plain["reasons"]) == (expected is None)
    if not weights.any():
        weights[0] = 1.0
    cut = data.draw(st.integers(0, len(rows)))
    weighted = tally(scores, labels, weights, groups, cuts=(cut,))
    expected = pairwise_auc(scores, labels, weights)
    assert weighted["auc"] == (None if expected is None else pytest.approx(expected, rel=1e-12))
    expected = pairwise_gauc(scores, labels, weights, groups)
    assert weighted["gauc"] == (None if expected is None else pytest.approx(expected, rel=1e-12))


def test_auc_equals_mann_whitney():
    rng = np.random.default_rng(5)
    scores = rng.normal(size=3000).round(1).astype(np.float32)
    labels = (rng.random(3000) < 0.3).astype(np.float32)
    u = scipy.stats.mannwhitneyu(scores[labels == 1], scores[labels == 0]).statistic
    assert tally(scores, labels)["auc"] == u / (np.sum(labels == 1) * np.sum(labels == 0))


def test_auc_of_known_cases():
    y = f32(0, 1, 0, 1)
    assert tally(f32(1, 1, 1, 1), y)["auc"] == 0.5
    assert tally(f32(0, 1, 0, 1), y)["auc"] == 1.0
    assert tally(f32(1, 0, 1, 0), y)["auc"] == 0.0
    # pairs: 2 > 1, 2 = 2, 3 > 1, 3 > 2
    assert tally(f32(1, 2, 2, 3), y)["auc"] == 3.5 / 4
    assert tally(f32(0.0, -0.0), f32(0, 1))["auc"] == 0.5
    assert tally(f32(0.0011, 0.0012, 0.0013, 0.0014), y)["auc"] == 0.75


def test_weights_act_like_repeated_rows():
    scores, labels = f32(0.3, -1, 0.3, 2, 0), f32(1, 0, 0, 1, 1)
    groups, times = np.array([7, 7, 7, -3, -3]), np.array([1, 2, 3, 1, 2])
    weighted = tally(scores, labels, times.astype(np.float32), groups)
    repeated = tally(np.repeat(scores, times), np.repeat(labels, times), None, np.repeat(groups, times))
    assert weighted.pop("rows") == 5 and repeated.pop("rows") == 9
    assert weighted.pop("reasons") == repeated.pop("reasons") == {}
    assert weighted == pytest.approx(repeated, rel=1e-14)


def test_group_auc_weighs_groups_by_their_rows():
    # group 1: both pairs won, 3 rows; group 2: its pair lost, 2 rows; group 3 has one class
    scores, labels = f32(1, 2, 3, 5, 4, 9), f32(0, 0, 1, 0, 1, 1)
    result = tally(scores, labels, None, np.array([1, 1, 1, 2, 2, 3]))
    assert result["gauc"] == 3 / 5 and result["gauc_groups"] == 2
    alone = tally(scores, labels, None, np.arange(6))
    assert alone["gauc"] is None and alone["gauc_groups"] == 0
    assert alone["reasons"]["gauc"] == "no group has both classes"
    assert "gauc" not in tally(scores, labels)


@given(
    st.lists(
        st.tuples(st.floats(-1e4, 1e4, width=32), st.floats(0, 1, width=32), st.floats(0.125, 8, width=32)),
        min_size=1,
        max_size=30,
    )
)
@settings(max_examples=100, deadline=None)
def test_sums_equal_scipy(rows):
    z, y, w = (np.array(c, np.float32) for c in zip(*rows, strict=True))
    result = tally(z, y, w)
    z, y, w = (a.astype(np.float64) for a in (z, y, w))
    loss = -(y * scipy.special.log_expit(z) + (1 - y) * scipy.special.log_expit(-z))
    p = scipy.special.expit(z)
    assert result["logloss"] == pytest.approx(np.average(loss, weights=w), rel=1e-12)
    assert result["rmse"] == pytest.approx(math.sqrt(np.average((p - y) ** 2, weights=w)), rel=1e-12)
    assert result["mean_prediction"] == pytest.approx(np.average(p, weights=w), rel=1e-12)
    assert result["mean_label"] == pytest.approx(np.average(y, weights=w), rel=1e-12)
    assert result["accuracy"] == pytest.approx(np.average((z > 0) == (y > 0.5), weights=w), rel=1e-12)


def test_values_by_hand():
    # p = 0.75, 0.5, 0.2; one minus them for the losses of negatives
    z = np.log([0.75 / 0.25, 1.0, 0.2 / 0.8]).astype(np.float32)
    result = tally(z, f32(1, 0, 0))
    logloss = -(math.log(0.75) + math.log(0.5) + math.log(0.8)) / 3
    entropy = -(math.log(1 / 3) / 3 + 2 * math.log(2 / 3) / 3)
    assert result["logloss"] == pytest.approx(logloss, rel=1e-6)
    assert result["normalised_entropy"] == pytest.approx(logloss / entropy, rel=1e-6)
    assert result["calibration"] == pytest.approx(1.45 / 1, rel=1e-6)
    assert result["rmse"] == pytest.approx(math.sqrt((0.0625 + 0.25 + 0.04) / 3), rel=1e-6)
    assert result["accuracy"] == 1.0 and result["auc"] == 1.0 and result["rows"] == 3
    assert result["reasons"] == {}


def test_logloss_stays_finite_at_the_ends():
    assert tally(f32(1e30, -1e30), f32(1, 0))["logloss"] == 0.0
    assert tally(f32(1e30, -1e30), f32(0, 1))["logloss"] == pytest.approx(1e30, rel=1e-6)
    # far on the right side log1p keeps what 1 - p would lose: exp(-50) per row
    assert tally(f32(50, -50), f32(1, 0))["logloss"] == pytest.approx(math.exp(-50), rel=1e-12)


def test_rows_that_are_not_numbers_are_counted_and_nothing_is_reported():
    for bad in (np.nan, np.inf, -np.inf):
        result = tally(f32(0, bad, 1), f32(0, 1, 1), None, np.array([1, 1, 1]))
        assert result["nonfinite"] == 1 and result["rows"] == 3
        assert result["logloss"] is None and result["auc"] is None and result["gauc"] is None
        assert set(result["reasons"].values()) == {"1 scores are not finite"}
    result = tally(f32(0, 1), f32(np.nan, 1))
    assert result["auc"] is None and result["reasons"]["rmse"] == "1 rows have no label"


def undefined(result):
    return {k for k, v in result.items() if v is None}


def test_undefined_metrics_say_why():
    nothing = tally(f32(), f32())
    assert nothing["rows"] == 0 and set(nothing["reasons"].values()) == {"no rows"}
    assert undefined(nothing) == set(nothing) - {"rows", "nonfinite", "reasons"}
    one_class = tally(f32(1, 2), f32(1, 1))
    assert one_class["reasons"] == {"auc": "one class", "normalised_entropy": "one class"}
    negatives = tally(f32(1, 2), f32(0, 0))
    assert undefined(negatives) == {"auc", "normalised_entropy", "calibration"} == set(negatives["reasons"])
    weightless = tally(f32(1, 2), f32(0, 1), f32(0, 0))
    assert weightless["reasons"]["logloss"] == "all weights are zero"
    # the positive row has no weight, so no pair has any
    assert tally(f32(1, 2), f32(0, 1), f32(1, 0))["reasons"]["auc"] == "one class"
    soft = tally(f32(1, 2, 3), f32(0, 1, 0.5), None, np.array([1, 1, 1]), cuts=(2,))
    assert soft["reasons"]["auc"] == soft["reasons"]["gauc"] == "labels other than 0 and 1"
    assert soft["logloss"] is not None


def test_squared_loss_measures_predictions():
    result = tally(f32(1.5, -2, 4), f32(1, -2, 2), loss="squared")
    assert result["rmse"] == pytest.approx(math.sqrt((0.25 + 0 + 4) / 3), rel=1e-12)
    assert result["calibration"] == pytest.approx(3.5, rel=1e-12)
    assert {n for n, why in result["reasons"].items() if why == "squared loss"} == set(CLASSIFICATION)
    assert result["auc"] is None
    assert tally(f32(0.2, 0.9), f32(0, 1), loss="squared")["auc"] == 1.0


def test_arrays_may_be_reused_after_adding():
    scores, labels, groups = f32(1, 2), f32(0, 1), np.array([4, 4])
    counted = Tally()
    counted.add(scores, labels, None, groups)
    scores[:], labels[:], groups[:] = f32(5, 0), f32(1, 0), [1, 2]
    assert counted.result()["auc"] == 1.0 and counted.result()["gauc"] == 1.0


def test_some_batches_may_lack_weights_or_groups():
    mixed = Tally()
    mixed.add(f32(1), f32(0))
    mixed.add(f32(2), f32(1), f32(1))
    mixed.add(f32(0), f32(1), f32(2))
    assert mixed.result()["auc"] == pytest.approx(1 / 3)


def test_a_tally_is_for_one_evaluation():
    counted = Tally()
    counted.add(f32(1, 0), f32(1, 0))
    first = counted.result()
    assert counted.result() == first
    with pytest.raises(RuntimeError, match="make a new one"):
        counted.add(f32(1), f32(1))
    with pytest.raises(RuntimeError, match="merged already"):
        counted.merge(None)
    with pytest.raises(ValueError, match="hinge"):
        Tally("hinge")


def test_unranked_tally_keeps_no_scores():
    sums = Tally(ranked=False)
    sums.add(f32(1, 0), f32(1, 0))
    result = sums.result()
    assert "auc" not in result and result["logloss"] is not None
