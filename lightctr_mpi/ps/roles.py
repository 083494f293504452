"""Who is who: rank 0 is the Master, ranks 1 to S keep parameters, the others learn. Known here alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..settle import check_ranks

MASTER = 0


@dataclass(frozen=True)
class Roles:
    """The ranks of a run by role.

    Attributes:
        rank, size: place among all ranks; n_servers, n_workers.
        mail: communicator of all ranks for the messages of the parameter server.
        team: communicator of the ranks of this role (Master, servers, workers).
        hosts: name of the host of each rank.
    """

    rank: int
    size: int
    n_servers: int
    mail: Any
    team: Any
    hosts: tuple[str, ...]

    @property
    def n_workers(self) -> int:
        return self.size - 1 - self.n_servers

    @property
    def servers(self) -> range:
        return range(1, 1 + self.n_servers)

    @property
    def workers(self) -> range:
        return range(1 + self.n_servers, self.size)

    @property
    def is_master(self) -> bool:
        return self.rank == MASTER

    @property
    def is_server(self) -> bool:
        return self.rank in self.servers

    @property
    def number(self) -> int:
        """This rank's number among those of its role."""
        if self.is_master:
            return 0
        return self.rank - (1 if self.is_server else 1 + self.n_servers)

    def name(self, rank: int) -> str:
        """For people: "rank 5 (worker 2 on node7)"."""
        if rank == MASTER:
            role = "Master"
        elif rank in self.servers:
            role = f"server {rank - 1}"
        else:
            role = f"worker {rank - 1 - self.n_servers}"
        return f"rank {rank} ({role} on {self.hosts[rank]})"


def split(comm: Any, host: str, servers: int) -> Roles:
    """Deal out the roles; called by all ranks of `comm`. Raises UserError for too few of them."""
    rank, size = comm.Get_rank(), comm.Get_size()
    check_ranks(size, servers)
    colour = 0 if rank == MASTER else 1 if rank <= servers else 2
    team = comm.Split(colour, rank)
    return Roles(rank, size, servers, comm.Dup(), team, tuple(comm.allgather(host)))
