"""The ring against the library's own collectives and against sums in NumPy."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lightctr_mpi import comm as helpers
from lightctr_mpi.ring import segments as segments_module
from lightctr_mpi.ring.allgather import all_gather
from lightctr_mpi.ring.allreduce import all_reduce
from lightctr_mpi.ring.fusion import Fused
from lightctr_mpi.ring.reduce_scatter import reduce_scatter
from lightctr_mpi.ring.segments import Scratch, segments
from lightctr_mpi.ring.sparse import all_gather_rows, exchange_by_owner

pytestmark = pytest.mark.mpi

# All ranks must draw the same examples, or they would wait for each other with different sizes.
same_everywhere = settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=12,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@pytest.fixture(params=["library", "ring", "ring in pieces"])
def path(request, monkeypatch):
    """Small arrays through the library's collectives; the ring for every size, whole and cut in pieces."""
    if request.param != "library":
        for module in ("reduce_scatter", "allgather", "allreduce"):
            monkeypatch.setattr(f"lightctr_mpi.ring.{module}.SMALL_BYTES", -1)
    if request.param == "ring in pieces":
        monkeypatch.setattr(helpers, "CHUNK_BYTES", 500)


def values(n: int, rank: int, dtype=np.float32, seed: int = 0) -> np.ndarray:
    """What `rank` contributes: any rank can compute any other's."""
    rng = np.random.default_rng((seed, rank, n))
    if np.dtype(dtype).kind == "f":
        return rng.normal(size=n).astype(dtype)
    return rng.integers(0, 30, n).astype(dtype)  # 8 of them fit a byte, whose sum Open MPI saturates


@pytest.mark.parametrize(
    "dtype, n",
    [*((np.float32, n) for n in (0, 1, 3, 8, 1001, 9001)), (np.float64, 77), (np.int64, 77), (np.uint8, 77)],
)
def test_all_reduce(comm, path, n, dtype):
    mine = values(n, comm.rank, dtype)
    expected = np.empty_like(mine)
    comm.Allreduce(mine, expected)
    result = mine.copy()
    all_reduce(comm, result)
    if np.dtype(dtype).kind == "f":
        np.testing.assert_allclose(result, expected, rtol=0, atol=64 * np.finfo(dtype).eps)
    else:
        np.testing.assert_array_equal(result, expected)
    again = mine.copy()
    all_reduce(comm, again)
    assert again.tobytes() == result.tobytes()  # bit for bit from run to run
    assert len(set(comm.allgather(zlib.crc32(result)))) == 1  # and from rank to rank


def test_int8_sums_do_not_saturate_unnoticed(comm):
    array = np.full(5, 100, np.int8)
    all_reduce(comm, array)
    np.testing.assert_array_equal(array, np.full(5, 100 * comm.size).astype(np.int8))  # wraps as NumPy does


@same_everywhere
@given(
    cuts=st.lists(st.integers(0, 300), min_size=7, max_size=7), n=st.integers(0, 300), seed=st.integers(0, 99)
)
def test_any_segments(comm, path, cuts, n, seed):
    segs = np.array([0, *sorted(min(c, n) for c in cuts[: comm.size - 1]), n])
    everyone = np.stack([values(n, rank, np.int64, seed) for rank in range(comm.size)])
    buf = everyone[comm.rank].copy()
    own = slice(segs[comm.rank], segs[comm.rank + 1])
    reduce_scatter(comm, buf, segs)
    np.testing.assert_array_equal(buf[own], everyone.sum(axis=0)[own])
    buf[: own.start] = -1
    buf[own.stop :] = -1
    all_gather(comm, buf, segs)
    np.testing.assert_array_equal(buf, everyone.sum(axis=0))


def test_order_of_addition_is_the_ring(comm, monkeypatch):
    monkeypatch.setattr("lightctr_mpi.ring.reduce_scatter.SMALL_BYTES", -1)
    n, size = 101, comm.size
    segs = segments(n, size)
    buf = values(n, comm.rank)
    reduce_scatter(comm, buf, segs)
    own = slice(segs[comm.rank], segs[comm.rank + 1])
    total = values(n, (comm.rank + 1) % size)[own]  # segment r sets out at rank r + 1 and comes home last
    for step in range(2, size + 1):
        total = total + values(n, (comm.rank + step) % size)[own]
    np.testing.assert_array_equal(buf[own], total)


