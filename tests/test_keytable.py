"""The table of a server against a dictionary of rows, and against the Shard of a run on one rank."""

from __future__ import annotations

import contextlib
import mmap
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_table import AT_END, SAME_SLOT, SAME_TAG

from lightctr_mpi import models, optim
from lightctr_mpi.config import ModelOptions, OptimizerOptions
from lightctr_mpi.kernels import table as index
from lightctr_mpi.ps import table as module
from lightctr_mpi.ps.table import KeyTable, Rows
from lightctr_mpi.registry import NAMES
from lightctr_mpi.shard import Shard

TOP = 2**64 - 1
SEED = 11
OPTIMIZERS = pytest.mark.parametrize("name", NAMES["optimizer"])
# Keys alike in their low or high bits, or in the bits of their hash that choose the slot or stand in it.
POOL = sorted(
    {0, 1, 2, TOP, TOP - 1, *SAME_SLOT[:12], *SAME_TAG[:12], *AT_END[:12]}
    | {i << 32 for i in range(8)}
    | {(1 << 63) | i for i in range(8)}
)


def build(name: str = "adagrad", model: str = "fm", k: int = 5, **options):
    made = models.build(ModelOptions(name=model, k=k), 0, "logistic")
    return made, optim.build(OptimizerOptions(name=name, lr=0.3, l2=0.01, l1=0.02, **options), model)


def keys_of(keys) -> np.ndarray:
    return np.array(keys, np.uint64)


def shard_of(parts, keys) -> Shard:
    return Shard(*parts, keys_of(keys), SEED)


def grads_of(seed: int, u: int, width: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(u, width)).astype(np.float32)


@contextlib.contextmanager
def small_pages():
    """Mappings of 4 kB, so that few rows make them grow."""
    before, module._PAGE = module._PAGE, mmap.PAGESIZE
    try:
        yield
    finally:
        module._PAGE = before


class Plain:
    """What a KeyTable is to do, with a dictionary and one array for each row."""

    def __init__(self, parts, admit_after: int):
        self.optimizer, self.admit_after = parts[1], max(admit_after, 1)
        first = shard_of(parts, POOL)
        self.width, self.columns = parts[0].width, parts[0].width * (1 + parts[1].slots)
        self.start = {key: first.rows[i, : self.columns].copy() for i, key in enumerate(POOL)}
        self.rows: dict[int, np.ndarray] = {}
        self.seen: dict[int, list[int]] = {}  # hits and time of all keys, also of those that wait
        self.now = self.refused = self.admitted = self.evicted = 0

    def lookup(self, keys: list[int], create: bool) -> list[int]:
        for key in dict.fromkeys(keys if create else []):
            self.seen[key] = [self.seen.get(key, [0])[0] + 1, self.now]
            if key not in self.rows and self.seen[key][0] >= self.admit_after:
                self.rows[key] = self.start[key].copy()
                self.admitted += 1
        numbers = {key: i for i, key in enumerate(self.rows)}
        found = [numbers.get(key, -1) for key in keys]
        self.refused += found.count(-1) if create else 0
        return found

    def apply(self, keys: list[int], grads: np.ndarray, scale: float) -> int:
        there = [key for key in keys if key in self.rows]
        if there:
            rows = np.stack([self.rows[key] for key in there])
            ids = np.arange(len(there), dtype=np.int32)
            mine = np.ascontiguousarray(grads[[key in self.rows for key in keys]])
            self.optimizer.apply_rows(rows, ids, rows, ids, self.width, self.width, mine, scale)
            self.rows.update(zip(there, rows, strict=True))
        return len(keys) - len(there)

    def evict(self, age: int, hits: int) -> int:
        before = len(self.rows)
        for key, (count, last) in list(self.seen.items()):
            if last < self.now - age and (hits == 0 or count < hits):
                del self.seen[key]
                self.rows.pop(key, None)
        self.evicted += before - len(self.rows)
        return before - len(self.rows)


