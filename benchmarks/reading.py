"""Speed of reading text and memory of training, on planted data of a stated shape or on a file that is there.

    python benchmarks/reading.py --rows 1000000 --fields 39 [--folder DIR] [--model fm]
    python benchmarks/reading.py --text rows.ffm rows.svm

Prints, for libffm and for libsvm text, MB per CPU second of one core: of the parse kernel alone, of the
reader (text to Blocks), of the conversion to a row store within a process, and of the whole `convert`
command, with and without the CPU time of converting two rows, which is that of starting the program; each the
best of the passes. Without --text also the peak resident memory of training processes in map and in stream
mode beside the size of what they hold: row store, model with optimizer state, and the rest, which is the
program itself.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("NUMBA_NUM_THREADS", "1")


def cpu_of(work: Callable[[], object], passes: int) -> float:
    """CPU seconds of this process, best of the passes."""
    best = float("inf")
    for _ in range(passes):
        started = time.process_time()
        work()
        best = min(best, time.process_time() - started)
    return best


def reading_speed(text: Path, scratch: Path, passes: int) -> None:
    """Print the speeds of all stages for one file, whose name ends in .ffm or .svm."""
    from lightctr_mpi import readers
    from lightctr_mpi.config import DataOptions
    from lightctr_mpi.kernels.parse import parse_sparse
    from lightctr_mpi.readers.source import Source
    from lightctr_mpi.readers.textrows import as_lines, run
    from lightctr_mpi.rowstore import convert
    from lightctr_mpi.warm import warm_reading

    name = "libffm" if text.suffix == ".ffm" else "libsvm"
    reader: Any = readers.build(name, DataOptions(format=name))
    warm_reading(reader)
    source, start = Source([str(text)]), scratch / f"start{text.suffix}"
    start.write_bytes(reader.sample)

    def units(work: Callable[[Any, bytes], object]) -> float:
        """CPU seconds of the work on all units, without their reading; best of the passes."""
        best = float("inf")
        for _ in range(passes):
            spent = 0.0
            for _, unit, data in source.iterate():
                started = time.process_time()
                work(unit, data)
                spent += time.process_time() - started
            best = min(best, spent)
        return best

    def kernel(unit: Any, data: bytes) -> None:
        run(parse_sparse, as_lines(data), reader.has_fields, False, reader.labels.arrays, *room)

    room = reader._arrays(max((data for _, _, data in source.iterate()), key=len))
    rows, megabytes = scratch / "speed.h5", text.stat().st_size / 1e6
    seconds = {
        "parse kernel": units(kernel),
        "reader": units(lambda unit, data: reader.parse(data, source.where(unit))),
        "convert, in process": cpu_of(lambda: convert(None, source, reader, rows), passes),
        "convert, whole process": min(command("convert", text, rows)[0] for _ in range(passes)),
    }
    startup = min(command("convert", start, rows)[0] for _ in range(passes))
    seconds["convert, whole process without start"] = seconds["convert, whole process"] - startup
    print(f"{text.name}: {megabytes:,.1f} MB of {name} text; start of the program {startup:.2f} s CPU")
    for stage, spent in seconds.items():
        print(f"  {stage}: {megabytes / spent:,.0f} MB per CPU second ({spent:.2f} s)")


def command(*arguments: object) -> tuple[float, float, float]:
    """(CPU seconds, wall seconds, peak resident MB) of `python -m lightctr_mpi ARGUMENTS`."""
    started = time.perf_counter()
    words = [sys.executable, "-m", "lightctr_mpi", *map(str, arguments)]
    # The parent of the measured process is a fresh one: the maximum over all children would hide it.
    probe = (
        "import resource, subprocess, sys; code = subprocess.call(sys.argv[1:], stdout=subprocess.DEVNULL); "
        "used = resource.getrusage(resource.RUSAGE_CHILDREN); "
        "print(used.ru_maxrss, used.ru_utime + used.ru_stime); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", probe, *words], check=True, capture_output=True, text=True)
    wall = time.perf_counter() - started
    peak, cpu = done.stdout.split()
    return float(cpu), wall, int(peak) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--fields", type=int, default=39)
    parser.add_argument("--keys", type=int, default=0, help="distinct keys to plan for (0: synth's default)")
    parser.add_argument("--model", default="fm", choices=("lr", "fm", "ffm"))
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--folder", help="where the data goes and stays (default: a temporary folder)")
    parser.add_argument(
        "--text", nargs="+", type=Path, help="measure these .ffm and .svm files, reading only"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(args.folder or temporary)
        if not args.text:
            measure(args, folder)
        for text in args.text or ():
            reading_speed(text, folder, args.passes)


def measure(args: argparse.Namespace, folder: Path) -> None:
    text, rows = folder / "rows.ffm", folder / "rows.h5"
    if not text.exists():
        keys = ("--keys", args.keys) if args.keys else ()
        command("synth", "--rows", args.rows, "--fields", args.fields, "--seed", 3, *keys, "--out", text)
    svm = text.with_suffix(".svm")
    if not svm.exists():
        with open(text, "rb") as source, open(svm, "wb") as target:
            target.writelines(re.sub(rb" [0-9]+:", b" ", line) for line in source)
    print(f"{args.rows:,} rows, {args.fields} fields")
    for path in (text, svm):
        reading_speed(path, folder, args.passes)
    command("warmup", "--model", args.model)
    command("convert", text, rows)
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
