"""Our id hash, `config.HASH_NAME`: seeded, stable across processes and releases, vectorised over NumPy arrays.

    mix64(z)     = MurmurHash3's 64-bit finalizer (A. Appleby, public domain)
    key(seed)    = mix64(seed + 0x9E3779B97F4A7C15)
    integer x    : mix64(bits(x) ^ key(seed)); int64 and uint64 with the same 64 bits agree
    string s     : h = mix64(len(s) ^ key(seed)), then h = mix64(h ^ w) for each little-endian 8-byte word w of its
                   UTF-8 bytes, the last one filled up with zero bytes
    pair (a, b)  : mix64(hash(a) ^ mix64(hash(b))), where hash(bucket, hour or row i) is that of the integer i; the pair
                   is then an integer id like any other, and hashed once more
    table row    : ((h >> 32) * rows) >> 32

All arithmetic is modulo 2^64. One seed, `Schema.hash_seed`, serves every feature.
"""

from __future__ import annotations

import functools

import numpy as np

_C1 = np.uint64(0xFF51AFD7ED558CCD)
_C2 = np.uint64(0xC4CEB9FE1A85EC53)
_GOLDEN = 0x9E3779B97F4A7C15
_S32, _S33 = np.uint64(32), np.uint64(33)
BLOCK_IDS = 1 << 14
"""Ids that are hashed at a time: 128 KiB and as much scratch stay in a core's own cache."""


def hash_int64(values: np.ndarray, seed: int) -> np.ndarray:
    """uint64 hashes of an int64 or uint64 array."""
    hashes = values.astype(values.dtype, copy=True).view(np.uint64)
    hash_in_place(hashes, seed)
    return hashes


def hash_in_place(bits: np.ndarray, seed: int) -> None:
    """`hash_int64` of a uint64 array, in place."""
    mix64(bits, _key(seed))


def hash_pairs(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """uint64 ids of pairs, from the uint64 hashes of their two parts; the order of the two matters."""
    return mix64(left ^ mix64(right.copy()))


def rows_from_hash(hashes: np.ndarray, rows: int) -> np.ndarray:
    """int64 rows in [0, rows) from uint64 hashes, evenly for any `rows` up to 2^31 (D. Lemire's reduction)."""
    out = np.empty(len(hashes), np.int32)
    reduce_into(hashes.copy(), rows, out)
    return out.astype(np.int64)


def reduce_into(hashes: np.ndarray, rows: int, out: np.ndarray) -> None:
    """`rows_from_hash` into `out`, int32 of the same size; `hashes` is overwritten."""
    np.right_shift(hashes, _S32, out=hashes)
    np.multiply(hashes, np.uint64(rows), out=hashes)
    np.right_shift(hashes, _S32, out=out, casting="unsafe")


def hash_bytes(data: np.ndarray, offsets: np.ndarray, seed: int) -> np.ndarray:
    """uint64 hashes of the byte strings `data[offsets[i]:offsets[i + 1]]`.

    Goes word by word over all strings that are still long enough: one round of NumPy calls for each word of the
    longest string.

    Args:
        data: uint8 bytes.
        offsets: int64, ascending, one more than there are strings.
    """
    starts, sizes = offsets[:-1] - offsets[0], np.diff(offsets)
    hashes = mix64(sizes.astype(np.uint64), _key(seed))
    longest_first = np.argsort(-sizes, kind="stable")
    descending = -sizes[longest_first]
    padded = np.zeros(int(offsets[-1] - offsets[0]) + 8, np.uint8)
    padded[:-8] = data[offsets[0] : offsets[-1]]
    words = np.ndarray((len(padded) - 7,), "<u8", padded, strides=(1,))
    for first_byte in range(0, -int(descending[0]) if len(sizes) else 0, 8):
        active = longest_first[: np.searchsorted(descending, -first_byte, side="left")]
        absent_bytes = np.maximum(8 - (sizes[active] - first_byte), 0).view(np.uint64)
        word = words[starts[active] + first_byte]
        word &= np.uint64(2**64 - 1) >> (absent_bytes * np.uint64(8))
        hashes[active] = mix64(hashes[active] ^ word)
    return hashes


def mix64(values: np.ndarray, key: np.uint64 = np.uint64(0)) -> np.ndarray:
    """mix64(values ^ key) in place, a bijection of uint64 onto itself; returns `values`."""
    scratch = np.empty(min(len(values), BLOCK_IDS), np.uint64)
    for start in range(0, len(values), BLOCK_IDS):
        z = values[start : start + BLOCK_IDS]
        t = scratch[: len(z)]
        if key:
            np.bitwise_xor(z, key, out=z)
        for constant in (_C1, _C2):
            np.right_shift(z, _S33, out=t)
            np.bitwise_xor(z, t, out=z)
            np.multiply(z, constant, out=z)
        np.right_shift(z, _S33, out=t)
        np.bitwise_xor(z, t, out=z)
    return values


@functools.lru_cache
def _key(seed: int) -> np.uint64:
    return mix64(np.array([(seed + _GOLDEN) % 2**64], np.uint64))[0]
