"""Writes generated impressions in the layout of iPinYou's logs, with what the best possible model would score."""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import sys
from pathlib import Path

import layout
import numpy as np
import pyarrow as pa
import pyarrow.csv

from diurnal.metrics.exact import exact_auc, exact_log_loss, exact_ne

ORACLE = "oracle.json"
ZONE_HOURS = 8
BIAS = -3.2
TASTE_DIM = 4
TAG_TASTE, TAG_EFFECT, SLOT_EFFECT, CREATIVE_EFFECT, DOMAIN_EFFECT, CITY_EFFECT = 1.4, 0.4, 0.3, 0.3, 0.4, 0.2
NUM_USERS, NUM_TAGS, MAX_TAGS = 20_000, 60, 42
NUM_DOMAINS, NUM_SLOTS, NUM_CREATIVES, NUM_CITIES = 600, 900, 40, 35
SIZES = np.array(["300 250", "728 90", "468 60", "336 280", "950 90", "160 600"])
VIEWS = np.array(["FirstView", "SecondView", "OtherView", "Na"])
FORMATS = np.array(["Fixed", "Pop", "Na"])
AGENTS = np.array(["windows_ie", "windows_chrome", "android_safari", "mac_safari", "other"])


class World:
    """What users, slots and creatives are like; everything follows from the seed."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng((seed, 0))
        self._seed = seed
        num_tags = np.minimum(rng.geometric(0.12, NUM_USERS) - 1, MAX_TAGS)
        # The first so many of a weighted order without repeats: keys as of Efraimidis and Spirakis (2006).
        keys = rng.random((NUM_USERS, NUM_TAGS)) ** (np.arange(NUM_TAGS) + 3.0)
        place = np.argsort(np.argsort(-keys, axis=1), axis=1)
        has_tag = place < num_tags[:, None]
        share = has_tag / np.maximum(num_tags, 1)[:, None]
        self.user_taste = share @ rng.standard_normal((NUM_TAGS, TASTE_DIM))
        self.user_effect = share @ (TAG_EFFECT * rng.standard_normal(NUM_TAGS)) - 0.3 * (num_tags == 0)
        self.tag_texts = [",".join(str(10_000 + tag) for tag in np.flatnonzero(tags)) or "null" for tags in has_tag]
        self.creative_taste = rng.standard_normal((NUM_CREATIVES, TASTE_DIM))
        self.creative_effect = CREATIVE_EFFECT * rng.standard_normal(NUM_CREATIVES)
        self.domain_effect = DOMAIN_EFFECT * rng.standard_normal(NUM_DOMAINS)
        self.city_effect = CITY_EFFECT * rng.standard_normal(NUM_CITIES)
        self.size_effect = SLOT_EFFECT * rng.standard_normal(len(SIZES))
        self.view_effect = np.array([0.4, 0.1, -0.2, 0.0])
        self.slot_domain = rng.integers(0, NUM_DOMAINS, NUM_SLOTS)
        self.slot_size = rng.integers(0, len(SIZES), NUM_SLOTS)

    def day(self, date: dt.date, num_rows: int) -> tuple[pa.Table, np.ndarray, np.ndarray]:
        """A UTC day in order of time: the fields of the log (all texts), the true log-odds, and the clicks."""
        rng = np.random.default_rng((self._seed, 1, date.toordinal()))
        user = (rng.random(num_rows) ** 2 * NUM_USERS).astype(np.int64)
        slot = (rng.random(num_rows) ** 2 * NUM_SLOTS).astype(np.int64)
        creative, view = rng.integers(0, NUM_CREATIVES, num_rows), rng.integers(0, len(VIEWS), num_rows)
        second = np.sort(rng.random(num_rows)) * 86_400
        city, size, domain = user % NUM_CITIES, self.slot_size[slot], self.slot_domain[slot]
        logit = BIAS + self.user_effect[user] + self.creative_effect[creative] + self.size_effect[size]
        logit += self.view_effect[view] + self.domain_effect[domain] + self.city_effect[city]
        logit += TAG_TASTE * (self.user_taste[user] * self.creative_taste[creative]).sum(axis=1) / np.sqrt(TASTE_DIM)
        logit += 0.2 * np.sin(second / 86_400 * 2 * np.pi)
        click = (rng.random(num_rows) < 1.0 / (1.0 + np.exp(-logit))).astype(np.int8)
        local = np.datetime64(date, "ms") + (second * 1000).astype("timedelta64[ms]") + np.timedelta64(ZONE_HOURS, "h")
        texts = np.datetime_as_string(local, unit="ms")
        floor = np.where(rng.random(num_rows) < 0.4, 0, rng.integers(5, 120, num_rows))
        shape = [size_text.split() for size_text in SIZES[size]]
        fields = {
            "bidid": [f"{date:%y%m%d}{row:026x}" for row in range(num_rows)],
            "timestamp": ["".join(c for c in text if c.isdigit()) for text in texts.tolist()],
            "logtype": ["1"] * num_rows,
            "ipinyouid": [f"V{number:09x}" for number in user.tolist()],
            "useragent": AGENTS[user % len(AGENTS)],
            "ip": [f"{number % 200 + 10}.{number // 200 % 250}.{number % 250}.*" for number in user.tolist()],
            "region": (city // 3 * 10 + 1).astype("U"),
            "city": city.astype("U"),
            "adexchange": (slot % 3 + 1).astype("U"),
            "domain": [f"site{number:05d}" for number in domain.tolist()],
            "url": [f"page{number:07x}" for number in (domain * 31 + rng.integers(0, 40, num_rows)).tolist()],
            "urlid": ["null"] * num_rows,
            "slotid": [f"mm_{number:08d}" for number in slot.tolist()],
            "slotwidth": [width for width, _ in shape],
            "slotheight": [height for _, height in shape],
            "slotvisibility": VIEWS[view],
            "slotformat": FORMATS[slot % len(FORMATS)],
            "slotprice": floor.astype("U"),
            "creative": [f"cr{number:06d}" for number in creative.tolist()],
            "bidprice": ["300"] * num_rows,
            "payprice": (floor + rng.integers(1, 100, num_rows)).astype("U"),
            "keypage": ["page"] * num_rows,
            "advertiser": (creative % 5 + 1458).astype("U"),
            "usertag": [self.tag_texts[number] for number in user.tolist()],
        }
        return pa.table({name: pa.array(fields[name], pa.string()) for name in layout.FIELDS}), logit, click


def write_day(out: Path, world: World, date: dt.date, num_rows: int) -> dict[str, object]:
    """Writes the impressions and clicks of one UTC day; what the true probabilities score on them."""
    table, logit, click = world.day(date, num_rows)
    options = pyarrow.csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
    for kind, rows in (("imp", table), ("clk", table.filter(pa.array(click == 1)))):
        path = out / f"{kind}.{date:%Y%m%d}.txt"
        pyarrow.csv.write_csv(rows, path.with_name(f".{path.name}"), options)
        os.replace(path.with_name(f".{path.name}"), path)
    scores = {"log_loss": exact_log_loss(logit, click), "ne": exact_ne(logit, click), "auc": exact_auc(logit, click)}
    return {"rows": num_rows, "positives": int(click.sum()), **scores}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="generated impressions in the layout of iPinYou's logs")
    parser.add_argument("--out", type=Path, required=True, help="folder for imp.*, clk.* and oracle.json")
    parser.add_argument("--days", type=int, default=7)
    parser.add_argument("--rows-per-day", type=int, default=20_000)
    parser.add_argument("--start", type=dt.date.fromisoformat, default=dt.date(2013, 6, 6), help="first UTC day")
    parser.add_argument("--seed", type=int, default=0, help="another seed is another world")
    given = parser.parse_args(argv)
    given.out.mkdir(parents=True, exist_ok=True)
    world = World(given.seed)
    dates = [given.start + dt.timedelta(days=number) for number in range(given.days)]
    oracle = {date.isoformat(): write_day(given.out, world, date, given.rows_per_day) for date in dates}
    (given.out / ORACLE).write_text(json.dumps(oracle, indent=2), encoding="utf-8")
    print(f"ads: {given.days} days of {given.rows_per_day} generated rows in {given.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
