"""Kernels between the ids of a batch and the rows of a table, and the memory of tables."""

import numpy as np
import pytest

from lightctr_mpi.kernels import sparse


@pytest.mark.parametrize("n", [0, 1, 7, 500])
def test_localize_gives_sorted_distinct_ids_and_their_positions(n):
    rng, scratch = np.random.default_rng(n), np.full(60, -1, np.int32)
    ids = rng.integers(-1, 60, n).astype(np.int32)
    unique, local = sparse.localize(ids, scratch)
    np.testing.assert_array_equal(unique, np.unique(ids[ids >= 0]))
    assert unique.dtype == local.dtype == np.int32
    np.testing.assert_array_equal(unique[local[ids >= 0]], ids[ids >= 0])
    assert (local[ids < 0] == -1).all()
    assert (scratch == -1).all()


def test_localize_of_unseen_ids_only():
    unique, local = sparse.localize(np.full(3, -1, np.int32), np.full(5, -1, np.int32))
    assert len(unique) == 0
    np.testing.assert_array_equal(local, [-1, -1, -1])


def test_gather_and_scatter():
    rows = np.arange(20, dtype=np.float32).reshape(5, 4)
    ids, out = np.array([3, -1, 0], np.int32), np.empty((3, 2), np.float32)
    sparse.gather_rows(rows, ids, out)
    np.testing.assert_array_equal(out, [[12, 13], [0, 0], [0, 1]])
    sparse.scatter_add_rows(rows, np.array([3, -1, 3], np.int32), np.ones((3, 2), np.float32))
    np.testing.assert_array_equal(rows[3], [14, 15, 14, 15])
    sparse.scatter_set_rows(rows, np.array([-1, 4], np.int32), np.array([[7, 7], [8, 9]], np.float32))
    np.testing.assert_array_equal(rows[4], [8, 9, 18, 19])
    np.testing.assert_array_equal(rows[:3], np.arange(12).reshape(3, 4))


def test_row_norms_by_hand():
    indptr = np.array([0, 2, 2, 4, 6], np.int64)
    values, out = np.array([3, -4, 0, 0, 1e20, 0], np.float32), np.empty(4, np.float32)
    sparse.row_norms(indptr, values, out, True)
    np.testing.assert_allclose(out, [0.2, 1, 1, 1e-20], rtol=1e-6)
    sparse.row_norms(indptr, None, out, True)
    np.testing.assert_allclose(out, [2**-0.5, 1, 2**-0.5, 2**-0.5], rtol=1e-6)
    sparse.row_norms(indptr, values, out, False)
    np.testing.assert_array_equal(out, np.ones(4))


@pytest.mark.parametrize("bare", [False, True])
def test_take_rows_equals_slicing_row_by_row(bare):
    rng = np.random.default_rng(0)
    indptr = np.concatenate([[0], np.cumsum(rng.integers(0, 4, 9))]).astype(np.int64)
    ids, fields = (rng.integers(0, 50, indptr[-1]).astype(np.int32) for _ in range(2))
    values = rng.random(indptr[-1]).astype(np.float32)
    rows = np.array([8, 0, 3, 3, 5], np.int64)
    ends, *taken = sparse.take_rows(indptr, ids, None if bare else fields, None if bare else values, rows)
    expected = [np.concatenate([a[indptr[i] : indptr[i + 1]] for i in rows]) for a in (ids, fields, values)]
    np.testing.assert_array_equal(ends, np.concatenate([[0], np.cumsum(np.diff(indptr)[rows])]))
    np.testing.assert_array_equal(taken[0], expected[0])
    for got, wanted in zip(taken[1:], expected[1:], strict=True):
        if bare:
            assert got is None
        else:
            np.testing.assert_array_equal(got, wanted)


def test_take_no_rows():
    indptr, ids = np.array([0, 2], np.int64), np.array([4, 5], np.int32)
    ends, taken, fields, values = sparse.take_rows(indptr, ids, None, None, np.empty(0, np.int64))
    assert list(ends) == [0]
    assert len(taken) == 0
    assert fields is values is None


@pytest.mark.parametrize(
    "columns, stride", [(1, 1), (2, 2), (3, 4), (9, 16), (16, 16), (17, 32), (32, 32), (314, 320)]
)
def test_rows_do_not_straddle_cache_lines(columns, stride):
    assert sparse.row_stride(columns) == stride
    rows = sparse.alloc_rows(3, stride)
    assert rows.shape == (3, stride)
    assert rows.dtype == np.float32
    assert rows.flags.c_contiguous and rows.flags.writeable
    assert rows.ctypes.data % 64 == 0
    assert not rows.any()


def test_rows_of_nothing():
    assert sparse.alloc_rows(0, 16).shape == (0, 16)
    assert sparse.alloc_rows(3, 0).shape == (3, 0)
    with pytest.raises(ValueError, match="column"):
        sparse.row_stride(0)


def test_memory_of_rows_that_were_never_written_is_not_taken():
    """256 MB of address space cost no resident memory until they are written."""

    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096

    before = resident()
    rows = sparse.alloc_rows(1 << 20, 64)
    assert resident() - before < 32 << 20
    rows[:] = 1
    assert resident() - before > 200 << 20
    del rows
    assert resident() - before < 32 << 20
