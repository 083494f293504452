"""Memory of servers for a large model: python benchmarks/ps_memory.py

Writes rows in which every key occurs `--passes` times, trains FM on them with two servers by the command
line under mpirun, and compares the servers' peak resident memory with their share of keys, rows and state.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROW = 20  # keys of a row of data


def write_rows(path: Path, keys: int, passes: int) -> None:
    """libsvm rows; the keys of a pass are a permutation of 0 .. keys - 1."""
    rng = np.random.default_rng(1)
    with open(path, "w") as file:
        for _ in range(passes):
            ids = np.sort(rng.permutation(keys).reshape(-1, ROW), axis=1)
            for label, row in zip(rng.integers(0, 2, len(ids)).tolist(), ids.tolist(), strict=True):
                file.write(f"{label} {':1 '.join(map(str, row))}:1\n")


def status(process: int, name: str) -> str:
    """A line of /proc/PID/status, "" when the process is gone."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return ""
    return next((line.split(":")[1].strip() for line in lines if line.startswith(name + ":")), "")


def rank_of(process: int) -> int | None:
    """Rank of a process of the run by its environment; None for others."""
    try:
        entries = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    for name in (b"PMI_RANK=", b"OMPI_COMM_WORLD_RANK="):
        for entry in entries:
            if entry.startswith(name):
                return int(entry.partition(b"=")[2])
    return None


def peaks(run: subprocess.Popen) -> dict[int, float]:
    """Highest resident MB of each rank until the run ends."""
    highest: dict[int, float] = {}
    while run.poll() is None:
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal() and status(int(entry.name), "Name").startswith("python"):
                rank, size = rank_of(int(entry.name)), status(int(entry.name), "VmHWM")
                if rank is not None and size:
                    highest[rank] = max(highest.get(rank, 0.0), float(size.split()[0]) / 1024)
        time.sleep(0.2)
    return highest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keys", type=int, default=5_000_000, help="a multiple of 20")
    parser.add_argument("--floats", type=int, default=40, help="floats of a row, a multiple of 8")
    parser.add_argument("--passes", type=int, default=2, help="occurrences of each key")
    parser.add_argument("--servers", type=int, default=2)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows.svm"
        write_rows(rows, args.keys, args.passes)
        words = f"train --data.train {rows} --data.format libsvm --model.name fm --model.k {args.floats}"
        words += f" --model.linear false --train.epochs 1 --mode ps --ps.servers {args.servers} --quiet"
        mpirun = Path(sys.executable).parent / "mpirun"
        command = [mpirun, "-n", str(args.servers + 2), sys.executable, "-m", "lightctr_mpi", *words.split()]
        run = subprocess.Popen([*command, "--out", f"{folder}/run"], env=dict(os.environ))
        highest = peaks(run)
        if run.returncode:
            raise SystemExit(run.returncode)
        record = json.loads((Path(folder) / "run/metrics.jsonl").read_text().splitlines()[-1])
    share = args.keys / args.servers * (8 + 2 * 4 * args.floats) / 2**20
    print(f"{args.keys:,} keys of {args.floats} floats with as many of state: {share:.0f} MB a server")
    print(f"trained {record['ps_keys']:,} keys at {record['rows_per_second']:,.0f} rows/s")
    for rank, peak in sorted(highest.items()):
        role = "Master" if rank == 0 else f"server {rank - 1}" if rank <= args.servers else "worker"
        print(
            f"{role:<9} peak {peak:>6.0f} MB" + (f", {peak / share:.2f} x share" if "server" in role else "")
        )


if __name__ == "__main__":
    main()
