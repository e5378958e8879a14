from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from diurnal.config import Config, from_resolved, load_config, load_schema, resolved_json
from diurnal.errors import ConfigError

SCHEMA = """
event_time = "ts"
[[dense]]
name = "age"
transform = "log1p"
[[sparse]]
name = "user"
[[sparse]]
name = "genres"
type = "string"
many = true
[[tables]]
name = "user"
rows = 1000
dim = 16
[[tables]]
name = "genres"
rows = 64
dim = 16
pooling = "mean"
"""

RUN = """
name = "clicks"
[data]
path = "days"
schema_file = "schema.toml"
batch_rows = 64
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "schema.toml").write_text(SCHEMA)
    (tmp_path / "run.toml").write_text(RUN)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def faults_of(files: list[str], overrides: list[str] | None = None) -> dict[str, tuple[str, str, str]]:
    with pytest.raises(ConfigError) as caught:
        load_config(files, overrides or [])
    return {f.where: (f.found, f.rule, f.fix) for f in caught.value.faults}


def test_a_config_round_trips_through_its_resolved_json_with_absolute_paths(folder: Path) -> None:
    config = load_config(["run.toml"])
    assert from_resolved(resolved_json(config)) == config
    assert json.loads(resolved_json(config))["dataset"]["sparse"][1]["many"] is True
    assert config.data.path == str(folder / "days")
    assert config.storage == str(folder / "build/storage")


def test_later_files_win_and_overrides_win_over_files(folder: Path) -> None:
    (folder / "more.toml").write_text("[data]\nbatch_rows = 128\norder = 'shuffled'\n")
    config = load_config(["run.toml", "more.toml"], ["data.batch_rows=256", "model.bottom=[8, 4]"])
    assert (config.data.batch_rows, config.data.order, config.model.bottom) == (256, "shuffled", (8, 4))


def test_all_faults_of_all_files_come_at_once_with_path_value_rule_and_fix(folder: Path) -> None:
    (folder / "schema.toml").write_text(SCHEMA.replace('"log1p"', '"log2"') + "\n[[sparse]]\nname = 'geo'\n")
    (folder / "bad.toml").write_text("[data]\nstreems = 3\n[optim.sparse]\nkind = 'adam'\n[model]\nbottom = [0]\n")
    faults = faults_of(["run.toml", "bad.toml"], ["workers.max='two'"])
    assert faults["schema.toml: dense[0].transform"][0] == "'log2'"
    assert faults["bad.toml: data.streems"] == ("3", faults["bad.toml: data.streems"][1], "did you mean streams?")
    assert "fused Adam" in faults["bad.toml: optim.sparse.kind"][1]
    assert faults["bad.toml: model.bottom[0]"][0] == "0"
    assert faults["--set: workers.max"] == ("'two'", "a valid integer", "write a whole number")
    assert len(faults) == 5


def test_a_rule_between_sections_is_stated_with_both_numbers_and_a_fix(folder: Path) -> None:
    faults = faults_of(["run.toml"], ["workers.max=3"])
    assert faults == {
        "run.toml: data.batch_rows": (
            "64",
            "the global batch is a multiple of the 3 streams",
            "use 63, or set data.streams",
        )
    }


@pytest.mark.parametrize(
    ("old", "new", "where"),
    [
        ('name = "user"\nrows', 'name = "users"\nrows', "sparse[0].table"),
        ("dim = 16\npooling", "dim = 8\npooling", "tables"),
        ('name = "age"', 'name = "age"\ncolumn = "label"', "dense[0].column"),
        ('transform = "log1p"', "clip = [3, 1]", "dense[0].clip"),
        ('transform = "log1p"', 'transform = "log1p"\nfill = -1.0', "dense[0].fill"),
        ('name = "genres"\ntype = "string"', 'name = "user"\ntable = "genres"', "sparse[1].name"),
        ('type = "string"', 'type = "string"\nmapping = "identity"', "sparse[1].type"),
        ('type = "string"', "boundaries = [2.0, 1.0]", "sparse[1].boundaries"),
        ("rows = 1000", "rows = 0", "tables[0].rows"),
        ("rows = 1000\ndim = 16", "rows = 1000\ndim = 6", "tables[0].dim"),
        ('name = "user"\nrows', 'name = "type"\nrows', "tables[0].name"),
        ('name = "user"\nrows', 'name = "a.b"\nrows', "tables[0].name"),
        ("rows = 1000", "rows = 4294967296", "tables[0].rows"),
        ('event_time = "ts"', '[label]\npositive = "yes"', "label.positive"),
        ('event_time = "ts"', 'label = { positive = "1", negative = "0", at_least = 4.0 }', "label.at_least"),
        ('transform = "log1p"', 'transform = "power"', "dense[0].exponent"),
        ('transform = "log1p"', 'transform = "power"\nexponent = -1.0', "dense[0].fill"),
        ('transform = "log1p"', 'transform = "power"\nexponent = 0.5\nfill = -1.0', "dense[0].fill"),
        ('transform = "log1p"', 'transform = "missing"\nfill = 1.0', "dense[0].transform"),
        ('type = "string"', 'type = "timestamp"', "sparse[1].type"),
        ('type = "string"', 'type = "timestamp"\nmapping = "hour"', "sparse[1].many"),
        ('type = "string"\nmany = true', 'cross = ["user", "user"]', "sparse[1].cross"),
        ('type = "string"\nmany = true', 'cross = ["user", "item"]', "sparse[1].cross"),
        ('type = "string"\nmany = true', 'cross = ["user", "genres"]', "sparse[1].cross"),
        ("many = true", 'cross = ["user", "item"]', "sparse[1].type"),
        ("many = true", 'mapping = "vocab"\ntable = "user"', "sparse[1].table"),
    ],
)
def test_a_schema_that_cannot_be_run_names_the_place(folder: Path, old: str, new: str, where: str) -> None:
    assert old in SCHEMA
    (folder / "schema.toml").write_text(SCHEMA.replace(old, new))
    assert f"schema.toml: {where}" in faults_of(["run.toml"])
    with pytest.raises(ConfigError):
        load_schema("schema.toml")


DERIVED = (
    SCHEMA
    + """
