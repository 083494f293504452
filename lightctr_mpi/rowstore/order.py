"""The order in which an epoch visits the rows: random, the same on any number of ranks, kind to the disk."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..kernels.shuffle import shuffle, stream

_BLOCKS = 0  # part number of the shuffle of blocks; window w shuffles its rows with part number w + 1


class RowOrder:
    """Blocks of consecutive rows in random order; rows in random order inside a window of several blocks.

    Memory: the rows of a window and one number per block. A function of (seed, epoch) and of the arguments
        alone.

    Args:
        n_rows: rows of the store.
        block_rows: consecutive rows of a block.
        window_blocks: blocks among which rows are mixed.
        seed: any integer >= 0.
        shuffled: False visits the rows as they stand, in windows of the same size.
    """

    def __init__(self, n_rows: int, block_rows: int, window_blocks: int, seed: int, shuffled: bool = True):
        self.n_rows, self.block_rows, self.window_blocks = n_rows, block_rows, window_blocks
        self.seed, self.shuffled = seed, shuffled

    def epoch(self, number: int) -> Iterator[np.ndarray]:
        """Windows, int64[m] row numbers each; over an epoch every row comes exactly once."""
        blocks = np.arange(-(-self.n_rows // self.block_rows), dtype=np.int64)
        if self.shuffled:
            shuffle(blocks, self._stream(number, _BLOCKS))
        for window, first in enumerate(range(0, len(blocks), self.window_blocks)):
            rows = self._rows(blocks[first : first + self.window_blocks])
            if self.shuffled:
                shuffle(rows, self._stream(number, window + 1))
            yield rows

    def _rows(self, blocks: np.ndarray) -> np.ndarray:
        """Row numbers of the given blocks, block by block; only the last block of the store is shorter."""
        rows = (blocks[:, None] * self.block_rows + np.arange(self.block_rows)).ravel()
        return rows[rows < self.n_rows]

    def _stream(self, epoch: int, part: int) -> np.uint64:
        return np.uint64(stream(np.uint64(self.seed), np.uint64(epoch), np.uint64(part)))
