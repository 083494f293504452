"""Going on from a checkpoint: where it stands, whether it fits, what has changed since."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np

from . import options
from .checkpoint import Checkpoint, history_records
from .config import Run
from .errors import UserError
from .rowstore import RowStore
from .runfolder import RunFolder
from .train import Progress


def position(source: Checkpoint | None, folder: RunFolder) -> tuple[Progress, list[dict]]:
    """Where to go on. A best epoch whose model lies in another folder does not count here."""
    if source is None:
        return Progress(), []
    progress = Progress.from_dict(source.meta.progress)
    history = history_records(source.meta.history)
    if not _is_of(source, folder):
        progress.best_epoch, progress.best_value, progress.bad_epochs = 0, None, 0
    return progress, history


def _is_of(source: Checkpoint, folder: RunFolder) -> bool:
    return Path(source.path).resolve().parent in (folder.path.resolve(), folder.checkpoints.resolve())


def is_best(source: Checkpoint, folder: RunFolder) -> bool:
    """Whether a checkpoint of this folder is its best model: the run may have died before naming it so."""
    at, best = source.meta.progress, source.meta.progress["best_epoch"]
    return _is_of(source, folder) and at["rows_done"] == 0 and at["epoch"] == best > 0


def first_seed(source: Checkpoint | None, run: Run) -> int:
    """Seed of the starting weights, which a resumed run may have changed for the rest."""
    if source is None:
        return run.seed
    return source.meta.model.get("seed", source.meta.progress.get("seed", run.seed))


def check_same_model(source: Checkpoint, run: Run) -> None:
    for key in ("name", "k", "linear", "bias", "norm", "loss"):
        found, wanted = source.meta.model.get(key), getattr(run.model, key)
        if wanted is not None and found != wanted:
            raise UserError(f"{source.path} was trained with model.{key} = {found}, this run has {wanted}")
    began = first_seed(source, run)
    if run.model.unseen == "start" and began != run.seed:
        raise UserError(
            f"{source.path} began with seed = {began}, this run has {run.seed}: the starting weights of "
            "model.unseen = start would be others"
        )


def changes(source: Checkpoint, run: Run) -> list[str]:
    """What is not as it was when the checkpoint was written, of all that decides how training goes on."""
    then, now = (tomllib.loads(text) for text in (source.meta.config_toml, options.to_toml(run)))
    keys = [("", "seed"), *(("train", name) for name in ("sync", "batch_size", "shuffle"))]
    keys += [("data", name) for name in ("block_rows", "window_blocks")]
    keys += [("model", name) for name in ("unseen", "share", "storage", "init", "init_scale")]
    keys += [("optimizer", name) for name in now["optimizer"]]
    lines = []
    for section, name in keys:
        before, after = ((tree[section] if section else tree).get(name) for tree in (then, now))
        if before is not None and before != after:
            lines.append(f"{section + '.' if section else ''}{name} is now {after}, it was {before}")
    return lines


def dictionaries(
    model: str, train: RowStore, source: Checkpoint | None
) -> tuple[np.ndarray, np.ndarray | None]:
    """Keys and fields of the model: those of the data, joined with those of the model to go on from.

    The keys may be a view of the row store's file, which costs no memory on ranks that do not look at them.
    """
    keys = train.keys
    fields = np.array(train.fields) if model == "ffm" else None
    if source is None:
        return keys, fields
    if fields is not None:
        known = source.field_keys if source.field_keys is not None else np.zeros(0, np.int32)
        new = np.setdiff1d(fields, known)
        if len(new):
            raise UserError(f"{source.path}: the model does not know field {new[0]} of the training data")
        fields = known
    if not np.array_equal(keys, source.keys):
        keys = np.union1d(keys, source.keys)
    return keys, fields
