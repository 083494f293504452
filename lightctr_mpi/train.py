"""The training loop of all modes: epochs of steps, an evaluation after each, checkpoints, early stopping."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from .bound import BoundRows
from .config import Run
from .errors import Diverged, Stopped
from .rowstore.order import RowOrder
from .stores import StepSums, Store

LOWER_IS_BETTER = {"valid_logloss", "valid_rmse", "train_logloss"}


@dataclass
class Progress:
    """Where a run stands: everything the loop needs to go on as if it had never stopped.

    The order of rows follows from the seed and the epoch, so `rows_done` is the whole position in the data.
    """

    epoch: int = 0  # finished epochs
    step: int = 0  # finished steps since the start
    rows_done: int = 0  # rows of the unfinished epoch that have been learned
    loss: float = 0.0  # weighted sum of their losses
    weight: float = 0.0  # sum of their weights
    best_epoch: int = 0
    best_value: float | None = None
    bad_epochs: int = 0

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Progress:
        return cls(**{f.name: values[f.name] for f in fields(cls) if f.name in values})


@dataclass
class Fit:
    """One training: what it works on and whom it tells.

    Args:
        save: writes a checkpoint of (progress, history); told whether the epoch is the best one.
        stop: whether somebody asked this rank to stop.
    """

    run: Run
    store: Store
    train: BoundRows
    valid: BoundRows | None
    report: Any
    save: Callable[[Progress, list[dict], bool], None]
    stop: Callable[[], bool]
    progress: Progress = field(default_factory=Progress)
    history: list[dict] = field(default_factory=list)

    def __call__(self) -> list[dict]:
        """Run the epochs that are left; returns the history (one record per epoch).

        Raises:
            Stopped: a stop was asked for; the state has been saved.
            Diverged: the loss is no longer finite; checkpoints before it stay.
        """
        progress = self.progress
        while self._is_unfinished():
            started, first_row = time.perf_counter(), progress.rows_done
            stop = self._learn_epoch(started)
            saved = False
            if progress.rows_done >= self.train.n_rows:
                saved = self._close_epoch(time.perf_counter() - started, self.train.n_rows - first_row)
            if stop and self._is_unfinished():
                if not saved:
                    self.save(progress, self.history, False)
                raise Stopped("stopped on request; the state is saved")
        return self.history

    def _is_unfinished(self) -> bool:
        epochs = self.run.train.epochs
        assert epochs is not None
        return self.progress.epoch < epochs and not self._patience_is_over()

    def _patience_is_over(self) -> bool:
        patience = self.run.train.patience
        assert patience is not None
        return self.valid is not None and 0 < patience <= self.progress.bad_epochs

    def _steps(self, epoch: int, skip: int) -> Iterator[np.ndarray]:
        """Global rows of each step that is left of an epoch."""
        data = self.run.data
        order = RowOrder(
            self.train.n_rows, data.block_rows, data.window_blocks, self.run.seed, self.run.train.shuffle
        )
        before = 0
        for window in order.epoch(epoch):
            for a in range(0, len(window), self.store.step_rows):
                step = window[max(a, skip - before) : a + self.store.step_rows]
                if len(step):
                    yield step
            before += len(window)

    def _learn_epoch(self, started: float) -> bool:
        """Learn the rest of the current epoch, or up to a request to stop; returns whether there was one."""
        progress = self.progress
        already, sums = progress.rows_done, StepSums()
        for rows in self._steps(progress.epoch, already):
            sums = self.store.learn(self.train, rows, self.stop())
            progress.step += 1
            progress.rows_done += len(rows)
            self._count(sums)
            seconds = time.perf_counter() - started
            if progress.weight:
                mean = progress.loss / progress.weight
                self.report.progress(
                    progress.epoch + 1, progress.rows_done, self.train.n_rows, mean, seconds, already
                )
            if sums.stop:
                break
        last = self.store.finish()
        self._count(last)
        return sums.stop or last.stop

    def _count(self, sums: StepSums) -> None:
        self.progress.loss += sums.loss
        self.progress.weight += sums.weight
        if not np.isfinite(sums.loss):
            raise Diverged(self._advice("the training loss"))

    def _close_epoch(self, seconds: float, rows: int) -> bool:
        """Evaluate, judge, report, save; returns whether a checkpoint was due."""
        progress = self.progress
        epoch = progress.epoch + 1
        name = "train_logloss" if self.run.model.loss == "logistic" else "train_squared_loss"
        record: dict[str, Any] = {
            "epoch": epoch,
            "step": progress.step,
            name: progress.loss / progress.weight if progress.weight else None,
            "rows_per_second": rows / seconds if seconds > 0 else None,
            "seconds": seconds,
        }
        record |= self.store.end_epoch(epoch)
        if self.valid is not None:
            started = time.perf_counter()
            result = self.store.evaluate(self.valid, self.run.model.loss)
            if result.get("nonfinite"):
                raise Diverged(self._advice("the validation loss"))
            record |= {
                f"valid_{key}": value for key, value in result.items() if key not in ("reasons", "nonfinite")
            }
            record["valid_seconds"] = time.perf_counter() - started
        progress.epoch, progress.rows_done, progress.loss, progress.weight = epoch, 0, 0.0, 0.0
        best = self._judge(record)
        self.history.append(record)
        if not self.store.all_finite():
            raise Diverged(self._advice("a parameter"))
        every = self.run.checkpoint.every
        due = best or not self._is_unfinished() or (every > 0 and epoch % every == 0)
        if due:
            self.save(progress, self.history, best)
        compared = self.valid is not None or self.run.train.monitor == "train_logloss"
        self.report.epoch(record, best and compared)
        return due

    def _judge(self, record: dict[str, Any]) -> bool:
        """Whether this epoch is the best so far. Without validation the newest always is."""
        progress, monitor = self.progress, self.run.train.monitor
        value = record.get(monitor)
        if self.valid is None and monitor != "train_logloss":
            progress.best_epoch, progress.best_value = progress.epoch, None
            return True
        if (
            value is None
        ):  # undefined, as it will be after every epoch: nothing to compare, as without validation
            if progress.best_value is None:
                progress.best_epoch = progress.epoch
            return progress.best_value is None
        if progress.best_value is None:
            better = True
        else:
            lower = monitor in LOWER_IS_BETTER
            better = value < progress.best_value if lower else value > progress.best_value
        if better:
            progress.best_epoch, progress.best_value, progress.bad_epochs = progress.epoch, value, 0
        else:
            progress.bad_epochs += 1
        return better

    def _advice(self, what: str) -> str:
        return (
            f"{what} became non-finite at step {self.progress.step} (epoch {self.progress.epoch + 1}); try a "
            "lower --optimizer.lr, instance normalisation (--model.norm true) or smaller values in the data"
        )
