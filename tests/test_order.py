"""The order of rows: every row once, random, repeatable, and independent of everything but seed and epoch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightctr_mpi.kernels.shuffle import shuffle
from lightctr_mpi.rowstore import RowOrder

WORD = 2**64 - 1


def rows_of(order: RowOrder, epoch: int = 0) -> list[int]:
    return [int(row) for window in order.epoch(epoch) for row in window]


def splitmix64(state: int):
    """The counter of SplitMix64, mixed by the finaliser of MurmurHash3."""
    while True:
        state = state + 0x9E3779B97F4A7C15 & WORD
        word = (state ^ state >> 33) * 0xFF51AFD7ED558CCD & WORD
        word = (word ^ word >> 33) * 0xC4CEB9FE1A85EC53 & WORD
        yield word ^ word >> 33


@settings(deadline=None)
@given(st.integers(0, 400), st.integers(1, 50), st.integers(1, 9), st.integers(0, 2**63 - 1), st.booleans())
def test_every_row_once_within_its_window(n: int, block: int, window: int, seed: int, shuffled: bool) -> None:
    windows = list(RowOrder(n, block, window, seed, shuffled).epoch(3))
    assert sorted(row for w in windows for row in w.tolist()) == list(range(n))
    for rows in windows:
        blocks = np.unique(rows // block)
        assert len(blocks) <= window
        whole = sum(min(block, n - int(b) * block) for b in blocks)
        assert len(rows) == whole  # a window holds whole blocks
    if not shuffled:
        assert [row for w in windows for row in w.tolist()] == list(range(n))


def test_seed_and_epoch_decide() -> None:
    def rows(seed: int, epoch: int) -> list[int]:
        return rows_of(RowOrder(1000, 16, 8, seed), epoch)

    assert rows(1, 0) == rows(1, 0)
    different = [rows(1, 0), rows(1, 1), rows(2, 0), rows(2, 1), list(range(1000))]
    assert len({tuple(order) for order in different}) == 5


def test_blocks_are_mixed_over_the_file_and_rows_over_the_window() -> None:
    windows = list(RowOrder(64_000, 64, 10, 5).epoch(0))
    first = windows[0]
    assert np.ptp(first) > 32_000  # ten blocks out of a thousand, from all over the file
    assert len(np.unique(first[:64] // 64)) > 5  # the first rows come from most of the blocks


def test_shuffle_is_fisher_and_yates() -> None:
    items, words = list(range(40)), splitmix64(99)
    for i in range(39, 0, -1):
        j = (next(words) >> 32) * (i + 1) >> 32
        items[i], items[j] = items[j], items[i]
    mine = np.arange(40)
    shuffle(mine, np.uint64(99))
    assert mine.tolist() == items


@pytest.mark.parametrize("n", [4])
def test_permutations_are_equally_likely(n: int) -> None:
    """Chi-squared over the 24 permutations of four items: 23 degrees of freedom, 99.99 % below 59.7."""
    counts: dict[tuple[int, ...], int] = {}
    rounds = 4800
    for seed in range(rounds):
        order = tuple(rows_of(RowOrder(n, n, 1, seed)))
        counts[order] = counts.get(order, 0) + 1
    expected = rounds / 24
    assert len(counts) == 24
    assert sum((count - expected) ** 2 / expected for count in counts.values()) < 59.7


def test_a_row_is_everywhere_equally_often() -> None:
    """Over 2000 epochs the mean position of a row is that of the middle, within five standard errors."""
    places = np.array([rows_of(RowOrder(12, 3, 2, 8), epoch).index(5) for epoch in range(2000)])
    assert abs(places.mean() - 5.5) < 5 * np.sqrt((12**2 - 1) / 12 / 2000)
