"""What the comparisons with other trainers share: running programs, and data in their formats."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path


def environment() -> dict[str, str]:
    return {**os.environ, "USER": os.environ.get("USER", "user")}  # xLearn wants one


def execute(command: list[str], folder: Path, limit: float = 3600) -> tuple[str, float]:
    """Standard output and peak memory in MB of a command."""
    script = (
        "import resource,subprocess,sys;"
        "r=subprocess.run(sys.argv[1:],stdout=sys.stdout,stderr=subprocess.STDOUT).returncode;"
        "m=resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss;print(f'\\npeak {m} kB');sys.exit(r)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *command],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=limit,
        env=environment(),
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    peak = re.findall(r"peak (\d+) kB", done.stdout)[-1]
    return done.stdout, int(peak) / 1024


@dataclass
class Cost:
    """What a process took from start to end: seconds, seconds of processor time, peak memory in MB."""

    wall: float
    cpu: float
    memory: float


def cost_of(command: list[str], folder: Path) -> Cost:
    """Run a command to its end, its output thrown away."""
    started = time.perf_counter()
    process = subprocess.Popen(
        command, cwd=folder, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: exit code {process.returncode}")
    return Cost(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def without_fields(source: Path, target: Path) -> Path:
    """libsvm text of libffm text."""
    with open(source) as rows, open(target, "w") as out:
        for row in rows:
            out.write(re.sub(r"\d+:(\d+:)", r"\1", row))
    return target


def count_rows(path: Path) -> int:
    with open(path, "rb") as file:
        return sum(1 for _ in file)


def no_core_files() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
