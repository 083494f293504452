"""Compile (or load) kernels before they are needed: once per node, on tiny data, with the very code of a run.

A mark in the cache folder says that a combination has been compiled there, so that later runs do not wait for
one another. Who waits is told why.
"""

from __future__ import annotations

import copy
import dataclasses
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from . import defaults, models, optim, readers
from .block import Block
from .compact import CompactFFM, build_shard
from .config import DataOptions, ModelOptions, OptimizerOptions, Run, TrainOptions
from .kernels.jit import CACHE_DIR
from .metrics import Tally
from .models.base import Model
from .optim.base import Optimizer
from .readers.base import LabelRule
from .readers.source import Source

Note = Callable[[str], None]


def _once(mark: str, work: Callable[[], None], what: str, note: Note | None) -> None:
    done = CACHE_DIR / f"warm-{mark}"
    if done.exists():
        return
    if note is not None:
        note(f"compiling the code that {what} (once on this machine, up to a minute)")
    work()
    done.touch()


def warm_reading(reader: Any, note: Note | None = None) -> None:
    """All that turns text into Blocks and row stores."""
    name = reader.name
    reader = copy.copy(reader)  # one that takes its own sample: labels of the user's may be others
    reader.options = dataclasses.replace(reader.options, on_bad_row="skip")
    if reader.options.label_map:
        reader.labels = LabelRule(dataclasses.replace(reader.options, label_map=""), reader.task)

    def work() -> None:
        from .rowstore import RowStore, convert

        readers.warm(reader)
        with tempfile.TemporaryDirectory() as folder:
            text, rows = Path(folder) / "sample", Path(folder) / "rows.h5"
            text.write_bytes(reader.sample)
            source = Source([str(text)])
            convert(None, source, reader, rows)
            for memory in ("map", "stream"):
                with RowStore.open(rows, memory, check=True) as store:
                    store.block(np.arange(store.n_rows))

    _once(f"read-{name}-{reader.task}", work, f"reads {name}", note)


def warm_training(model: Model, optimizer: Optimizer, run: Run, note: Note | None = None) -> None:
    """A few rows through the step, the evaluation and the ring's kernels."""
    mark = f"train-{model.name}-{optimizer.name}-{model.loss_name}-{run.train.sync}"
    penalties = optimizer.penalty
    mark += f"-{int(penalties[1] != 0)}{int(model.bias)}{int(model.linear)}{int(run.train.shuffle)}-{model.k}"
    if isinstance(model, CompactFFM):
        mark += f"-compact{model.kind}"
    elif run.train.threads > 1:
        mark += "-threads"
    _once(mark, lambda: _train(model, optimizer, run), f"trains {model.name}", note)
    from .ps import warm as ps_warm
    from .ring import packed

    ring = run.ring
    if run.mode == "ring" and (ring.codec != "float32" or ring.top_k < 1):
        mark = f"ring-{ring.codec}-{int(ring.top_k < 1)}"
        _once(mark, lambda: packed.warm(ring, model.width), "packs gradients", note)
    if run.mode == "ps":
        ps = run.ps
        mark += f"-ps-{ps.pull_codec}-{ps.push_codec}-{ps.delay}-{int(ps.top_k < 1)}{int(ps.admit_after > 1)}"
        _once(mark, lambda: ps_warm.warm(model, optimizer, run), "serves parameters", note)


