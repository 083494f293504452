"""How many threads a rank may use. Standard library only: it must be settled before NumPy is imported."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "NUMBA_NUM_THREADS",
)
LOCAL_SIZE_VARIABLES = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "MV2_COMM_WORLD_LOCAL_SIZE")


def ranks_on_node(environ: Mapping[str, str]) -> int:
    """Ranks started on this host, as the launcher tells before MPI is initialised; 1 without a launcher."""
    for variable in LOCAL_SIZE_VARIABLES:
        if environ.get(variable, "").isdecimal():
            return max(1, int(environ[variable]))
    # Set in a step of srun only: "4(x2),3" is 4 tasks on each of two nodes and 3 on the next one.
    counts = re.findall(r"(?:^|,)(\d+)", environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
    return max([1, *map(int, counts)])


def cores_per_rank(environ: Mapping[str, str], affinity: int, cores: int) -> int:
    """Cores that this rank can use when all ranks of the host use as many; at least 1.

    Args:
        environ: environment variables.
        affinity: cores this process may run on: those of all ranks, or its own when the launcher binds ranks.
        cores: cores of the host.
    """
    granted = environ.get("SLURM_CPUS_ON_NODE", "")
    node = min(int(granted), cores) if granted.isdecimal() else affinity
    return max(1, min(affinity, node // ranks_on_node(environ)))


def threads_of(wanted: int) -> int:
    """Threads this rank may use: `wanted`, or fewer for the ranks of the host to stay within its cores."""
    share = cores_per_rank(os.environ, len(os.sched_getaffinity(0)), os.cpu_count() or 1)
    return max(1, min(wanted, share))


def limit_threads(wanted: int = 1) -> int:
    """Set the thread counts of the numerical libraries; call it before NumPy and Numba are imported.

    Returns:
        The threads this rank uses: `wanted`, or fewer so that all ranks of the host together stay within the
        cores granted to them.
    """
    threads = threads_of(wanted)
    for variable in VARIABLES:
        os.environ[variable] = str(threads)
    return threads
