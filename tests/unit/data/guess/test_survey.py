"""What is looked at: which days, files and rows, what they cost, and what is said of folders that hold no days."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from diurnal.data.guess import cardinality
from diurnal.data.guess.cardinality import count_ids, expected_ids
from diurnal.data.guess.propose import propose
from diurnal.data.guess.survey import survey
from diurnal.data.guess.text import schema_text
from diurnal.data.guess.values import read_values
from diurnal.errors import DataError


def test_days_are_spread_and_small_data_are_read_whole(invented: Any) -> None:
    invented.days(days=9)
    found = survey(invented.path, num_days=4)
    assert [folder.increment[-2:] for folder in found.folders] == ["01", "04", "06", "09"]
    assert (found.num_rows, found.rows_looked_at, found.rows_in_all) == (1200, 1200, 2700)
    assert [folder.increment[-2:] for folder in survey(invented.path, num_days=1).folders] == ["09"]


def test_rows_are_bounded_and_come_from_all_over_the_day(invented: Any) -> None:
    for day in range(2):
        for part in range(3):
            table = pa.table({"place": np.arange(5000) + 5000 * part + 15_000 * day})
            invented.write(table, day, name=f"part-{part}.parquet")
    found = survey(invented.path, max_rows=1000)
    places = read_values(found, found.fields[0]).numbers
    assert len(places) == len(set(places.tolist())) == 1000
    quarters = np.bincount(places // 3750, minlength=8)
    assert quarters.min() > 50


def test_a_huge_row_group_is_read_through_a_small_buffer(
    invented: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rows = 400_000
    folder = invented.write({"x": np.random.default_rng(0).integers(0, 2**60, 9)})
    pq.write_table(pa.table({"x": np.random.default_rng(0).integers(0, 2**60, rows)}), folder / "part-0.parquet")
    read: list[int] = []

    class Counted:
        def __init__(self, file: Any) -> None:
            self._file = file
            self.closed = False

        def read(self, size: int = -1) -> bytes:
            return self.read_buffer(size).to_pybytes()

        def read_buffer(self, size: int = -1) -> pa.Buffer:
            content = self._file.read_buffer(size)
            read.append(content.size)
            return content

        def __getattr__(self, name: str) -> Any:
            return getattr(self._file, name)

    from diurnal.data.guess import survey as module

    original = module.pq.ParquetFile
    monkeypatch.setattr(
        module.pq, "ParquetFile", lambda source, **more: original(pa.PythonFile(Counted(source)), **more)
    )
    assert survey(invented.path, max_rows=1000).num_rows == 1000
    assert 0 < sum(read) < 3 << 20 < folder.joinpath("part-0.parquet").stat().st_size


def test_the_same_folder_gives_the_same_text(invented: Any) -> None:
    invented.days(lambda day, labels: {"tags": pa.array([[f"t{row % 11}"] for row in range(300)])}, days=5)
    texts = {schema_text(propose(invented.path, max_rows=1000)) for _ in range(3)}
    assert len(texts) == 1


def test_distinct_ids_are_extrapolated_from_those_that_came_once() -> None:
    assert (expected_ids(300, 1.0, 300, 30_000), expected_ids(300, 1.0, 300, 300)) == (3000, 300)
    assert (expected_ids(300, 0.0, 300, 30_000), expected_ids(300, 0.5, 300, 2700)) == (300, 600)


def test_ids_that_the_sample_lacks_are_counted_over_more_rows(invented: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    for day in range(2):
        who = rng.integers(0, 6000, 20_000)
        columns = {
            "who": who,
            "name": pa.array([f"n{i}" for i in who // 2]),
            "bag": pa.array([[i, i + 1] for i in who]),
        }
        folder = invented.write({}, day)
        table = pa.table({**columns, "few": who % 5, "none": pa.array(who - 10**6)})
        pq.write_table(table, folder / "part-0.parquet", row_group_size=2500)
    found = survey(invented.path, max_rows=2000)
    values = {field.name: read_values(found, field) for field in found.fields}
    counted = count_ids(found, list(values.values()))
    assert [counted[name][1] for name in counted] == [40_000, 40_000, 40_000, found.num_rows, 40_000]
    truth = {"who": 6000, "name": 3000, "bag": 6001, "few": 5}
    assert {name: counted[name][0] for name in truth} == pytest.approx(truth, rel=0.05)
    monkeypatch.setattr(cardinality, "MAX_VALUES", 40_000)  # a quarter of the rows
    (expected, rows) = count_ids(found, list(values.values()))["who"]
    assert 9_000 < rows <= 10_000
    assert 6000 * 0.8 < expected < 6000 * 1.5


def test_hours_are_increments_of_their_own(invented: Any) -> None:
    for day in range(2):
        for hour in (0, 9, 23):
            times = pa.array(invented.times(day, hour=hour), pa.timestamp("us"))
            invented.write(invented.columns(day) | {"ts": times}, day, hour)
    proposal = propose(invented.path)
    assert [folder.increment for folder in proposal.survey.folders][:2] == ["2026-01-01T00", "2026-01-01T09"]
    assert proposal.schema()["event_time"] == "ts"
    assert proposal.days is not None
    assert proposal.days.why.startswith("42 increments are missing")


def test_readiness_follows_what_is_in_the_folders(invented: Any, tmp_path: Path) -> None:
    def rule(root: Any) -> dict[str, Any]:
        return propose(root.path).readiness.settings

    invented.days()
    (invented.root / "dt=2026-01-03" / "_SUCCESS").unlink()
    assert rule(invented) == {"rule": "marker"}
    other = type(invented)(tmp_path / "other")
    for day in range(3):
        other.write(other.columns(day), day, marker="load.done")
    assert rule(other) == {"rule": "marker", "marker": "load.done"}
    (other.root / "dt=2026-01-01" / "load.done").unlink()
    assert rule(other) == {"rule": "age", "age_s": 60.0}
    for day in range(3):
        seconds = 1767225600 + (day + 1) * 86_400 + 900
        os.utime(other.root / f"dt=2026-01-0{day + 1}" / "part-0.parquet", (seconds, seconds))
    assert rule(other) == {"rule": "age", "age_s": 3600.0}
    promised = type(invented)(tmp_path / "promised")
    promised.write(promised.columns(), marker="_manifest.json")
    assert rule(promised) == {"rule": "manifest"}


def test_files_that_are_no_data_are_passed_over_and_broken_ones_are_named(invented: Any) -> None:
    """ray-project/ray#57704: markers, hidden, temporary and cut files."""
    invented.days()
    folder = invented.root / "dt=2026-01-02"
    (folder / ".part-0.parquet.crc").write_bytes(b"x")
    (folder / "_temporary").mkdir()
    whole = (folder / "part-0.parquet").read_bytes()
    (folder / "part-1.parquet").write_bytes(whole[: len(whole) // 2])
    pq.write_table(pa.table(invented.columns()).slice(0, 0), folder / "part-2.parquet")
    proposal = propose(invented.path)
    assert proposal.survey.num_rows == 900
    (note,) = proposal.notes
    assert "part-1.parquet cannot be read" in note
    for day in (1, 2, 3):
        for file in (invented.root / f"dt=2026-01-0{day}").glob("*.parquet"):
            file.write_bytes(b"PAR1 nothing")
    with pytest.raises(DataError, match="a readable Parquet footer"):
        propose(invented.path)


@pytest.mark.parametrize(
    ("files", "below", "words", "fix"),
    [
        ([], "", "no folder dt=YYYY-MM-DD and no Parquet file", "dt=2026-01-31/_SUCCESS"),
        (["a.parquet", "b.parquet"], "", "2 Parquet files and no day", "split the rows by their day"),
        (["date=2026-01-05/a.parquet"], "", "the key is dt, not date", "to dt=2026-01-05"),
        (["20260105/a.parquet"], "", "folders such as 20260105", "to dt=2026-01-05"),
        (["log/dt=2026-01-05/a.parquet"], "", "the days are in log", "/log"),
        (["dt=2026-01-05/a.parquet"], "dt=2026-01-05", "a single day or hour", "the folder above"),
        (["dt=20260105/a.parquet"], "", "dt=20260105", "rename the folder"),
        (["dt=2026-01-05/a.csv"], "", "no Parquet file in 2026-01-05", "end in .parquet"),
        (["dt=2026-01-05/empty.parquet"], "", "no row in 2026-01-05", "--days"),
        (["dt=2026-01-05/a.parquet"], "dt=2026-01-05/a.parquet", "a file", "lay it out as dt=YYYY-MM-DD"),
        ([], "nowhere", "nothing", "correct the folder"),
    ],
)
def test_a_folder_without_days_is_told_how_to_be_laid_out(
    tmp_path: Path, files: list[str], below: str, words: str, fix: str
) -> None:
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        rows = 0 if "empty" in file else 3
        pq.write_table(pa.table({"label": [0, 1, 0][:rows]}), tmp_path / file)
    with pytest.raises(DataError) as caught:
        propose(str(tmp_path / below) if below else str(tmp_path))
    (fault,) = caught.value.faults
    assert words in f"{fault.found} {fault.rule}"
    assert fix in fault.fix


@pytest.mark.parametrize(("url", "words"), [("nope://bucket/log", "nope"), ("s3://me:secret@bucket/log", "a password")])
def test_a_url_that_cannot_be_opened_is_a_fault_and_no_secret_is_repeated(url: str, words: str) -> None:
    with pytest.raises(DataError, match=words) as caught:
        propose(url)
    assert "secret" not in str(caught.value)


def test_a_url_of_a_file_system_is_taken_as_it_is(invented: Any) -> None:
    invented.days()
    proposal = propose(f"file://{invented.path}")
    assert proposal.survey.path == f"file://{invented.path}"
    assert proposal.survey.num_rows == 900
