"""Numbers of keys while text is read, and the columns that are spooled."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightctr_mpi.kernels.direct import SMALL, translate
from lightctr_mpi.kernels.parse_merge import grows
from lightctr_mpi.rowstore import spool
from lightctr_mpi.rowstore.numbers import Numbers
from lightctr_mpi.rowstore.spool import has_values, narrow, packed_values, unpacked_values

TOP = 2**64 - 1
keys_of = st.lists(
    st.integers(0, 300)
    | st.integers(0, SMALL + 9)
    | st.sampled_from([255, 256, SMALL - 1, SMALL, TOP])
    | st.integers(0, TOP),
    max_size=40,
)


@settings(deadline=None, max_examples=150)
@given(st.lists(keys_of, max_size=4))
def test_each_key_has_one_number_and_sorted_leads_back(batches):
    mine, number_of = Numbers(), {}
    for batch in batches:
        numbers = mine.add(np.array(batch, np.uint64)).tolist()
        for key, number in zip(batch, numbers, strict=True):
            assert number_of.setdefault(key, number) == number
            assert number == key if key < SMALL else number >= SMALL
    assert len(set(number_of.values())) == len(number_of)
    keys, numbers = mine.sorted()
    assert keys.dtype == np.uint64 and numbers.dtype == np.int32
    assert keys.tolist() == sorted(number_of)
    assert numbers.tolist() == [number_of[key] for key in sorted(number_of)]
    mine.clear()
    assert [len(part) for part in mine.sorted()] == [0, 0]


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 300) | st.integers(0, 2**31 - 1), max_size=9), max_size=3))
def test_fields_are_keys(batches):
    fields, keys = Numbers(), Numbers()
    for batch in batches:
        column = np.array(batch, np.int32)
        assert fields.add_fields(column).tolist() == keys.add(column.astype(np.uint64)).tolist()
    assert [part.tolist() for part in fields.sorted()] == [part.tolist() for part in keys.sorted()]


@pytest.mark.parametrize(
    ("top", "dtype"), [(255, np.uint8), (256, np.uint16), (65535, np.uint16), (65536, np.int32)]
)
def test_numbers_take_no_more_bytes_than_they_need(top, dtype):
    column = np.array([0, top, 7], np.int32)
    assert narrow(column).dtype == dtype and narrow(column).tolist() == column.tolist()
    assert len(narrow(column[:0])) == 0


VALUES = st.lists(st.sampled_from([1.0] * 9 + [0.0, -0.0, 2.5, 1 + 2**-23]), max_size=60)


@given(VALUES)
def test_values_come_back_as_they_were(values):
    column = np.array(values, np.float32)
    columns = packed_values(column)
    assert has_values(columns) == (column != 1).any()
    assert unpacked_values(columns, np.ones(len(column), np.float32)).tobytes() == column.tobytes()
    if 0 < np.count_nonzero(column != 1) <= len(column) // 8:
        assert sum(part.nbytes for part in columns.values()) < 12 * len(column) // 8 + 1


@given(st.lists(st.integers(0, 99), min_size=1), st.data())
def test_translation_is_indexing(table, data):
    numbers = data.draw(st.lists(st.integers(0, len(table) - 1)))
    out = np.empty(len(numbers), np.int32)
    translate(np.array(numbers, np.int32), np.array(table, np.int32), out)
    assert out.tolist() == [table[number] for number in numbers]


@settings(deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 9), max_size=4).map(lambda row: sorted(row) if row[:1] > [3] else row))
)
def test_growing_rows(table):
    indptr = np.cumsum([0] + [len(row) for row in table])
    flat = [number for row in table for number in row]
    expected = all(a < b for row in table for a, b in zip(row, row[1:], strict=False))
    none, zeros = np.empty(0, np.int32), np.zeros(len(flat), np.uint64)
    assert grows(indptr, np.array(flat, np.int32), zeros, True) == expected
    assert grows(indptr, none, np.array(flat, np.uint64), False) == expected


@pytest.mark.parametrize("stretch", [64, 1000, 1 << 20])
def test_what_a_spool_keeps_is_its_own(monkeypatch, tmp_path, stretch):
    monkeypatch.setattr(spool, "STRETCH", stretch)
    rng, kept = np.random.default_rng(4), spool.Spool(tmp_path, 1 << 30)
    columns = [
        {
            "ids": rng.integers(0, 1000, n).astype(np.int32),
            "labels": rng.random(n // 3),
            "fields": np.arange(n, dtype=np.uint8),
        }
        for n in (0, 1, 50, 7, 120)
    ]
    expected = [{name: column.copy() for name, column in unit.items()} for unit in columns]
    for number, unit in enumerate(columns):
        kept.append(spool.Piece(number, unit))
        for column in unit.values():
            column.fill(0)
    assert kept.on_disk == 0
    for number, piece in enumerate(kept.drain()):
        assert piece.unit == number
        for name, column in expected[number].items():
            assert piece.columns[name].dtype == column.dtype
            np.testing.assert_array_equal(piece.columns[name], column)
