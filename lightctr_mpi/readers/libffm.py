"""libffm: rows "label field:feature:value ...", separated by blanks or tabs."""

from __future__ import annotations

from .sparse import SparseReader


class LibffmReader(SparseReader):
    """Text of libffm. What follows a # is a comment, blank lines do not count, a row may have no entries."""

    name = "libffm"
    has_fields = True
    entry = "field:feature:value"
    shortest = len(" 0:0:0")
    sample = b"1 0:1:1 1:2:0.5 0:1:1e-3\n0 0:3:1\n"
