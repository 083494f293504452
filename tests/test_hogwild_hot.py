"""Copies of popular rows, one for each thread: what merging them gives, and that nothing is lost."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from lightctr_mpi import checkpoint, hot, models, optim
from lightctr_mpi.block import Block
from lightctr_mpi.checkpoint import ModelMeta
from lightctr_mpi.compact import build_shard
from lightctr_mpi.config import ModelOptions, OptimizerOptions
from lightctr_mpi.kernels import hot as kernels
from lightctr_mpi.kernels.ahead import LINE
from lightctr_mpi.stores import Sequential

FIELDS = 3
WIDTH = 3  # of the rows that are merged by hand
HYPER = tuple(np.float32(x) for x in (0.3, 1.0, 0.5, 0.25))  # rate (alpha), beta, l1, l2


class Rows:
    """A Block in place of BoundRows."""

    def __init__(self, ids, labels, *, values=None, weights=None):
        n = len(ids)
        fields = np.tile(np.arange(FIELDS, dtype=np.int32), n)
        indptr = np.arange(0, FIELDS * n + 1, FIELDS, dtype=np.int64)
        self.block = Block(
            indptr, ids.ravel().astype(np.int32), fields, values, labels.astype(np.float32), weights
        )
        self.block.norms = np.full(n, 0.5, np.float32)

    def window(self, rows):
        return self.block, rows


def store(name, threads, n_keys, *, bias=True, optimizer="adagrad", rate=0.2) -> Sequential:
    options = ModelOptions(name=name, k=0 if name == "lr" else 4, init_scale=0.2, bias=bias)
    model = models.build(options, FIELDS, "logistic")
    how = optim.build(OptimizerOptions(name=optimizer, lr=rate, l2=1e-4), name)
    keys = np.arange(n_keys, dtype=np.uint64)
    return Sequential(build_shard(model, how, keys, 1, threads=threads), threads)


def planted(n, keys, seed):
    rng = np.random.default_rng(seed)
    ids = (keys * rng.random((n, FIELDS)) ** 3).astype(np.int64) + keys * np.arange(FIELDS)
    weights = rng.normal(size=keys * FIELDS)
    return ids, rng.random(n) < 1 / (1 + np.exp(-weights[ids].sum(axis=1)))


class Threads:
    """Copies of a small table by several threads, without rows of data.

    Row j of the table is 100 j in all columns before anyone moves it.
    """

    def __init__(self, threads: int, opt: int, keys: int = 40):
        self.opt, self.columns, bits = opt, WIDTH * (1 + opt), 6
        counts = 1000 - np.arange(keys, dtype=np.int32)
        self.ranking = hot.Ranking(counts, 1000, 1 << bits)
        self.table = np.zeros((keys + (threads << bits), LINE), np.float32)
        self.table[:keys] = 100 * np.arange(keys)[:, None]
        self.start = self.table[:keys, : self.columns].copy()
        self.bias, self.all = np.full(1 + opt, 7, np.float32), []
        self.rows, slots = self.ranking.ranked.T
        for t in range(threads):
            first = keys + (t << bits)
            own, base = (self.bias.copy() for _ in range(2))
            self.table[first + slots, : self.columns] = self.start[self.rows]
            copies = (self.table, self.ranking.ranked, self.ranking.slots, bits, first, self.start[self.rows])
            self.all.append((copies, (self.bias, own, base), self.ranking.groups, (opt, self.columns, HYPER)))

    def copy(self, t):
        """Rows of the table in which thread t has its copies, by rank."""
        return self.all[t][0][4] + self.ranking.ranked[:, 1]

    def merge(self, t):
        kernels.merge_all(*self.all[t])

    def turn(self, t, number):
        """Merge what is due; no rows of data to copy."""
        none = (np.zeros(1, np.int64), *([np.zeros(0, np.int32)] * 2), *([np.zeros(0, np.float32)] * 2))
        empty = (np.zeros(0, np.float32),) * 2
        state = np.array([number, 0, 0], np.int64)
        kernels.turn(none, empty, np.zeros(0, np.int64), none, empty, *self.all[t], state)


@pytest.mark.parametrize("threads", [2, 3, 4])
@pytest.mark.parametrize("opt", [0, 1])
def test_merged_are_the_sums_of_all_moves(threads, opt):
    """Whole numbers, which float32 adds without rounding."""
    world, rng = Threads(threads, opt), np.random.default_rng(threads)
    total, bias = np.zeros_like(world.start[world.rows]), 0
    for _ in range(5):
        for t in rng.permutation(threads):
            moves = rng.integers(-9, 10, total.shape)
            world.table[world.copy(t), : world.columns] += moves
            world.all[t][1][1][:] += t + 1
            total, bias = total + moves, bias + t + 1
            if rng.random() < 0.6:
                world.merge(t)
    for t in range(threads):
        world.merge(t)
    expected = world.start.copy()
    expected[world.rows] += total
    np.testing.assert_array_equal(world.table[: len(expected), : world.columns], expected)
    np.testing.assert_array_equal(world.bias, 7 + bias)
    for t in range(threads):  # a second round brings everyone what the others have added
        world.merge(t)
        np.testing.assert_array_equal(world.table[world.copy(t), : world.columns], expected[world.rows])
    np.testing.assert_array_equal(world.bias, 7 + bias)


def test_what_one_thread_moved_is_taken_as_it_is():
    """Numbers whose differences round: shared + (copy - base) would not be the copy."""
    world = Threads(2, 1)
    values = np.random.default_rng(0).normal(size=(len(world.rows), world.columns)).astype(np.float32)
    even = np.arange(len(world.rows)) % 2 == 0
    world.table[world.copy(0)[even], : world.columns] = values[even]
    world.table[world.copy(1)[~even], : world.columns] = values[~even]
    world.merge(0)
    world.merge(1)
    np.testing.assert_array_equal(world.table[world.rows, : world.columns], values)


def test_weights_of_ftrl_follow_from_the_merged_state():
    """z and n add up; w = -(z - sign(z) l1) / ((beta + sqrt(n)) / alpha + l2), 0 where |z| <= l1."""
    world = Threads(2, 2)
    world.table[:] = 0
    for copies, (bias, own, base), _, _ in world.all:
        copies[5][:] = 0
        bias[:], own[:], base[:] = 0, 0, 0
    rng = np.random.default_rng(2)
    z, n = rng.normal(size=(2, len(world.rows), WIDTH)), rng.random((2, len(world.rows), WIDTH))
    for t in range(2):
        world.table[world.copy(t), :WIDTH] = 100  # what each has computed for itself
        world.table[world.copy(t), WIDTH : 2 * WIDTH] = z[t]
        world.table[world.copy(t), 2 * WIDTH : 3 * WIDTH] = n[t]
        world.all[t][1][1][:] = 9, t - 2, t + 1
        world.merge(t)
    z, n = z.sum(axis=0), n.sum(axis=0)
    alpha, beta, l1, l2 = HYPER
    w = np.where(abs(z) <= l1, 0, -(z - np.sign(z) * l1) / ((beta + np.sqrt(n)) / alpha + l2))
    np.testing.assert_allclose(
        world.table[world.rows, : 3 * WIDTH], np.hstack([w, z, n]), rtol=2e-5, atol=1e-6
    )
    assert (w == 0).any() and ((world.table[world.rows, :WIDTH] == 0) == (w == 0)).all()
    np.testing.assert_allclose(world.bias, [3 / ((1 + np.sqrt(3)) / alpha), -3, 3], rtol=1e-6)  # no l1, l2


@pytest.mark.parametrize("threads", [2, 3, 4])
def test_nothing_is_lost_while_all_merge_at_once(threads):
    world, rounds = Threads(threads, 1), 400

    def work(t):
        for i in range(rounds):
            world.table[world.copy(t), : world.columns] += 1
            world.all[t][1][1][:] += 1
            world.turn(t, i)
        world.merge(t)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))
    expected = world.start.copy()
    expected[world.rows] += threads * rounds
    np.testing.assert_array_equal(world.table[: len(expected), : world.columns], expected)
    np.testing.assert_array_equal(world.bias, 7 + threads * rounds)
    assert not world.ranking.groups[2].any()


def test_popular_rows_meet_more_often():
    """In 2^(TIERS - 1) turns every row meets, and is used at most USES times in between, if that can be."""
    counts = np.array([800, 3, 64, 200, 0, 9, 800], np.int32)
    ranking, turns = hot.Ranking(counts, 1000, 4096), 1 << (hot.TIERS - 1)
    assert ranking.ranked[:, 0].tolist() == [0, 6, 3, 2, 5, 1]
    starts, tiers, _ = ranking.groups
    meetings = np.zeros(len(ranking.ranked), int)
    for number in range(turns):
        for s, first in enumerate(tiers):
            group = first + number % (1 << s)
            meetings[starts[group] : starts[group + 1]] += 1
    uses = counts[ranking.ranked[:, 0]] / 1000 * hot.PIECE * turns / meetings
    assert (meetings > 0).all() and (np.diff(meetings) <= 0).all() and meetings[0] == turns > meetings[-1]
    assert ((uses <= hot.USES) | (meetings == turns)).all()
    assert ((uses > hot.USES / 2) | (meetings == 1) | (meetings == turns)).all()


def test_only_copies_that_pay_and_find_room_are_made():
    rows = hot.PIECE << (hot.TIERS - 1)
    counts = np.array([hot.LEAST, hot.LEAST - 1, rows, 0], np.int32)
    assert hot.Ranking(counts, rows, 4096).ranked[:, 0].tolist() == [2, 0]
    assert hot.Ranking(counts, rows, 2).ranked[0, 0] == 2
    assert len(hot.Ranking(np.full(100, rows, np.int32), rows, 4).ranked) <= 4


@pytest.mark.parametrize("name", ["fm", "ffm"])
@pytest.mark.parametrize("threads", [2, 3])
def test_threads_that_share_no_key_compute_what_one_does(name, threads):
    """To the bit, with values and weights and rows of different lengths of pieces."""
    rng, n, keys = np.random.default_rng(0), 2100, 10
    ids = rng.integers(0, keys, (n, FIELDS)) + keys * np.arange(FIELDS)
    part = np.repeat(np.arange(threads), np.diff([i * n // threads for i in range(threads + 1)]))
    ids += part[:, None] * keys * FIELDS  # each thread's rows have keys of their own, and there is no bias
    ids[rng.random(ids.shape) < 0.1] = -1  # unseen
    values = rng.normal(size=n * FIELDS).astype(np.float32)
    data = Rows(ids, rng.integers(0, 2, n), values=values, weights=rng.random(n).astype(np.float32))
    one, many = (store(name, t, threads * keys * FIELDS, bias=False) for t in (1, threads))
    for _ in range(2):
        a, b = (learner.learn(data, np.arange(n), False) for learner in (one, many))
        assert (a.rows, a.weight) == (b.rows, pytest.approx(b.weight, rel=1e-12))
        assert a.loss == pytest.approx(b.loss, rel=1e-12)
    assert many._hot is not None and one._hot is None
    assert one.shard.rows.tobytes() == many.shard.rows.tobytes()


@pytest.mark.parametrize(
    "name, optimizer",
    [("fm", "adagrad"), ("ffm", "adagrad"), ("fm", "ftrl"), ("fm", "sgd")],
)
def test_threads_that_meet_learn_as_well(name, optimizer):
    n, keys = 12000, 60
    ids, labels = planted(n, keys, 1)
    data, losses = Rows(ids, labels), []
    for threads in (1, 4):
        rate = 0.05 if optimizer == "sgd" else 0.2
        learner = store(name, threads, keys * FIELDS, optimizer=optimizer, rate=rate)
        assert learner._with_copies == (threads > 1)
        sums = [learner.learn(data, np.arange(n), False) for _ in range(4)]
        assert all(s.rows == n and s.weight == n for s in sums)
        losses.append(sums[-1].loss / n)
    assert losses[1] == pytest.approx(losses[0], abs=0.01)
    assert losses[1] < 0.66


def test_a_loaded_model_replaces_the_copies(tmp_path):
    """A key that is not used again keeps what the file holds, whatever its copies were."""
    ids, labels = planted(600, 4, 2)
    data, first, then = Rows(ids, labels), store("fm", 1, 12), store("fm", 2, 12)
    first.save(str(tmp_path / "m.h5"), ModelMeta(), None)
    then.learn(data, np.arange(600), False)
    columns = first.shard.model.row_columns(1)  # weights and sums of squares
    loaded = first.shard.rows[:, :columns].copy()
    assert (then.shard.rows[:, :columns] != loaded).any(axis=1).all()
    with checkpoint.open(str(tmp_path / "m.h5")) as source:
        then.load(source)
    np.testing.assert_array_equal(then.shard.rows[:, :columns], loaded)
    few = np.arange(2)
    then.learn(data, few, False)
    first.learn(data, few, False)
    rest = np.setdiff1d(np.arange(12), ids[few])
    np.testing.assert_array_equal(then.shard.rows[rest, :columns], loaded[rest])
    used = np.unique(ids[few])
    assert (then.shard.rows[used, :columns] != loaded[used]).any(axis=1).all()
    # The popular keys, whose copies count, start from the file as well: after one row a thread, near it.
    assert abs(then.shard.rows[:, :columns] - loaded).max() < 0.2


def test_rows_shorter_than_a_cache_line_have_no_copies():
    assert not store("lr", 2, 12)._with_copies
    assert hot.slots_of(LINE - 1) == 0 < hot.slots_of(LINE)