@st.composite
def operations(draw) -> list:
    """On few keys, so that they meet again."""
    pool = draw(st.lists(st.sampled_from(POOL), unique=True, min_size=1, max_size=40))
    keys = st.lists(st.sampled_from(pool), max_size=25)
    step = st.one_of(
        st.tuples(st.just("lookup"), keys, st.booleans()),
        st.tuples(st.just("lookup"), st.just(pool), st.just(True)),
        st.tuples(st.just("apply"), keys, st.integers(0, 99)),
        st.tuples(st.just("touch"), st.integers(0, 3)),
        st.tuples(st.just("evict"), st.integers(0, 2), st.integers(0, 3)),
    )
    return draw(st.lists(step, max_size=25))


def same(table: KeyTable, plain: Plain) -> None:
    assert table.keys.tolist() == list(plain.rows)
    n = len(plain.rows)
    wanted = np.array(list(plain.rows.values()), np.float32).reshape(n, plain.columns)
    np.testing.assert_array_equal(table.rows[:n, : plain.columns], wanted)
    assert not table.rows[:n, plain.columns :].any() and not table.rows[n:].any()
    assert table.seen is not None
    assert table.seen.tolist() == [plain.seen[key] for key in plain.rows]
    counts = (table.admitted, table.evicted, table.refused_sightings)
    assert counts == (plain.admitted, plain.evicted, plain.refused)


@OPTIMIZERS
@settings(deadline=None, max_examples=100)
@given(st.integers(0, 3), operations())
def test_a_series_of_operations_follows_the_dictionary(name: str, admit_after: int, steps: list) -> None:
    parts = build(name)
    plain = Plain(parts, admit_after)
    with small_pages():
        table = KeyTable(*parts, SEED, admit_after=admit_after, track=True)
        for what, *given_ in steps:
            if what == "lookup":
                keys, create = given_
                assert table.lookup(keys_of(keys), create).tolist() == plain.lookup(keys, create)
            elif what == "apply":
                keys = list(dict.fromkeys(given_[0]))
                grads = grads_of(given_[1], len(keys), table.width)
                numbers = table.lookup(keys_of(keys), False)
                assert table.apply(numbers, grads, 0.5) == plain.apply(keys, grads, 0.5)
            elif what == "touch":
                plain.now += given_[0]
                table.touch(plain.now)
            else:
                assert table.evict(plain.now, *given_) == plain.evict(*given_)
            same(table, plain)


@OPTIMIZERS
def test_rows_are_those_of_a_shard_at_the_start_and_after_steps(name: str) -> None:
    """Growth of the index and of the mapped rows, in steps of which none fits the one before."""
    parts, n = build(name), 120_000
    keys = np.random.default_rng(1).integers(0, 2**64, n, dtype=np.uint64)
    keys[:2] = 0, TOP
    shard = shard_of(parts, np.sort(keys))
    table = KeyTable(*parts, SEED)
    columns, first = table.extra_col, len(table.rows)
    at = 0
    for size in (1, 500, 40_000, 30_000, n):
        part = keys[at : at + size]
        numbers = table.lookup(part, True)
        assert numbers.tolist() == list(range(at, at + len(part)))
        at += size
    assert len(table) == n and len(table.rows) >= n > 3 * first
    ids = np.searchsorted(shard.keys, keys).astype(np.int32)
    np.testing.assert_array_equal(table.rows[:n, :columns], shard.rows[ids, :columns])
    for seed in range(3):
        chosen = np.random.default_rng(seed).choice(n, 5000, replace=False)
        grads = grads_of(seed, 5000, table.width)
        scale = parts[1].scale(100)
        assert table.apply(table.lookup(keys[chosen], False), grads, scale) == 0
        shard.apply(ids[chosen], grads, 0.0, 100)
    np.testing.assert_array_equal(table.rows[:n, :columns], shard.rows[ids, :columns])
    assert (table.rows[:n, :columns] != shard_of(parts, shard.keys).rows[ids, :columns]).any()
    assert table.all_finite()
    table.rows[n - 1, 0] = np.inf
    assert not table.all_finite()


