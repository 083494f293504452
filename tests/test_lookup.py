"""Ids and fields of rows in the numbers of a model."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightctr_mpi.kernels.lookup import Lookup

SMALL, LARGE = st.integers(0, 40), st.integers(0, 2**64 - 1)


@settings(deadline=None)  # the first call compiles
@given(
    keys=st.one_of(st.lists(SMALL, unique=True), st.lists(LARGE, unique=True)),
    fields=st.one_of(st.none(), st.lists(st.integers(0, 2**31 - 1) | SMALL, unique=True)),
    rows=st.lists(st.lists(st.tuples(SMALL | LARGE, st.integers(0, 2**31 - 1) | SMALL), max_size=6)),
    data=st.data(),
)
def test_every_entry_has_the_number_of_its_key_and_field(keys, fields, rows, data):
    rows = [row + data.draw(known_entries(keys, fields)) for row in rows]
    entries = [entry for row in rows for entry in row]
    indptr = np.cumsum([0] + [len(row) for row in rows])
    fields = None if fields is None else sorted(fields)
    look_up = Lookup(np.array(keys, np.uint64), None if fields is None else np.array(fields, np.int32))
    counts = np.zeros(4, np.int64)
    ids, places = look_up(
        indptr,
        np.array([key for key, _ in entries], np.uint64),
        np.array([field for _, field in entries], np.int32),
        counts,
    )
    number = {key: i for i, key in enumerate(keys)}
    place = {field: i for i, field in enumerate(fields or [])}
    expected = [[(number.get(key, -1), place.get(field, -1)) for key, field in row] for row in rows]
    assert ids.dtype == np.int32 and ids.tolist() == [i for row in expected for i, _ in row]
    if fields is None:
        assert places is None
        expected = [[(i, 0) for i, _ in row] for row in expected]
    else:
        assert places.dtype == np.int32 and places.tolist() == [p for row in expected for _, p in row]
    unknown_ids = sum(i < 0 for row in expected for i, _ in row)
    unknown_fields = sum(p < 0 for row in expected for _, p in row)
    affected = sum(any(min(entry) < 0 for entry in row) for row in expected)
    assert counts.tolist() == [affected, unknown_ids, unknown_fields, 0]


def known_entries(keys, fields):
    known = st.sampled_from(keys) if keys else SMALL
    return st.lists(st.tuples(known, st.sampled_from(fields) if fields else SMALL), max_size=6)


def test_rows_without_fields():
    look_up, counts = Lookup(np.array([7, 2**40], np.uint64), np.array([1], np.int32)), np.zeros(3, np.int64)
    ids, places = look_up(np.array([0, 2]), np.array([2**40, 8], np.uint64), None, counts)
    assert ids.tolist() == [1, -1] and places is None and counts.tolist() == [1, 1, 0]


@pytest.mark.parametrize("keys", [np.arange(9), np.array([0, 8]), np.array([5]), np.array([0, 71, 2**63])])
def test_dense_keys_take_a_direct_table_and_others_do_not(keys):
    look_up = Lookup(keys.astype(np.uint64), None)
    assert look_up._direct.size in (0, int(keys.max()) + 1)
    assert (look_up._direct.size > 0) == (keys.max() < 8 * len(keys))
    queries = np.concatenate([keys, keys + 1]).astype(np.uint64)
    ids, _ = look_up(np.array([0, len(queries)]), queries, None, np.zeros(3, np.int64))
    assert ids[: len(keys)].tolist() == list(range(len(keys)))
