"""Scoring rows with a model file: `predict` and `evaluate`, on any number of ranks, in bounded memory."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from . import checkpoint, models, optim, options, unseen
from .block import Block
from .checkpoint import Checkpoint
from .checkpoint.into import Map, read_into
from .comm import agreed, allgather_sizes, rank_of, size_of
from .compact import build_model, build_shard
from .config import ModelOptions, OptimizerOptions
from .errors import Diverged, UserError
from .input import LAST, Text, prepare, reader_of, rowstore_path, spare_inputs, worked_rounds
from .kernels import losses, sparse
from .kernels.format import format_probabilities
from .kernels.lookup import Lookup
from .kernels.memory import alloc_rows
from .metrics import Tally
from .mpi import World, once_per_node
from .optiontable import OPTIONS
from .output import Output
from .readers.source import Unit
from .threads import threads_of
from .warm import warm_reading, warm_scoring

T = TypeVar("T")
STORE_ROWS = 65536  # rows of a row store that are scored together
MOST_THREADS = 8  # the data are read by one more


def _options_of(source: Checkpoint) -> ModelOptions:
    """Raises UserError for a value that no training has written."""
    names, kept = {field.name for field in dataclasses.fields(ModelOptions)}, source.meta.model
    found = {name: value for name, value in kept.items() if name in names}
    for name, value in found.items():
        if name != "k":  # 0 where the model has no factors
            OPTIONS[f"model.{name}"].read(value, str(source.path))
    return ModelOptions(**found)


class Scorer:
    """The weights of a model file, ready to score.

    Attributes:
        model: the model; keys uint64[n], fields int32[F] or None: what it knows, ascending.
        rows: float32[n, width], row i for keys[i]; bias: float32[1].
    """

    def __init__(self, source: Checkpoint, map_pieces: Map = map):
        meta = source.meta
        self.options = _options_of(source)
        order = source.order
        self.keys = source.keys if order is None else source.keys[order]
        self.fields = source.field_keys
        n_fields = 0 if self.fields is None else len(self.fields)
        self.model = models.build(self.options, n_fields, self.options.loss)
        self.rows = alloc_rows(len(self.keys), self.model.width)
        self.bias = np.zeros(1, np.float32)
        place = None if order is None else np.empty_like(order)
        if place is not None:
            place[order] = np.arange(len(place))
        for name, columns, _ in self.model.parts():
            read_into(source, f"parameters/{name}", self.rows[:, columns], place, map_pieces)
        if self.model.bias:
            self.bias[:] = source.read("parameters/bias")
        self.seed = None
        if self.options.unseen == "start" and self.model.k:  # linear weights start at 0
            self.seed = OPTIONS["seed"].read(meta.model.get("seed"), str(source.path))

    def warm(self) -> None:
        """Compile what scores."""
        warm_scoring(self.model)
        if self.seed is not None:
            self._start(np.zeros(1, np.uint64))

    def logits(self, block: Block) -> np.ndarray:
        """float32[n] of a Block with compact ids (-1: unseen)."""
        block.norms = np.empty(block.n_rows, np.float32)
        values = np.empty(0, np.float32) if block.values is None else block.values
        sparse.row_norms(block.indptr, values, block.norms, self.options.norm)
        if self.fields is None:
            block.fields = None
        logit = np.empty(block.n_rows, np.float32)
        unseen.forward(self.model, block, self.rows, block.ids, self.bias, logit, self._start)
        return logit

    def _start(self, keys: np.ndarray) -> np.ndarray:
        """float32[m, width]: weights that keys without a row had when the training began."""
        kept = OptimizerOptions(sums="weight" if self.options.storage == "float32" else "block")
        model = build_model(self.options, kept, self.model.n_fields, self.options.loss)
        return build_shard(model, optim.build(kept, self.options.name), keys, self.seed).weights(0, len(keys))

    def probabilities(self, logit: np.ndarray) -> np.ndarray:
        """float32[n]: probability of a click, or the predicted value under squared loss."""
        out = np.empty_like(logit)
        losses.predictions(losses.CODES[self.options.loss], logit, out)
        return out


def predict(
    world: World, model: str, rows: Sequence[str], out: str, data_flags: Sequence[str], *, raw: bool
) -> int:
    """Write one number a line for every row, in the order of the rows, at any number of ranks."""
    comm = world.comm if world.size > 1 else None
    with agreed(comm):
        if out != "-":
            spare_inputs(out, [model, *rows])
    with Output(comm, out) as output:
        scored = _Scored(world, comm, model, rows, data_flags)

        def lines(block: Block, logit: np.ndarray) -> tuple[bytes, bool]:
            if not np.isfinite(logit).all():
                return b"", False
            return format_probabilities(logit if raw else scored.scorer.probabilities(logit)), True

        for number, scores in scored.rounds(lines):
            text, good = scores or (b"", True)
            problem = None if good else Diverged(f"{model} gives a prediction that is not a finite number")
            output.add(number, text, problem)
    scored.say_what_was_unseen(sys.stderr)
    return 0


def evaluate(
    world: World, model: str, rows: Sequence[str], data_flags: Sequence[str], *, as_json: bool
) -> int:
    """Print the metrics of a model on labelled rows."""
    comm = world.comm if world.size > 1 else None
    scored = _Scored(world, comm, model, rows, data_flags)
    tally = Tally(scored.scorer.options.loss)
    for _, scores in scored.rounds(lambda block, logit: (block, logit)):
        if scores is not None:
            block, logit = scores
            tally.add(logit, block.labels, block.weights, block.groups)
    tally.merge(comm)
    result = tally.result() | {"unseen": scored.unseen()}
    if world.rank == 0:
        if as_json:
            print(json.dumps(result))
        else:
            for name, value in result.items():
                if name not in ("reasons", "nonfinite", "unseen"):
                    why = result["reasons"].get(name)
                    shown = (
                        f"undefined ({why})"
                        if value is None
                        else f"{value:,}"
                        if isinstance(value, int)
                        else f"{value:.6f}"
                    )
                    print(f"{name.replace('_', ' '):<20} {shown}")
            scored.say_what_was_unseen(sys.stdout)
    return 0


class _Scored:
    """A model and the rows that it is to score, on all ranks.

    Attributes:
        counts: rows with unknown ids or fields, such ids, such fields, malformed rows; of all ranks when the
            rounds are over.
    """

    def __init__(self, world: World, comm: Any, model: str, rows: Sequence[str], data_flags: Sequence[str]):
        self.world, self.comm, self.rows = world, comm, rows
        self.counts = np.zeros(4, np.int64)
        with agreed(comm):
            given = options.resolve(list(data_flags), os.environ)
            self.threads = threads_of(MOST_THREADS)
            with checkpoint.open(model, verify=False) as source, ThreadPoolExecutor(self.threads) as pool:
                self.scorer = Scorer(source, pool.map)
                self.settings = source.meta.reader
            self.data = given.run.data
            self.given = {key for key in given.sources if key.startswith("data.")}
            self.stored = rowstore_path(rows)

    def rounds(self, finish: Callable[[Block, np.ndarray], T]) -> Iterator[tuple[int, T | None]]:
        """(number of this rank's unit, what `finish` makes of Block and logits); (LAST, None) without one.

        As many rounds on all ranks. `finish` may run in several threads at once.
        """
        once_per_node(self.world, self.scorer.warm)
        yield from self._stored_rounds(finish) if self.stored else self._text_rounds(finish)
        self.counts = allgather_sizes(self.comm, *self.counts.tolist()).reshape(-1, 4).sum(axis=0)

    def _text_rounds(self, finish: Callable[[Block, np.ndarray], T]) -> Iterator[tuple[int, T | None]]:
        text = Text(self.comm, self.rows)
        try:
            with agreed(self.comm):
                reader = reader_of(self.settings, self.data, self.given, self.scorer.options.loss)
                prepare(reader, text.source)
                self._check_fields(reader.has_fields)
            once_per_node(self.world, lambda: warm_reading(reader))
            look_up = Lookup(self.scorer.keys, self.scorer.fields)

            def work(unit: Unit, data: bytes) -> tuple[np.ndarray, T]:
                block, counts = reader.parse(data, text.source.where(unit)), np.zeros(4, np.int64)
                keys = block.ids
                block.ids, block.fields = look_up(block.indptr, keys, block.fields, counts)
                if self.scorer.seed is not None:
                    block.unseen = keys[block.ids < 0]
                counts[3] = block.skipped
                return counts, finish(block, self.scorer.logits(block))

            for number, result in worked_rounds(self.comm, text.source, work, self.threads):
                if result is not None:
                    self.counts += result[0]
                yield number, None if result is None else result[1]
        finally:
            text.close()

    def _stored_rounds(self, finish: Callable[[Block, np.ndarray], T]) -> Iterator[tuple[int, T | None]]:
        from .bound import BoundRows
        from .rowstore import RowStore, check_labels

        with agreed(self.comm):
            assert self.stored is not None
            store = RowStore.open(self.stored, self.data.memory, check=self.world.rank == 0)
            self._check_fields(store.meta.has_fields or not store.n_rows)
            if self.world.rank == 0:
                check_labels(store, self.scorer.options.loss)
        scorer = self.scorer
        bound = BoundRows(store, scorer.keys, scorer.fields, scorer.options.norm, scorer.seed)
        size, rank = size_of(self.comm), rank_of(self.comm)
        for first in range(0, max(store.n_rows, 1), STORE_ROWS * size):
            a = min(first + rank * STORE_ROWS, store.n_rows)
            b = min(a + STORE_ROWS, store.n_rows)
            if a < b:
                block = bound.slice(a, b)
                self._count_unseen(block)
                yield a, finish(block, self.scorer.logits(block))
            else:
                yield LAST, None

    def _check_fields(self, has_fields: bool) -> None:
        if self.scorer.model.uses_fields and not has_fields:
            name = self.scorer.options.name
            raise UserError(f"{', '.join(self.rows)}: model {name} needs fields, which this format has not")

    def _count_unseen(self, block: Block) -> None:
        """Count what a Block with the ids and fields of the model has unknown (Lookup does it for text)."""
        unseen = block.ids < 0
        self.counts[1] += int(unseen.sum())
        if block.fields is not None:
            self.counts[2] += int((block.fields < 0).sum())
            unseen = unseen | (block.fields < 0)
        at = np.searchsorted(block.indptr, np.flatnonzero(unseen), "right")
        self.counts[0] += len(np.unique(at))

    def unseen(self) -> dict[str, int]:
        names = ("rows_affected", "features", "fields", "rows_skipped")
        return dict(zip(names, self.counts.tolist(), strict=True))

    def say_what_was_unseen(self, stream: Any) -> None:
        """What a model does not know should not go unnoticed."""
        if self.world.rank:
            return
        rows, features, fields, skipped = self.counts.tolist()
        if rows:
            what, of_fields = f"lightctr_mpi: {features:,} values of features", f"{fields:,} of fields"
            count = " count with their starting weights," if self.scorer.seed is not None else ""
            stream.write(
                f"{what}{count} and {of_fields} that the model has not seen count as 0 ({rows:,} rows)\n"
            )
        if skipped:
            stream.write(f"lightctr_mpi: {skipped:,} malformed rows were skipped\n")
