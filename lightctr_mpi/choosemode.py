"""Mode auto on several ranks: ring or parameter server, from model size, density and ranks, with a reason."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from . import models, optim
from .comm import allreduce
from .config import Run
from .mpi import World
from .report import size_text
from .rowstore import RowStore
from .shard import memory_of

FITS = 0.6  # share of a rank's part of the free memory that its replica may take
# A ring sends every row of a step to every rank, a parameter server to the workers that need it. Below this
# share of touched keys, and above this size of a step's rows, that made the difference (docs/ps.md).
SPARSE = 0.1
STEP_BYTES = 1 << 18


def choose_mode(run: Run, world: World, train: RowStore, n_keys: int, n_fields: int) -> tuple[str, str]:
    """(mode, why), the same on every rank; called by all of them."""
    model = models.build(run.model, n_fields, run.model.loss)
    replica = memory_of(model, optim.build(run.optimizer), n_keys, world.size)
    free = _free_memory() // world.local_size
    batch = min(run.train.batch_size or 1, train.n_rows)
    touched = len(np.unique(train.slice(0, batch).ids))
    mine = np.array([free, -touched], np.int64)
    free, touched = (abs(int(value)) for value in allreduce(world.comm, mine, np.minimum))
    fits = f"{size_text(replica)} of model on each rank, {size_text(free)} of memory for it"
    size = 4 * touched * model.width
    step = f"a step touches {touched / max(n_keys, 1):.0%} of the keys, {size_text(size)}"
    servers = run.ps.servers or 1
    if world.size < servers + 2 or run.train.sync == "none":
        return "ring", f"{world.size} ranks are too few for a Master, servers ({servers}) and workers"
    if replica > FITS * free:
        return "ps", f"{fits}: too much"
    sparse = touched < SPARSE * n_keys and size > STEP_BYTES
    if sparse and world.size - 1 - servers >= 2:
        return "ps", f"{step}: too much to send to all ranks"
    return "ring", f"{fits}; {step}"


def _free_memory() -> int:
    """Bytes that this host has free for programs; a limit of the batch system is heeded."""
    free = 1 << 62
    for path, name in (("/proc/meminfo", "MemAvailable:"), ("/sys/fs/cgroup/memory.max", "")):
        try:
            lines = Path(path).read_text().splitlines()
            words = next(line for line in lines if line.startswith(name)).split()
        except (OSError, StopIteration):
            continue
        if words[-1] == "kB":
            free = min(free, int(words[-2]) * 1024)
        elif words[0].isdecimal():
            free = min(free, int(words[0]))
    return free