def _train(model: Model, optimizer: Optimizer, run: Run) -> None:
    from .kernels import rows, sparse
    from .rowstore import RowOrder
    from .shard import Shard
    from .stores import Replica, Sequential

    keys = np.arange(8, dtype=np.uint64)
    data = _Tiny(model)
    next(RowOrder(data.n_rows, 2, 2, run.seed, run.train.shuffle).epoch(0))
    order = np.arange(data.n_rows, dtype=np.int64)
    threads = min(run.train.threads, 2)
    shard = build_shard(model, optimizer, keys, run.seed, threads=threads)
    store: Any = Sequential(shard, threads)
    if run.train.sync == "none":
        store.learn(data, order, False)
    else:
        shard = Shard(model, optimizer, keys, run.seed, (0, len(keys)))
        store = Replica(shard, 4)
        store.learn(data, order, False)
        table = np.ones((len(keys), model.width), np.float32)
        found = rows.nonzero_rows(table, 0, len(keys))
        sparse.scatter_add_rows(table, found, table[found])
        sparse.scatter_set_rows(shard.rows, found, table[found])
        sparse.gather_rows(shard.rows, found, table)
    rows.translate(found_ids := np.arange(4, dtype=np.int32), found_ids)
    shard.all_finite()
    store.evaluate(data, model.loss_name)


def warm_scoring(model: Model) -> None:
    """A few rows through looking up, prediction and formatting."""
    from .kernels import losses
    from .kernels.format import format_probabilities
    from .kernels.lookup import Lookup

    def work() -> None:
        data = _Tiny(model)
        logit = np.zeros(data.n_rows, np.float32)
        block = data.slice(0, data.n_rows)
        keys, counts = np.arange(8, dtype=np.uint64), np.zeros(3, np.int64)
        Lookup(keys, np.arange(4, dtype=np.int32))(block.indptr, block.ids, block.fields, counts)
        rows, bias = np.zeros((len(keys), model.width), np.float32), np.zeros(1, np.float32)
        model.forward(block, rows, block.ids, bias, logit)
        losses.predictions(model.loss, logit, probabilities := np.empty_like(logit))
        format_probabilities(probabilities)
        tally = Tally(model.loss_name)
        tally.add(logit, block.labels)
        tally.result()

    _once(f"score-{model.name}-{model.loss_name}-{model.k}", work, f"predicts with {model.name}", None)


class _Tiny:
    """Four rows of three features, in place of BoundRows."""

    n_rows, start = 4, None

    def __init__(self, model: Model):
        n_fields = max(model.n_fields, 1)
        nnz = 3 * self.n_rows
        self._fields = (np.arange(nnz) % n_fields).astype(np.int32) if model.uses_fields else None

    def slice(self, a: int, b: int) -> Block:
        return self.block(np.arange(a, b))

    def window(self, rows: np.ndarray) -> tuple[Block, np.ndarray]:
        return self.block(rows), np.arange(len(rows), dtype=np.int64)

    def block(self, rows: np.ndarray) -> Block:
        n = len(rows)
        from .kernels import sparse

        indptr = np.arange(0, 3 * n + 1, 3, dtype=np.int64)
        ids = (np.arange(3 * n) % 8).astype(np.int32)
        fields = None if self._fields is None else self._fields[: 3 * n]
        labels = (np.arange(n) % 2).astype(np.float32)
        block = Block(indptr, ids, fields, None, labels)
        block.norms = np.empty(n, np.float32)
        sparse.row_norms(indptr, np.empty(0, np.float32), block.norms, True)
        return block


def warmup(name: str) -> int:
    """Compile what training and prediction with one model, or all, need; says how long it took."""
    import time

    from .registry import NAMES, lookup

    names = list(NAMES["model"]) if name == "all" else [name]
    started = time.perf_counter()
    for model_name in names:
        lookup("model", model_name)
        options = defaults.model(ModelOptions(name=model_name))
        model = models.build(options, 4, "logistic")
        warm_scoring(model)
        for optimizer_name in NAMES["optimizer"]:
            optimizer = optim.build(OptimizerOptions(name=optimizer_name), model_name)
            for sync in ("none", "exact"):
                warm_training(model, optimizer, Run(train=TrainOptions(sync=sync)))
    for reader_name in ("libffm", "libsvm", "dense"):
        warm_reading(readers.build(reader_name, DataOptions(format=reader_name)))
    print(f"compiled {', '.join(names)} in {time.perf_counter() - started:.1f} s into {CACHE_DIR}")
    return 0
