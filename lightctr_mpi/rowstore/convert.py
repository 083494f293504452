"""Text files to one row store, by all ranks together, in bounded memory.

Units of the text are dealt to the ranks in turn. Every rank parses its units, numbers keys by its own
dictionary and spools the columns; then the dictionaries are merged, the places of all units follow from their
sizes, rank 0 lays out the file, and every rank writes its units where they belong. The result does not depend
on the number of ranks.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..block import Block
from ..comm import agreed, allgather_arrays, allgather_sizes, bcast_array, raise_first, rank_of, size_of
from ..errors import UserError
from ..inorder import Ahead
from ..threads import ranks_on_node, threads_of
from .check import memory_limit
from .files import disk, same_files, shared_file, stat_of, sync_folder, unchanged
from .layout import Meta, Origin, load
from .merge import Numbering, chunks, union
from .numbers import Numbers
from .spool import Piece, Spool, has_values, narrow, packed_values
from .write import write

LEAST_SPOOL, MOST_SPOOL = 64 << 20, 512 << 20  # bytes of parsed rows in memory
MOST_THREADS = 4  # that parse: more would wait for the one that reads and numbers keys
_MORE, _FINISHED, _FAILED = 0, 1, 2
_DIGEST_WORDS = 2  # int64 words of Source.digest
_UNIT = ("unit", "rows", "nnz", "values", "no_labels", "weights", "groups", "skipped")


@dataclass
class Share:
    """What one rank has read."""

    spool: Spool
    keys: Numbers = field(default_factory=Numbers)
    fields: Numbers = field(default_factory=Numbers)
    units: list[tuple[int, ...]] = field(default_factory=list)  # one tuple of _UNIT each
    digests: list[bytes] = field(default_factory=list)

    def take(self, unit: int, block: Block) -> None:
        """Number the keys of a unit and spool it."""
        columns = {"lengths": np.diff(block.indptr), "ids": self.keys.add(block.ids), "labels": block.labels}
        if block.fields is not None:
            columns["fields"] = narrow(self.fields.add_fields(block.fields))
        if block.values is not None:
            columns |= packed_values(block.values)
        if block.weights is not None:
            columns["weights"] = block.weights
        if block.groups is not None:
            columns["groups"] = block.groups
        self.spool.append(Piece(unit, columns))
        flags = (has_values(columns), block.n_rows > 0 and not block.has_labels, "weights" in columns)
        self.units.append((unit, block.n_rows, block.nnz, *flags, "groups" in columns, block.skipped))


def convert(
    comm: Any,
    source: Any,
    reader: Any,
    path: str | Path,
    *,
    memory_bytes: int | None = None,
    on_estimate: Callable[[Meta], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Meta:
    """Write the rows of `source`, read by `reader`, to the row store `path`; called by all ranks.

    Args:
        comm: communicator, or None for one rank.
        source: a readers.source.Source, equal on all ranks.
        reader: a readers.base.Reader, equal on all ranks.
        path: target, in a folder that all ranks see; replaced in one step when everything is written.
        memory_bytes: memory of this rank for parsed rows (None: `spool_bytes`); what is more goes to a
            temporary file beside `path`.
        on_estimate: told the sizes before anything is laid out (`Meta.nbytes()`, `Meta.n_keys`).
        progress: told (rows, bytes of text) read so far by all ranks together.

    Raises:
        DataError: a malformed row; of several in one round of units, the first in the input.
        UserError: a file changed meanwhile or looks different from another host, some rows have labels and
            others none, the folder is not shared or cannot be written, or there are too many distinct keys.
    """
    path = Path(path)
    before = same_files(comm, source)
    partial = shared_file(comm, path)
    share = Share(Spool(path.parent, spool_bytes() if memory_bytes is None else memory_bytes))
    try:
        _read(comm, source, reader, share, progress)
        origin = Origin([entry[0] for entry in before], stat_of(before))
        with agreed(comm):
            unchanged(source, before)
        table, hashed = _table(comm, share.units, len(_UNIT), share.digests)
        keys, fields = _merge(comm, share.keys), _merge(comm, share.fields)
        n_keys, n_fields = bcast_array(comm, np.array([len(keys[0]), len(fields[0])])).tolist()
        meta, places = _plan(
            share,
            table,
            n_keys=n_keys,
            n_fields=n_fields,
            has_fields=bool(reader.has_fields),
            reader=json.dumps(reader.settings(), sort_keys=True),
            content_hash=hashed,
        )
        if on_estimate is not None:
            on_estimate(meta)
        write(comm, partial, meta, origin, share.spool, places, keys, fields)
        with agreed(comm), disk(path):
            if rank_of(comm) == 0:
                load(partial)
                os.replace(partial, path)
                sync_folder(path.parent)
    finally:
        share.spool.close()
        if rank_of(comm) == 0:
            partial.unlink(missing_ok=True)
    return meta


def spool_bytes() -> int:
    """Memory of a rank for parsed rows: the ranks of a node together take a 32nd of its memory or less."""
    return max(LEAST_SPOOL, min(MOST_SPOOL, memory_limit() // (32 * ranks_on_node(os.environ))))


def content_hash(comm: Any, source: Any) -> str:
    """Hash (hex) of the text, computed by all ranks together; equal to the one that `convert` stores."""
    units: list[tuple[int, ...]] = []
    digests: list[bytes] = []
    with agreed(comm):
        for number, _, data in source.iterate(rank_of(comm), size_of(comm)):
            units.append((number,))
            digests.append(source.digest(data))
    return _table(comm, units, 1, digests)[1]


def _read(
    comm: Any, source: Any, reader: Any, share: Share, progress: Callable[[int, int], None] | None
) -> None:
    """Read this rank's units, one in each round; after each the ranks agree on whether to go on.

    Threads parse; this one reads, and numbers keys in the order of the units.
    """

    def parse(unit: Any, data: bytes) -> tuple[bytes, Block, int]:
        return source.digest(data), reader.parse(data, source.where(unit)), len(data)

    place, rows, nbytes = -1, 0, 0
    with Ahead(threads_of(MOST_THREADS)) as ahead:
        units = ahead.in_order(parse, source.iterate(rank_of(comm), size_of(comm)))
        while True:
            state, n, size = _FINISHED, 0, 0
            problem: Exception | None = None
            try:
                if (found := next(units, None)) is not None:
                    state = _MORE
                    place, parsed, problem = found
                    if parsed is not None:
                        unit_digest, block, size = parsed
                        share.digests.append(unit_digest)
                        with disk(share.spool.folder):
                            share.take(place, block)
                        n = block.n_rows
            except OverflowError as error:
                problem = UserError(f"{source.files[0].name}: {error}")
            except Exception as error:
                problem = error
            states = allgather_sizes(comm, _FAILED if problem else state, n, size)
            if (states[:, 0] == _FAILED).any():
                raise_first(comm, problem, (place,))
            if (states[:, 0] == _FINISHED).all():
                return
            rows, nbytes = rows + int(states[:, 1].sum()), nbytes + int(states[:, 2].sum())
            if progress is not None:
                progress(rows, nbytes)


def _table(
    comm: Any, units: list[tuple[int, ...]], width: int, digests: list[bytes]
) -> tuple[np.ndarray, str]:
    """The tuples of all ranks' units in order (int64[m, width]), and the hash of their digests in order."""
    words = np.frombuffer(b"".join(digests), np.int64).reshape(len(units), _DIGEST_WORDS)
    mine = np.hstack([np.array(units, np.int64).reshape(len(units), width), words])
    table = np.concatenate(allgather_arrays(comm, np.ascontiguousarray(mine)))
    table = table[np.argsort(table[:, 0])]
    whole = hashlib.blake2b(digest_size=32)
    for row in table:
        whole.update(row[[0]].tobytes() + row[width:].tobytes())
    return table[:, :width], whole.hexdigest()


