"""The run folder: which file lies where, and what happens to an earlier run in the same place."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from .errors import UserError, writing

PREVIOUS = "previous"
OURS = (
    "model.h5",
    "model.shards",
    "metrics.jsonl",
    "config.toml",
    "checkpoints",
    "summary.json",
    "ps-trace-*.npy",
)


class RunFolder:
    """Paths of a run.

    model.h5 is the best model so far (with its shards, if any, in model.shards/), config.toml the resolved
    configuration, metrics.jsonl one object per epoch, checkpoints/ the newest states to continue from,
    previous/ the run that was here before.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.model = self.path / "model.h5"
        self.metrics = self.path / "metrics.jsonl"
        self.config = self.path / "config.toml"
        self.checkpoints = self.path / "checkpoints"

    def create(self) -> None:
        """Make the folder. Raises UserError when it cannot be made or written."""
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot make the run folder {self.path}: {error.strerror}") from None
        if not os.access(self.path, os.W_OK):
            raise UserError(f"the run folder {self.path} is not writable")

    def set_aside(self) -> Path | None:
        """Move an earlier run that got as far as a model to previous/; returns that folder, or None.

        What an aborted start left behind does not count: it must not push out a good model.
        """
        if not self.model.exists() and not any(self.checkpoints.glob("*.h5")):
            return None
        found = [path for name in OURS for path in sorted(self.path.glob(name))]
        previous, fresh = self.path / PREVIOUS, self.path / (PREVIOUS + ".new")
        with writing(previous):
            shutil.rmtree(fresh, ignore_errors=True)
            fresh.mkdir()
            for path in found:
                os.rename(path, fresh / path.name)
            shutil.rmtree(previous, ignore_errors=True)
            os.rename(fresh, previous)
        return previous

    def checkpoint(self, epoch: int, rows_done: int) -> Path:
        """Where the state after `epoch` epochs and `rows_done` rows of the next goes. Names sort by age."""
        return self.checkpoints / f"epoch-{epoch:05d}-row-{rows_done:012d}.h5"