def test_hooks_fill_and_use_segments_one_by_one(comm, path):
    n, size, rank = 50, comm.size, comm.rank
    segs = segments(n, size)
    mine, buf, order = values(n, rank, np.int64), np.full(n, -1), []

    def fill(segment):
        order.append(segment)
        part = slice(segs[segment], segs[segment + 1])
        buf[part] = mine[part]

    reduce_scatter(comm, buf, segs, before=fill)
    assert order == [(rank - 1 - step) % size for step in range(size)]
    seen = {}
    all_gather(comm, buf, segs, lambda s: seen.update({s: buf[segs[s] : segs[s + 1]].copy()}))
    assert list(seen) == [(rank - step) % size for step in range(size)]
    expected = np.sum([values(n, r, np.int64) for r in range(size)], axis=0)
    np.testing.assert_array_equal(np.concatenate([seen[s] for s in range(size)]), expected)


@pytest.mark.parametrize("dtype", [np.float16, np.bool_], ids=lambda t: t.__name__)
def test_all_gather_of_types_that_travel_as_bytes(comm, path, dtype):
    n = 13
    segs = segments(n, comm.size)
    expected = (np.arange(n) % 2).astype(dtype)
    buf = np.zeros(n, dtype)
    own = slice(segs[comm.rank], segs[comm.rank + 1])
    buf[own] = expected[own]
    all_gather(comm, buf, segs)
    np.testing.assert_array_equal(buf, expected)


def test_wrong_arguments_are_refused(comm):
    with pytest.raises(ValueError, match="do not cut"):
        reduce_scatter(comm, np.zeros(5, np.float32), segments(6, comm.size))
    with pytest.raises(ValueError, match="do not cut"):
        all_gather(comm, np.zeros(6, np.float32), segments(6, comm.size + 1))
    with pytest.raises(ValueError, match="not C-contiguous"):
        all_reduce(comm, np.zeros(8, np.float32)[::2])
    with pytest.raises(TypeError, match="cannot send"):
        all_reduce(comm, np.zeros(8, np.complex64))


def pairs(rank: int, n_keys: int, width: int, density: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng((seed, rank))
    keys = np.flatnonzero(rng.random(n_keys) < density).astype(np.int32)
    return keys, rng.normal(size=(len(keys), width)).astype(np.float32)


@same_everywhere
@given(
    n_keys=st.integers(0, 60),
    width=st.integers(1, 5),
    density=st.sampled_from([0.0, 0.1, 0.6, 1.0]),
    seed=st.integers(0, 99),
)
def test_sparse_exchange_adds_what_dense_adds(comm, path, n_keys, width, density, seed):
    bounds = segments(n_keys, comm.size)
    scratch = Scratch()
    keys, sums = exchange_by_owner(comm, *pairs(comm.rank, n_keys, width, density, seed), bounds, scratch)
    dense = np.zeros((n_keys, width), np.float32)
    for rank in range(comm.size):  # adding in rank order gives the very same floats
        others, rows = pairs(rank, n_keys, width, density, seed)
        dense[others] += rows
    touched = np.unique(np.concatenate([pairs(r, n_keys, width, density, seed)[0] for r in range(comm.size)]))
    low, high = bounds[comm.rank], bounds[comm.rank + 1]
    owned = touched[(low <= touched) & (touched < high)]
    assert keys.dtype == np.int32
    np.testing.assert_array_equal(keys, owned)
    np.testing.assert_array_equal(sums, dense[owned])
    all_keys, all_rows = all_gather_rows(comm, keys, sums, scratch)
    np.testing.assert_array_equal(all_keys, touched)
    np.testing.assert_array_equal(all_rows, dense[touched])


def test_sparse_exchange_refuses_keys_of_nobody(comm):
    rows = np.zeros((1, 2), np.float32)
    with pytest.raises(ValueError, match="outside of 0 to 9"):
        exchange_by_owner(comm, np.array([10], np.int32), rows, segments(10, comm.size))


def test_fused_parts_travel_in_one_buffer(comm):
    fused = Fused()
    for u in (3, 40, 5):  # memory of the larger layout is reused for the smaller one, zeroed
        fused.layout({"rows": (u, 4), "bias": (1,), "flags": (3,)})
        assert not fused.buffer.any()
        fused["rows"][:] = comm.rank
        fused["bias"] += 1
        fused["flags"][comm.rank % 3] = 1
        all_reduce(comm, fused.buffer)
        np.testing.assert_array_equal(fused["rows"], np.full((u, 4), sum(range(comm.size))))
        assert fused["bias"][0] == comm.size
        np.testing.assert_array_equal(fused["flags"], np.bincount(np.arange(comm.size) % 3, minlength=3))


def test_small_limit_is_a_limit(comm):
    """Arrays just below and just above the limit take different ways to the same integers."""
    for nbytes in (segments_module.SMALL_BYTES, segments_module.SMALL_BYTES + 4):
        array = values(nbytes // 4, comm.rank, np.int32)
        all_reduce(comm, array)
        np.testing.assert_array_equal(
            array, np.sum([values(nbytes // 4, r, np.int32) for r in range(comm.size)], axis=0)
        )
