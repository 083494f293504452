"""Units of text that are worked on in threads come back in order, with the first problem first."""

import gzip
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lightctr_mpi.errors import UserError
from lightctr_mpi.input import worked_rounds
from lightctr_mpi.mpi import STARTERS
from lightctr_mpi.readers.source import Source

ROOT = Path(__file__).parent.parent
LINES = [f"line {i}\n".encode() for i in range(40)]


@pytest.fixture
def source(tmp_path):
    (tmp_path / "rows").write_bytes(b"".join(LINES))
    return Source([str(tmp_path / "rows")], unit_bytes=10)


def slowly(unit, data):
    """The earlier a unit, the longer it takes."""
    time.sleep(0.02 if unit.index % 3 == 0 else 0)
    return data


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_results_come_in_the_order_of_the_units(source, threads):
    rounds = list(worked_rounds(None, source, slowly, threads))
    assert [number for number, _ in rounds] == list(range(len(rounds)))
    assert b"".join(data for _, data in rounds) == b"".join(LINES)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_the_first_problem_follows_all_results_before_it(source, threads):
    def work(unit, data):
        if unit.index >= 7:
            raise UserError(f"unit {unit.index}")
        return slowly(unit, data)

    seen = []
    with pytest.raises(UserError, match=r"^unit 7$"):
        for number, _ in worked_rounds(None, source, work, threads):
            seen.append(number)
    assert seen == list(range(7))


@pytest.mark.parametrize("threads", [1, 3])
def test_a_damaged_file_is_told_after_what_could_be_read(tmp_path, threads):
    packed = gzip.compress(os.urandom(60_000).hex().encode().replace(b"0", b"\n"))
    (tmp_path / "rows.gz").write_bytes(packed[: len(packed) // 2])
    seen = []
    with pytest.raises(UserError, match=r"rows\.gz: damaged or incomplete gzip file"):
        for number, _ in worked_rounds(
            None, Source([str(tmp_path / "rows.gz")], unit_bytes=1000), slowly, threads
        ):
            seen.append(number)
    assert seen == list(range(len(seen))) and len(seen) > 5


def test_rounds_that_are_left_early_end_their_threads(source):
    for number, _ in worked_rounds(None, source, slowly, 2):
        if number == 3:
            break
    assert b"".join(data for _, data in worked_rounds(None, source, slowly, 2)) == b"".join(LINES)


WORLD = """
import sys
from lightctr_mpi.mpi import once_per_node, world
alone = world(alone=True)
print(alone.rank, alone.size, once_per_node(alone, lambda: 5), "mpi4py" in sys.modules)
"""


@pytest.mark.parametrize(("variables", "loaded"), [({}, "False"), ({"SLURM_JOB_ID": "7"}, "True")])
def test_a_process_that_nobody_launched_does_without_mpi(variables, loaded):
    bare = {name: value for name, value in os.environ.items() if not name.startswith(STARTERS)}
    done = subprocess.run(
        [sys.executable, "-c", WORLD],
        env=bare | variables | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.split() == ["0", "1", "5", loaded], done.stderr
