"""How near kernels come to what memory allows: python benchmarks/roofline.py ROWS.h5 (made by `convert`)

For each model the sweep of one thread over all rows, and, in turn with it, a kernel that does nothing but
read and write back the same table rows in the same order, asking for them as far ahead. The second is the
limit that memory (or the cache, where the table fits into one) sets for these accesses on this machine;
`share` is the sweep's rate over it. Rates count processor time, medians over repeats. GB/s: bytes of weights
and optimizer state read, as much again is written. FFM has no common move and no linear part, as in libffm.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

from lightctr_mpi import defaults, optim
from lightctr_mpi.bound import BoundRows
from lightctr_mpi.compact import build_model, build_shard
from lightctr_mpi.config import ModelOptions, OptimizerOptions
from lightctr_mpi.kernels import simd
from lightctr_mpi.kernels.ahead import fetch_entries
from lightctr_mpi.kernels.jit import jit
from lightctr_mpi.rowstore import RowStore
from lightctr_mpi.stores import SWEEP_ROWS, Sequential


@jit
def touch(indptr, ids, order, table, columns):
    """Add 1 to `columns` floats of each table row that each row of data names."""
    one, narrow = simd.splat8(np.float32(1)), columns < 8
    for p in range(len(order)):
        if p + 4 < len(order):
            later = order[p + 4]
            fetch_entries(table, ids, indptr[later], indptr[later + 1], columns)
        for e in range(indptr[order[p]], indptr[order[p] + 1]):
            if narrow:
                table[ids[e], 0] += np.float32(1)
                continue
            at = np.int64(ids[e]) * table.shape[1]
            for c in range(0, columns, 8):
                simd.store8(table, at + c, simd.add(one, simd.load8(table, at + c)))


def cases(names: list[str], factors: dict[str, list[int]]):
    """(label, ModelOptions, OptimizerOptions) of what is measured."""
    for name in names:
        for k in factors.get(name, [0]):
            label = f"{name} k={k}" if k else name
            # libffm's FFM: no common move, no linear part
            extra = {"share": 0.0, "linear": False} if name == "ffm" else {}
            options = ModelOptions(name=name, k=k or None, **extra)
            yield label, options, OptimizerOptions()
            if name == "ffm":
                halves = ModelOptions(name=name, k=k, storage="float16", **extra)
                yield f"{label} compact", halves, OptimizerOptions(sums="block")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", help="row store with fields")
    parser.add_argument("--models", nargs="+", default=["lr", "fm", "ffm"])
    parser.add_argument("--fm", nargs="+", type=int, default=[8, 16, 32, 64], metavar="K")
    parser.add_argument("--ffm", nargs="+", type=int, default=[2, 4, 8, 16], metavar="K")
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    rows = RowStore.open(args.rows)
    order = np.random.default_rng(0).permutation(rows.n_rows)
    print(f"{rows.n_rows:,} rows, {rows.n_keys:,} features, {rows.nnz / rows.n_rows:.0f} values a row")
    print("model             bytes a row   rows/s   memory allows   share   GB/s")
    for label, model_options, optimizer_options in cases(args.models, {"fm": args.fm, "ffm": args.ffm}):
        fields = rows.fields if model_options.name == "ffm" else None
        n_fields = 0 if fields is None else len(fields)
        model = build_model(defaults.model(model_options), optimizer_options, n_fields, "logistic")
        optimizer = optim.build(defaults.optimizer(optimizer_options, model_options.name))
        keys = np.array(rows.keys)
        data = BoundRows(rows, keys, fields, norm=True)
        store = Sequential(build_shard(model, optimizer, keys, 1))
        shadow = np.zeros_like(store.shard.rows)
        columns = model.row_columns(optimizer.slots)
        rates: list[list[float]] = [[], []]
        for _ in range(1 + args.repeat):
            start = time.process_time()
            for a in range(0, len(order), SWEEP_ROWS):
                store.learn(data, order[a : a + SWEEP_ROWS], False)
            rates[0].append(len(order) / (time.process_time() - start))
            spent = 0.0
            for a in range(0, len(order), SWEEP_ROWS):
                block, part = data.window(order[a : a + SWEEP_ROWS])
                start = time.process_time()
                touch(block.indptr, block.ids, part.astype(np.int64), shadow, columns)
                spent += time.process_time() - start
            rates[1].append(len(order) / spent)
        learned, allowed = (statistics.median(found[1:]) for found in rates)  # the first one compiles
        size = 4 * columns * rows.nnz / rows.n_rows
        print(
            f"{label:<17} {size:>11,.0f} {learned:>8,.0f} {allowed:>15,.0f} {learned / allowed:>7.0%} "
            f"{size * learned / 1e9:>6.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
