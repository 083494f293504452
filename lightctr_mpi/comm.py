"""Small collectives and typed messages on a communicator that is handed in.

Every function takes mpi4py's communicator as its first argument, or None for a single rank, and this module
never imports mpi4py: the row store, the checkpoint and the ring can use it and still be tested without MPI.
Arrays travel as raw buffers; `check_buffer` is the one place that decides what may travel, because MPI itself
accepts a float32 message into a float64 array and leaves garbage there.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from .errors import UserError

CHUNK_BYTES = 1 << 30  # longest single message; counts of 2^31 and more fail in several MPI libraries
WIRE_TYPES = (
    *map(
        np.dtype, (np.bool_, np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64)
    ),
    *map(np.dtype, (np.float16, np.float32, np.float64)),
)
_WIRE_SET = frozenset(WIRE_TYPES)
MAX_DIMENSIONS = 6


def rank_of(comm: Any) -> int:
    return 0 if comm is None else comm.Get_rank()


def size_of(comm: Any) -> int:
    return 1 if comm is None else comm.Get_size()


# --- buffers ---


def check_buffer(array: np.ndarray) -> np.ndarray:
    """The array as a flat view that mpi4py can send or fill; raises TypeError or ValueError if there is none.

    float16 and bool have no MPI type that every library knows, so they travel as bytes.
    """
    if not isinstance(array, np.ndarray) or array.dtype not in _WIRE_SET:
        raise TypeError(f"cannot send {getattr(array, 'dtype', type(array).__name__)} through MPI")
    if not array.flags.c_contiguous:
        raise ValueError(f"array of shape {array.shape} is not C-contiguous")
    flat = array.reshape(-1)
    return flat.view(np.uint8) if array.dtype.kind == "b" or array.dtype == np.float16 else flat


def _chunks(array: np.ndarray) -> list[np.ndarray]:
    """Consecutive views of at most CHUNK_BYTES; an empty array is one empty message."""
    flat = check_buffer(array)
    step = max(1, CHUNK_BYTES // flat.itemsize)
    return [flat[i : i + step] for i in range(0, max(1, len(flat)), step)]


def sendrecv(comm: Any, send: np.ndarray, dest: int, recv: np.ndarray, source: int) -> None:
    """Send `send` to rank `dest` while filling `recv` from rank `source`.

    Both sides know the sizes beforehand. Messages are cut at CHUNK_BYTES; the k-th piece of every rank is
    under way at the same time, so rings and rotations in which all ranks take part cannot block each other.
    """
    if send.dtype != recv.dtype:
        raise TypeError(f"sending {send.dtype} into {recv.dtype}")
    out, into = _chunks(send), _chunks(recv)
    both = min(len(out), len(into))
    for piece, room in zip(out[:both], into[:both], strict=True):
        comm.Sendrecv(piece, dest, 0, room, source, 0)
    for piece in out[both:]:
        comm.Send(piece, dest)
    for room in into[both:]:
        comm.Recv(room, source)


def _header(array: np.ndarray) -> np.ndarray:
    """int64[2 + MAX_DIMENSIONS]: dtype number, dimensions, shape."""
    check_buffer(array)
    if array.ndim > MAX_DIMENSIONS:
        raise ValueError(f"array has {array.ndim} dimensions, at most {MAX_DIMENSIONS} can be sent")
    header = np.zeros(2 + MAX_DIMENSIONS, np.int64)
    header[0], header[1] = WIRE_TYPES.index(array.dtype), array.ndim
    header[2 : 2 + array.ndim] = array.shape
    return header


def _from_header(header: np.ndarray) -> np.ndarray:
    return np.empty(tuple(header[2 : 2 + header[1]]), WIRE_TYPES[header[0]])


def send_array(comm: Any, array: np.ndarray, dest: int, tag: int = 0) -> None:
    """Send an array of any shape to a rank that calls `recv_array`."""
    comm.Send(_header(array), dest, tag)
    for piece in _chunks(array):
        comm.Send(piece, dest, tag)


def recv_array(comm: Any, source: int, tag: int = 0) -> np.ndarray:
    """The array that rank `source` sends with `send_array`."""
    header = np.empty(2 + MAX_DIMENSIONS, np.int64)
    comm.Recv(header, source, tag)
    array = _from_header(header)
    for room in _chunks(array):
        comm.Recv(room, source, tag)
    return array


def bcast_array(comm: Any, array: np.ndarray | None, root: int = 0) -> np.ndarray:
    """The root's array on every rank (the others pass None); the root gets its own array back."""
    if size_of(comm) == 1:
        if array is None:
            raise ValueError("the root has no array")
        return array
    header = np.zeros(2 + MAX_DIMENSIONS, np.int64)
    is_root = rank_of(comm) == root
    if is_root and array is not None:
        header = _header(array)
    comm.Bcast(header, root)
    result = array if is_root and array is not None else _from_header(header)
    for piece in _chunks(result):
        comm.Bcast(piece, root)
    return result


