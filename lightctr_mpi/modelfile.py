"""Between a store and a model file: which columns of a row are which arrays, and who sends them where."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from . import checkpoint
from .bound import positions
from .checkpoint import Checkpoint, Layout, ModelMeta
from .comm import agree, rank_of, recv_array, send_array
from .errors import UserError
from .models.base import Model
from .optim.base import Optimizer
from .shard import Shard

if TYPE_CHECKING:
    from .stores import Local

CHUNK_BYTES = 8 << 20


def layout_of(model: Model, optimizer: Optimizer, n_keys: int) -> Layout:
    tables = tuple((name, tail) for name, _, tail in model.parts())
    dense: tuple = (("bias", (1,)),) if model.bias else ()
    n_fields = model.n_fields if model.uses_fields else None
    return Layout(n_keys, n_fields, tables, dense, tuple(optimizer.slot_names))


def save(store: Local, path: str, meta: ModelMeta, field_keys: np.ndarray | None) -> None:
    """Write the model and the optimizer's state; all ranks call it, rank 0 writes.

    Raises UserError on every rank when the file cannot be written.
    """
    shard, problem = store.shard, None
    layout = layout_of(shard.model, shard.optimizer, len(shard.keys))
    if rank_of(store.comm) == 0:
        try:
            checkpoint.write(
                path, meta, layout, shard.keys, field_keys, _chunks(store), _dense(shard, layout)
            )
        except UserError as error:
            problem = error
    else:
        for a, b in _pieces(shard, shard.first, shard.end):
            send_array(store.comm, np.ascontiguousarray(_owned_state(shard, a, b)), 0)
    agree(store.comm, problem)


def _pieces(shard: Shard, first: int, end: int) -> Iterator[tuple[int, int]]:
    step = max(1, CHUNK_BYTES // (4 * shard.model.width * (1 + shard.optimizer.slots)))
    for a in range(first, end, step):
        yield a, min(a + step, end)


def _owned_state(shard: Shard, a: int, b: int) -> np.ndarray:
    return shard.rows_of_state(a - shard.first, b - shard.first)


def _chunks(store: Local) -> Iterator[tuple[int, int, dict[str, np.ndarray]]]:
    """All rows in order, at the writer; the state comes from the rank that owns it."""
    shard = store.shard
    for owner in range(len(store.bounds) - 1):
        for a, b in _pieces(shard, int(store.bounds[owner]), int(store.bounds[owner + 1])):
            mine = owner == rank_of(store.comm)
            state = _owned_state(shard, a, b) if mine else recv_array(store.comm, owner)
            yield a, b, named(shard.model, shard.optimizer, shard.weights(a, b), state)


def named(
    model: Model, optimizer: Optimizer, weights: np.ndarray, state: np.ndarray
) -> dict[str, np.ndarray]:
    """Arrays of a model file cut out of rows: weights float32[n, width], state float32[n, slots * width]."""
    arrays = {}
    for name, columns, tail in model.parts():
        arrays[f"parameters/{name}"] = weights[:, columns].reshape(-1, *tail)
        for i, slot in enumerate(optimizer.slot_names):
            of_slot = state[:, i * model.width : (i + 1) * model.width]
            arrays[f"optimizer/{slot}/{name}"] = of_slot[:, columns].reshape(-1, *tail)
    return arrays


def _dense(shard: Shard, layout: Layout) -> dict[str, np.ndarray]:
    if not shard.model.bias:
        return {}
    slots = {f"optimizer/{slot}/bias": shard.bias[1 + i : 2 + i] for i, slot in enumerate(layout.slots)}
    return {"parameters/bias": shard.bias[:1], **slots}


def load(shard: Shard, source: Checkpoint, *, with_state: bool = True) -> None:
    """Fill a shard from a model file; keys that the file lacks keep their initial values.

    Args:
        shard: must know every key of the file.
        with_state: also the optimizer's state of the owned rows.

    Raises:
        UserError: the file belongs to another kind of model, or lacks the optimizer's state.
    """
    check_layout(shard.model, shard.optimizer, source, with_state)
    at = positions(source.keys, shard.keys)
    if len(at) and at.min() < 0:
        raise ValueError("the shard does not know all keys of the file")
    for a, b in _pieces(shard, 0, source.n_keys):
        rows = at[a:b]
        owns = ((rows >= shard.first) & (rows < shard.end)).any()
        for name, columns, _ in shard.model.parts():
            values = source.rows(f"parameters/{name}", a, b).reshape(b - a, -1)
            shard.put(rows, columns, values)
            if not with_state or not owns:
                continue
            for i, slot in enumerate(shard.optimizer.slot_names):
                values = source.rows(f"optimizer/{slot}/{name}", a, b).reshape(b - a, -1)
                shard.put(rows, columns, values, i)
    if shard.model.bias:
        shard.bias[0] = source.read("parameters/bias")[0]
        if with_state:
            for i, slot in enumerate(shard.optimizer.slot_names):
                shard.bias[1 + i] = source.read(f"optimizer/{slot}/bias")[0]


def check_layout(model: Model, optimizer: Optimizer, source: Checkpoint, with_state: bool) -> None:
    """Raises UserError when the file belongs to another kind of model, or lacks the optimizer's state."""
    layout = layout_of(model, optimizer, source.n_keys)
    if not with_state:
        layout = Layout(layout.n_keys, layout.n_fields, layout.tables, layout.dense, source.layout.slots)
    if source.layout != layout:
        raise UserError(f"{source.path} holds another model: {_difference(source.layout, layout)}")


def _difference(found: Any, expected: Any) -> str:
    for name in ("tables", "dense", "slots", "n_fields"):
        a, b = getattr(found, name), getattr(expected, name)
        if a != b:
            return f"its {name} are {a}, this run needs {b}"
    return "its sizes differ"
