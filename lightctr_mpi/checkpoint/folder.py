"""The checkpoints of a run: find the newest, drop old ones, give one of them the model's name."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from ..errors import UserError
from .read import open_checkpoint
from .write import PARTIAL, partial_name, replace, sync

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
    for path in _by_age(folder, report):
        try:
            open_checkpoint(path).close()
            return path
        except UserError as error:
            if report is not None:
                report(f"skipped: {error}")
    return None


def prune(folder: str | os.PathLike, keep: int) -> list[str]:
    """Remove all but the `keep` newest readable checkpoints of a run; returns the paths removed.

    Unreadable files stay for the user to look at; temporary files that nobody has touched for an hour are
    leftovers of killed runs and go.
    """
    removed = _by_age(folder, None)[keep:]
    for path in removed:
        os.unlink(path)
    for leftover in (Path(folder) / FOLDER).glob(f".*{PARTIAL}"):
        with contextlib.suppress(OSError):
            if time.time() - leftover.stat().st_mtime > ABANDONED_SECONDS:
                leftover.unlink()
    return removed


def publish(source: str | os.PathLike, target: str | os.PathLike) -> None:
    """Give a finished file a second name in one step, by a hard link, or a copy where links do not work.

    Raises UserError when the target cannot be written.
    """
    target = os.path.abspath(target)
    partial = partial_name(target)
    try:
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


def _by_age(folder: str | os.PathLike, report: Callable[[str], None] | None) -> list[str]:
    """Readable checkpoints, newest first (arrays are not checked)."""
    found = []
    for path in sorted((Path(folder) / FOLDER).glob("*.h5")):
        try:
            with open_checkpoint(path, verify=False) as checkpoint:
                found.append((checkpoint.created, str(path)))
        except UserError as error:
            if report is not None:
                report(f"skipped: {error}")
    return [path for _, path in sorted(found, reverse=True)]