@settings(deadline=None, max_examples=40)
@given(st.lists(st.sampled_from(POOL), unique=True, min_size=1), st.randoms(), st.data())
def test_initial_rows_do_not_depend_on_the_order_of_arrival(keys: list[int], random, data) -> None:
    shuffled = random.sample(keys, len(keys))
    cut = data.draw(st.integers(0, len(keys)))
    parts = build("ftrl")
    one, two = KeyTable(*parts, SEED), KeyTable(*parts, SEED)
    first = one.lookup(keys_of(keys), True)
    for part in (shuffled[:cut], shuffled[cut:]):
        two.lookup(keys_of(part), True)
    second = two.lookup(keys_of(keys), False)
    np.testing.assert_array_equal(one.rows[first], two.rows[second])
    np.testing.assert_array_equal(
        one.rows[first, : one.extra_col], shard_of(parts, keys).rows[:, : one.extra_col]
    )


def test_another_seed_begins_with_other_rows() -> None:
    parts = build()
    tables = [KeyTable(*parts, seed) for seed in (1, 2)]
    for table in tables:
        table.lookup(keys_of([5]), True)
    assert (tables[0].rows[0, :5] != tables[1].rows[0, :5]).all()


def test_gather_gives_weights_and_zeros() -> None:
    table = KeyTable(*build(), SEED, extra=3)
    keys = keys_of(POOL)
    table.lookup(keys[::2], True)
    numbers = table.lookup(keys, False)
    out = np.full((len(keys), table.width), np.nan, np.float32)
    table.gather(numbers, out)
    np.testing.assert_array_equal(out[::2], table.rows[: len(table), : table.width])
    assert not out[1::2].any() and (numbers[1::2] == -1).all()


def test_columns_of_a_row() -> None:
    """fm with 5 factors: 8 columns and the linear weight, and as many of Adagrad; 4 of the caller's."""
    table = KeyTable(*build(), SEED, extra=4)
    assert (table.width, table.state_col, table.extra_col, table.stride) == (9, 9, 18, 32)
    table.lookup(keys_of([3]), True)
    table.rows[0, 18:22] = 7
    assert table.apply(np.array([0, -1], np.int32), grads_of(1, 2, 9), 1.0) == 1
    assert table.rows[0, 18:].tolist() == [7] * 4 + [0] * 10


def test_a_key_gets_its_row_at_the_sighting_asked_for() -> None:
    table = KeyTable(*build(), SEED, admit_after=3)
    a, both = keys_of([7]), keys_of([7, 9, 7])
    assert table.lookup(both, True).tolist() == [-1, -1, -1]  # twice in one call is seen once
    assert table.lookup(a, False).tolist() == [-1] and table.lookup(a, True).tolist() == [-1]
    assert (len(table), table.admitted, table.refused_sightings) == (0, 0, 4)
    assert table.lookup(both, True).tolist() == [0, -1, 0]
    assert (len(table), table.admitted, table.refused_sightings) == (1, 1, 5)
    assert table.lookup(keys_of([9]), True).tolist() == [1]
    assert table.keys.tolist() == [7, 9]


def test_keys_that_were_admitted_leave_the_side_table() -> None:
    table = KeyTable(*build(), SEED, admit_after=2)
    keys = np.arange(40_000, dtype=np.uint64)
    for a in range(0, len(keys), 1000):
        for _ in range(2):
            table.lookup(keys[a : a + 1000], True)
    assert len(table) == table.admitted == table.refused_sightings == len(keys)
    alone = KeyTable(*build(), SEED)
    alone.lookup(keys, True)
    assert table.nbytes - alone.nbytes < 4 * len(keys)


def test_eviction_by_hand() -> None:
    table = KeyTable(*build(), SEED, track=True)
    for now, keys in enumerate([[1, 2, 3, 4], [2, 3], [3], [5]]):
        table.touch(now)
        table.lookup(keys_of(keys), True)
    table.rows[:5, 0] = [10, 20, 30, 40, 50]
    # At 3, older than 1: keys 1 and 4 (last seen at 0, once) and 2 (at 1, twice).
    assert table.evict(3, 1, 2) == 2
    assert table.keys.tolist() == [2, 3, 5] and table.rows[:3, 0].tolist() == [20, 30, 50]
    assert table.lookup(keys_of([1, 5, 3, 2]), False).tolist() == [-1, 2, 1, 0]
    assert table.evict(3, 1, 0) == 1 and table.keys.tolist() == [3, 5]
    assert table.rows[:2, 0].tolist() == [30, 50] and not table.rows[2:].any()
    assert table.evict(3, 3, 0) == 0 and table.evicted == 3
    assert table.evict(9, 1, 0) == 2 and len(table) == 0
    assert table.lookup(keys_of([1, 3]), True).tolist() == [0, 1]
    np.testing.assert_array_equal(table.rows[:2, :9], shard_of(build(), [1, 3]).rows[:, :9])


