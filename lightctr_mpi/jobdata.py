"""The rows a training works on: row stores given by the user, or made of text files with one reader."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection
from typing import Any

from .comm import agreed
from .config import Run
from .errors import UserError
from .input import Note, Text, choose_reader, open_rows, prepare, reader_of, rowstore_path
from .mpi import World, once_per_node
from .rowstore import RowStore, check_labels
from .runfolder import RunFolder
from .warm import warm_reading


class JobData:
    """Opens the inputs of a training. Every method is called by all ranks.

    Args:
        given: dotted keys of the options that the user gave.
        note: told what a person should know.

    Attributes:
        run: the options, those of reading brought into line with a row store that text is read beside.
        settings: how text becomes keys, for the model file.
    """

    def __init__(
        self, run: Run, given: Collection[str], world: World, comm: Any, folder: RunFolder, note: Note
    ):
        self.run, self.given, self.world, self.comm = run, set(given), world, comm
        self.folder, self.note = folder, note
        self.settings: dict[str, Any] = {}
        self._texts: list[Text] = []
        self._known_reader: Any = None

    def close(self) -> None:
        for text in self._texts:
            text.close()

    def rows(self, paths: tuple[str, ...], role: str) -> RowStore:
        """The rows of one role (train, valid, test); the training rows come first."""
        data, note = self.run.data, self.note
        with agreed(self.comm):
            stored = rowstore_path(paths)
            if stored is not None:
                rows = RowStore.open(stored, data.memory, check=self.world.rank == 0)
                if self.world.rank == 0:
                    check_labels(rows, self.run.model.loss)
        if stored is not None:
            if role == "train":
                self.settings = json.loads(rows.meta.reader)
            note(f"{role}: {stored}: {rows.n_rows:,} rows, {rows.n_keys:,} features (row store)")
            self._check(rows, role, stored)
            return rows
        text = Text(self.comm, paths, self.folder.path)
        self._texts.append(text)
        if self._known_reader is None:
            self._known_reader = self._reader(text)
            once_per_node(self.world, lambda: warm_reading(self._known_reader, self.note))
            self.settings = self.settings or self._known_reader.settings()
        rows = open_rows(self.comm, text, self._known_reader, data, self.folder.path, note)
        if rows.meta.skipped:
            note(f"{role}: {rows.meta.skipped:,} malformed rows were skipped (--data.on_bad_row skip)")
        note(f"{role}: {rows.n_rows:,} rows, {rows.n_keys:,} features, {rows.n_fields:,} fields")
        self._check(rows, role, ", ".join(paths))
        return rows

    def _reader(self, text: Text) -> Any:
        """The reader of the first text: as the row store to train on was read, if there is one."""
        data, loss = self.run.data, self.run.model.loss
        if not self.settings:
            return choose_reader(self.comm, text.source, data, loss, self.note)
        with agreed(self.comm):
            reader = reader_of(self.settings, data, self.given, loss)
            prepare(reader, text.source)
        noted = {key: getattr(reader.options, key) for key in self.settings if hasattr(data, key)}
        noted["on_bad_row"] = data.on_bad_row
        self.run = dataclasses.replace(self.run, data=dataclasses.replace(data, **noted))
        return reader

    def _check(self, rows: RowStore, role: str, name: str) -> None:
        """Raises UserError for rows that the training has no use for."""
        if not rows.n_rows:
            return
        if not rows.meta.has_labels:
            use = {"train": "train on", "valid": "validate on", "test": "test on"}[role]
            raise UserError(f"{name}: the rows have no labels to {use}")
        if self.run.model.name == "ffm" and not rows.meta.has_fields:
            raise UserError(
                f"{name}: model ffm needs fields, which this format has not; use libffm, csv or tsv "
                "with a --data.schema, or --model.name fm"
            )
