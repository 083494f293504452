"""The numbering of keys against Python's dictionary, and the merge against NumPy's union."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightctr_mpi.kernels import table
from lightctr_mpi.kernels.table import Dictionary, merge
from lightctr_mpi.rowstore.merge import Numbering

TOP = 2**64 - 1
MIX1, MIX2 = 0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53


def unmix(word: int) -> int:
    """Inverse of MurmurHash3's 64-bit finaliser: its steps undone from the last to the first."""
    for factor in (MIX2, MIX1):
        word ^= word >> 33
        word = word * pow(factor, -1, 2**64) % 2**64
    return word ^ word >> 33


# Keys that meet in one slot (equal low bits of the hash), or that differ only in the upper half of the hash,
# or only in the lower half, so that the halves kept in the slots agree.
SAME_SLOT = [unmix(i << 40 | 7) for i in range(40)]
SAME_TAG = [unmix(0xABCDEF01 << 32 | i) for i in range(40)]
AT_END = [unmix((i << 32) | 0xFFFFFFFF) for i in range(40)]  # run over the end of the table
keys_strategy = st.lists(
    st.one_of(
        st.integers(0, TOP),
        st.integers(0, 50),
        st.integers(0, 50).map(lambda i: i << 10),  # multiples of the size of the table
        st.integers(0, 20).map(lambda i: TOP - i),
        st.sampled_from(SAME_SLOT + SAME_TAG + AT_END),
    ),
    max_size=300,
)


def number(known: dict[int, int], keys: list[int]) -> list[int]:
    return [known.setdefault(key, len(known)) for key in keys]


def test_unmix_inverts_the_hash_of_the_table() -> None:
    # fmix64(1) as published with the reference implementation of MurmurHash3
    assert unmix(0xB456BCFC34C2CB2C) == 1


@settings(deadline=None, max_examples=150)
@given(st.lists(keys_strategy, max_size=4), keys_strategy)
def test_numbers_are_those_of_a_dict(batches: list[list[int]], queries: list[int]) -> None:
    mine, known = Dictionary(), {}
    for batch in batches:
        assert mine.add(np.array(batch, np.uint64)).tolist() == number(known, batch)
    assert mine.keys.tolist() == list(known)
    assert mine.find(np.array(queries, np.uint64)).tolist() == [known.get(key, -1) for key in queries]


@pytest.mark.parametrize("keys", [SAME_SLOT, SAME_TAG, AT_END], ids=["slot", "tag", "end"])
def test_colliding_keys(keys: list[int]) -> None:
    mine = Dictionary(np.array(keys[:20], np.uint64))
    assert mine.find(np.array(keys, np.uint64)).tolist() == list(range(20)) + [-1] * 20


@pytest.mark.parametrize("n", [511, 512, 513, 20_000])
def test_growth_in_the_middle_of_a_batch(n: int) -> None:
    keys = (np.arange(n, dtype=np.uint64) * np.uint64(1 << 20)) ^ np.uint64(TOP)
    queries = np.concatenate([keys, keys[::-1]])
    mine = Dictionary()
    assert mine.add(queries).tolist() == list(range(n)) + list(range(n))[::-1]
    assert len(mine) == n
    assert mine.nbytes <= max(48 * n, 12 << 10)


def test_begins_with_given_keys_and_can_be_cleared() -> None:
    keys = np.arange(3000, dtype=np.uint64)[::-1]
    keys.flags.writeable = False
    mine = Dictionary(keys)
    assert mine.find(np.array([0, 2999, 3000], np.uint64)).tolist() == [2999, 0, -1]
    mine.clear()
    assert mine.add(np.array([7, 5, 7], np.uint64)).tolist() == [0, 1, 0]


def test_too_many_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "MOST_KEYS", 1000)
    mine = Dictionary()
    with pytest.raises(OverflowError, match="more than 1000 distinct keys"):
        mine.add(np.arange(2000, dtype=np.uint64))


@settings(deadline=None)
@given(st.sets(st.integers(0, TOP)), st.sets(st.integers(0, 9)), st.sets(st.integers(0, TOP)))
def test_merge_is_the_sorted_union(a: set[int], b: set[int], c: set[int]) -> None:
    left, right = (np.array(sorted(keys), np.uint64) for keys in (a | b, b | c))
    out = np.empty(len(left) + len(right), np.uint64)
    assert out[: merge(left, right, out)].tolist() == sorted(a | b | c)


@settings(deadline=None)
@given(st.lists(st.integers(0, TOP), unique=True), st.sets(st.integers(0, TOP)), st.integers(1, 5))
def test_numbering_leads_from_own_numbers_to_positions(own: list[int], others: set[int], size: int) -> None:
    union = sorted(set(own) | others)
    numbering = Numbering(np.array(sorted(own), np.uint64), np.argsort(np.array(own, np.uint64)))
    for start in range(0, len(union), size):
        numbering.learn(start, np.array(union[start : start + size], np.uint64))
    assert numbering.table.tolist() == [union.index(key) for key in own]