def test_eviction_moves_rows_of_many_pages() -> None:
    parts, n = build(), 50_000
    table = KeyTable(*parts, SEED, track=True, extra=2)
    keys = np.arange(n, dtype=np.uint64)
    table.lookup(keys, True)
    table.rows[:n, table.extra_col] = np.arange(n)
    kept = np.flatnonzero(np.random.default_rng(2).random(n) < 0.3)
    table.touch(5)
    table.lookup(keys[kept], True)
    assert table.evict(5, 4, 0) == n - len(kept)
    np.testing.assert_array_equal(table.keys, keys[kept])
    np.testing.assert_array_equal(table.rows[: len(kept), table.extra_col], kept)
    assert not table.rows[len(kept) :].any()
    np.testing.assert_array_equal(table.lookup(keys[kept], False), np.arange(len(kept)))


def test_eviction_needs_stamps() -> None:
    table = KeyTable(*build(), SEED)
    assert table.seen is None
    with pytest.raises(ValueError, match="does not track"):
        table.evict(1, 1, 0)


@OPTIMIZERS
def test_restored_rows_need_no_admission(name: str) -> None:
    parts = build(name)
    one, two = KeyTable(*parts, SEED), KeyTable(*parts, SEED, admit_after=2, track=True)
    keys = keys_of(POOL)
    one.apply(one.lookup(keys, True), grads_of(1, len(keys), one.width), 1.0)
    values = one.rows[: len(keys), : one.extra_col].copy()
    two.touch(4)
    two.lookup(keys[:5], True)  # are waiting by now
    seen = np.array([[i, 0 if i < 5 else 4] for i in range(len(keys))], np.int32)
    assert two.restore(keys, values, seen).tolist() == list(range(len(keys)))
    np.testing.assert_array_equal(two.rows[: len(keys), : two.extra_col], values)
    assert two.admitted == 0 and two.seen is not None and two.seen.tolist() == seen.tolist()
    # What was counted while a key waited is forgotten: without its row it has to be seen twice again.
    assert two.evict(4, 1, 0) == 5
    assert two.lookup(keys[:6], True).tolist() == [-1] * 5 + [0]
    assert two.lookup(keys[:1], True).tolist() == [len(keys) - 5]


@OPTIMIZERS
def test_weights_restored_alone_start_their_state_anew(name: str) -> None:
    parts = build(name)
    table = KeyTable(*parts, SEED, track=True)
    keys, weights = keys_of(POOL), grads_of(3, len(POOL), parts[0].width)
    table.touch(6)
    numbers = table.restore(keys, weights)
    state = np.full((len(keys), table.extra_col - table.width), np.nan, np.float32)
    parts[1].init_state(state, weights)
    np.testing.assert_array_equal(table.rows[numbers, : table.extra_col], np.hstack([weights, state]))
    assert table.seen is not None and (table.seen == (0, 6)).all()
    with pytest.raises(ValueError, match="rows of 3 columns"):
        table.restore(keys, weights[:, :3])


def test_restored_without_values_rows_begin_as_new_ones() -> None:
    parts = build("ftrl")
    table = KeyTable(*parts, SEED, admit_after=9)
    numbers = table.restore(keys_of(POOL))
    np.testing.assert_array_equal(table.rows[numbers, : table.extra_col], shard_of(parts, POOL).rows[:, :27])


def test_room_for_expected_keys_is_there_from_the_start() -> None:
    table = KeyTable(*build(), SEED, expected=100_000)
    rows, size = table.rows, table.nbytes
    table.lookup(np.arange(100_000, dtype=np.uint64), True)
    assert table.rows is rows
    assert table.nbytes == size + 100_000 * 4 * table.stride


