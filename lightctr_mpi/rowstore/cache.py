"""The automatic cache: text is converted again only when its content, the options or the program change."""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from .. import __version__
from ..comm import agreed, bcast_object, rank_of
from ..errors import UserError
from .convert import content_hash, convert
from .files import same_files, see, stat_of, unchanged, write_all
from .layout import SCHEMA_VERSION, Layout, Meta, load
from .read import RowStore

FOLDER = ".lightctr_cache"
_SIZE = 0  # column of Origin.stat
_FRESH, _SUSPECT, _STALE = "fresh", "suspect", "stale"


def choose_folder(comm: Any, option: str, source: Any, run_folder: str | Path) -> Path:
    """Where the cache goes: the folder `data.cache`; for "auto" beside the first file, else with the run.

    Args:
        source: a readers.source.Source.
        run_folder: where it goes when there is no writing beside the data, or when that is standard input.
    """
    folder = Path(option)
    if option == "auto" and rank_of(comm) == 0:
        beside = Path(os.path.abspath(source.files[0].path)).parent
        usable = not _is_stdin(source) and os.access(beside, os.W_OK)
        if usable and (beside / FOLDER).exists():
            usable = os.access(beside / FOLDER, os.W_OK)
        folder = beside / FOLDER if usable else Path(run_folder) / "cache"
    return bcast_object(comm, folder)


def open_or_convert(
    comm: Any,
    source: Any,
    reader: Any,
    folder: str | Path,
    *,
    memory: str = "auto",
    memory_bytes: int | None = None,
    on_estimate: Callable[[Meta], None] | None = None,
    on_note: Callable[[str], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> RowStore:
    """The rows of `source`, from the cache in `folder` or converted into it; called by all ranks.

    A cached store counts when it was made from these files with these options by this version of the program,
    and the files are unchanged: by their sizes and time stamps, else by a hash of their content. Rows from
    standard input are forgotten when the store is closed.

    Args:
        memory: as in RowStore.open.
        memory_bytes, on_estimate, progress: as in `convert`; not called when the cache is used.
        on_note: told on rank 0, in one line, why an existing cache file is not used.

    Raises what `convert` raises.
    """
    path: Path = bcast_object(comm, Path(folder) / cache_name(source, reader))
    identity = same_files(comm, source)
    stat = stat_of(identity)
    state, note, expected = _STALE, "", ""
    with agreed(comm):
        if rank_of(comm) == 0:
            state, note, expected = _judge(path, identity)
    state, note, expected = bcast_object(comm, (state, note, expected))
    if state == _SUSPECT:
        state, note = _STALE, "the data has changed"
        if content_hash(comm, source) == expected:
            state = _FRESH
            with agreed(comm):
                unchanged(source, identity)
                if rank_of(comm) == 0 and os.access(path, os.W_OK):
                    _refresh(path, stat)
    if state == _STALE:
        if note and on_note is not None and rank_of(comm) == 0:
            on_note(f"{path}: {note}; converting again")
        convert(
            comm, source, reader, path, memory_bytes=memory_bytes, on_estimate=on_estimate, progress=progress
        )
    with agreed(comm):
        see(path, path.parent)
        store = RowStore.open(path, memory)
    if _is_stdin(source) and rank_of(comm) == 0:
        path.unlink(missing_ok=True)  # it lives on as long as it is open
    return store


def cache_name(source: Any, reader: Any) -> str:
    """Name of the cache file: where the data lies, how it is read, and by which program."""
    key = {
        "paths": [os.path.abspath(file.path) for file in source.files],
        "unit_bytes": source.unit_bytes,
        "reader": reader.settings(),
        "program": _program(),
    }
    digest = hashlib.blake2b(json.dumps(key, sort_keys=True).encode(), digest_size=12).hexdigest()
    stem = os.path.basename(source.files[0].name).strip("<>")
    return f"{stem[:60]}-{digest}.rows.h5"


@functools.cache
def _program() -> str:
    """The version of everything that decides what a text turns into, edits of the sources included."""
    package = Path(__file__).parent.parent
    digest = hashlib.blake2b(f"{__version__} {SCHEMA_VERSION}".encode(), digest_size=12)
    for folder in ("readers", "rowstore", "kernels"):
        pattern = "parse*.py" if folder == "kernels" else "*.py"
        for source in sorted((package / folder).glob(pattern)):
            digest.update(source.read_bytes())
    return digest.hexdigest()


def _judge(path: Path, identity: list[tuple]) -> tuple[str, str, str]:
    """(state of the cache file, why it is stale, content hash that the data must have)."""
    if not path.exists():
        return _STALE, "", ""
    try:
        layout: Layout = load(path)
    except UserError as problem:
        return _STALE, str(problem).removeprefix(f"{path}: "), ""
    now = np.array([entry[1:] for entry in identity], np.uint64).reshape(len(identity), 4)
    then = layout.origin.stat
    if layout.origin.paths != [entry[0] for entry in identity] or (now[:, _SIZE] != then[:, _SIZE]).any():
        return _STALE, "the data has changed", ""
    return (_FRESH if np.array_equal(now, then) else _SUSPECT), "", layout.meta.content_hash


def _refresh(path: Path, stat: np.ndarray) -> None:
    """Note the files' new time stamps in the store, whose content they are known to have.

    The overwriting is not atomic, but half of a stamp is no file's stamp: the content is compared once more.
    """
    handle = os.open(path, os.O_WRONLY)
    try:
        write_all(handle, stat, load(path).offsets["source/stat"])
    finally:
        os.close(handle)


def _is_stdin(source: Any) -> bool:
    return any(file.name == "<stdin>" for file in source.files)
