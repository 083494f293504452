"""A tally over ranks gives what one rank gives for all rows."""

import numpy as np
import pytest

from lightctr_mpi.metrics import Tally
from lightctr_mpi.mpi import world

pytestmark = pytest.mark.mpi


def rows(n=400, seed=3):
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=n).round(1).astype(np.float32)
    labels = (rng.random(n) < 0.3).astype(np.float32)
    weights = rng.integers(1, 9, n).astype(np.float32) / np.float32(3)
    return scores, labels, weights, rng.integers(-5, 20, n)


def shared(columns, owners):
    """Result over the ranks when row i is counted by rank owners[i], in two batches."""
    comm = world().comm
    own = np.flatnonzero(owners == comm.rank)
    tally = Tally()
    for batch in np.array_split(own, 2):
        tally.add(*(None if c is None else c[batch] for c in columns))
    tally.merge(comm)
    result = tally.result()
    assert all(other == result for other in comm.allgather(result))
    return result


def alone(columns):
    tally = Tally()
    tally.add(*columns)
    return tally.result()


def assert_same(result, expected):
    assert set(result) == set(expected)
    for name, value in expected.items():
        exact = name in ("rows", "auc", "gauc", "gauc_groups", "nonfinite", "reasons")
        assert result[name] == (value if exact else pytest.approx(value, rel=1e-12)), name


@pytest.mark.parametrize("spread", ["stripes", "runs", "random", "last only"])
def test_same_metrics_however_rows_are_spread(spread):
    size, columns = world().size, rows()
    n = len(columns[0])
    owners = {
        "stripes": np.arange(n) % size,
        "runs": np.arange(n) * size // n,
        "random": np.random.default_rng(size).integers(0, size, n),
        "last only": np.full(n, size - 1),
    }[spread]
    scores, labels, weights, groups = columns
    for chosen in (columns, (scores, labels, None, groups), (scores, labels, weights, None)):
        assert_same(shared(chosen, owners), alone(chosen))
    plain = (scores, labels, None, None)
    assert_same(shared(plain, owners), alone(plain))


def test_a_class_on_each_rank_is_still_two_classes():
    size = world().size
    labels = (np.arange(40) % 2).astype(np.float32)
    scores = np.arange(40, dtype=np.float32) % 7
    columns = (scores, labels, None, None)
    owners = np.where(labels == 1, 0, size - 1)
    assert_same(shared(columns, owners), alone(columns))
    assert alone(columns)["auc"] is not None


def test_fewer_rows_than_ranks_and_none_at_all():
    columns = rows(2)
    columns[1][:] = [0, 1]
    assert alone(columns)["auc"] is not None
    assert_same(shared(columns, np.arange(2) % world().size), alone(columns))
    empty = tuple(c[:0] for c in columns)
    assert shared(empty, np.zeros(0, int))["reasons"]["auc"] == "no rows"


def test_what_one_rank_sees_holds_for_all():
    size = world().size
    scores, labels, weights, groups = rows(50)
    owners = np.arange(50) % size
    broken = scores.copy()
    broken[49] = np.inf
    result = shared((broken, labels, weights, groups), owners)
    assert result["nonfinite"] == 1 and result["auc"] is None
    soft = labels.copy()
    soft[49] = 0.25
    result = shared((scores, soft, None, groups), owners)
    assert result["reasons"]["auc"] == "labels other than 0 and 1" and result["logloss"] is not None