def _plan(share: Share, table: np.ndarray, **known: Any) -> tuple[Meta, dict[int, tuple[int, int]]]:
    """What the store will be like, and where this rank's units begin in it: unit -> (first row, first entry).

    Args:
        table: int64[units of all ranks, len(_UNIT)] in order.
        known: the attributes of Meta that do not follow from the table.

    Raises UserError when only some rows have labels.
    """
    columns = dict(zip(_UNIT, table.T, strict=True))
    rows, entries = columns["rows"], columns["nnz"]
    sums = {name: int(column.sum()) for name, column in columns.items()}
    if 0 < rows[columns["no_labels"] > 0].sum() < sums["rows"]:
        raise UserError("some of the rows have a label and others have none")
    first_rows, first_entries = np.cumsum(rows) - rows, np.cumsum(entries) - entries
    at = np.searchsorted(columns["unit"], [unit[0] for unit in share.units])
    places = {int(columns["unit"][i]): (int(first_rows[i]), int(first_entries[i])) for i in at}
    meta = Meta(
        n_rows=sums["rows"],
        nnz=sums["nnz"],
        one_hot=not sums["values"],
        has_labels=not sums["no_labels"],
        has_weights=bool(sums["weights"]),
        has_groups=bool(sums["groups"]),
        skipped=sums["skipped"],
        **known,
    )
    return meta, places


def _merge(comm: Any, own: Numbers) -> tuple[np.ndarray, np.ndarray]:
    """(sorted keys of all ranks on rank 0, table from own numbers to positions among them); clears `own`."""
    numbering = Numbering(*own.sorted())
    own.clear()
    keys = union(comm, numbering.sorted)
    for start, chunk in chunks(comm, keys):
        numbering.learn(start, chunk)
    return keys, numbering.table
