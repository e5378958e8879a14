"""The daily cycle over days that are in an object store."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from pyarrow import fs

from diurnal.testing_daily import config_of, daily, outcome, rows_learned, write_days


def test_days_in_an_object_store_are_learned_as_those_in_a_folder(object_store: Path, tmp_path: Path) -> None:
    days = write_days(tmp_path / "days", 2)
    remote, _ = fs.FileSystem.from_uri("s3://log")
    fs.copy_files(str(days), "log/days", destination_filesystem=remote)
    here, there = config_of(days, tmp_path / "here"), config_of(days, tmp_path / "there")
    there = there.model_copy(update={"data": there.data.model_copy(update={"path": "s3://log/days"})})
    environment = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    for config in (here, there):
        daily(config, environment=environment)
    assert object_store.read_text().count("GET /log/days/") > 10
    np.testing.assert_array_equal(rows_learned(there, 2), rows_learned(here, 2))
    assert outcome(there)["champion"] == outcome(here)["champion"] == 2
    assert outcome(there)["scored"] == outcome(here)["scored"]
