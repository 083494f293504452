"""The training command: from resolved options to a run folder with a model in it."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np

from . import checkpoint, options, report
from .bound import BoundRoles, BoundRows
from .checkpoint import Checkpoint, ModelMeta, history_columns
from .choosemode import choose_mode
from .comm import agreed, any_rank, bcast_object
from .config import Run
from .errors import Stopped, UserError, writing
from .jobdata import JobData
from .makestore import make_store
from .mpi import Signals, World
from .options import Resolved
from .resume import changes, check_same_model, dictionaries, first_seed, is_best, position
from .rowstore import RowStore
from .runfolder import RunFolder
from .settle import settle, settle_for
from .stores import Store
from .train import Fit, Progress


def train(resolved: Resolved, world: World) -> int:
    """Train as the options say; returns the exit code. Raises UserError or Stopped on every rank."""
    run = settle(resolved.run, world.size, world.local_size)
    comm = world.comm if world.size > 1 else None
    folder = RunFolder(run.out)
    with agreed(comm):
        if world.rank == 0:
            folder.create()
    news = report.build(world.rank, run.quiet)
    job = Job(resolved, run, world, comm, folder, news)
    try:
        with job.early:
            job.work()
    finally:
        job.close()
    return 0


class Job:
    """One training, from its data to its last metrics. Every method is called by all ranks."""

    def __init__(
        self, resolved: Resolved, run: Run, world: World, comm: Any, folder: RunFolder, news: report.Report
    ):
        self.resolved, self.run, self.world, self.comm = resolved, run, world, comm
        self.folder, self.news = folder, news
        self.data = JobData(run, resolved.sources, world, comm, folder, news.note)
        # Before the training there is nothing to save, so SIGTERM may simply end a single process. To several
        # it comes from a batch system, and a launcher reports a rank that dies of it as a fault.
        self.early = Signals() if world.size > 1 else Signals(signal.SIGUSR1)
        self.signals = Signals()
        self.started = time.perf_counter()

    def work(self) -> None:
        source = self._resumed()
        self.first_seed = first_seed(source, self.run)
        train, valid, test = (self._rows(role) for role in ("train", "valid", "test"))
        if train is None or not train.n_rows:
            raise UserError(f"{', '.join(self.run.data.train)}: no rows to train on")
        run = settle_for(self.data.run, train.n_rows, self.world.size)
        progress, history = position(source, self.folder)
        if source is not None and not progress.best_epoch and progress.epoch >= (run.train.epochs or 0):
            raise UserError(
                f"{source.path} has {progress.epoch} epochs behind it, nothing is left to do: "
                f"give --train.epochs more than {progress.epoch}"
            )
        keys, fields = dictionaries(run.model.name, train, source)
        n_fields = 0 if fields is None else len(fields)
        if run.mode == "auto":
            mode, why = choose_mode(run, self.world, train, len(keys), n_fields)
            run = dataclasses.replace(run, mode=mode)
            self.news.note(f"mode {mode}: {why}")
        self.run = run
        place = make_store(
            run, self.world, keys, n_fields, self.news.note, self._stop_asked, self.folder.path
        )
        self._stop_early()
        roles = {"train": train, "valid": valid, "test": test}
        given = {role: rows for role, rows in roles.items() if rows is not None}
        start = run.seed if run.model.unseen == "start" else None
        bound = BoundRoles(given, keys, fields, run.model.norm, start)

        def conduct(store: Store) -> None:
            if source is not None:
                store.load(source)
            self._open_folder(store, history, source)
            fit = Fit(
                run=run,
                store=store,
                train=bound["train"],
                valid=bound.get("valid"),
                report=self.news,
                save=lambda p, h, best: self._save(store, fields, p, h, best),
                stop=self._stop_asked,
                progress=progress,
                history=history,
            )
            fit()
            self._conclude(store, fit, bound.get("test"))

        with self.signals:
            place.run(conduct, bound)

    def _rows(self, role: str) -> RowStore | None:
        paths = getattr(self.run.data, role)
        rows = self.data.rows(paths, role) if paths else None
        self._stop_early()
        return rows

    def _stop_asked(self) -> bool:
        return self.signals.stop or self.early.stop

    def _stop_early(self) -> None:
        """Heed a warning between two parts of the preparation: what they made is on disk."""
        if any_rank(self.comm, self.early.stop):
            raise Stopped("stopped on request before the training began")

    def close(self) -> None:
        self.news.close()
        self.data.close()

    # --- model ---

    def _resumed(self) -> Checkpoint | None:
        """The checkpoint to go on from: opened by all ranks, its checksums verified by the first."""
        wanted = self.run.train.resume
        if not wanted:
            return None
        path: str | None = wanted
        with agreed(self.comm):
            if wanted == "auto" and self.world.rank == 0:
                path = checkpoint.newest(self.folder.path, self.news.note)
        path = bcast_object(self.comm, path)
        if path is None:
            self.news.note(f"nothing to resume in {self.folder.path}: starting anew")
            return None
        with agreed(self.comm):
            source = checkpoint.open(path, verify=self.world.rank == 0)
            check_same_model(source, self.run)
        return source

    # --- run folder ---

    def _open_folder(self, store: Store, history: list[dict], source: Checkpoint | None) -> None:
        """Set an earlier run aside, write the configuration, start the metrics file."""
        with agreed(store.comm):
            if self.world.rank == 0:
                if source is None and (previous := self.folder.set_aside()) is not None:
                    self.news.note(f"an earlier run was moved to {previous}")
                self.folder.create()
                if source is not None and is_best(source, self.folder):
                    checkpoint.publish(source.path, self.folder.model)
                with writing(self.folder.config):
                    self.folder.config.write_text(options.to_toml(self.run))
                self.news.open_metrics(self.folder.metrics, history)
        self._announce(source)

    def _save(
        self, store: Store, fields: np.ndarray | None, progress: Progress, history: list[dict], best: bool
    ) -> None:
        run, folder = self.run, self.folder
        meta = ModelMeta(
            config_toml=options.to_toml(run),
            model=dataclasses.asdict(run.model) | {"seed": self.first_seed},
            optimizer=dataclasses.asdict(run.optimizer),
            reader=self.data.settings,
            hashing_seed=int(self.data.settings.get("hashing_seed", 0)),
            progress=dataclasses.asdict(progress) | {"seed": run.seed},
            history=history_columns(history),
        )
        path = folder.checkpoint(progress.epoch, progress.rows_done)
        store.save(str(path), meta, fields)
        with agreed(store.comm):
            if self.world.rank == 0:
                if best:
                    checkpoint.publish(path, folder.model)
                checkpoint.prune(folder.path, run.checkpoint.keep)

    # --- people ---

    def _announce(self, source: Checkpoint | None) -> None:
        run, world = self.run, self.world
        ranks = f"{world.size} rank{'s' if world.size > 1 else ''}"
        how = "row by row" if run.train.sync == "none" else f"batches of {run.train.batch_size} rows"
        if run.ring.replica == "node" and world.size > 1:
            how += " on one copy of the model"
        lines = [f"lightctr_mpi: {run.model.name} on {ranks}, mode {run.mode}, {how}", *_settings(self)]
        if source is not None:
            lines.append(f"resuming from {source.path}")
            lines += [f"  {change}" for change in changes(source, run)]
        lines.append(f"run folder {self.folder.path}")
        self.news.start(lines, run.train.epochs)

    def _conclude(self, store: Store, fit: Fit, test: BoundRows | None) -> None:
        """Restore the best weights, evaluate the test rows, sum up."""
        progress = fit.progress
        summary: dict[str, Any] = {"best_epoch": progress.best_epoch}
        if test is not None:
            if progress.best_epoch != progress.epoch:
                with agreed(store.comm):
                    source = checkpoint.open(self.folder.model, verify=self.world.rank == 0)
                store.load(source, with_state=False)
                source.close()
            result = store.evaluate(test, self.run.model.loss)
            for name in ("rows", "logloss", "auc", "rmse"):
                summary[f"test_{name}"] = result[name]
        if fit.valid is not None and progress.best_epoch == progress.epoch == self.run.train.epochs:
            self.news.note(
                "the last epoch was the best: more may help, --train.resume auto with more --train.epochs "
                "goes on from here"
            )
        summary["seconds"] = time.perf_counter() - self.started
        summary["model"] = str(self.folder.model)
        self.news.finish(summary)
        if self.world.rank == 0:
            _write_json(self.folder.path / "summary.json", summary)


def _settings(job: Job) -> list[str]:
    """One line for each value the user gave, with its source."""
    return ["  " + line for line in options.explain(job.resolved)]


def _write_json(path: Path, values: dict[str, Any]) -> None:
    partial = path.with_suffix(".part")
    with writing(path):
        partial.write_text(report.to_json(values) + "\n")
        os.replace(partial, path)
