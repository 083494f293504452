"""What a server keeps beside its table: a segment of the dense parameters, and what workers last pulled."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightctr_mpi import models, optim
from lightctr_mpi.config import ModelOptions, OptimizerOptions, PsOptions
from lightctr_mpi.models.base import Model
from lightctr_mpi.optim.base import Optimizer
from lightctr_mpi.ps.backup import DECAY, LAMBDA, Backups
from lightctr_mpi.ps.dense import Dense, dense_bounds
from lightctr_mpi.ps.protocol import ProtocolError
from lightctr_mpi.ps.table import KeyTable
from lightctr_mpi.registry import NAMES

F = np.float32


# --- dense parameters ---


def optimizer_of(name: str, **options: Any) -> Optimizer:
    return optim.build(OptimizerOptions(**{"name": name, "lr": 0.5, "l2": 0.0, **options}))


def test_dense_adagrad_by_hand() -> None:
    """s = 1 + (0.5 * 4)^2 = 5, w = -0.5 * 2 / sqrt(5); then s = 6, w -= 0.5 / sqrt(6)."""
    dense = Dense(optimizer_of("adagrad", init=1.0), 2)
    assert dense.values.tolist() == [0, 0] and dense.state.tolist() == [[1, 1]]
    dense.apply(np.array([4, 0], F), 0.5)
    assert dense.state.tolist() == [[5, 1]]
    np.testing.assert_allclose(dense.values, [-1 / math.sqrt(5), 0], rtol=1e-6)
    dense.apply(np.array([1, -1], F), 1.0)
    assert dense.state.tolist() == [[6, 2]]
    np.testing.assert_allclose(
        dense.values, [-1 / math.sqrt(5) - 0.5 / math.sqrt(6), 0.5 / math.sqrt(2)], rtol=1e-6
    )


def test_dense_sgd_by_hand() -> None:
    dense = Dense(optimizer_of("sgd"), 3)
    assert dense.state.shape == (0, 3)
    dense.apply(np.array([4, 0, -2], F), 0.25)
    assert dense.values.tolist() == [-0.5, 0, 0.25]
    dense.apply(np.array([4, 0, -2]), 0.25)  # a sum of several pushes is float64
    assert dense.values.tolist() == [-1, 0, 0.5] and dense.values.dtype == F


@pytest.mark.parametrize("name", NAMES["optimizer"])
@pytest.mark.parametrize("servers", [1, 2, 3, 7])
def test_segments_move_as_one_vector(name: str, servers: int) -> None:
    n, rng = 5, np.random.default_rng(3)
    optimizer = optimizer_of(name)
    bounds = [i * n // servers for i in range(servers + 1)]
    parts = [Dense(optimizer, b - a) for a, b in zip(bounds, bounds[1:], strict=False)]
    values, state = np.zeros(n, F), np.zeros((optimizer.slots, n), F)
    state[:] = 1.0 if name == "adagrad" else 0.0
    for _ in range(10):
        grad = rng.normal(size=n).astype(F)
        optimizer.apply_dense(values, state.reshape(-1), grad.copy(), 0.5)
        for part, a, b in zip(parts, bounds, bounds[1:], strict=False):
            part.apply(grad[a:b], 0.5)
        np.testing.assert_array_equal(np.concatenate([part.values for part in parts]), values)
        np.testing.assert_array_equal(np.concatenate([part.state for part in parts], axis=1), state)
    assert values.all()


def test_dense_apply_leaves_the_gradient_alone() -> None:
    """It may be a view of a message that cannot be written to."""
    grad = np.ones(2, F)
    grad.flags.writeable = False
    Dense(optimizer_of("ftrl"), 2).apply(grad, 0.5)
    assert grad.tolist() == [1, 1]


@pytest.mark.parametrize("servers", [1, 2, 5])
def test_the_first_server_has_the_bias(servers: int) -> None:
    for bias in (True, False):
        model = models.build(ModelOptions(name="lr", k=0, bias=bias), 0, "logistic")
        assert dense_bounds(model, servers).tolist() == [0] + [int(bias)] * servers


# --- backups ---


def model_of(k: int = 3) -> Model:
    return models.build(ModelOptions(name="fm", k=k), 0, "logistic")


def table_of(
    keys: np.ndarray, backups: Backups, weights: np.ndarray | None = None
) -> tuple[KeyTable, np.ndarray]:
    """A table with these keys, and their numbers."""
    model, optimizer = model_of(), optim.build(OptimizerOptions(name="adagrad", lr=0.5), "fm")
    table = KeyTable(model, optimizer, 1, extra=backups.extra(model.width))
    numbers = table.lookup(keys, create=True)
    if weights is not None:
        table.rows[numbers, : model.width] = weights
    return table, numbers


WIDTH = model_of().width
PULL_BYTES = 10 * (8 + 4 * WIDTH)  # of ten keys
KEYS = np.array([0, 3, 8, 100, 2**40, 2**50, 2**60, 2**63, 2**64 - 2, 2**64 - 1], np.uint64)


def normal(seed: int, n: int = 10) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, WIDTH)).astype(F)


def is_corrected(backups: Backups, worker: int, lease: int) -> bool:
    """Whether a push of this lease meets a backup; `missed` must say so too."""
    table, numbers = table_of(KEYS, backups, np.zeros((10, WIDTH), F))
    missed, grads = backups.missed, np.ones((10, WIDTH), F)
    backups.correct(worker, lease, KEYS, grads, table, numbers)
    changed = bool((grads != 1).all())
    assert changed or (grads == 1).all()
    assert backups.missed - missed == (0 if changed else 10)
    return changed


def test_options_of_the_correction() -> None:
    for kind, strength, extra in (("none", 0.0, 0), ("constant", 0.04, 0), ("adaptive", 2.0, WIDTH)):
        backups = Backups.of(PsOptions(delay=kind, delay_memory=3), 2)
        assert (backups.kind, backups.on, backups.strength) == (kind, kind != "none", strength)
        assert backups.extra(WIDTH) == extra and backups.bound == 3 * 2**20 // 2
    assert Backups.of(PsOptions(delay="constant", delay_lambda=0.0), 1).strength == 0
    assert Backups.of(PsOptions(delay="constant", delay_memory=0), 0).bound == 0
    assert LAMBDA["adaptive"] == 2 and DECAY == 0.95  # those of the paper


@pytest.mark.parametrize("scale", [1.0, 0.01])
def test_constant_correction_follows_the_formula(scale: float) -> None:
    """What is applied, scale g, becomes scale g + lambda (scale g)^2 (w - b)."""
    backups = Backups("constant", 0.5, 1 << 20)
    pulled, now, grads = normal(1), normal(2), normal(3) / F(scale)
    table, numbers = table_of(KEYS, backups, now)
    backups.keep(4, 9, KEYS, pulled)
    pulled[:] = np.nan  # the backup is a copy
    g = scale * grads.astype(float)
    backups.correct(4, 9, KEYS, grads, table, numbers, scale)
    wanted = g + 0.5 * g * g * (now.astype(float) - normal(1))
    np.testing.assert_allclose(scale * grads, wanted, rtol=1e-5, atol=1e-5)
    assert backups.missed == 0


@pytest.mark.parametrize("scale", [1.0, 0.01])
def test_adaptive_correction_follows_the_formula(scale: float) -> None:
    """m = 0.95 m + 0.05 g^2 and lambda = 2 / sqrt(m + 1e-7), for g as it is applied; m goes on."""
    backups = Backups("adaptive", 2.0, 1 << 20)
    table, numbers = table_of(KEYS, backups, normal(2))
    m = np.zeros((10, WIDTH))
    for lease in range(3):
        grads = normal(10 + lease) / F(scale)
        g = scale * grads.astype(float)
        m = 0.95 * m + 0.05 * g * g
        backups.keep(4, lease, KEYS, normal(1))
        backups.correct(4, lease, KEYS, grads, table, numbers, scale)
        wanted = g + 2 / np.sqrt(m + 1e-7) * g * g * (normal(2).astype(float) - normal(1))
        np.testing.assert_allclose(scale * grads, wanted, rtol=1e-4, atol=1e-4)
    state = table.rows[numbers, WIDTH : table.extra_col]
    assert (state == 1).all()  # Adagrad's, which lies between


@pytest.mark.parametrize("kind", ["constant", "adaptive"])
@given(st.sets(st.integers(0, 9)))
@settings(deadline=None, max_examples=40)
def test_some_of_the_keys_are_corrected_with_their_rows(kind: str, chosen: set[int]) -> None:
    some = sorted(chosen)
    backups = Backups(kind, 0.5, 1 << 20)
    table, numbers = table_of(KEYS[::-1].copy(), backups, normal(2)[::-1])
    numbers = numbers[::-1].copy()
    backups.keep(4, 9, KEYS, normal(1))
    grads = normal(3)[some]
    backups.correct(4, 9, KEYS[some], grads, table, numbers[some])
    g = normal(3)[some].astype(float)
    lam = 0.5 / np.sqrt(0.05 * g * g + 1e-7) if kind == "adaptive" else 0.5
    wanted = g + lam * g * g * (normal(2)[some].astype(float) - normal(1)[some])
    np.testing.assert_allclose(grads, wanted, rtol=1e-4, atol=1e-5)
    assert backups.missed == 0
    assert not is_corrected(backups, 4, 9)  # a backup serves one push


def test_keys_without_a_row_are_passed_over() -> None:
    """They wait for their admission: nothing moves, so nothing is late."""
    backups = Backups("constant", 0.5, 1 << 20)
    table, numbers = table_of(KEYS, backups, normal(2))
    numbers[3:] = -1
    grads = normal(3)
    backups.keep(1, 1, KEYS, normal(1))
    backups.correct(1, 1, KEYS, grads, table, numbers)
    assert (grads[:3] != normal(3)[:3]).all()
    np.testing.assert_array_equal(grads[3:], normal(3)[3:])


def test_the_oldest_backups_go_first_and_each_worker_has_its_own_room() -> None:
    backups = Backups("constant", 0.5, 3 * PULL_BYTES)
    for lease in range(5):
        backups.keep(1, lease, KEYS, normal(lease))
    for lease in (7, 6, 5):
        backups.keep(2, lease, KEYS, normal(lease))
    assert [is_corrected(backups, 2, lease) for lease in range(8)] == [False] * 5 + [True] * 3
    assert [is_corrected(backups, 1, lease) for lease in range(5)] == [False, False, True, True, True]
    assert backups.missed == 70


def test_room_of_a_push_is_free_again() -> None:
    backups = Backups("constant", 0.5, 3 * PULL_BYTES)
    for lease in range(20):
        backups.keep(1, lease, KEYS, normal(lease))
        backups.keep(1, 100 + lease, KEYS, normal(lease))
        assert is_corrected(backups, 1, lease) and is_corrected(backups, 1, 100 + lease)
    assert backups.missed == 0


@pytest.mark.parametrize("bound", [0, PULL_BYTES - 1])
def test_a_pull_beyond_the_room_is_not_kept(bound: int) -> None:
    backups = Backups("constant", 0.5, bound)
    backups.keep(1, 1, KEYS, normal(1))
    assert not is_corrected(backups, 1, 1) and backups.missed == 10
    backups = Backups("constant", 0.5, PULL_BYTES)
    backups.keep(1, 1, KEYS, normal(1))
    assert is_corrected(backups, 1, 1)


def test_a_lease_that_is_pulled_again_takes_its_room_once() -> None:
    backups = Backups("constant", 0.5, 2 * PULL_BYTES)
    for _ in range(5):
        backups.keep(1, 1, KEYS, normal(1))
    backups.keep(1, 2, KEYS, normal(2))
    assert is_corrected(backups, 1, 1) and is_corrected(backups, 1, 2)


def test_pulls_without_keys_take_no_room() -> None:
    backups = Backups("constant", 0.5, PULL_BYTES)
    backups.keep(1, 0, KEYS, normal(1))
    for lease in range(1, 100):
        backups.keep(1, lease, KEYS[:0], normal(1)[:0])
    table, numbers = table_of(KEYS, backups)
    backups.correct(1, 50, KEYS[:0], normal(1)[:0], table, numbers[:0])
    assert backups.missed == 0 and len(backups._pulled[1]) == 1
    assert is_corrected(backups, 1, 0)


class Bounded(Backups):
    """Counts what is kept."""

    def kept(self, worker: int) -> int:
        return sum(keys.nbytes + rows.nbytes for keys, rows in self._pulled[worker].values())


pulls = st.tuples(
    st.sampled_from(["keep", "keep", "push"]), st.integers(0, 2), st.integers(0, 9), st.integers(0, 10)
)


@settings(deadline=None)
@given(st.integers(0, 4 * PULL_BYTES), st.lists(pulls, max_size=60))
def test_the_bound_holds(bound: int, course: list[tuple[str, int, int, int]]) -> None:
    """Against a list of (lease, bytes) for each worker."""
    backups = Bounded("constant", 0.5, bound)
    table, numbers = table_of(KEYS, backups)
    wanted: dict[int, list[tuple[int, int]]] = {0: [], 1: [], 2: []}
    missed = 0
    for what, worker, lease, n in course:
        mine = wanted[worker]
        there = [entry for entry in mine if entry[0] == lease]
        wanted[worker] = mine = [entry for entry in mine if entry[0] != lease]
        if what == "keep":
            backups.keep(worker, lease, KEYS[:n], normal(1)[:n])
            if n:
                mine.append((lease, n * (8 + 4 * WIDTH)))
            while sum(nbytes for _, nbytes in mine) > bound:
                mine.pop(0)
        else:
            n = min(n, there[0][1] // (8 + 4 * WIDTH)) if there else n
            backups.correct(worker, lease, KEYS[:n], normal(1)[:n], table, numbers[:n])
            missed += 0 if there else n
        assert backups.missed == missed
        for rank, entries in wanted.items():
            assert backups.kept(rank) == sum(nbytes for _, nbytes in entries) <= bound
            assert list(backups._pulled[rank]) == [at for at, _ in entries]


@pytest.mark.parametrize(
    "known, pushed",
    [
        ([1, 2, 3], [1, 2, 4]),
        ([1, 2, 3], [4]),
        ([1, 2, 3], [0]),
        ([2, 3], [1, 2, 3]),
        ([2], [2, 3]),
        ([1, 2, 3], [2, 9]),
    ],
)
def test_keys_that_were_not_pulled_are_refused(known: list[int], pushed: list[int]) -> None:
    """The kernel would read beyond the backup, or take another key's."""
    backups = Backups("constant", 0.5, 1 << 20)
    backups.keep(4, 9, np.array(known, np.uint64), normal(1)[: len(known)])
    keys, grads = np.array(pushed, np.uint64), normal(3)[: len(pushed)]
    table, numbers = table_of(keys, backups)
    with pytest.raises(ProtocolError, match="rank 4 pushes keys of lease 9 that it did not pull"):
        backups.correct(4, 9, keys, grads, table, numbers)
    np.testing.assert_array_equal(grads, normal(3)[: len(pushed)])
