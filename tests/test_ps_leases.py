"""The Master's book of leases and a server's clock, by hand and under any course of events."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightctr_mpi.ps.clocks import Clocks
from lightctr_mpi.ps.leases import Lease, Leases
from lightctr_mpi.ps.protocol import ProtocolError


def rows_of(n: int, first: int = 0) -> np.ndarray:
    return np.arange(first, first + n, dtype=np.int64)


# --- leases, by hand ---


@given(st.integers(0, 60), st.integers(1, 12))
@settings(deadline=None)
def test_shares_are_as_even_as_can_be(n: int, shares: int) -> None:
    book = Leases(60.0)
    book.add(3, rows_of(n, 100), shares)
    parts = list(book.waiting)
    assert [(lease.clock, lease.share, lease.shares) for lease in parts] == [
        (3, i, shares) for i in range(shares)
    ]
    assert np.concatenate([lease.rows for lease in parts]).tolist() == list(range(100, 100 + n))
    lengths = [len(lease.rows) for lease in parts]
    assert max(lengths) - min(lengths) <= 1
    assert book.outstanding == shares


def test_leases_are_dealt_in_order_with_new_numbers() -> None:
    book = Leases(60.0)
    assert book.give(7, 0.0) is None
    book.add(0, rows_of(4), 2)
    book.add(1, rows_of(4), 2)
    given_out = [book.give(worker, 1.0) for worker in (7, 8, 7, 9)]
    assert [(lease.clock, lease.share, lease.worker) for lease in given_out] == [
        (0, 0, 7),
        (0, 1, 8),
        (1, 0, 7),
        (1, 1, 9),
    ]
    assert len({lease.number for lease in given_out}) == 4
    assert book.give(7, 1.0) is None and book.outstanding == 4
    assert book.give(7, 1.0, urgent=True) is None
    assert [book.commit(lease.number, 1.0) for lease in reversed(given_out)] == given_out[::-1]
    assert book.outstanding == 0 and book.refused == 0 and book.passed_on == 0


def held_by(seconds: float = 60.0, workers: int = 1) -> tuple[Leases, list[Lease]]:
    """A book in which each of the workers 1, 2, ... has had a share of one step since time 0."""
    book = Leases(seconds)
    book.add(0, rows_of(10), workers)
    return book, [book.give(worker, 0.0) for worker in range(1, workers + 1)]


def test_a_lease_runs_out_when_its_worker_alone_is_silent() -> None:
    book, (lease,) = held_by()
    assert book.expire({1: 0.0, 2: 60.0}, 60.0) == []  # not longer than the limit yet
    assert book.expire({1: 0.0, 2: 30.0}, 60.5) == []  # the other was silent for more than half of it as well
    assert book.expire({1: 0.0}, 1e6) == []  # nobody else is there
    assert book.expire({1: 1.0, 2: 60.5}, 60.5) == []  # heard of since
    assert book.expire({1: 0.0, 2: 30.6}, 60.5) == [lease]
    assert book.passed_on == 1 and not book.held and list(book.overdue) == [lease] and book.outstanding == 1


def test_silence_counts_from_when_the_lease_was_given() -> None:
    """A worker that said nothing for long before has as much time as any."""
    book = Leases(60.0)
    book.add(0, rows_of(2), 1)
    lease = book.give(1, 100.0)
    assert book.expire({1: 0.0, 2: 160.0}, 160.0) == []
    assert book.expire({1: 0.0, 2: 160.0}, 160.1) == [lease]


def test_who_lost_a_lease_does_not_get_it_back() -> None:
    book, (lease,) = held_by()
    old = lease.number
    book.expire({1: 0.0, 2: 61.0}, 61.0)
    book.add(1, rows_of(2), 1)
    assert book.give(1, 61.0, urgent=True) is None
    assert book.give(1, 61.0).clock == 1  # new ones it gets
    assert book.give(2, 61.0, urgent=True) is lease
    assert (lease.worker, lease.given, lease.passed_on) == (2, 61.0, 1) and lease.number != old
    assert book.give(3, 61.0, urgent=True) is None  # nobody else has it too


def test_the_first_overdue_lease_that_somebody_else_lost_is_given() -> None:
    book, (first, second, third) = held_by(workers=3)
    assert book.expire({1: 0.0, 2: 0.0, 3: 0.0, 4: 61.0}, 61.0) == [first, second, third]
    assert book.give(1, 61.0, urgent=True) is second
    assert book.give(2, 61.0, urgent=True) is first
    assert book.give(3, 61.0, urgent=True) is None
    assert book.give(4, 61.0, urgent=True) is third


def test_late_results_are_refused_and_counted_once() -> None:
    book, (lease,) = held_by()
    old = lease.number
    book.expire({1: 0.0, 2: 61.0}, 61.0)
    assert book.commit(old, 61.0) is None and book.refused == 1  # though nobody has taken it yet
    assert book.give(2, 62.0, urgent=True) is lease
    assert book.commit(old, 61.0) is None and book.refused == 2
    assert book.commit(lease.number, 1.0) is lease
    assert book.commit(lease.number, 1.0) is None and book.refused == 3
    assert book.outstanding == 0 and book.passed_on == 1


def test_numbers_that_nobody_was_given_are_refused() -> None:
    book, (lease,) = held_by()
    for number in (-1, 0, lease.number + 1):
        assert book.commit(number, 1.0) is None
    assert book.refused == 3 and book.outstanding == 1


def test_the_limit_grows_with_the_slowest_batch() -> None:
    """After a batch of 20 s the limit is 200 s, then 196 s, as each commit takes 2 % away."""
    book, leases = held_by(workers=4)
    book.commit(leases[0].number, 20.0)
    assert book.expire({2: 0.0, 3: 0.0, 4: 0.0, 1: 200.0}, 200.0) == []
    assert book.expire({2: 0.0, 3: 200.0, 4: 200.0, 1: 200.0}, 200.1) == [leases[1]]
    book.commit(leases[2].number, 1.0)
    assert book.expire({4: 4.1, 1: 200.1, 2: 0.0, 3: 0.0}, 200.1) == []
    assert book.expire({4: 4.0, 1: 200.1, 2: 0.0, 3: 0.0}, 200.1) == [leases[3]]


def test_late_results_do_not_move_the_limit() -> None:
    book, leases = held_by(workers=2)
    book.expire({1: 0.0, 2: 61.0}, 61.0)
    book.commit(1, 1000.0)
    assert book.refused == 1
    assert book.expire({2: 61.0, 1: 122.0}, 122.0) == [leases[1]]


def test_the_limit_doubles_with_each_passing_on() -> None:
    book, (lease,) = held_by()
    now = 0.0
    for turn in range(6):
        limit = 60.0 * 2**turn
        worker, other = lease.worker, 3 - lease.worker
        assert book.expire({worker: 0.0, other: now + limit}, now + limit) == []
        now += limit + 0.5
        assert book.expire({worker: 0.0, other: now}, now) == [lease]
        assert book.give(other, now, urgent=True) is lease
    assert book.passed_on == lease.passed_on == 6


def test_leases_are_none_but_themselves() -> None:
    """Two of equal rows are told apart without comparing them."""
    one, two = (Lease(0, 0, 1, rows_of(3)) for _ in range(2))
    assert one == one and one != two and [two, one].index(one) == 1


# --- leases under any course of events ---

SECONDS = 10.0
EVENTS = ("step", "take", "take", "urgent", "finish", "finish", "late", "beat", "look", "look")
events = st.tuples(
    st.sampled_from(EVENTS), st.integers(0, 3), st.floats(0, 25), st.floats(0, 4), st.integers(0, 2**16)
)


class Course:
    """Workers that stall, finish and come late, beside a book of its own by the rules in the docstrings."""

    def __init__(self, workers: int):
        self.book, self.workers, self.now, self.slowest = Leases(SECONDS), workers, 0.0, 0.0
        self.heard = dict.fromkeys(range(workers), 0.0)
        self.numbers: list[int] = []  # all that were ever given
        self.valid: dict[int, tuple[int, int, int, float]] = {}  # number -> clock, share, worker, given
        self.lost: dict[tuple[int, int], int] = {}  # overdue share -> who lost it
        self.passed: Counter[tuple[int, int]] = Counter()
        self.steps: list[int] = []  # rows of each
        self.done: list[tuple[int, np.ndarray]] = []
        self.refused = 0

    def step(self, rows: int) -> None:
        self.book.add(len(self.steps), rows_of(rows, 1000 * len(self.steps)), self.workers)
        self.steps.append(rows)

    def take(self, worker: int, urgent: bool) -> Lease | None:
        self.heard[worker] = self.now
        before = list(self.book.waiting)
        lease = self.book.give(worker, self.now, urgent)
        if lease is None:
            others = [share for share, loser in self.lost.items() if loser != worker]
            assert not (others if urgent else before)
            return None
        share = lease.clock, lease.share
        if urgent:
            assert self.lost.pop(share) != worker
        else:
            assert lease is before[0] and not self.passed[share]
        assert lease.number not in self.numbers
        self.numbers.append(lease.number)
        self.valid[lease.number] = *share, worker, self.now
        return lease

    def finish(self, number: int, seconds: float) -> None:
        lease = self.book.commit(number, seconds)
        if number in self.valid:
            assert (lease.clock, lease.share) == self.valid.pop(number)[:2]
            self.done.append((lease.clock, lease.rows))
            self.slowest = max(0.98 * self.slowest, seconds)
        else:
            assert lease is None
            self.refused += 1

    def look(self) -> None:
        limit, gone = max(SECONDS, 10 * self.slowest), {}
        for number, (clock, share, worker, when) in self.valid.items():
            silent = self.now - max(when, self.heard[worker])
            seen = [self.now - at for other, at in self.heard.items() if other != worker]
            if silent > limit * 2 ** self.passed[clock, share] and min(seen, default=math.inf) < limit / 2:
                gone[clock, share] = number, worker
        assert {(lease.clock, lease.share) for lease in self.book.expire(dict(self.heard), self.now)} == set(
            gone
        )
        for share, (number, worker) in gone.items():
            del self.valid[number]
            self.lost[share] = worker
            self.passed[share] += 1

    def happen(self, event: str, worker: int, seconds: float, busy: float, pick: int) -> None:
        worker %= self.workers
        self.now += seconds
        mine = [number for number, lease in self.valid.items() if lease[2] == worker]
        if event == "step":
            self.step(pick % 9)
        elif event in ("take", "urgent"):
            self.take(worker, event == "urgent")
        elif event == "finish" and mine:
            self.heard[worker] = self.now
            self.finish(mine[pick % len(mine)], busy)
        elif event == "late" and self.numbers:
            self.finish(self.numbers[pick % len(self.numbers)], busy)
        elif event == "beat":
            self.heard[worker] = self.now
        else:
            self.look()
        self.check()

    def check(self) -> None:
        book = self.book
        assert set(book.held) == set(self.valid)
        assert {(lease.clock, lease.share) for lease in book.overdue} == set(self.lost)
        assert (book.refused, book.passed_on) == (self.refused, sum(self.passed.values()))
        shares = self.workers * len(self.steps)
        assert book.outstanding == shares - len(self.done)

    def end(self) -> None:
        """All workers are well again: each finishes what it has, and takes what it can get."""
        for _ in range(2 + self.book.outstanding):
            for worker in range(self.workers):
                self.heard[worker] = self.now
                for number in [n for n, lease in self.valid.items() if lease[2] == worker]:
                    self.finish(number, 0.1)
                self.take(worker, True)
                self.take(worker, False)
        self.check()


@settings(deadline=None, max_examples=200)
@given(st.integers(1, 4), st.lists(events, max_size=120))
def test_every_row_is_learned_once_whatever_happens(workers: int, course: list[tuple]) -> None:
    play = Course(workers)
    for event in course:
        play.happen(*event)
    play.end()
    assert play.book.outstanding == 0
    for clock, rows in enumerate(play.steps):
        parts = [part for at, part in play.done if at == clock]
        assert sorted(np.concatenate([rows_of(0), *parts])) == list(rows_of(rows, 1000 * clock))


def test_courses_do_pass_leases_on() -> None:
    """Lest the test above be about workers that are never late."""
    rng, total, refused = np.random.default_rng(1), 0, 0
    for _ in range(20):
        play = Course(3)
        for _ in range(150):
            event = EVENTS[rng.integers(len(EVENTS))]
            play.happen(
                event, int(rng.integers(3)), rng.uniform(0, 12), rng.uniform(0, 1), int(rng.integers(99))
            )
        total, refused = total + play.book.passed_on, refused + play.book.refused
    assert total > 50 and refused > 50


# --- clocks ---


def test_clocks_by_hand() -> None:
    clocks = Clocks()
    assert clocks.arrived(1, 0, 2) is False
    assert clocks.arrived(0, 1, 2) is False
    assert clocks.arrived(1, 1, 2) is True and clocks.complete == 0  # whole, but not in turn
    assert clocks.arrived(0, 0, 2) is True and clocks.complete == 2
    assert clocks.arrived(2, 0, 1) is True and clocks.complete == 3


@pytest.mark.parametrize("shares", [2, 4])
def test_all_shares_of_a_clock_agree_on_their_number(shares: int) -> None:
    clocks = Clocks()
    clocks.arrived(0, 2, 3)
    with pytest.raises(ProtocolError, match=f"share 1 of {shares} of clock 0 "):
        clocks.arrived(0, 1, shares)
    assert [clocks.arrived(0, i, 3) for i in (1, 0)] == [False, True]


@settings(deadline=None)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=8), st.randoms(use_true_random=False), st.data())
def test_clocks_count_as_sets_do(shares: list[int], order, choice) -> None:
    """`shares` of each clock in any order, with some that come twice or were never dealt out in between."""
    left = [(clock, share) for clock, n in enumerate(shares) for share in range(n)]
    order.shuffle(left)
    clocks, seen = Clocks(), set()
    for clock, share in left:
        seen.add((clock, share))
        whole = all((clock, i) in seen for i in range(shares[clock]))
        assert clocks.arrived(clock, share, shares[clock]) is whole
        full = [all((c, i) in seen for i in range(n)) for c, n in enumerate(shares)]
        assert clocks.complete == [*full, False].index(False)
        wrong = choice.draw(st.sampled_from(["", "twice", "beyond", "negative", "shares"]))
        again = choice.draw(st.sampled_from(sorted(seen)))
        bad = {
            "twice": (*again, shares[again[0]]),
            "beyond": (clock, shares[clock], shares[clock]),
            "negative": (clock, -1, shares[clock]),
            "shares": (again[0], again[1], shares[again[0]] + 1),
        }
        if wrong:
            with pytest.raises(ProtocolError, match=f"share {bad[wrong][1]} of .* of clock {bad[wrong][0]} "):
                clocks.arrived(*bad[wrong])
    assert clocks.complete == len(shares)


@pytest.mark.parametrize("wrong", [(0, 2, 2), (0, 0, 0), (0, 0, -1), (-1, 0, 1), (5, 3, 2), (0, -1, 2)])
def test_a_refused_share_leaves_no_trace(wrong: tuple[int, int, int]) -> None:
    clocks = Clocks()
    with pytest.raises(ProtocolError, match=f"of clock {wrong[0]} "):
        clocks.arrived(*wrong)
    for clock in range(6):  # of three shares each, whatever the refused one said
        assert [clocks.arrived(clock, i, 3) for i in (2, 0, 1)] == [False, False, True]
    assert clocks.complete == 6
