"""Random numbers that are named, not drawn in turn: what a name gets depends on (seed, name) alone."""

from __future__ import annotations

import hashlib

import numpy as np

WORDS_PER_COUNT = 8
"""32-bit words that one step of the Philox counter yields."""


def philox(seed: int, name: str, counter: int = 0) -> np.random.Philox:
    """The Philox-4x64 stream of (seed, name), from its word `WORDS_PER_COUNT * counter` on.

    Philox is counter based (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011), so that any part of
    a stream is reached without drawing what comes before it.
    """
    key = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=16).digest()
    return np.random.Philox(key=int.from_bytes(key, "little"), counter=counter)


def random_words(bits: np.random.Philox, num_words: int) -> np.ndarray:
    """The next `num_words` (a multiple of 8) 32-bit words of a stream, as little-endian uint32.

    The same numbers as `bits.random_raw`, about five times faster.
    """
    draws = np.random.Generator(bits).integers(0, 2**64 - 1, num_words // 2, dtype=np.uint64, endpoint=True)
    return draws.astype("<u8", copy=False).view("<u4")
