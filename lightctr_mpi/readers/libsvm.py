"""libsvm, svmlight, libFM: rows "label feature:value ..."."""

from __future__ import annotations

from .sparse import SparseReader


class LibsvmReader(SparseReader):
    """Text of libsvm. What follows a # is a comment, blank lines do not count, a row may have no entries.

    A feature without a value has the value 1. "qid:N" behind the label, in all rows or in none, is the group.
    Feature numbers are keys as they stand there: nothing depends on whether a file counts from 0 or from 1.
    """

    name = "libsvm"
    has_fields = False
    entry = "feature:value"
    shortest = len(" 0")
    sample = b"1 1:1 2:0.5 1:1e-3\n0 3:1\n"