def test_a_view_that_would_be_left_behind_stops_the_growth() -> None:
    table = KeyTable(*build(), SEED)
    table.lookup(keys_of([1]), True)
    view, many = table.rows[:1], np.arange(100_000, dtype=np.uint64)
    row = view.copy()
    with pytest.raises(BufferError, match="while a view of them is in use"):
        table.lookup(many, True)
    assert table.keys.tolist() == [1]
    del view
    assert table.lookup(many, True)[1] == 0  # and nothing was lost
    np.testing.assert_array_equal(table.rows[:1], row)


def test_more_rows_than_the_address_space_holds() -> None:
    rows = Rows(16, np.float32)
    rows.array[0] = 3
    with pytest.raises(MemoryError, match="for 281474976710656 rows"):
        rows.reserve(2**48)
    assert rows.array[0, 0] == 3
    with pytest.raises(MemoryError, match="for 281474976710656 rows"):
        Rows(16, np.float32, 2**48)


def test_too_many_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "MOST_KEYS", 1000)
    with pytest.raises(OverflowError, match="more than 1000 distinct keys"):
        KeyTable(*build(), SEED).lookup(np.arange(2000, dtype=np.uint64), True)


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 700), st.data())
def test_rows_keep_what_they_hold_when_they_grow_and_close_up(columns: int, data) -> None:
    sizes = data.draw(st.lists(st.integers(1, 300), min_size=1, max_size=6))
    with small_pages():
        rows, plain = Rows(columns, np.int32), np.zeros((0, columns), np.int32)
        for step, size in enumerate(sizes):
            rows.reserve(len(plain) + size)
            assert len(rows.array) >= len(plain) + size
            more = np.arange(size * columns, dtype=np.int32).reshape(size, columns) + step
            rows.array[len(plain) : len(plain) + size] = more
            plain = np.concatenate([plain, more])
            some = sorted(data.draw(st.sets(st.integers(0, len(plain) - 1), max_size=9)))
            kept = np.array(some, np.int64)
            if not data.draw(st.booleans()):
                kept = np.delete(np.arange(len(plain)), kept)
            rows.compact(kept, len(plain))
            plain = plain[kept]
            np.testing.assert_array_equal(rows.array[: len(plain)], plain)
            assert not rows.array[len(plain) :].any()


def test_resident_memory_follows_the_keys_and_growth_copies_nothing() -> None:
    """In a process of its own: kB that are resident after 400,000 keys, at the most, and after eviction."""
    script = """
        import re
        import numpy as np
        from lightctr_mpi import models, optim
        from lightctr_mpi.config import ModelOptions, OptimizerOptions
        from lightctr_mpi.ps.table import KeyTable

        def resident(name):
            with open("/proc/self/status") as status:
                return int(re.search(name + r":\\s+(\\d+)", status.read())[1]) * 1024

        def fill(table, keys):
            for a in range(0, len(keys), 20_000):
                table.lookup(keys[a : a + 20_000], True)

        model = models.build(ModelOptions(name="fm", k=40, linear=False), 0, "logistic")
        parts = model, optim.build(OptimizerOptions(name="adagrad"), "fm"), 1
        n = 400_000
        keys = np.arange(n, dtype=np.uint64) << np.uint64(20)
        small = KeyTable(*parts, track=True)
        fill(small, keys[:1000])
        small.touch(9)
        small.evict(9, 1, 0)
        before = resident("VmRSS")
        table = KeyTable(*parts, track=True)
        assert table.stride == 80
        fill(table, keys)
        assert len(table) == n
        after, peak = resident("VmRSS"), resident("VmHWM")
        table.touch(9)
        table.lookup(keys[: n // 10], True)
        table.evict(9, 1, 0)
        print(before, after, peak, resident("VmRSS"))
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    before, after, peak, evicted = map(int, done.stdout.split())
    n, row = 400_000, 8 + 4 * 80
    assert n * row <= after - before <= 1.25 * n * row
    assert peak - before <= 1.25 * n * row
    assert evicted - before <= 0.25 * n * row
