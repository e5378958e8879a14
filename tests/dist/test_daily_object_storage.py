"""The daily cycle with everything that a model keeps in an object store: as in a folder."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest
from pyarrow import fs

from diurnal.config import Config
from diurnal.daily.agenda import Asked
from diurnal.data.objects import ObjectPath
from diurnal.testing_daily import (
    config_of,
    daily,
    day_of,
    outcome,
    rows_learned,
    same_tensors,
    scales_price,
    states_of,
    versions_of,
    write_days,
)

KEPT = {"checkpoint": {"keep_versions": 1}}


def asked(log: Path) -> list[str]:
    plain = re.sub(r"\x1b\[\d+m", "", log.read_text())
    return re.findall(r'"([A-Z]+ \S+) HTTP/1.1" \d+', plain)


@pytest.fixture(scope="module")
def both(object_store: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Config, Config, list[str]]:
    """The same five days, the fourth of which is held, in folders and in a bucket; and what the server was asked for
    the last of them."""
    days = write_days(tmp_path_factory.mktemp("days"), 5, {3: scales_price})
    remote, _ = fs.FileSystem.from_uri("s3://log")
    fs.copy_files(str(days), "log/days", destination_filesystem=remote)
    here, notes = config_of(days, tmp_path_factory.mktemp("here"), KEPT), tmp_path_factory.mktemp("there")
    there = config_of("s3://log/days", "s3://log/models", {**KEPT, "ledger": {"url": f"sqlite:///{notes}/ledger.db"}})
    environment = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    environment["TMPDIR"] = str(notes)
    daily(here)
    daily(there, asked=Asked(last=day_of(3)), environment=environment)
    before = len(asked(object_store))
    daily(there, environment=environment)
    return here, there, asked(object_store)[before:]


def test_the_same_rows_make_the_same_versions(both: tuple[Config, Config, list[str]]) -> None:
    here, there, _ = both
    assert states_of(there) == ["promoted", "promoted", "promoted", "held", "promoted"]
    assert outcome(there) == outcome(here)
    np.testing.assert_array_equal(rows_learned(there, 4), rows_learned(here, 4))
    assert all(same_tensors(there, number, here, number) for number in versions_of(here))


def test_what_goes_from_the_folder_goes_from_the_bucket(both: tuple[Config, Config, list[str]]) -> None:
    here, there, _ = both
    in_bucket = ObjectPath.of(f"{there.storage}/{there.name}").files()
    root = Path(here.storage, here.name)
    in_folder = {path.relative_to(root).as_posix(): path.stat().st_size for path in root.rglob("*") if path.is_file()}
    # A folder of a version has a name of its own in a bucket.
    assert {re.sub(r"(\d+-\d+)\.\d+/", r"\1/", path) for path in in_bucket} == in_folder.keys()
    assert {path.split("/")[0] for path in in_folder} == {"versions", "slices", "past", "plans"}


def test_a_day_takes_few_listings(both: tuple[Config, Config, list[str]]) -> None:
    *_, requests = both
    of_models = [r for r in requests if "list-type=2" in r and "prefix=models" in r]
    assert 0 < len(of_models) <= 30, of_models


def test_the_secret_is_nowhere(both: tuple[Config, Config, list[str]], object_store: Path) -> None:
    _, there, _ = both
    secret = os.environ["AWS_SECRET_ACCESS_KEY"].encode()
    notes = Path(there.ledger.url.removeprefix("sqlite:///")).parent
    files = [path for path in notes.rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if secret in path.read_bytes()]
    root = ObjectPath.of("s3://log/models")
    assert not [path for path in root.files() if secret in (root / path).read_bytes()]
