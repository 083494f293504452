"""Consistent hashing (Karger et al. 1997): the owner of a key is the first point at or after it on a circle.

The circle is the range of uint64. Points and keys get their places from different bijections of 64-bit
words, SplitMix64's finaliser and MurmurHash3's: of one and the same, the numbers of a server's points would
be keys that all lie on points of that server.

A table on the top bits of a place leads to the owner. Where no point lies in a part of the circle, its entry
is the owner, which is so for most keys; else ~i, with i the first point in this part.
"""

from __future__ import annotations

import numpy as np

from .hashing import fmix64
from .init import mix
from .jit import jit_exact

_32 = np.uint64(32)
_START = np.uint64(0x9E3779B97F4A7C15)


@jit_exact
def place_points(servers, points, places):
    """places[s * points + p] = place of point p of server s, all different. Into uint64[servers * points]."""
    at = 0
    for server in range(servers):
        for point in range(points):
            places[at] = mix(_START + ((np.uint64(server) << _32) | np.uint64(point)))
            at += 1


@jit_exact
def fill_table(places, servers, shift, table):
    """Fill the table on the top bits of a place.

    Args:
        places: uint64[n + 1] ascending; servers: int32[n + 1] whose point it is; the last is 2^64 - 1 and the
            server of the first point, with which the circle closes.
        shift: uint64, 64 less the number of top bits.
        table: int32[2^bits], filled.
    """
    n, at = len(places) - 1, 0
    for part in range(len(table)):
        first = at
        while at < n and places[at] >> shift == np.uint64(part):
            at += 1
        table[part] = servers[first] if at == first else ~first


@jit_exact
def find_owners(keys, places, servers, shift, table, out):
    """out[i] = server of the first point at or after the place of keys[i]. uint64[m] -> int32[m]."""
    for i in range(len(keys)):
        place = fmix64(keys[i])
        owner = table[place >> shift]
        if owner < 0:
            at = np.uint64(~owner)
            while places[at] < place:
                at += np.uint64(1)
            owner = servers[at]
        out[i] = owner


@jit_exact
def sort_by_owner(owners, bounds, order):
    """Stable counting sort of 0, 1, ... by owner.

    Args:
        owners: int32[m], each in [0, S).
        bounds: int64[S + 1] of zeros; on return server s has order[bounds[s]:bounds[s + 1]].
        order: int32[m], filled.
    """
    for i in range(len(owners)):
        bounds[owners[i] + 1] += 1
    for server in range(1, len(bounds)):
        bounds[server] += bounds[server - 1]
    # Each start moves to its end while places are given out, and so becomes the start of the next.
    for i in range(len(owners)):
        server = owners[i]
        order[bounds[server]] = i
        bounds[server] += 1
    for server in range(len(bounds) - 1, 0, -1):
        bounds[server] = bounds[server - 1]
    bounds[0] = 0
