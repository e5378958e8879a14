"""The daily cycle with everything that a model keeps in an object store: as in a folder."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest
from pyarrow import fs

from diurnal.config import Config
from diurnal.data.objects import ObjectPath
from diurnal.testing_daily import (
    config_of,
    daily,
    outcome,
    notes_of,
    same_tensors,
    states_of,
    versions_of,
    write_days,
)

NUM_DAYS = 4
KEPT = {"checkpoint": {"keep_versions": 1, "every_rows": 600}}

Both = tuple[Config, Config, list[str]]


def asked(log: Path) -> list[str]:
    plain = re.sub(r"\x1b\[\d+m", "", log.read_text())
    return re.findall(r'"([A-Z]+ \S+) HTTP/1.1" \d+', plain)


@pytest.fixture(scope="module")
def both(object_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Both:
    """The same days in folders and in a bucket, with all that is kept of the model; and what the server was asked."""
    days = write_days(tmp_path_factory.mktemp("days"), NUM_DAYS)
    remote, _ = fs.FileSystem.from_uri("s3://log")
    fs.copy_files(str(days), "log/days", destination_filesystem=remote)
    here, notes = config_of(days, tmp_path_factory.mktemp("here"), KEPT), tmp_path_factory.mktemp("there")
    there = config_of("s3://log/days", "s3://log/models", {**KEPT, "ledger": {"url": f"sqlite:///{notes}/ledger.db"}})
    environment = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    environment["TMPDIR"] = str(notes)
    daily(here)
    before = len(asked(object_store))
    (notes / "said").write_text("\n".join(daily(there, environment=environment)["said"]))
    return here, there, asked(object_store)[before:]


def test_the_same_rows_make_the_same_versions(both: Both) -> None:
    here, there, _ = both
    assert states_of(there) == ["promoted"] * NUM_DAYS
    assert outcome(there) == outcome(here)
    for kind in ("learned", "seen"):
        files = sorted(path.relative_to(notes_of(here)) for path in (notes_of(here) / kind).rglob("*.npy"))
        assert len(files) > 40
        for file in files:
            np.testing.assert_array_equal(np.load(notes_of(there) / file), np.load(notes_of(here) / file))
    assert (notes_of(there) / "scored").read_text() == (notes_of(here) / "scored").read_text()
    assert list(versions_of(there)) == [2, 3, 4]
    assert all(same_tensors(there, number, here, number) for number in (2, 4))


def test_what_goes_from_the_folder_goes_from_the_bucket(both: Both) -> None:
    here, there, _ = both
    in_bucket = ObjectPath.of(f"{there.storage}/{there.name}").files()
    root = Path(here.storage, here.name)
    in_folder = {path.relative_to(root).as_posix(): path.stat().st_size for path in root.rglob("*") if path.is_file()}
    # A folder of a version has a name of its own in a bucket.
    assert {re.sub(r"(\d+-\d+)\.\d+/", r"\1/", path) for path in in_bucket} == in_folder.keys()
    assert {path.split("/")[0] for path in in_folder} == {"versions", "slices", "past", "plans"}


def test_a_day_takes_few_listings(both: Both) -> None:
    *_, requests = both
    of_models = [request for request in requests if "list-type=2" in request and "prefix=models" in request]
    commits = [request for request in requests if re.fullmatch(r"PUT /log/models/tiny/versions/\S+/COMMIT", request)]
    removed = [request for request in requests if request == "POST /log?delete"]
    assert len(commits) == 2 * NUM_DAYS, "resume points and versions"
    # Of a commit: to see that it is whole, and what it leaves over; then one for each folder that goes. Of a day: a past
    # that is sent, one that is fetched, and what goes of pasts and slices. And two at the start.
    assert 2 * len(commits) < len(of_models) <= 2 * len(commits) + len(removed) + 4 * NUM_DAYS + 2, of_models


def test_the_secret_is_nowhere(both: Both, object_store: Path) -> None:
    _, there, _ = both
    secret = os.environ["AWS_SECRET_ACCESS_KEY"].encode()
    files = [path for path in notes_of(there).rglob("*") if path.is_file()]
    assert {"ledger.db", "said", "past.json"} <= {path.name for path in files}
    assert not [path for path in files if secret in path.read_bytes()]
    root = ObjectPath.of("s3://log/models")
    assert not [path for path in root.files() if secret in (root / path).read_bytes()]
