"""One plain file out of a model in shards."""

from __future__ import annotations

from .opening import open_checkpoint
from .order import in_key_order
from .write import write

PIECE_BYTES = 16 << 20


def merge(source_path: str, target_path: str) -> None:
    """Write a model as one file with ascending keys, replacing `target_path` in one step.

    The file holds all that the model holds, the state of the optimizer and the time of writing included. The
    checksums of the source are compared first. Takes the memory of one piece, and about 30 bytes a key
    for the keys and their order.

    Raises UserError when the model cannot be read or the file cannot be written, or is a part of the model.
    """
    with open_checkpoint(source_path) as source:
        source.spare(target_path)
        names = [name for name, part in source.parts.items() if part.per_key]
        dense = {n: source.read(n) for n in source.parts if n not in names and not n.endswith("/keys")}
        keys = source.keys if source.order is None else source.keys[source.order]
        row_bytes = sum(source.parts[name].nbytes for name in names) // max(1, source.n_keys)
        rows = in_key_order(source, names, max(1, PIECE_BYTES // max(1, row_bytes)))
        write(
            target_path,
            source.meta,
            source.layout,
            keys,
            source.field_keys,
            ((a, b, arrays) for a, b, _, arrays in rows),
            dense,
            created=source.created,
        )
