"""The hash is part of every saved model: its values are pinned, and compared with plain integers."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diurnal.config import HASH_NAME
from diurnal.data.arrow import hash_strings
from diurnal.data.hashing import hash_int64, mix64, reduce_into, rows_from_hash

SEEDS = st.integers(0, 2**63 - 1)

GOLDEN_IDS = [
    0x6393D51C06C618DC,
    0x8D82751399F55D54,
    0x625F8B0D8C17EE15,
    0x854D9076B6E5090D,
    0xE49B2EEF1405713A,
]
GOLDEN_TEXTS = [
    0x59894F7634DCB8A5,
    0x462A74B2EAF4CCCA,
    0x1824B0B371CDE30C,
    0x0B26CEEC63D7D448,
    0x99CF107769E0D55B,
    0x41FF05A724BDAEE8,
]
GOLDEN_ROWS = [787, 920, 543, 591, 440]


def slow_mix(z: int) -> int:
    z ^= z >> 33
    z = z * 0xFF51AFD7ED558CCD % 2**64
    z ^= z >> 33
    z = z * 0xC4CEB9FE1A85EC53 % 2**64
    return z ^ z >> 33


def slow_key(seed: int) -> int:
    return slow_mix((seed + 0x9E3779B97F4A7C15) % 2**64)


def slow_hash(value: int | bytes, seed: int) -> int:
    if isinstance(value, int):
        return slow_mix(value % 2**64 ^ slow_key(seed))
    state = slow_mix(len(value) ^ slow_key(seed))
    for start in range(0, len(value), 8):
        state = slow_mix(state ^ int.from_bytes(value[start : start + 8], "little"))
    return state


def test_values_never_change() -> None:
    assert HASH_NAME == "diurnal-mix64-v1"
    ids = np.array([0, 1, 7, 2**60 + 1, -1], np.int64)
    assert hash_int64(ids, 0).tolist() == GOLDEN_IDS
    texts = ["a", "ab", "12345678", "123456789", "ünïcode", "x" * 40]
    assert hash_strings(pa.array(texts), 0).to_pylist() == GOLDEN_TEXTS
    assert rows_from_hash(hash_int64(ids, 42), 1000).tolist() == GOLDEN_ROWS


@given(st.lists(st.integers(-(2**63), 2**64 - 1)), SEEDS)
def test_integers_equal_the_slow_hash(values: list[int], seed: int) -> None:
    ids = np.array([value % 2**64 for value in values], np.uint64)
    assert hash_int64(ids, seed).tolist() == [slow_hash(value, seed) for value in values]


@given(st.lists(st.integers(-(2**63), 2**63 - 1)), SEEDS)
def test_int64_and_uint64_of_the_same_bits_agree(values: list[int], seed: int) -> None:
    ids = np.array(values, np.int64)
    before = ids.copy()
    assert (hash_int64(ids, seed) == hash_int64(ids.view(np.uint64), seed)).all()
    assert (ids == before).all()


@given(st.lists(st.text(max_size=30) | st.none()), SEEDS, st.sampled_from(["string", "large_string", "string_view"]))
def test_strings_equal_the_slow_hash(texts: list[str | None], seed: int, kind: str) -> None:
    expected = [slow_hash(text.encode(), seed) if text else None for text in texts]
    plain = pa.array(texts, getattr(pa, kind)())
    assert hash_strings(plain, seed).to_pylist() == expected
    assert hash_strings(plain.cast(pa.large_binary()), seed).to_pylist() == expected
    if texts and kind == "string":
        encoded = pa.concat_arrays([plain, plain]).dictionary_encode()[len(texts) :]
        assert hash_strings(encoded, seed).to_pylist() == expected
        assert hash_strings(encoded.slice(1), seed).to_pylist() == expected[1:]


def test_a_dictionary_may_hold_nulls_and_repeat_values() -> None:
    values = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2, 3, None]), pa.array(["a", None, "a", ""]))
    a = slow_hash(b"a", 1)
    assert hash_strings(values, 1).to_pylist() == [a, None, a, None, None]


@given(st.lists(st.integers(0, 2**64 - 1)), st.integers(1, 2**31))
def test_rows_lie_in_the_table(hashes: list[int], rows: int) -> None:
    found = rows_from_hash(np.array(hashes, np.uint64), rows)
    assert found.tolist() == [(value >> 32) * rows >> 32 for value in hashes]
    assert ((found >= 0) & (found < rows)).all()


def test_long_arrays_go_block_by_block() -> None:
    values = np.arange(40_000, dtype=np.uint64)
    expected = [slow_mix(int(v)) for v in values[::997]]
    assert mix64(values)[::997].tolist() == expected


@pytest.mark.parametrize("step", [1, 2, 64, 2**20, 2**33])
def test_ids_in_a_row_spread_evenly(step: int) -> None:
    """Chi-square of 100 bins over ids that differ by a fixed step: far from what a weak hash gives."""
    ids = np.arange(100_000, dtype=np.int64) * step
    rows = np.empty(len(ids), np.int32)
    reduce_into(hash_int64(ids, 3), 100, rows)
    counts = np.bincount(rows, minlength=100)
    assert ((counts - 1000) ** 2 / 1000).sum() < 180


def test_another_seed_is_another_hash() -> None:
    ids = np.arange(1000)
    assert not (hash_int64(ids, 0) == hash_int64(ids, 1)).any()
