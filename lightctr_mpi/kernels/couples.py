"""Couples of neighbouring float32 that 8 ids name, as two vectors: functions of coupleintrinsics.py.

Lane l belongs to entry min(e + l, last) of a row whose last entry is `last`: lanes behind the end repeat the
last one, so that what they compute and store is what its own lane does.
"""

from __future__ import annotations

from .jit import Intrinsic


def _in_llvm(name: str) -> Intrinsic:
    return Intrinsic(name, "coupleintrinsics")


load_couples, load_couples_end = _in_llvm("load_couples"), _in_llvm("load_couples_end")
store_couples, store_couples_end = _in_llvm("store_couples"), _in_llvm("store_couples_end")
load_end, clear_end = _in_llvm("load_end"), _in_llvm("clear_end")
are_known, are_known_end = _in_llvm("are_known"), _in_llvm("are_known_end")
are_apart, are_apart_end = _in_llvm("are_apart"), _in_llvm("are_apart_end")
