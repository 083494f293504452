"""Which server owns a key."""

from __future__ import annotations

import numpy as np

from ..kernels import circle
from ..kernels.jit import own

_PARTS = 8  # parts of the circle for each point, so that few keys meet a part with a point in it
_MOST_PARTS = 1 << 22  # a larger table does not stay in the cache


class Circle:
    """Consistent hashing of keys over servers.

    The owner of a key is a function of the key, the number of servers and the number of points alone, the
    same on every rank. Another server takes about 1 / (servers + 1) of the keys, a like part from each, and
    moves no others. The share of a server varies by about 1 / sqrt(points) of itself.

    Args:
        servers: S, how many share the keys.
        points: places of each server on the circle. 12 bytes each are kept.

    Raises:
        ValueError: no server, no point, or 2^31 points and more in all.
    """

    def __init__(self, servers: int, points: int = 4096):
        if servers < 1 or points < 1 or servers * points >= 2**31:
            raise ValueError(f"a circle cannot have {servers} servers of {points} points each")
        self.servers, self.points = servers, points
        if servers == 1:
            return
        n = servers * points
        places = np.empty(n, np.uint64)
        circle.place_points(servers, points, places)
        order = np.argsort(places)
        self._places = np.append(places[order], np.uint64(2**64 - 1))
        self._servers = (np.append(order, order[0]) // points).astype(np.int32)
        bits = (min(_PARTS * n, _MOST_PARTS) - 1).bit_length()
        self._shift = np.uint64(64 - bits)
        self._table = np.empty(1 << bits, np.int32)
        circle.fill_table(self._places, self._servers, self._shift, self._table)

    def owners(self, keys: np.ndarray) -> np.ndarray:
        """int32[m] server, 0 to S - 1, of each key of uint64[m]."""
        if self.servers == 1:
            return np.zeros(len(keys), np.int32)
        out = np.empty(len(keys), np.int32)
        circle.find_owners(own(keys, np.uint64), self._places, self._servers, self._shift, self._table, out)
        return out

    def split(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Sort keys (uint64[m], m < 2^31) by owner.

        Returns:
            order int32[m], bounds int64[S + 1]: keys[order[bounds[s]:bounds[s + 1]]] are those of server s,
            in the order in which they were given.
        """
        bounds = np.zeros(self.servers + 1, np.int64)
        if self.servers == 1:
            bounds[1] = len(keys)
            return np.arange(len(keys), dtype=np.int32), bounds
        order = np.empty(len(keys), np.int32)
        circle.sort_by_owner(self.owners(keys), bounds, order)
        return order, bounds
