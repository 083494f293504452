"""The files on both sides of a conversion: what is read must stay, what is written must be seen by all."""

from __future__ import annotations

import contextlib
import glob
import itertools
import os
import secrets
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..comm import agreed, bcast_object, rank_of
from ..errors import UserError

_SETTLED_NS = 2_000_000_000  # coarsest time stamps of file systems: a younger file may still change unnoticed
_VISIBLE_SECONDS = 5.0  # how long a shared file system may take to show a new file on another host
_STALE_SECONDS = 86400.0


def same_files(comm: Any, source: Any) -> list[tuple]:
    """The files' identity; raises UserError where a rank sees other files than rank 0."""
    with agreed(comm):
        mine = source.identity()
    first = bcast_object(comm, mine)
    with agreed(comm):
        for ours, theirs in itertools.zip_longest(mine, first, fillvalue=("",)):
            if ours[:2] != theirs[:2]:  # times may differ: copies on the hosts' own disks
                name = theirs[0] or ours[0]
                raise UserError(f"{name}: not the same file on {socket.gethostname()} as on rank 0's host")
        for file, ours in zip(source.files, mine, strict=True):
            if file.size != ours[1]:
                raise UserError(f"{file.name}: changed while it was being read")
    return mine


def unchanged(source: Any, before: list[tuple]) -> None:
    for file, ours, now in zip(source.files, before, source.identity(), strict=True):
        if ours != now:
            raise UserError(f"{file.name}: changed while it was being read")


def stat_of(identity: list[tuple]) -> np.ndarray:
    """uint64[files, 4]: size, mtime_ns, ctime_ns, inode; the times of a file changed just now count as 0.

    A second change within the resolution of the time stamps would not show in them, so such a stamp is no
    proof.
    """
    stat = np.array([entry[1:] for entry in identity], np.uint64).reshape(len(identity), 4)
    young = stat[:, 1:3].max(axis=1, initial=0) > time.time_ns() - _SETTLED_NS
    stat[young, 1:3] = 0
    return stat


@contextlib.contextmanager
def disk(path: Path) -> Iterator[None]:
    """Turn a failing disk into a UserError."""
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from None


def shared_file(comm: Any, path: Path) -> Path:
    """A new empty file beside `path`; raises UserError when a rank does not see it."""
    partial = path
    with agreed(comm), disk(path):
        if rank_of(comm) == 0:
            path.parent.mkdir(parents=True, exist_ok=True)
            _sweep(path)
            partial = path.with_name(f".{path.name}.{secrets.token_hex(6)}.partial")
            os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    partial = bcast_object(comm, partial)
    try:
        with agreed(comm):
            see(partial, path.parent)
    except UserError:
        if rank_of(comm) == 0:
            partial.unlink(missing_ok=True)
        raise
    return partial


def _sweep(path: Path) -> None:
    """Remove what killed conversions to the same target left behind."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.partial"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > _STALE_SECONDS:
                left.unlink()


def see(file: Path, folder: Path) -> None:
    """Wait until the file shows up; raises UserError naming host and folder when it does not."""
    end = time.monotonic() + _VISIBLE_SECONDS
    while not file.exists():
        if time.monotonic() > end:
            raise UserError(
                f"{socket.gethostname()} does not see what rank 0 writes to {folder}: "
                "choose a folder that all hosts share (--data.cache)"
            )
        time.sleep(0.1)


def sync_folder(folder: Path) -> None:
    """Make a rename in the folder last through a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_all(handle: int, array: np.ndarray, offset: int) -> None:
    """Write a contiguous array at a place in a file. Raises OSError, for instance when the disk is full."""
    data = memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    while len(data):
        done = os.pwrite(handle, data[: 1 << 30], offset)  # Linux writes at most 2 GiB at once
        data, offset = data[done:], offset + done


def read_into(handle: int, array: np.ndarray, offset: int) -> None:
    """Fill a contiguous array from a place in a file. Raises OSError when the file ends before."""
    data = memoryview(array.reshape(-1).view(np.uint8).data)
    while len(data):
        done = os.preadv(handle, [data[: 1 << 30]], offset)
        if not done:
            raise OSError("unexpected end of file")
        data, offset = data[done:], offset + done
