"""Scoring rows with a model file: `predict` and `evaluate`, on any number of ranks, in bounded memory."""

from __future__ import annotations

import contextlib
import dataclasses
import heapq
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from . import checkpoint, models, options
from .block import Block
from .bound import BoundRows
from .checkpoint import Checkpoint
from .comm import agree, agreed, allgather_sizes, gather_arrays, rank_of, size_of
from .config import ModelOptions
from .errors import Diverged, UserError, is_special
from .input import LAST, Text, parsed_rounds, prepare, reader_of, rowstore_path, spare_inputs
from .kernels import losses, sparse
from .kernels.format import format_probabilities
from .kernels.memory import alloc_rows
from .metrics import Tally
from .mpi import World, once_per_node
from .rowstore import Remap, RowStore, check_labels
from .warm import warm_reading, warm_scoring

STORE_ROWS = 65536  # rows of a row store that are scored together


class Scorer:
    """The weights of a model file, ready to score.

    Attributes:
        model: the model; keys uint64[n], fields int32[F] or None: what it knows, ascending.
        rows: float32[n, width], row i for keys[i]; bias: float32[1].
    """

    def __init__(self, source: Checkpoint):
        meta = source.meta
        names = {f.name for f in dataclasses.fields(ModelOptions)}
        self.options = ModelOptions(**{k: v for k, v in meta.model.items() if k in names})
        order = source.order
        self.keys = source.keys if order is None else source.keys[order]
        self.fields = source.field_keys
        n_fields = 0 if self.fields is None else len(self.fields)
        self.model = models.build(self.options, n_fields, self.options.loss)
        self.rows = alloc_rows(len(self.keys), self.model.width)
        self.bias = np.zeros(1, np.float32)
        place = np.empty(0, np.int64) if order is None else np.empty_like(order)
        if order is not None:
            place[order] = np.arange(len(order))
        for name, columns, _ in self.model.parts():
            for a, b, values in source.pieces(f"parameters/{name}"):
                rows = slice(a, b) if order is None else place[a:b]
                self.rows[rows, columns] = values.reshape(b - a, -1)
        if self.model.bias:
            self.bias[:] = source.read("parameters/bias")

    def logits(self, block: Block) -> np.ndarray:
        """float32[n] of a Block with compact ids (-1: unseen)."""
        block.norms = np.empty(block.n_rows, np.float32)
        values = np.empty(0, np.float32) if block.values is None else block.values
        sparse.row_norms(block.indptr, values, block.norms, self.options.norm)
        if self.fields is None:
            block.fields = None
        logit = np.empty(block.n_rows, np.float32)
        self.model.forward(block, self.rows, block.ids, self.bias, logit)
        return logit

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
    with _Output(comm, out) as output:
        scored = _Scored(world, comm, model, rows, data_flags)
        for number, block, logit in scored:
            text, problem = b"", None
            if not np.isfinite(logit).all():
                problem = Diverged(f"{model} gives a prediction that is not a finite number")
            elif block is not None:
                text = format_probabilities(logit if raw else scored.scorer.probabilities(logit))
            output.add(number, text, problem)
    scored.say_what_was_unseen(sys.stderr)
    return 0


