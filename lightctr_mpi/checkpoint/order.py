"""The rows of a model in ascending order of their keys, whatever files they lie in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from .read import Checkpoint
from .sharded import Sharded

Rows = tuple[int, int, np.ndarray, dict[str, np.ndarray]]


def in_key_order(source: Checkpoint, names: Sequence[str], step: int) -> Iterator[Rows]:
    """(a, b, keys, arrays) for the a-th to b-th smallest keys, `step` at a time, over all keys.

    Takes the memory of one piece, and of all keys and their order (16 bytes a key) where the file has shards.
    Checksums are not compared: open the model with `verify`.

    Args:
        names: arrays with a row per key ("parameters/linear").

    Raises UserError when the keys are not in order within a shard, or a key is in two shards.
    """
    keys, order, n = source.keys, source.order, source.n_keys
    cuts = [(a, min(a + step, n)) for a in range(0, n, step)]
    if order is None or not isinstance(source, Sharded):
        for a, b in cuts:
            yield a, b, keys[a:b], {name: source.rows(name, a, b) for name in names}
        return
    starts = source.bounds[:-1].copy()
    for a, b in cuts:
        at = order[a:b]
        # The keys of a shard ascend, so the next smallest keys are the next rows of each shard.
        counts = np.bincount(np.searchsorted(source.bounds, at, "right") - 1, minlength=len(starts))
        place = np.argsort(at)
        arrays = {}
        for name in names:
            part = source.parts[name]
            arrays[name] = np.empty((b - a, *part.shape[1:]), part.dtype)
            found = [source.rows(name, s, s + c) for s, c in zip(starts, counts, strict=True) if c]
            arrays[name][place] = np.concatenate(found)
        starts += counts
        yield a, b, keys[at], arrays
