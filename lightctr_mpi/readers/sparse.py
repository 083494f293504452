"""What the readers of libffm and libsvm share: rows of a label and entries that are written with colons."""

from __future__ import annotations

import re

import numpy as np

from ..block import Block
from ..errors import DataError
from ..kernels import parse
from .base import NUMBER, Reader, Where, excerpt, merge_duplicates, quote
from .textrows import as_lines, kept_values, read_close, run

_ENDS = b" \t\r\n#"
_DIGITS = re.compile(rb"[0-9]{1,99}")


class SparseReader(Reader):
    """Rows of entries; subclasses say how an entry is written.

    Attributes:
        entry: how an entry is written, for messages.
        shortest: bytes of the shortest entry with the blank before it.
    """

    entry: str
    shortest: int

    def parse(self, data: bytes, where: Where, policy: str = "") -> Block:
        skip = self.skips(policy)
        arrays = self._arrays(data)
        code, state, close = run(
            parse.parse_sparse, as_lines(data), self.has_fields, skip, self.labels.arrays, *arrays
        )
        if code != parse.DONE:
            raise self._error(code, data, int(state[parse.OFFSET]), where)
        indptr, at, labels, groups, fields, ids, values = arrays
        n, nnz = int(state[parse.ROWS]), int(state[parse.ENTRIES])
        read_close(data, close, labels, values, _ENDS)
        block = Block(
            indptr[: n + 1],
            ids[:nnz],
            fields[:nnz] if self.has_fields else None,
            kept_values(values[:nnz], state),
            labels[:n],
            groups=groups[:n] if state[parse.GROUPS] > 0 else None,
            skipped=int(state[parse.SKIPPED]),
        )
        return merge_duplicates(block, where, skip, at)

    def _arrays(self, data: bytes) -> tuple[np.ndarray, ...]:
        """Room for all rows and entries the data can hold. What is not written to takes no memory."""
        n = np.count_nonzero(np.frombuffer(data, np.uint8) == 10) + 1  # bytes.count is five times as slow
        nnz = len(data) // self.shortest + 1
        return (
            np.empty(n + 1, np.int64),
            np.empty(n, np.int64),
            np.empty(n, np.float32),
            np.empty(0 if self.has_fields else n, np.int64),
            np.empty(nnz if self.has_fields else 0, np.int32),
            np.empty(nnz, np.uint64),
            np.empty(nnz, np.float32),
        )

    def _error(self, code: int, data: bytes, offset: int, where: Where) -> DataError:
        found, expected = excerpt(data, offset, _ENDS), self.labels.expected
        if data[offset : offset + 1] == b"\r":
            found = "a carriage return within the line"
        if code == parse.BAD_GROUP:
            found = quote(b" ".join(data[offset:].split(b"\n", 1)[0].split()[:2]))
            expected = "the label followed by qid:N in all rows or in none, N below 2^63"
        elif code == parse.BAD_ENTRY:
            found, expected = self._explain(data, offset, found)
        return DataError(where.file, where.line_of(offset), found, expected)

    def _explain(self, data: bytes, offset: int, token: str) -> tuple[str, str]:
        """What is wrong with the entry at `offset`, and what should stand there."""
        stop = offset
        while stop < len(data) and data[stop] not in _ENDS:
            stop += 1
        parts = data[offset:stop].split(b":")
        if len(parts) != self.entry.count(":") + 1 and (self.has_fields or len(parts) != 1):
            return token, self.entry
        limits = [("a field number", 2**31)] if self.has_fields else []
        for part, (what, limit) in zip(parts, limits + [("a feature number", 2**64)], strict=False):
            if not _DIGITS.fullmatch(part) or int(part) >= limit:
                return quote(part), f"{what} from 0 to {limit - 1}"
        if len(parts) > 1 and NUMBER.fullmatch(parts[-1]):
            return quote(parts[-1]), "a number that float32 can hold, below 3.4e38"
        return quote(parts[-1]), "a finite number"
