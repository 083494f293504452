"""MurmurHash3: published values, the author's self-test, a plain Python version of the algorithm."""

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightctr_mpi.kernels.hashing import fmix64, hash_bytes, hash_int, hash_text, murmur3_128
from lightctr_mpi.kernels.jit import jit_exact

MASK = 2**64 - 1
SEEDS = st.integers(0, MASK)


def kernel(text: bytes, seed: int) -> tuple[int, int]:
    data = np.frombuffer(text, np.uint8)
    h1, h2 = murmur3_128(data, 0, len(data), np.uint64(seed))
    return int(h1), int(h2)


def rotate(word: int, bits: int) -> int:
    return (word << bits | word >> (64 - bits)) & MASK


def finaliser(word: int) -> int:
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        word = (word ^ word >> 33) * factor & MASK
    return word ^ word >> 33


def reference(text: bytes, seed: int) -> tuple[int, int]:
    """MurmurHash3 x64_128 on Python integers: the tail is a block too, filled up by zeros, but without the
    step that carries one half into the other."""
    c1, c2 = 0x87C37B91114253D5, 0x4CF5AD432745937F
    h1 = h2 = seed
    full = len(text) // 16 * 16
    for at in range(0, len(text), 16):
        k1, k2 = struct.unpack("<QQ", text[at : at + 16].ljust(16, b"\0"))
        h1 ^= rotate(k1 * c1 & MASK, 31) * c2 & MASK
        if at < full:
            h1 = ((rotate(h1, 27) + h2) * 5 + 0x52DCE729) & MASK
        h2 ^= rotate(k2 * c2 & MASK, 33) * c1 & MASK
        if at < full:
            h2 = ((rotate(h2, 31) + h1) * 5 + 0x38495AB5) & MASK
    h1, h2 = h1 ^ len(text), h2 ^ len(text)
    h1 = (h1 + h2) & MASK
    h2 = (h2 + h1) & MASK
    h1, h2 = finaliser(h1), finaliser(h2)
    h1 = (h1 + h2) & MASK
    return h1, (h2 + h1) & MASK


# Known answers of Guava's and Spark's tests, the first with seed 0 and then a new length with each seed.
PUBLISHED = [
    (b"", 0, 0x0, 0x0),
    (b"hell", 0, 0x629942693E10F867, 0x92DB0B82BAEB5347),
    (b"hello", 1, 0xA78DDFF5ADAE8D10, 0x128900EF20900135),
    (b"hello ", 2, 0x8A486B23F422E826, 0xF962A2C58947765F),
    (b"hello w", 3, 0x2EA59F466F6BED8C, 0xC610990ACC428A17),
    (b"hello wo", 4, 0x79F6305A386C572C, 0x46305AED3483B94E),
    (b"hello wor", 5, 0xC2219D213EC1F1B5, 0xA1D8E2E0A52785BD),
    (b"The quick brown fox jumps over the lazy dog", 0, 0xE34BBC7BBC071B6C, 0x7A433CA9C49A9347),
    (b"The quick brown fox jumps over the lazy cog", 0, 0x658CA970FF85269A, 0x43FEE3EAA68E5C3E),
]


@pytest.mark.parametrize(("text", "seed", "h1", "h2"), PUBLISHED)
def test_published_values(text, seed, h1, h2):
    assert kernel(text, seed) == (h1, h2)
    assert hash_text(text, seed) == h1


def test_self_test_of_smhasher():
    """Keys (), (0), (0, 1), ... are hashed with seeds 256, 255, ...; the hash of their hashes is known."""
    all_bytes = bytes(range(256))
    hashes = b"".join(struct.pack("<QQ", *kernel(all_bytes[:n], 256 - n)) for n in range(256))
    assert kernel(hashes, 0)[0] & 0xFFFFFFFF == 0x6384BA69


@settings(deadline=None)
@given(st.binary(max_size=70), SEEDS)
def test_equals_plain_python(text, seed):
    assert kernel(text, seed) == reference(text, seed)


@settings(deadline=None)
@given(st.binary(max_size=20), st.binary(max_size=40), st.binary(max_size=20))
def test_a_range_ignores_what_surrounds_it(before, text, after):
    data = np.frombuffer(before + text + after, np.uint8)
    found = hash_bytes(data, len(before), len(before) + len(text), np.uint64(7))
    assert int(found) == reference(text, 7)[0]


@settings(deadline=None)
@given(st.integers(-(2**63), 2**63 - 1), SEEDS)
def test_number_is_hashed_as_its_eight_bytes(number, seed):
    assert int(hash_int(number, np.uint64(seed))) == reference(struct.pack("<q", number), seed)[0]


@jit_exact
def mix_all(keys, out):
    for i in range(len(keys)):
        out[i] = fmix64(keys[i])


@settings(max_examples=30, deadline=None)
@given(st.lists(SEEDS, max_size=20))
def test_finaliser_of_integer_keys(keys):
    out = np.empty(len(keys), np.uint64)
    mix_all(np.array(keys, np.uint64), out)
    assert out.tolist() == [finaliser(k) for k in keys]
