"""The shards of a model: what they are called, what they say of themselves, and which of them are left over.

The shards of `folder/model.h5` lie in `folder/model.shards/`. A token in their names tells the shards of one
checkpoint from those of another, so new ones can be written while the old ones are still in use.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import time
from collections.abc import Iterable
from typing import NamedTuple

SUFFIX = ".shards"
PARTIAL = ".partial"

_TOKEN = re.compile(r"[0-9A-Za-z]+")
# Shards and what killed writers leave of them. Nothing else in such a folder is ours to remove.
_OURS = re.compile(rf"\.?[0-9A-Za-z]+-\d+-of-\d+\.h5(\.\d+\{PARTIAL})?")


# What a shard says of itself: the token of its checkpoint, its number (from 0), how many there are.
ShardId = tuple[str, int, int]


class ShardEntry(NamedTuple):
    """What a model says of a shard: its name relative to the model's folder, its keys, its size in bytes."""

    name: str
    keys: int
    bytes: int


def new_token() -> str:
    """A token that no other checkpoint has: the time and a random number."""
    return f"{time.time_ns() // 1_000_000:x}{secrets.token_hex(4)}"


def shards_folder(path: str | os.PathLike) -> str:
    """Folder of the shards of the model `path`."""
    return os.path.abspath(path).removesuffix(".h5") + SUFFIX


def shard_path(path: str | os.PathLike, token: str, number: int, count: int) -> str:
    """Absolute path of one shard of the model `path`; number counts from 0.

    Raises ValueError for a token of anything but letters and digits, or a number beyond the count.
    """
    if not _TOKEN.fullmatch(token) or not 0 <= number < count:
        raise ValueError(f"no shard {number} of {count} with token {token!r}")
    return os.path.join(shards_folder(path), f"{token}-{number}-of-{count}.h5")


def remove_shards(path: str | os.PathLike, keep: Iterable[str] = ()) -> None:
    """Remove all shards of the model `path`, whole or half written, but those to keep (absolute paths).

    The folder goes when it is empty. What cannot be removed stays.
    """
    folder, kept = shards_folder(path), set(keep)
    for name in _ours(folder):
        file = os.path.join(folder, name)
        if file not in kept:
            with contextlib.suppress(OSError):
                os.unlink(file)
    with contextlib.suppress(OSError):
        os.rmdir(folder)


def last_touched(folder: str) -> float:
    """Time (seconds since the epoch) when a shard in this folder, or the folder itself, last changed."""
    times = [0.0]
    for path in [folder, *(os.path.join(folder, name) for name in _ours(folder))]:
        with contextlib.suppress(OSError):
            times.append(os.stat(path).st_mtime)
    return max(times)


def _ours(folder: str) -> list[str]:
    try:
        return [name for name in os.listdir(folder) if _OURS.fullmatch(name)]
    except OSError:
        return []