def bcast_object(comm: Any, value: Any, root: int = 0) -> Any:
    """The root's small Python object on every rank (pickled: configuration at start-up, never arrays)."""
    return value if size_of(comm) == 1 else comm.bcast(value, root)


def gather_each(comm: Any, array: np.ndarray, root: int = 0) -> Iterator[np.ndarray]:
    """Yield every rank's array in rank order at the root, holding one at a time; yields nothing elsewhere.

    All ranks must iterate (`for part in gather_each(...)`) although only the root's loop has a body to run.
    """
    me = rank_of(comm)
    if me != root:
        send_array(comm, array, root)
        return
    for rank in range(size_of(comm)):
        yield array if rank == me else recv_array(comm, rank)


def gather_arrays(comm: Any, array: np.ndarray, root: int = 0) -> list[np.ndarray] | None:
    """Every rank's array (sizes may differ) as a list in rank order at the root, None elsewhere."""
    parts = list(gather_each(comm, array, root))
    return parts if rank_of(comm) == root else None


def allgather_arrays(comm: Any, array: np.ndarray) -> list[np.ndarray]:
    """Every rank's array (sizes may differ) on every rank, in rank order. For start-up, not for steps."""
    me = rank_of(comm)
    return [bcast_array(comm, array if r == me else None, r) for r in range(size_of(comm))]


def allgather_sizes(comm: Any, *sizes: int) -> np.ndarray:
    """int64[ranks] of one size per rank, or int64[ranks, k] of k of them."""
    mine = np.array(sizes, np.int64)
    table = np.empty((size_of(comm), len(sizes)), np.int64)
    if comm is None:
        table[0] = mine
    else:
        comm.Allgather(mine, table)
    return table[:, 0].copy() if len(sizes) == 1 else table


