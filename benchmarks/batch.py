"""A batch against row by row, on one core: python benchmarks/batch.py ROWS.h5 (made by `convert`)

Both learn all rows in the same random order, in turn (A B A B ...). The ratio is the time of a row in a batch
over that of a row learned by itself; rates count processor time, medians over repeats.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

from lightctr_mpi import defaults, models, optim
from lightctr_mpi.bound import BoundRows
from lightctr_mpi.config import ModelOptions, OptimizerOptions
from lightctr_mpi.rowstore import RowStore
from lightctr_mpi.shard import Shard
from lightctr_mpi.stores import SWEEP_ROWS, Replica, Sequential


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", help="row store with fields")
    parser.add_argument("--models", nargs="+", default=["lr", "fm", "ffm"])
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--repeat", type=int, default=5)
    args = parser.parse_args()
    rows = RowStore.open(args.rows)
    order = np.random.default_rng(0).permutation(rows.n_rows)
    print(f"{rows.n_rows:,} rows, {rows.n_keys:,} features, batches of {args.batch:,}")
    print("model   row by row   in batches   ratio")
    for name in args.models:
        fields = rows.fields if name == "ffm" else None
        options = defaults.model(ModelOptions(name=name))
        model = models.build(options, 0 if fields is None else len(fields), "logistic")
        optimizer = optim.build(defaults.optimizer(OptimizerOptions(), name))
        keys = np.array(rows.keys)
        data = BoundRows(rows, keys, fields, norm=True)
        stores = (
            Sequential(Shard(model, optimizer, keys, 1)),
            Replica(Shard(model, optimizer, keys, 1), args.batch),
        )
        rates: list[list[float]] = [[], []]
        for _ in range(1 + args.repeat):
            for store, step, found in zip(stores, (SWEEP_ROWS, args.batch), rates, strict=True):
                start = time.process_time()
                for a in range(0, len(order), step):
                    store.learn(data, order[a : a + step], False)
                found.append(len(order) / (time.process_time() - start))
        alone, batched = (statistics.median(found[1:]) for found in rates)  # the first one compiles
        print(f"{name:<5} {alone:>12,.0f} {batched:>12,.0f} {alone / batched:>7.2f}")


if __name__ == "__main__":
    main()