[[sparse]]
name = "hour"
column = "ts"
type = "timestamp"
mapping = "hour"
[[sparse]]
name = "user_hour"
cross = ["user", "hour"]
table = "user"
[[tables]]
name = "hour"
rows = 24
dim = 16
"""
)


def test_derived_features_round_trip_and_a_table_has_a_row_for_each_hour(folder: Path) -> None:
    (folder / "schema.toml").write_text(DERIVED)
    config = load_config(["run.toml"])
    assert from_resolved(resolved_json(config)) == config
    assert config.dataset.sparse[3].cross == ("user", "hour")
    (folder / "schema.toml").write_text(DERIVED.replace("rows = 24", "rows = 23"))
    assert "the 24 values of hour" in faults_of(["run.toml"])["schema.toml: tables"][1]


@pytest.mark.parametrize(
    ("overrides", "where"),
    [
        (["data"], "--set"),
        (["=3"], "--set"),
        (["data.schema_file=nowhere.toml"], "--set: data.schema_file"),
        (["sharding.placement.nothing=row_wise"], "--set: sharding.placement.nothing"),
        (["optim.dense.lr=nan"], "--set: optim.dense.lr"),
        (["seed=2026-01-01"], "--set: seed"),
        (["name='a/b'"], "--set: name"),
        (["dataset.hash_seed=1"], "--set: dataset"),
    ],
)
def test_a_hostile_override_is_one_clear_fault(folder: Path, overrides: list[str], where: str) -> None:
    assert list(faults_of(["run.toml"], overrides)) == [where]


def test_files_that_are_missing_broken_or_not_text_are_named(folder: Path) -> None:
    (folder / "broken.toml").write_text("name = \n")
    (folder / "binary.toml").write_bytes(b"\xff\xfe\x00")
    assert set(faults_of(["nowhere.toml", "broken.toml", "binary.toml"])) == {"--config", "broken.toml"}
    assert "--config" in faults_of([])


def test_config_imports_nothing_heavy() -> None:
    code = "import sys, diurnal.config; print([m for m in ('torch', 'ray', 'mlflow', 'pyarrow') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_sections_are_frozen(folder: Path) -> None:
    config: Config = load_config(["run.toml"])
    with pytest.raises(ValueError, match="frozen"):
        config.data.batch_rows = 3  # pyright: ignore[reportAttributeAccessIssue]
