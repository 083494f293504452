"""The store of a run, by its mode, with its kernels compiled."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np

from . import optim
from .compact import build_model, build_shard
from .config import Run
from .models.base import Model
from .mpi import World, once_per_node
from .optim.base import Optimizer
from .ps.store import ParameterServer
from .report import size_text
from .ring.node import NodeReplica
from .ring.store import Ring
from .shard import memory_of
from .stores import Place, Replica, Sequential
from .threads import threads_of
from .warm import warm_training


def make_store(
    run: Run,
    world: World,
    keys: np.ndarray,
    n_fields: int,
    note: Callable[[str], None],
    stop: Callable[[], bool],
    folder: Path,
) -> Place:
    """Called by all ranks.

    Args:
        keys: uint64[n] sorted keys of the model; n_fields: its fields, 0 without.
        note: told what a person should know.
        stop: whether this rank was asked to stop.
        folder: the run folder.
    """
    assert run.train.batch_size is not None
    model = build_model(run.model, run.optimizer, n_fields, run.model.loss)
    optimizer = optim.build(run.optimizer)
    note(_estimate(run, model, optimizer, len(keys), world.size))
    once_per_node(world, lambda: warm_training(model, optimizer, run, note))
    if run.mode == "ps":
        return ParameterServer(
            world.comm, world.host, world.status, model, optimizer, keys, run, note, stop, folder
        )
    if world.size > 1 and run.ring.replica == "node":
        threads = threads_of(run.train.threads)
        return NodeReplica(world.node, world.windows, model, optimizer, keys, run.seed, threads)
    if world.size > 1:
        return Ring(world.comm, model, optimizer, keys, run.seed, run.train.batch_size, run.ring)
    if run.train.sync == "none":
        threads = threads_of(run.train.threads)
        return Sequential(build_shard(model, optimizer, keys, run.seed, threads=threads), threads)
    return Replica(build_shard(model, optimizer, keys, run.seed), run.train.batch_size)


def _estimate(run: Run, model: Model, optimizer: Optimizer, n_keys: int, ranks: int) -> str:
    """How large the model becomes, before its memory is taken."""
    numbers = n_keys * sum(math.prod(tail) for _, _, tail in model.parts()) + model.bias
    if run.mode == "ps":
        size, where = memory_of(model, optimizer, -(-n_keys // (run.ps.servers or 1))), " on each server"
    elif run.ring.replica == "node":
        size, where = memory_of(model, optimizer, n_keys), ", one copy for all ranks" if ranks > 1 else ""
    else:
        size, where = memory_of(model, optimizer, n_keys, ranks), " on each rank" if ranks > 1 else ""
    return (
        f"model: {n_keys:,} features, {numbers:,} parameters, "
        f"{size_text(size)} with the optimizer's state{where}"
    )
