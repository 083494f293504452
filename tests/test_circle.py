"""Consistent hashing against a search in NumPy, and what makes it consistent."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_table import unmix

from lightctr_mpi.ps.circle import Circle

TOP = 2**64 - 1
N = 2_000_000  # on one of 64 servers 31250 keys: a standard deviation of 0.6 %
SEVERAL = [2, 3, 5, 8, 64]


def dense() -> np.ndarray:
    return np.arange(N, dtype=np.uint64)


def hashed() -> np.ndarray:
    return np.random.default_rng(1).integers(0, 2**64, N, dtype=np.uint64)


KEYS = pytest.mark.parametrize("make_keys", [dense, hashed])
circle_of = cache(Circle)


@cache
def points(servers: int, number: int) -> tuple[list[int], list[int]]:
    """Places in ascending order and their servers: SplitMix64's finaliser (Steele, Lea, Flood 2014)."""
    found = []
    for server in range(servers):
        for point in range(number):
            x = (0x9E3779B97F4A7C15 + (server << 32 | point)) & TOP
            x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & TOP
            x = (x ^ x >> 27) * 0x94D049BB133111EB & TOP
            found.append((x ^ x >> 31, server))
    found.sort()
    return [place for place, _ in found], [server for _, server in found]


def fmix64(keys: np.ndarray) -> np.ndarray:
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        keys = (keys ^ keys >> np.uint64(33)) * np.uint64(factor)
    return keys ^ keys >> np.uint64(33)


def expected(servers: int, number: int, keys: np.ndarray) -> list[int]:
    places, owners = points(servers, number)
    at = np.searchsorted(np.array(places, np.uint64), fmix64(keys), side="left")
    return np.array(owners)[at % len(owners)].tolist()


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 9),
    st.sampled_from([1, 2, 7, 64]),
    st.lists(st.integers(0, TOP) | st.integers(0, 50)),
)
def test_owner_is_the_server_of_the_next_point(servers: int, number: int, keys: list[int]) -> None:
    queries = np.array(keys, np.uint64)
    owners = circle_of(servers, number).owners(queries)
    assert owners.dtype == np.int32
    assert owners.tolist() == expected(servers, number, queries)


@pytest.mark.parametrize("number", [1, 3, 200])
def test_at_and_around_each_point(number: int) -> None:
    places, owners = points(4, number)
    keys = [unmix((place + off) & TOP) for place in places for off in (-1, 0, 1)]
    # At a point and just before it: its own server. Behind it: the next one's, behind the last the first's.
    wanted = [s for i, own in enumerate(owners) for s in (own, own, owners[(i + 1) % len(owners)])]
    assert Circle(4, number).owners(np.array(keys, np.uint64)).tolist() == wanted


def test_ends_of_the_circle() -> None:
    places, owners = points(3, 5)
    ends = np.array([unmix(0), unmix(TOP)], np.uint64)
    assert places[0] > 0 and places[-1] < TOP
    assert Circle(3, 5).owners(ends).tolist() == [owners[0], owners[0]]


@pytest.mark.parametrize("servers", SEVERAL)
@KEYS
def test_loads_are_even(servers: int, make_keys) -> None:
    loads = np.bincount(circle_of(servers).owners(make_keys()), minlength=servers)
    assert len(loads) == servers
    np.testing.assert_allclose(loads, N / servers, rtol=0.1)


@pytest.mark.parametrize("servers", SEVERAL)
@KEYS
def test_another_server_takes_its_part_and_moves_no_other_key(servers: int, make_keys) -> None:
    keys = make_keys()
    before, after = circle_of(servers).owners(keys), circle_of(servers + 1).owners(keys)
    moved = before != after
    assert (after[moved] == servers).all()
    assert moved.mean() == pytest.approx(1 / (servers + 1), rel=0.1)
    # Seen the other way, a server that goes leaves all keys but its own where they are, and its own to all.
    gone = after == servers
    np.testing.assert_array_equal(moved, gone)
    heirs = np.bincount(before[gone], minlength=servers)
    np.testing.assert_allclose(heirs, gone.sum() / servers, rtol=0.2 if servers < 64 else 0.6)


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 9), st.lists(st.integers(0, TOP) | st.integers(0, 9), max_size=200))
def test_split_sorts_by_owner_and_keeps_the_order(servers: int, keys: list[int]) -> None:
    queries = np.array(keys, np.uint64)
    circle = circle_of(servers, 7)
    order, bounds = circle.split(queries)
    assert order.dtype == np.int32 and bounds.dtype == np.int64
    owners = circle.owners(queries)
    assert order.tolist() == np.argsort(owners, kind="stable").tolist()
    assert np.diff(bounds).tolist() == [owners.tolist().count(server) for server in range(servers)]
    assert (bounds[0], bounds[-1]) == (0, len(keys))


def test_one_server_owns_all() -> None:
    keys = np.array([5, 0, TOP, 5], np.uint64)
    order, bounds = Circle(1).split(keys)
    assert (order.tolist(), bounds.tolist()) == ([0, 1, 2, 3], [0, 4])
    assert order.dtype == np.int32 and Circle(1).owners(keys).tolist() == [0, 0, 0, 0]


def test_keys_that_cannot_be_written_to_are_taken() -> None:
    keys = np.arange(10, dtype=np.uint64)
    keys.flags.writeable = False
    assert Circle(3, 7).owners(keys).tolist() == expected(3, 7, keys)


@pytest.mark.parametrize("servers, number", [(0, 4), (-1, 4), (3, 0), (1 << 16, 1 << 15)])
def test_impossible_circles(servers: int, number: int) -> None:
    with pytest.raises(ValueError, match=f"{servers} servers of {number} points"):
        Circle(servers, number)
