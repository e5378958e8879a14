"""The commands in the chart's pods are commands of this package, with options that it knows."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import click
import pytest

from diurnal.cli.main import main
from diurnal.cli.submit import COMMANDS

SCHEMA = Path(__file__).parents[2] / "helm" / "diurnal" / "values.schema.json"

Json = dict[str, Any]


def parsed(words: list[str]) -> dict[str, Any]:
    """What the command makes of its options; click refuses those that it does not know."""
    with click.Context(main) as context:
        command = main.get_command(context, words[0])
        assert command is not None
        return command.make_context(words[0], words[1:], parent=context).params


def command_of(pod: Json) -> list[str]:
    program, *words = pod["spec"]["containers"][0]["command"]
    assert program == "diurnal"
    return words


def test_the_exporter(chart, pods_of):
    given = parsed(command_of(pods_of(chart.objects("trial"))["exporter"]))
    assert given["listen"] == "0.0.0.0:9108"
    assert given["files"] == ("/etc/diurnal/run.toml", "/etc/diurnal/cluster.toml")


def test_the_commands_that_can_be_scheduled():
    schema = json.loads(SCHEMA.read_text())["properties"]["schedule"]["properties"]["command"]
    assert set(schema["items"][0]["enum"]) == set(COMMANDS)


@pytest.mark.parametrize("command", ["daily", "daily --max-days 7"])
def test_the_submitter(chart, pods_of, command):
    words = ", ".join(f'"{word}"' for word in command.split())
    pods = pods_of(chart.objects("trial", f"schedule.command=[{words}]"))
    given = parsed(command_of(pods["submit"]))
    assert (given["command"], given["address"], given["scheduled"]) == ("daily", "http://trial-head-svc:8265", True)
    inner = COMMANDS["daily"].make_context("daily", list(given["words"])).params
    assert inner["files"] == ("/etc/diurnal/run.toml", "/etc/diurnal/cluster.toml")
    assert inner["max_days"] == (7 if "7" in command else None)


def test_the_entry_point_of_a_run(chart):
    (run,) = [d for d in chart.objects("per-run") if d["kind"] == "RayJob"]
    python, isolated, m, module, command, *words = run["spec"]["entrypoint"].split()
    assert (python, isolated, m) == ("python", "-P", "-m")
    assert importlib.util.find_spec(module) is not None
    assert COMMANDS[command].make_context(command, words).params["files"] == (
        "/etc/diurnal/run.toml",
        "/etc/diurnal/cluster.toml",
    )
