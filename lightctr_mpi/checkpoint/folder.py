"""The checkpoints of a run: find the newest, drop old ones, give one of them the model's name."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ..errors import UserError
from .join import put_model
from .opening import open_checkpoint
from .sharded import Sharded
from .shards import PARTIAL, SUFFIX, last_touched, remove_shards, shard_path
from .write import partial_name, replace, sync

FOLDER = "checkpoints"
ABANDONED_SECONDS = 3600.0


def newest(folder: str | os.PathLike, report: Callable[[str], None] | None = None) -> str | None:
    """Path of the newest checkpoint of a run that is whole, or None.

    Newest is the one written last by the time noted inside, so copying files does not matter. Files that
    cannot be used are passed over and `report` is told why.

    Args:
        folder: the run folder (its checkpoints/ is searched).
        report: called with one line for each unusable file.
    """
    for path in (found.path for found in _by_age(folder, report)):
        try:
            open_checkpoint(path).close()
            return path
        except UserError as error:
            if report is not None:
                report(f"skipped: {error}")
    return None


def prune(folder: str | os.PathLike, keep: int) -> list[str]:
    """Remove all but the `keep` newest readable checkpoints of a run; returns the paths removed.

    Unreadable files stay for the user to look at, and so do their shards. Temporary files, and shards of no
    checkpoint, that nobody has touched for an hour are leftovers of killed runs and go.
    """
    found = _by_age(folder, None)
    removed = [old.path for old in found[keep:]]
    in_use = {os.path.abspath(file) for kept in found[:keep] for file in kept.files}
    for path in removed:
        os.unlink(path)
        remove_shards(path, in_use)
    for leftover in (Path(folder) / FOLDER).glob(f".*{PARTIAL}"):
        with contextlib.suppress(OSError):
            if _is_old(leftover.stat().st_mtime):
                leftover.unlink()
    readable = {kept.path for kept in found}
    for shards in (Path(folder) / FOLDER).glob(f"*{SUFFIX}"):
        model = str(shards).removesuffix(SUFFIX) + ".h5"
        if (model in readable or not os.path.lexists(model)) and _is_old(last_touched(str(shards))):
            remove_shards(model, in_use)
    return removed


def _is_old(touched: float) -> bool:
    return time.time() - touched > ABANDONED_SECONDS


def publish(source: str | os.PathLike, target: str | os.PathLike) -> None:
    """Give a finished model a second name in one step, by a hard link, or a copy where links do not work.

    The shards of a model in shards get second names first, then a new file for them takes the name `target`.
    At any moment `target` is the old or the new model, whole; shards of the old one go last.

    Raises UserError when the source cannot be read or the target cannot be written.
    """
    target = os.path.abspath(target)
    with open_checkpoint(source, verify=False) as model:
        if not isinstance(model, Sharded):
            _link(source, target)
            remove_shards(target)
            return
        shards = [shard_path(target, model.token, i, len(model.shards)) for i in range(len(model.shards))]
        for shard, path in zip(model.shards, shards, strict=True):
            _link(shard.path, path)
        dense = {name: model.read(name) for name, part in model.parts.items() if not part.by_key}
        fields = dense.pop("fields/keys", None)
        put_model(
            target, model.meta, model.layout, model.shards, fields, dense, model.token, created=model.created
        )
    remove_shards(target, shards)


def _link(source: str | os.PathLike, target: str) -> None:
    partial = partial_name(target)
    try:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(partial)
        try:
            os.link(source, partial)
        except OSError:
            shutil.copyfile(source, partial)
            sync(partial)
        replace(partial, target)
    except OSError as error:
        raise UserError(f"cannot write {target}: {error.strerror or error}") from error
    finally:
        # Renaming one link of a file over another link of it does nothing and leaves the first.
        with contextlib.suppress(OSError):
            os.unlink(partial)


class _Found(NamedTuple):
    created: str
    path: str
    files: list[str]


def _by_age(folder: str | os.PathLike, report: Callable[[str], None] | None) -> list[_Found]:
    """Readable checkpoints, newest first (arrays are not checked)."""
    found = []
    for path in sorted((Path(folder) / FOLDER).glob("*.h5")):
        try:
            with open_checkpoint(path, verify=False) as checkpoint:
                found.append(_Found(checkpoint.created, str(path), checkpoint.files))
        except UserError as error:
            if report is not None:
                report(f"skipped: {error}")
    return sorted(found, reverse=True)
