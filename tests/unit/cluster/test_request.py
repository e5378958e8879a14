"""What is asked for has a name, and what is sent with it is whole, small, and of known versions."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import click
import pytest

from diurnal.cli.submit import COMMANDS, _request
from diurnal.cluster.request import Request, named
from diurnal.cluster.ship import CONFIG_FILE, VERSIONS_FILE, comparable, differences, pack
from diurnal.config import load_config
from diurnal.errors import ConfigError
from diurnal.testing import tiny_config

ROOT = Path(__file__).parents[3]
VERSIONS = {"python": "3.11.4", "diurnal": "0.1", "torch": "2.13.0+cpu", "fbgemm-gpu-cpu": "1.8.0", "ray": "2.60.0"}


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What a command line asks for, over the configuration of the synthetic days."""
    monkeypatch.chdir(ROOT)

    def ask(command: str, *words: str) -> Request:
        words = (*words, "--config", "jobs/configs/synthetic.toml", "--set", f"storage='{tmp_path}'")
        return _request(click.Context(click.Command("submit")), command, words)

    return ask


@pytest.mark.parametrize(
    ("command", "words", "what", "is_bounded"),
    [
        ("train", ["--day", "2026-01-01"], "2026-01-01", True),
        ("train", ["--day", "2026-01-01", "--to", "2026-01-03"], "2026-01-01_2026-01-03", True),
        ("daily", ["--until", "2026-01-03"], "2026-01-03", True),
        ("daily", [], "ready", False),
        ("daily", ["--follow"], "follow", False),
        ("backfill", ["--from", "2026-01-01T00", "--to", "2026-01-02T05"], "2026-01-01T00_2026-01-02T05", True),
        ("evaluate", ["--version", "3", "--day", "2026-01-01"], "v3_2026-01-01", True),
    ],
)
def test_the_name_of_a_job_says_what_is_asked_for(
    asked: Any, command: str, words: list[str], what: str, is_bounded: bool
) -> None:
    request = asked(command, *words)
    assert (request.what, request.is_bounded) == (what, is_bounded)
    assert list(request.words) == words, "the cluster is told the same"
    name = request.config.name
    assert request.id(2) == f"{name}-{command}-{what}-2"
    assert request.attempt_of(request.id(2)) == 2
    assert [request.attempt_of(id) for id in (request.key, f"{request.key}-0", f"{request.key}-x-1", "other-1")] == [
        None
    ] * 4
    assert len(Request(tiny_config({"name": "n" * 100}), command, (), what, True).id(99)) < 200


def test_options_that_change_the_work_change_the_name(asked: Any) -> None:
    plain = asked("daily", "--until", "2026-01-03").what
    one = asked("daily", "--until", "2026-01-03", "--retry", "2026-01-02").what
    other = asked("daily", "--until", "2026-01-03", "--retry", "2026-01-01").what
    assert len({plain, one, other}) == 3
    assert one.startswith(f"{plain}_")
    assert named("a", None, "a", rest={}) == "a"


@pytest.mark.parametrize(
    ("command", "words", "error", "says"),
    [
        ("train", [], click.UsageError, "parameter: day"),
        ("train", ["--day", "2026-01-01", "--frist"], click.UsageError, "--frist"),
        ("replay", ["--from", "2026-01-01", "--to", "2026-01-02", "--plot", "x.png"], click.UsageError, "--plot"),
        ("daily", ["--set", "workers.max=0"], ConfigError, "workers.max"),
    ],
)
def test_what_is_wrong_is_told_before_anything_is_sent(
    asked: Any, command: str, words: list[str], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        asked(command, *words)


def test_every_command_that_can_be_sent_is_one_of_ours() -> None:
    assert set(COMMANDS) == {"train", "daily", "backfill", "replay", "evaluate"}
    assert all(name == command.name for name, command in COMMANDS.items())


BELOW = {"demo": "movielens", "criteo-sample": "criteo", "criteo-mlperf-onehot": "criteo-mlperf"}
"""What a configuration is put on top of."""


@pytest.mark.parametrize("path", sorted(ROOT.glob("jobs/configs/*.toml")), ids=lambda path: path.stem)
def test_what_is_sent_is_the_configuration_alone_and_comes_back_the_same(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    files = [path.with_stem(BELOW[path.stem]), path] if path.stem in BELOW else [path]
    config = load_config(files)
    pack(tmp_path, config)
    assert {file.name for file in tmp_path.iterdir()} == {CONFIG_FILE, VERSIONS_FILE}
    assert load_config([tmp_path / CONFIG_FILE]) == config
    with pytest.raises(ConfigError, match="whole"):
        load_config([tmp_path / CONFIG_FILE], ["seed=1"])


def test_the_hash_of_a_configuration_knows_no_password() -> None:
    one, other = (
        Request(tiny_config({"ledger": {"url": f"postgresql+psycopg://me:{word}@db/x"}}), "daily", (), "ready", False)
        for word in ("secret", "other")
    )
    assert one.config_hash == other.config_hash
    assert "secret" not in json.dumps(one.metadata(1))
    assert one.config_hash != Request(tiny_config({"seed": 8}), "daily", (), "ready", False).config_hash


def test_versions_are_compared_without_what_may_differ() -> None:
    sent = comparable(VERSIONS)
    gpu = {"torch": "2.13.0+cu130", "fbgemm-gpu": "1.8.0", "python": "3.11.9"}
    same = {name: v for name, v in VERSIONS.items() if name != "fbgemm-gpu-cpu"} | gpu
    assert differences(sent, comparable(same)) == []
    here = comparable({**VERSIONS, "diurnal": "0.2", "ray": "2.61.0"})
    assert [(fault.where, fault.found) for fault in differences(sent, here)] == [
        ("cluster: diurnal", "0.2"),
        ("cluster: ray", "2.61.0"),
    ]


def test_a_wheel_is_sent_as_it_is_and_is_what_counts(tmp_path: Path) -> None:
    wheel, folder = tmp_path / "diurnal-9.9-py3-none-any.whl", tmp_path / "job"
    folder.mkdir()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("diurnal/__init__.py", "")
        archive.writestr("diurnal-9.9.dist-info/METADATA", "Name: diurnal\nVersion: 9.9\n")
    pack(folder, tiny_config(), wheel)
    assert json.loads((folder / VERSIONS_FILE).read_text())["diurnal"] == "9.9"
    assert (folder / "diurnal" / "__init__.py").exists()
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("torch/__init__.py", "")
    for file in (wheel, tmp_path / "none.whl"):
        with pytest.raises(ConfigError, match="--wheel"):
            pack(folder, tiny_config(), file)
