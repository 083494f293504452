"""Dictionaries as HDF5 attributes, typed for people and checksummed, and the checksum of arrays."""

from __future__ import annotations

import functools
import json
import zlib
from collections.abc import Mapping
from typing import Any

import h5py
import numpy as np

JSON_SUFFIX = "_json"


def crc32(data: Any, value: int = 0) -> int:
    """CRC-32 of the bytes of a C-contiguous array or bytes object, continued from `value`."""
    if isinstance(data, np.ndarray):
        data = data.reshape(-1).view(np.uint8).data if data.size else b""
    return zlib.crc32(data, value)


def crc32_joined(first: int, second: int, length: int) -> int:
    """CRC-32 of two stretches of bytes in a row from the CRC-32 of each and the length of the second.

    A CRC is linear over GF(2): behind the first stretch, `length` zero bytes multiply its remainder by
    x^(8 length) modulo the polynomial of the CRC (the conditioning of both ends cancels).
    """
    return _times(_power(8 * length), first) ^ second


@functools.lru_cache(64)  # pieces of a file are mostly as long as the last one
def _power(exponent: int) -> int:
    """x to a power, modulo the polynomial of the CRC."""
    power, factor = _ONE, _ONE >> 1
    while exponent:
        if exponent & 1:
            power = _times(power, factor)
        factor, exponent = _times(factor, factor), exponent >> 1
    return power


# Polynomials over GF(2) of degree below 32, x^0 in the highest bit, as CRC-32 has them.
_ONE, _CRC_POLYNOMIAL = 1 << 31, 0xEDB88320


def _times(a: int, b: int) -> int:
    """The product of two polynomials modulo that of the CRC."""
    product = 0
    for bit in range(31, -1, -1):
        if a >> bit & 1:
            product ^= b
        b = b >> 1 ^ (_CRC_POLYNOMIAL if b & 1 else 0)
    return product


def attributes_crc32(values: Mapping[str, Any]) -> int:
    """CRC-32 of a dictionary as compact JSON with sorted keys; floats as their shortest exact decimals."""
    return crc32(json.dumps(values, sort_keys=True, separators=(",", ":")).encode())


def plain(value: Any) -> Any:
    """A value as plain Python: NumPy scalars and arrays, tuples and mappings are converted."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value


def put_attributes(target: h5py.Group, values: Mapping[str, Any], description: str) -> None:
    """Store a dictionary as attributes, with a sentence for people and a checksum.

    None becomes an attribute without a value (null dataspace); lists, dictionaries and integers beyond 64
    bits become JSON under the name with `_json` behind it.
    """
    values = plain(values)
    for name, value in values.items():
        if value is None:
            target.attrs[name] = h5py.Empty("f8")
        elif isinstance(value, (list, dict)) or (type(value) is int and not -(2**63) <= value < 2**64):
            target.attrs[name + JSON_SUFFIX] = json.dumps(value)
        else:
            target.attrs[name] = value
    target.attrs["description"] = description
    target.attrs["crc32"] = np.uint32(attributes_crc32(values))


def get_attributes(source: h5py.Group) -> dict[str, Any]:
    """The dictionary that `put_attributes` stored; raises ValueError when its checksum does not match."""
    try:
        stored = {name: value for name, value in source.attrs.items() if name not in ("description", "crc32")}
        values = dict(_decode(name, value) for name, value in stored.items())
        if attributes_crc32(values) == source.attrs["crc32"]:
            return values
    except json.JSONDecodeError:
        pass
    raise ValueError(f"checksum mismatch in the attributes of {source.name}")


def _decode(name: str, value: Any) -> tuple[str, Any]:
    if name.endswith(JSON_SUFFIX):
        return name.removesuffix(JSON_SUFFIX), json.loads(value)
    return name, None if isinstance(value, h5py.Empty) else plain(value)
