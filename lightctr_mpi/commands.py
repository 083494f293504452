"""The small commands: convert, inspect, warmup."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from . import options, rowstore
from .comm import agreed
from .errors import UserError
from .input import Text, choose_reader, spare_inputs
from .mpi import World, once_per_node
from .report import size_text
from .warm import warm_reading


def convert(
    world: World, rows: Sequence[str], out: str, data_flags: Sequence[str], loss: str = "logistic"
) -> int:
    """Text files to one row store for training with this loss, written by all ranks together."""
    comm = world.comm if world.size > 1 else None
    say = print if world.rank == 0 else _nothing
    with agreed(comm):
        data = options.resolve(list(data_flags), os.environ).run.data
        folder = Path(out).absolute().parent
        if not folder.is_dir():
            raise UserError(f"cannot write {out}: {folder} is not a folder")
        _spare(out, data.memory)
    text = Text(comm, rows, folder)
    try:
        reader = choose_reader(comm, text.source, data, loss, say)
        once_per_node(world, lambda: warm_reading(reader, say))
        meta = rowstore.convert(comm, text.source, reader, out)
    finally:
        text.close()
    skipped = f"; {meta.skipped:,} malformed rows skipped" if meta.skipped else ""
    say(
        f"{out}: {meta.n_rows:,} rows, {meta.nnz:,} values, {meta.n_keys:,} features, "
        f"{meta.n_fields:,} fields, {size_text(meta.nbytes())}{skipped}"
    )
    return 0


def _spare(out: str, memory: str) -> None:
    """Raises UserError when `out` exists and is no row store: with OUT forgotten, it is the last input."""
    if os.path.exists(out):
        try:
            rowstore.RowStore.open(out, memory).close()
        except UserError:
            raise UserError(f"cannot write {out}: it is there and not a row store") from None


def _nothing(*_: object) -> None:
    return None


def inspect(model: str, *, as_json: bool, export: str | None, merge: str | None = None) -> int:
    """Describe a model; also write its parameters as text (`export`) or all of it as one file (`merge`)."""
    from .checkpoint import describe as describing

    info = describing.describe(model)
    print(json.dumps(info) if as_json else describing.as_text(info))
    if export is not None:
        from .checkpoint.export import export_text

        spare_inputs(export, [model])
        export_text(model, export)
    if merge is not None:
        from . import checkpoint

        spare_inputs(merge, [model])
        checkpoint.merge(model, merge)
    return 0
