"""Messages, collectives and agreement on a real communicator."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest

from lightctr_mpi import comm as helpers
from lightctr_mpi import mpi
from lightctr_mpi.errors import DataError, UserError

pytestmark = pytest.mark.mpi


@pytest.fixture(params=[1 << 30, 24])
def chunk_bytes(request, monkeypatch):
    """Whole messages, and messages cut into pieces of 24 bytes."""
    monkeypatch.setattr(helpers, "CHUNK_BYTES", request.param)


def sample(dtype, shape, seed: int) -> np.ndarray:
    """Array of any of the types, different for each seed."""
    values = np.random.default_rng(seed).integers(0, 100, shape)
    return np.asarray(values % 2 if dtype == np.bool_ else values, dtype).reshape(shape)


@pytest.mark.parametrize("dtype", helpers.WIRE_TYPES, ids=str)
def test_sendrecv_round_the_ring(comm, chunk_bytes, dtype):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    received = np.zeros((5, 7), dtype)
    helpers.sendrecv(comm, sample(dtype, (5, 7), comm.rank), right, received, left)
    np.testing.assert_array_equal(received, sample(dtype, (5, 7), left))


def test_sendrecv_of_unequal_lengths(comm, chunk_bytes):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    received = np.zeros(11 * left, np.int64)
    helpers.sendrecv(comm, np.full(11 * comm.rank, comm.rank), right, received, left)
    np.testing.assert_array_equal(received, np.full(11 * left, left))


def test_what_cannot_be_sent_is_refused(comm):
    good = np.zeros(4, np.float32)
    with pytest.raises(TypeError, match="float32 into float64"):
        helpers.sendrecv(comm, good, 0, np.zeros(4, np.float64), 0)
    with pytest.raises(ValueError, match="not C-contiguous"):
        helpers.sendrecv(comm, np.zeros((4, 4), np.float32)[:, 1], 0, good, 0)
    for odd in (np.array(["text"]), np.zeros(2, np.complex128), np.zeros(2, ">f4"), [1.0]):
        with pytest.raises(TypeError, match="cannot send"):
            helpers.check_buffer(odd)


@pytest.mark.parametrize("shape", [(0,), (1,), (3, 0), (4, 5), (2, 3, 4), ()], ids=str)
@pytest.mark.parametrize("dtype", [np.float16, np.uint64, np.bool_], ids=lambda t: t.__name__)
def test_bcast_and_gather_keep_shape_and_type(comm, chunk_bytes, shape, dtype):
    root = comm.size - 1
    array = sample(dtype, shape, 3)
    result = helpers.bcast_array(comm, array if comm.rank == root else None, root)
    assert result.dtype == dtype
    np.testing.assert_array_equal(result, array)
    parts = helpers.gather_arrays(comm, sample(dtype, shape, comm.rank), root)
    assert (parts is None) == (comm.rank != root)
    for rank, part in enumerate(parts or []):
        assert part.dtype == dtype
        np.testing.assert_array_equal(part, sample(dtype, shape, rank))


def test_gather_of_unequal_sizes(comm, chunk_bytes):
    mine = np.full((comm.rank, 3), comm.rank, np.float32)
    seen = [part.shape for part in helpers.gather_each(comm, mine)]
    assert seen == ([(r, 3) for r in range(comm.size)] if comm.rank == 0 else [])
    everywhere = helpers.allgather_arrays(comm, mine)
    assert [p.tolist() for p in everywhere] == [[[r] * 3] * r for r in range(comm.size)]


def test_allgather_sizes(comm):
    ranks = np.arange(comm.size)
    np.testing.assert_array_equal(helpers.allgather_sizes(comm, 10 * comm.rank), 10 * ranks)
    table = helpers.allgather_sizes(comm, comm.rank, 2**40 + comm.rank)
    np.testing.assert_array_equal(table, np.stack([ranks, 2**40 + ranks], axis=1))


def test_exchange(comm, chunk_bytes):
    parts = [np.full((comm.rank + r, 2), 100 * comm.rank + r, np.int32) for r in range(comm.size)]
    result = helpers.exchange(comm, parts)
    for r, part in enumerate(result):
        np.testing.assert_array_equal(part, np.full((r + comm.rank, 2), 100 * r + comm.rank))
    with pytest.raises(ValueError, match="parts for"):
        helpers.exchange(comm, [*parts, parts[0]])


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.uint8, np.float16], ids=str)
def test_small_allreduce(comm, dtype):
    mine = np.array([[1, comm.rank], [comm.rank, 5]], dtype)
    total = sum(range(comm.size))
    expected = {
        np.add: [[comm.size, total], [total, 5 * comm.size]],
        np.maximum: [[1, comm.size - 1], [comm.size - 1, 5]],
        np.minimum: [[1, 0], [0, 5]],
    }
    for op, values in expected.items():
        result = helpers.allreduce(comm, mine, op)
        assert result.dtype == dtype
        np.testing.assert_array_equal(result, values)
    assert mine[0, 0] == 1  # the argument is left alone


def test_small_allreduce_adds_in_rank_order(comm):
    mine = np.array([1e16 if comm.rank == 0 else 1.0])
    expected = 1e16  # float64 has steps of 2 here, so each 1 that is added singly is lost
    assert helpers.allreduce(comm, mine)[0] == expected


def test_any_rank(comm):
    assert helpers.any_rank(comm, comm.rank == comm.size - 1) is True
    assert helpers.any_rank(comm, False) is False


def test_agree_raises_the_earliest_problem_everywhere(comm):
    helpers.agree(comm)
    line = 100 - comm.rank  # the last rank has the earliest line
    problem = DataError("rows.ffm", line, "a word", "a number")
    with pytest.raises(DataError) as caught:
        helpers.agree(comm, problem, key=(0, line))
    assert str(caught.value) == f"rows.ffm:{101 - comm.size}: found a word, expected a number"
    assert comm.size == 1 or caught.value.agreed == comm.size - 1


def test_agree_without_keys_takes_the_lowest_rank(comm):
    with pytest.raises(UserError, match=f"^rank {min(1, comm.size - 1)}$"):
        helpers.agree(comm, UserError(f"rank {comm.rank}") if comm.rank or comm.size == 1 else None)


class Stubborn(UserError):
    """Cannot be rebuilt from its arguments, nor found by another process."""

    def __init__(self, one, two):
        super().__init__("stubborn")


def test_agree_on_what_cannot_be_pickled(comm):
    last = comm.size - 1
    with pytest.raises(UserError, match="stubborn"), helpers.agreed(comm):
        if comm.rank == last:
            raise Stubborn(1, 2)


def test_once_per_node(world, tmp_path):
    calls = []

    def work():
        time.sleep(0.3)
        calls.append(1)
        return os.getpid()

    before = time.process_time()
    result = mpi.once_per_node(world, work)
    assert time.process_time() - before < 0.2  # the others sleep instead of spinning
    assert (result == os.getpid()) == (world.local_rank == 0) == bool(calls)

    def fail():
        raise UserError("no room for the cache")

    with pytest.raises(UserError, match="no room for the cache"):
        mpi.once_per_node(world, fail)


def test_world(world, comm):
    assert (world.rank, world.size) == (comm.rank, comm.size)
    assert world is mpi.world()
    hosts = comm.allgather((world.host, world.local_rank, world.local_size))
    assert len(set(hosts)) == comm.size  # every place on a host is taken once
    assert sum(host == world.host for host, _, _ in hosts) == world.local_size
