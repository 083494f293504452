"""Open a model, in one file or in shards."""

from __future__ import annotations

import contextlib
import os

from ..errors import UserError
from .hdf5 import explained, open_file
from .read import Checkpoint
from .sharded import Sharded

ATTEMPTS = 5


def open_checkpoint(path: str | os.PathLike, *, verify: bool = True, as_shard: bool = False) -> Checkpoint:
    """Open a model file, and the shards that belong to it.

    Structure, sizes and metadata are always checked. `verify` also reads every array once and compares its
    checksum; a rank that shares the file with one that does so may leave it out. A model that is replaced by
    another while it is being opened is opened again.

    Args:
        as_shard: also open a shard as if it were a whole model.

    Raises:
        UserError: names the file and what is wrong: missing, not HDF5, truncated, not a model, written by a
            newer schema, a dataset missing, of wrong shape or damaged; a shard missing, of another
            checkpoint or damaged; a shard in place of a model.
    """
    path = os.fspath(path)
    for _ in range(ATTEMPTS - 1):
        before = _identity(path)
        try:
            return _open(path, verify, as_shard)
        except UserError:
            if _identity(path) == before:
                raise
    return _open(path, verify, as_shard)


def _identity(path: str) -> tuple[int, ...] | None:
    """What tells one file from another that has taken its name."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _open(path: str, verify: bool, as_shard: bool) -> Checkpoint:
    with contextlib.ExitStack() as on_error:
        file = on_error.enter_context(open_file(path))
        with explained(path):
            kind = Sharded if "shards_json" in file.attrs else Checkpoint
        checkpoint = kind(path, file)
        on_error.callback(checkpoint.close)
        if checkpoint.shard is not None and not as_shard:
            _, number, count = checkpoint.shard
            raise UserError(
                f"{path} is shard {number} of {count} of a model: open the file beside their folder"
            )
        if verify:
            checkpoint.verify()
        on_error.pop_all()
        return checkpoint