def exchange(comm: Any, parts: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Personal messages from all to all.

    Args:
        parts: one array for each rank; they may differ in length, not in dtype nor in their other dimensions,
            which are the same on all ranks.

    Returns:
        What every rank had for this one, in rank order: views of one array.
    """
    offsets = exchange_offsets(comm, [len(p) for p in parts])
    joined = np.empty((offsets[-1], *parts[0].shape[1:]), parts[0].dtype)
    exchange_into(comm, parts, joined, offsets)
    return [joined[offsets[r] : offsets[r + 1]] for r in range(len(parts))]


def exchange_offsets(comm: Any, lengths: Sequence[int]) -> np.ndarray:
    """int64[ranks + 1]: where the parts lie that this rank receives, given the lengths it sends to each."""
    offsets = np.zeros(size_of(comm) + 1, np.int64)
    if len(lengths) != len(offsets) - 1:
        raise ValueError(f"{len(lengths)} parts for {len(offsets) - 1} ranks")
    received = np.array(lengths, np.int64)
    if comm is not None:
        comm.Alltoall(np.array(lengths, np.int64), received)
    np.cumsum(received, out=offsets[1:])
    return offsets


def exchange_into(comm: Any, parts: Sequence[np.ndarray], out: np.ndarray, offsets: np.ndarray) -> None:
    """Fill `out`, cut along its first dimension at `offsets`, with what every rank has for this one."""
    size, me = size_of(comm), rank_of(comm)
    out[offsets[me] : offsets[me + 1]] = parts[me]
    for step in range(1, size):  # in each step every rank sends to one and receives from one
        dest, source = (me + step) % size, (me - step) % size
        sendrecv(comm, parts[dest], dest, out[offsets[source] : offsets[source + 1]], source)


def allreduce(comm: Any, array: np.ndarray, op: np.ufunc = np.add) -> np.ndarray:
    """Elementwise `op` over the ranks of a SMALL array (sums of a tally, flags), in rank order.

    All values travel to all ranks and are combined there, so the result is the same bits on every rank and in
    every run. Large arrays go through `ring.allreduce`.
    """
    if size_of(comm) == 1:
        return array.copy()
    flat = check_buffer(array)
    table = np.empty((size_of(comm), len(flat)), flat.dtype)
    comm.Allgather(flat, table)
    rows = table.view(array.dtype).reshape(len(table), *array.shape)
    result = rows[0].copy()
    for row in rows[1:]:  # NumPy's own reduction would pair terms up in an order that depends on the shape
        op(result, row, out=result)
    return result


def any_rank(comm: Any, flag: bool) -> bool:
    """Whether the flag is set on some rank."""
    return bool(allreduce(comm, np.array([flag], np.uint8), np.maximum)[0])


# --- agreement ---


def wait(request: Any, seconds: float | None = None, longest: float = 0.05) -> bool:
    """Wait for a non-blocking call without using up the core; False if it is not done after `seconds`.

    Args:
        longest: seconds between two looks, at most; they begin close together.
    """
    end = None if seconds is None else time.monotonic() + seconds
    pause = 0.0002
    while not request.Test():
        if end is not None and time.monotonic() > end:
            return False
        time.sleep(pause)
        pause = min(2 * pause, longest)
    return True


def agree(comm: Any, problem: BaseException | None = None, key: tuple = ()) -> None:
    """Return if no rank has a problem, else raise the first problem on every rank.

    Args:
        problem: what went wrong on this rank, if anything.
        key: place of the problem (for instance number of the file, line); the smallest one wins, then the
            lowest rank. Keys must be comparable with each other.

    Raises:
        The problem itself on the rank that had it, an equal exception elsewhere. Its attribute `agreed` is
        the rank it came from, whose traceback `mpi.guard` shows.
    """
    if any_rank(comm, problem is not None):
        raise_first(comm, problem, key)


def raise_first(comm: Any, problem: BaseException | None, key: tuple = ()) -> None:
    """The second half of `agree`, for callers whose own reduction has told that some rank failed."""
    if size_of(comm) == 1:
        if problem is not None:
            raise problem
        return
    me = rank_of(comm)
    mine = None if problem is None else (tuple(key), me, _portable(problem))
    problems = [entry for entry in comm.allgather(mine) if entry is not None]
    if not problems:
        return
    _, origin, data = min(problems, key=lambda entry: entry[:2])
    first: Any = problem if origin == me else pickle.loads(data)
    first.agreed = origin
    raise first


def _portable(problem: BaseException) -> bytes:
    """The exception as bytes; one that cannot be rebuilt elsewhere is replaced by its text."""
    try:
        data = pickle.dumps(problem)
        pickle.loads(data)
    except Exception:
        kind = UserError if isinstance(problem, UserError) else RuntimeError
        data = pickle.dumps(kind(f"{type(problem).__name__}: {problem}"))
    return data


@contextmanager
def agreed(comm: Any, key: tuple = ()) -> Iterator[None]:
    """Run a block that does not communicate; if it fails on some rank, it fails on all (see `agree`)."""
    problem = None
    try:
        yield
    except Exception as caught:
        problem = caught
    agree(comm, problem, key)


def on_some(comm: Any, chosen: bool, work: Callable[[], Any]) -> Any:
    """Run `work` on the ranks where `chosen` is set; the others wait for them without using up their cores.

    Returns:
        What `work` returned on the ranks that ran it, None on the others.

    Raises:
        On every rank, the first exception that `work` raised on some rank (see `agree`).
    """
    result, problem = None, None
    if chosen:
        try:
            result = work()
        except Exception as caught:
            problem = caught
    if size_of(comm) > 1:
        wait(comm.Ibarrier())
    agree(comm, problem)
    return result
