"""One copy of the model for the ranks of a node: python benchmarks/node.py TRAIN.h5 TEST.h5

The files are made by `convert`. Learns row by row on one rank, on several that share the model (ring.replica
= node) and with as many threads of one rank, in turn (A B A B ...). Prints medians over repeats: rows per
second of the best epoch and their ratio to one rank; the same by processor time, of the rank that used most
of it, as if every rank had a core to itself; and the memory of all ranks after training, shared pages counted
once (Pss).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from lightctr_mpi import defaults, models, mpi, optim
from lightctr_mpi.bound import BoundRows
from lightctr_mpi.compact import build_shard
from lightctr_mpi.config import ModelOptions, OptimizerOptions
from lightctr_mpi.ring.node import NodeReplica
from lightctr_mpi.rowstore import RowStore
from lightctr_mpi.stores import Local, Sequential


def share() -> float:
    """MB of this process, of memory that others have mapped too its share."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def measure(args: argparse.Namespace) -> None:
    """On all ranks: train and print one JSON object."""
    world = mpi.world()
    train, test = RowStore.open(args.train), RowStore.open(args.test)
    keys, fields = train.keys, train.fields if args.model == "ffm" else None
    model = models.build(
        defaults.model(ModelOptions(name=args.model)), 0 if fields is None else len(fields), "logistic"
    )
    optimizer = optim.build(defaults.optimizer(OptimizerOptions(), args.model))
    store: Local = Sequential(build_shard(model, optimizer, keys, 1, threads=args.threads), args.threads)
    if world.size > 1:
        store = NodeReplica(world.node, world.windows, model, optimizer, keys, 1, args.threads)
    data, unseen = (BoundRows(rows, keys, fields, norm=True) for rows in (train, test))
    walls, busy = [], []
    for epoch in range(args.epochs):
        order = np.random.default_rng(epoch).permutation(train.n_rows)
        world.comm.Barrier()
        wall, processor = time.perf_counter(), time.process_time()
        for a in range(0, len(order), store.step_rows):
            store.learn(data, order[a : a + store.step_rows], False)
        store.finish()
        walls.append(time.perf_counter() - wall)
        busy.append(max(world.comm.allgather((time.process_time() - processor) / args.threads)))
    loss = store.evaluate(unseen, "logistic")["logloss"]
    memory = sum(world.comm.allgather(share()))
    if world.rank == 0:
        rates = [train.n_rows / min(seconds[1:]) for seconds in (walls, busy)]  # the first one may compile
        print(json.dumps([*rates, memory, loss]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("train")
    parser.add_argument("test")
    parser.add_argument("--models", nargs="+", default=["ffm", "fm", "lr"])
    parser.add_argument("--ranks", nargs="+", type=int, default=[2])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)  # given to the ranks
    args = parser.parse_args()
    if args.model:
        measure(args)
    else:
        compare(args)


def compare(args: argparse.Namespace) -> None:
    """Start the runs and print the table."""
    ways = [("1 rank", 1, 1)]
    for n in args.ranks:
        ways += [(f"{n} ranks", n, 1), (f"{n} threads", 1, n)]
    mpirun = Path(sys.executable).parent / "mpirun"
    print("model  on             rows/s   ratio   of processor time   ratio      MB   test logloss")
    for name in args.models:
        found: dict[str, list] = {way: [] for way, _, _ in ways}
        for _ in range(args.repeat):
            for way, ranks, threads in ways:
                command = [mpirun, "-n", ranks, sys.executable, __file__, args.train, args.test]
                command += ["--epochs", args.epochs, "--model", name, "--threads", threads]
                done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, check=True)
                found[way].append(json.loads(done.stdout.splitlines()[-1]))
        alone, alone_busy = (statistics.median(rates[i] for rates in found["1 rank"]) for i in (0, 1))
        for way, runs in found.items():
            wall, busy, memory, loss = map(statistics.median, zip(*runs, strict=True))
            rates = f"{wall:>9,.0f} {wall / alone:>7.2f} {busy:>19,.0f} {busy / alone_busy:>7.2f}"
            print(f"{name:<6} {way:<11} {rates} {memory:>7,.0f} {loss:>14.4f}", flush=True)


if __name__ == "__main__":
    main()
