"""The ring against the MPI library's own Allreduce: mpirun -n 4 python benchmarks/ring.py

Both sum float32 arrays in turns (A B A B ...), so that other load on the machine meets both alike. A ratio of
1.2 means that the ring takes 1.2 times as long; the fastest calls tell what an idle machine would give.
"""

from __future__ import annotations

import time

import numpy as np

from lightctr_mpi import mpi
from lightctr_mpi.ring.allreduce import all_reduce
from lightctr_mpi.ring.segments import Scratch

SIZES = ((16 << 20, 8), (1 << 20, 40), (4 << 10, 200))  # bytes, rounds


def seconds(comm, work) -> float:
    """Time of one call, from a common start to the end on the last rank."""
    comm.Barrier()
    start = time.perf_counter()
    work()
    comm.Barrier()
    return time.perf_counter() - start


def main() -> None:
    world = mpi.world()
    comm, scratch = world.comm, Scratch()
    if world.rank == 0:
        print(f"{world.size} ranks, {world.local_size} on this host")
        print(f"{'bytes':>10} {'library ms':>11} {'ring ms':>9} {'ratio':>6} {'fastest':>8} {'ratio':>6}")
    for nbytes, rounds in SIZES:
        array = np.full(nbytes // 4, 1e-3, np.float32)
        out = np.empty_like(array)
        library, ring = [], []
        for _ in range(rounds):
            library.append(seconds(comm, lambda a=array, b=out: comm.Allreduce(a, b)))
            out[:] = array
            ring.append(seconds(comm, lambda b=out: all_reduce(comm, b, scratch)))
        a, b = 1e3 * np.median(library), 1e3 * np.median(ring)
        low, best = 1e3 * min(library), 1e3 * min(ring)
        if world.rank == 0:
            print(f"{nbytes:>10} {a:>11.3f} {b:>9.3f} {b / a:>6.2f} {best:>8.3f} {best / low:>6.2f}")


if __name__ == "__main__":
    main()