def evaluate(
    world: World, model: str, rows: Sequence[str], data_flags: Sequence[str], *, as_json: bool
) -> int:
    """Print the metrics of a model on labelled rows."""
    comm = world.comm if world.size > 1 else None
    scored = _Scored(world, comm, model, rows, data_flags)
    tally: Tally | None = None
    for _, block, logit in scored:
        tally = tally or Tally(scored.scorer.options.loss)
        if block is not None:
            tally.add(logit, block.labels, block.weights, block.groups)
    tally = tally or Tally(scored.scorer.options.loss)
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
    """Iterates over (unit number, Block or None, logits) of this rank, in as many rounds on all ranks."""

    def __init__(self, world: World, comm: Any, model: str, rows: Sequence[str], data_flags: Sequence[str]):
        self.world, self.comm, self.rows = world, comm, rows
        self.counts = np.zeros(4, np.int64)
        with agreed(comm):
            given = options.resolve(list(data_flags), os.environ)
            with checkpoint.open(model, verify=False) as source:
                self.scorer = Scorer(source)
                self.settings = source.meta.reader
            self.data = given.run.data
            self.given = {key for key in given.sources if key.startswith("data.")}
            self.stored = rowstore_path(rows)

    def __iter__(self) -> Iterator[tuple[int, Block | None, np.ndarray]]:
        once_per_node(self.world, lambda: warm_scoring(self.scorer))
        rounds = self._stored_rounds() if self.stored else self._text_rounds()
        nothing = np.zeros(0, np.float32)
        for number, block in rounds:
            yield number, block, nothing if block is None else self.scorer.logits(block)
        self.counts = allgather_sizes(self.comm, *self.counts.tolist()).reshape(-1, 4).sum(axis=0)

    def _text_rounds(self) -> Iterator[tuple[int, Block | None]]:
        text = Text(self.comm, self.rows)
        try:
            with agreed(self.comm):
                reader = reader_of(self.settings, self.data, self.given, self.scorer.options.loss)
                prepare(reader, text.source)
                self._check_fields(reader.has_fields)
            once_per_node(self.world, lambda: warm_reading(reader))
            remap = Remap(self.scorer.keys, self.scorer.fields)
            for number, block in parsed_rounds(self.comm, text.source, reader):
                if block is not None:
                    self.counts[3] += block.skipped
                yield number, None if block is None else remap(block)
            self.counts[:3] += (remap.rows_affected, remap.features, remap.unseen_fields)
        finally:
            text.close()

    def _stored_rounds(self) -> Iterator[tuple[int, Block | None]]:
        with agreed(self.comm):
            assert self.stored is not None
            store = RowStore.open(self.stored, self.data.memory, check=self.world.rank == 0)
            self._check_fields(store.meta.has_fields or not store.n_rows)
            if self.world.rank == 0:
                check_labels(store, self.scorer.options.loss)
        bound = BoundRows(store, self.scorer.keys, self.scorer.fields, self.scorer.options.norm)
        size, rank = size_of(self.comm), rank_of(self.comm)
        for first in range(0, max(store.n_rows, 1), STORE_ROWS * size):
            a = min(first + rank * STORE_ROWS, store.n_rows)
            b = min(a + STORE_ROWS, store.n_rows)
            block = bound.slice(a, b) if a < b else None
            if block is not None:
                self._count_unseen(block)
            yield LAST if block is None else a, block

    def _check_fields(self, has_fields: bool) -> None:
        if self.scorer.model.uses_fields and not has_fields:
            name = self.scorer.options.name
            raise UserError(f"{', '.join(self.rows)}: model {name} needs fields, which this format has not")

    def _count_unseen(self, block: Block) -> None:
        """Count what a Block with the ids and fields of the model has unknown (Remap does it for text)."""
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
        """Unknown features contribute nothing, which is right but should not go unnoticed."""
        if self.world.rank:
            return
        rows, features, fields, skipped = self.counts.tolist()
        if rows:
            stream.write(
                f"lightctr_mpi: {features:,} values of features and {fields:,} of fields that the model has "
                f"not seen count as 0 ({rows:,} rows)\n"
            )
        if skipped:
            stream.write(f"lightctr_mpi: {skipped:,} malformed rows were skipped\n")


class _Output:
    """Lines of all ranks in the order of their units, written by rank 0; a file appears when it is whole."""

    def __init__(self, comm: Any, path: str):
        self.comm, self.path = comm, path
        self._waiting: list[tuple[int, bytes]] = []
        self._stream: BinaryIO | None = None
        self._partial = ""

    def __enter__(self) -> _Output:
        with agreed(self.comm):
            if rank_of(self.comm) == 0:
                self._open()
        return self

    def _open(self) -> None:
        if self.path == "-":
            self._stream = sys.stdout.buffer
            return
        folder = os.path.dirname(os.path.abspath(self.path))
        try:
            if os.path.isdir(self.path):
                raise UserError(f"cannot write {self.path}: it is a folder")
            if is_special(self.path):
                self._stream = open(self.path, "wb")  # noqa: SIM115 - closed on leaving
                return
            handle, self._partial = tempfile.mkstemp(prefix=".predictions-", dir=folder)
            os.fchmod(handle, 0o666 & ~_umask())
            self._stream = os.fdopen(handle, "wb")
        except OSError as error:
            raise UserError(f"cannot write {self.path}: {error.strerror}") from None

    def add(self, number: int, text: bytes, problem: UserError | None = None) -> None:
        """Called by all ranks in each round: `text` belongs to unit `number` of this rank, or it failed."""
        done = allgather_sizes(self.comm, number)
        parts = gather_arrays(self.comm, np.frombuffer(text, np.uint8))
        if parts is not None:
            for unit, part in zip(done.tolist(), parts, strict=True):
                if len(part):
                    heapq.heappush(self._waiting, (unit, part.tobytes()))
            problem = problem or self._write_up_to(int(done.min()))
        agree(self.comm, problem)

    def _write_up_to(self, number: int) -> UserError | None:
        """Write what waits up to a unit: no rank has an earlier one left."""
        assert self._stream is not None
        try:
            while self._waiting and self._waiting[0][0] <= number:
                self._stream.write(heapq.heappop(self._waiting)[1])
        except OSError as error:
            return UserError(f"cannot write {self.path}: {error.strerror}")
        return None

    def __exit__(self, kind: Any, *_: Any) -> None:
        problem = None
        if self._stream is not None:
            try:
                self._write_up_to(LAST)
                self._stream.flush()
                if self._partial:
                    os.fsync(self._stream.fileno())
                if self._partial and kind is None:
                    os.replace(self._partial, self.path)
            except OSError as error:
                problem = UserError(f"cannot write {self.path}: {error.strerror}")
            with contextlib.suppress(OSError):  # with a full disk there is still something in its buffer
                if self.path != "-":
                    self._stream.close()
            with contextlib.suppress(OSError):
                if self._partial:
                    Path(self._partial).unlink(missing_ok=True)
        if kind is None:
            agree(self.comm, problem)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
