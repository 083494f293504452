"""Speed of reading text and memory of training, on planted data of a stated shape.

    python benchmarks/reading.py --rows 1000000 --fields 39 [--folder DIR] [--model fm]

Prints, for one core: MB/s of the libffm parser (CPU time and wall time, best of the passes), of the whole
conversion to a row store, and the peak resident memory of training processes in map and in stream mode beside
the size of what they hold: row store, model with optimizer state, and the rest, which is the program itself.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("NUMBA_NUM_THREADS", "1")


def parser_speed(path: Path, passes: int) -> tuple[float, float]:
    """(MB per CPU second, MB per wall second) of turning text into Blocks, best of the passes."""
    from lightctr_mpi import readers
    from lightctr_mpi.config import DataOptions
    from lightctr_mpi.readers.source import Source

    reader = readers.build("libffm", DataOptions(format="libffm"))
    readers.warm(reader)
    source, best_cpu, best_wall = Source([str(path)]), 0.0, 0.0
    for _ in range(passes):
        nbytes, cpu, wall = 0, 0.0, 0.0
        for _, unit, data in source.iterate():
            cpu_start, wall_start = time.process_time(), time.perf_counter()
            reader.parse(data, source.where(unit))
            cpu += time.process_time() - cpu_start
            wall += time.perf_counter() - wall_start
            nbytes += len(data)
        best_cpu, best_wall = max(best_cpu, nbytes / cpu / 1e6), max(best_wall, nbytes / wall / 1e6)
    return best_cpu, best_wall


def command(*arguments: object) -> tuple[float, float, float]:
    """(CPU seconds, wall seconds, peak resident MB) of `python -m lightctr_mpi ARGUMENTS`."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    words = [sys.executable, "-m", "lightctr_mpi", *map(str, arguments)]
    # The parent of the measured process is a fresh one: the maximum over all children would hide it.
    probe = (
        "import resource, subprocess, sys; code = subprocess.call(sys.argv[1:], stdout=subprocess.DEVNULL); "
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", probe, *words], check=True, capture_output=True, text=True)
    wall = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu, wall, int(done.stdout.split()[-1]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--fields", type=int, default=39)
    parser.add_argument("--keys", type=int, default=0, help="distinct keys to plan for (0: synth's default)")
    parser.add_argument("--model", default="fm", choices=("lr", "fm", "ffm"))
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--folder", help="where the data goes and stays (default: a temporary folder)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        measure(args, Path(args.folder or temporary))


def measure(args: argparse.Namespace, folder: Path) -> None:
    text, rows = folder / "rows.ffm", folder / "rows.h5"
    if not text.exists():
        keys = ("--keys", args.keys) if args.keys else ()
        command("synth", "--rows", args.rows, "--fields", args.fields, "--seed", 3, *keys, "--out", text)
    megabytes = text.stat().st_size / 1e6
    print(f"{args.rows:,} rows, {args.fields} fields, {megabytes:,.1f} MB of libffm text")
    cpu, wall = parser_speed(text, args.passes)
    print(f"parser: {cpu:,.0f} MB per CPU second, {wall:,.0f} MB/s of wall time, one core")
    command("warmup", "--model", args.model)
    cpu, wall, _ = command("convert", text, rows)
    print(f"convert, whole process: {megabytes / cpu:,.0f} MB per CPU second, {megabytes / wall:,.0f} MB/s")
    store = rows.stat().st_size / 1e6
    for memory in ("map", "stream"):
        out = folder / f"run-{memory}"
        flags = ("--model.name", args.model, "--train.epochs", 1, "--out", out, "--data.memory", memory)
        cpu, wall, peak = command("train", "--data.train", rows, *flags)
        report(memory, store, out, cpu, wall, peak)


def report(memory: str, store: float, out: Path, cpu: float, wall: float, peak: float) -> None:
    # The model file has weights and state; in memory they are padded to whole cache lines.
    model = (out / "model.h5").stat().st_size / 1e6
    rate = json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])["rows_per_second"]
    rest = peak * 1.048576 - model - (store if memory == "map" else 0.0)
    print(
        f"train, {memory}: {rate:,.0f} rows/s, {wall:.1f} s ({cpu:.1f} s CPU), peak {peak * 1.048576:,.0f} MB"
        f" (row store {store:,.0f} MB, model file {model:,.0f} MB, everything but model"
        f"{' and row store' if memory == 'map' else ''} {rest:,.0f} MB)"
    )


if __name__ == "__main__":
    main()
