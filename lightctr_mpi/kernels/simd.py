"""Vectors of 4 or 8 float32 lanes and software prefetch, for kernels: functions of intrinsics.py.

`load` and `store` take a C-contiguous float32 array of any number of dimensions and the offset in elements
from its start; neither checks bounds, and addresses need no alignment.
"""

from __future__ import annotations

from .jit import Intrinsic

load4, load8 = Intrinsic("load4"), Intrinsic("load8")
store4, store8 = Intrinsic("store4"), Intrinsic("store8")
splat4, splat8 = Intrinsic("splat4"), Intrinsic("splat8")
total4, total8 = Intrinsic("total4"), Intrinsic("total8")
join, low, high = Intrinsic("join"), Intrinsic("low"), Intrinsic("high")
add, sub, mul, div = Intrinsic("add"), Intrinsic("sub"), Intrinsic("mul"), Intrinsic("div")
fma, sqrt, sign, prefetch = Intrinsic("fma"), Intrinsic("sqrt"), Intrinsic("sign"), Intrinsic("prefetch")
rsqrt = Intrinsic("rsqrt")


def round_up(n: int) -> int:
    """The number of floats in the whole vectors of 8 that hold n."""
    return -(-n // 8) * 8
