"""Threads per rank: ranks of a host times threads stay within the cores granted."""

from __future__ import annotations

import json
import os

import launch
import pytest

from lightctr_mpi.threads import VARIABLES, cores_per_rank, ranks_on_node


@pytest.mark.parametrize(
    "environ, ranks",
    [
        ({}, 1),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "6"}, 6),
        ({"MPI_LOCALNRANKS": "3"}, 3),
        ({"MPI_LOCALNRANKS": "?", "SLURM_STEP_TASKS_PER_NODE": "2"}, 2),
        ({"SLURM_STEP_TASKS_PER_NODE": "4(x2),3"}, 4),
        ({"SLURM_STEP_TASKS_PER_NODE": "3,16(x12)"}, 16),
    ],
)
def test_ranks_on_node(environ, ranks):
    assert ranks_on_node(environ) == ranks


@pytest.mark.parametrize(
    "environ, affinity, cores, share",
    [
        ({}, 8, 8, 8),
        ({"MPI_LOCALNRANKS": "4"}, 8, 8, 2),
        ({"MPI_LOCALNRANKS": "3"}, 8, 8, 2),
        ({"MPI_LOCALNRANKS": "16"}, 8, 8, 1),  # more ranks than cores: one thread each all the same
        ({"MPI_LOCALNRANKS": "4"}, 1, 64, 1),  # each rank bound to its core
        # srun --cpus-per-task=4 binds each of 8 tasks to its own 4 of the 32 cores granted on the host
        ({"SLURM_STEP_TASKS_PER_NODE": "8", "SLURM_CPUS_ON_NODE": "32"}, 4, 64, 4),
        # mpirun -n 8 in a batch job of 4 cores
        ({"MPI_LOCALNRANKS": "8", "SLURM_CPUS_ON_NODE": "4"}, 4, 64, 1),
        # Slurm was told of more cores than there are
        ({"MPI_LOCALNRANKS": "2", "SLURM_CPUS_ON_NODE": "8"}, 2, 2, 1),
    ],
)
def test_cores_per_rank(environ, affinity, cores, share):
    assert cores_per_rank(environ, affinity, cores) == share


CHILD = """
import json, os, sys
sys.modules["numpy"] = None  # an import would fail
from lightctr_mpi.threads import VARIABLES, limit_threads
threads = limit_threads(int(sys.argv[1]))
print(json.dumps([threads, [os.environ[v] for v in VARIABLES]]))
"""


@pytest.mark.parametrize("ranks, wanted", [(0, 1), (0, 1000), (2, 1000)])
def test_limit_threads_in_a_process(ranks, wanted):
    # Open MPI binds 2 ranks to a core each unless told otherwise; the result is within the cores either way.
    done = launch.python("-c", CHILD, wanted, ranks=ranks, timeout=60)
    assert done.returncode == 0, done.stderr
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(results) == max(1, ranks)
    for threads, variables in results:
        assert variables == [str(threads)] * len(VARIABLES)
        assert 1 <= threads <= wanted
    cores = len(os.sched_getaffinity(0))
    assert sum(threads for threads, _ in results) <= max(cores, len(results))
    if not ranks and wanted == 1000 and "SLURM_CPUS_ON_NODE" not in os.environ:
        assert results[0][0] == cores
