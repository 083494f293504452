"""A server's part of a checkpoint: its rows to a shard file, and its keys out of any model file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import checkpoint
from ..checkpoint import Layout, ModelMeta
from ..modelfile import CHUNK_BYTES, check_layout, layout_of, named

if TYPE_CHECKING:
    from .server import Server


def save_shard(server: Server, asked: dict[str, Any]) -> str:
    """Write this server's rows, keys ascending; returns the path. Raises UserError when it cannot.

    Args:
        asked: path of the Master file, token, meta, field_keys.
    """
    table, model, optimizer = server.table, server.model, server.optimizer
    number, count = server.roles.number, server.roles.n_servers
    path = checkpoint.shard_path(asked["path"], asked["token"], number, count)
    whole = layout_of(model, optimizer, len(table))
    layout = Layout(len(table), whole.n_fields, whole.tables, (), whole.slots)
    order = np.argsort(table.keys).astype(np.int32)
    fields = asked["field_keys"]
    checkpoint.write(
        path,
        ModelMeta(**asked["meta"]),
        layout,
        table.keys[order],
        None if fields is None else np.array(fields, np.int32),
        _chunks(server, order),
        {},
        shard=(asked["token"], number, count),
    )
    return path


def _chunks(server: Server, order: np.ndarray) -> Iterator[tuple[int, int, dict[str, np.ndarray]]]:
    table, model, optimizer = server.table, server.model, server.optimizer
    width, state = model.width, slice(table.state_col, table.state_col + optimizer.slots * model.width)
    step = max(1, CHUNK_BYTES // (4 * table.rows.shape[1]))
    for a in range(0, len(order), step):
        rows = table.rows[order[a : a + step]]
        yield a, a + len(rows), named(model, optimizer, rows[:, :width], rows[:, state])


def load_shard(server: Server, path: str, with_state: bool) -> None:
    """Take this server's keys out of a model file, sharded in whatever way; other keys stay as they are.

    Raises UserError when the file belongs to another kind of model or is damaged.
    """
    table, model, optimizer = server.table, server.model, server.optimizer
    with checkpoint.open(path, verify=False) as source:
        check_layout(model, optimizer, source, with_state)
        keys = source.keys
        mine = server.circle.owners(keys) == server.roles.number
        places = [("parameters", 0)]  # group of the file, first column of a row
        for i, slot in enumerate(optimizer.slot_names if with_state else ()):
            places.append((f"optimizer/{slot}", table.state_col + i * model.width))
        step = max(1, CHUNK_BYTES // (4 * table.rows.shape[1]))
        for a in range(0, len(keys), step):
            chosen = np.flatnonzero(mine[a : a + step])
            if not len(chosen):
                continue
            numbers = table.restore(keys[a : a + step][chosen])
            for group, first in places:
                for name, columns, _ in model.parts():
                    values = source.rows(f"{group}/{name}", a, min(a + step, len(keys)))[chosen]
                    where = slice(first + columns.start, first + columns.stop)
                    table.rows[numbers, where] = values.reshape(len(chosen), -1)
        _load_dense(server, source, with_state)


def _load_dense(server: Server, source: checkpoint.Checkpoint, with_state: bool) -> None:
    dense = server.dense
    if not len(dense.values):
        return
    dense.values[:] = source.read("parameters/bias")
    if with_state:
        for i, slot in enumerate(server.optimizer.slot_names):
            dense.state[i] = source.read(f"optimizer/{slot}/bias")
