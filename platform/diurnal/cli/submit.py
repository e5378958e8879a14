"""The same commands as Ray jobs: submit, watch, stop."""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING, Any

import click

from diurnal.cli.daily import backfill, daily, replay
from diurnal.cli.learn import evaluate, train
from diurnal.cli.options import json_option, print_json
from diurnal.errors import EXIT_DONE, EXIT_ERROR, EXIT_HELD

if TYPE_CHECKING:
    from diurnal.cluster.client import JobServer
    from diurnal.cluster.request import Request
    from diurnal.cluster.watch import Ended

COMMANDS = {"train": train, "daily": daily, "backfill": backfill, "replay": replay, "evaluate": evaluate}
_NOT_SENT = ("files", "overrides", "as_json")

_address = click.option("--address", metavar="URL", help="Job server, http://HEAD:8265. [RAY_API_SERVER_ADDRESS]")


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("command", metavar="COMMAND", type=click.Choice(list(COMMANDS)))
@click.argument("words", metavar="[OPTIONS OF COMMAND]...", nargs=-1, type=click.UNPROCESSED)
@_address
@click.option("--no-wait", is_flag=True, help="Do not follow the job: 0 once it is submitted.")
@click.option("--again", is_flag=True, help="Once more, although the same has succeeded.")
@click.option("--scheduled", is_flag=True, help="0 for a held or undecided day: a retry would not help.")
@click.option("--wheel", metavar="FILE", help="A wheel of diurnal, to run instead of what the cluster has.")
@json_option
@click.pass_context
def submit(
    context: click.Context,
    command: str,
    words: tuple[str, ...],
    address: str | None,
    no_wait: bool,
    again: bool,
    scheduled: bool,
    wheel: str | None,
    as_json: bool,
) -> None:
    """Runs train, daily, backfill, replay or evaluate as a Ray job, or attaches to it, and ends as the job ends."""
    from pathlib import Path

    from diurnal.cluster.client import JobServer, address_of
    from diurnal.cluster.submit import submit as run

    request = _request(context, command, words)
    server = JobServer(address_of(address))
    submitted = run(request, server, _say, again=again, wheel=Path(wheel) if wheel else None)
    fields: dict[str, Any] = {**dataclasses.asdict(submitted), "status": None, "exit_code": EXIT_DONE, "error": ""}
    if submitted.how != "done" and not no_wait:
        ended = _watch(server, submitted.id, as_json)
        fields |= dataclasses.asdict(ended)
        _tell(ended)
    if scheduled and fields["exit_code"] == EXIT_HELD:
        fields["exit_code"] = EXIT_DONE
    if as_json:
        print_json(fields)
    elif no_wait:
        click.echo(submitted.id)
    sys.exit(fields["exit_code"])


@click.command()
@click.argument("id")
@_address
@json_option
def watch(id: str, address: str | None, as_json: bool) -> None:
    """What a job writes, as it writes it; ends as the job ends."""
    from diurnal.cluster.client import JobServer, address_of
    from diurnal.cluster.stop import existing

    server = JobServer(address_of(address))
    ended = _watch(server, existing(server, id).id, as_json)
    _tell(ended)
    if as_json:
        print_json(dataclasses.asdict(ended))
    sys.exit(ended.exit_code)


@click.command()
@click.argument("id")
@_address
@click.option("--timeout", "timeout_s", type=float, metavar="S", help="How long to wait for its end.")
@json_option
def stop(id: str, address: str | None, timeout_s: float | None, as_json: bool) -> None:
    """Ends a job that runs or waits: it commits what it has learned, lets the model go, and closes its run."""
    from diurnal.cluster.client import JobServer, address_of
    from diurnal.cluster.stop import stop as run

    ended = run(JobServer(address_of(address)), id, timeout_s, _say)
    if as_json:
        print_json(dataclasses.asdict(ended))


def _request(context: click.Context, command: str, words: tuple[str, ...]) -> Request:
    """What COMMAND's own parser makes of its options: what is wrong with them is told before anything is sent."""
    from diurnal.cluster.request import Request
    from diurnal.config import load_config

    inner = COMMANDS[command]
    given = inner.make_context(command, list(words), parent=context).params
    config = load_config(given["files"], given["overrides"])
    what, is_bounded = _what(command, given)
    return Request(config, command, tuple(_words(inner, given)), what, is_bounded)


def _what(command: str, given: dict[str, Any]) -> tuple[str, bool]:
    """The part of the job's name that says what is asked for, and whether that has an end."""
    from diurnal.cluster.request import named

    if command == "train":
        return named(given["day"], given["to"]), True
    if command == "evaluate":
        return named(f"v{given['number']}", given["day"]), True
    if command == "backfill":
        return named(given["first"], given["last"]), True
    if command == "replay":
        if given["plot"]:
            raise click.UsageError("--plot FILE would be written on the cluster: leave it out, --json has the numbers")
        return named(given["first"], given["last"], rest=[given["ages"], given["frozen"]]), True
    options = {name: given[name] for name in ("max_days", "retry", "retrain") if given[name]}
    if given["follow"]:
        return named("follow", given["until"], rest=options), False
    return named(given["until"] or "ready", rest=options), given["until"] is not None


def _words(command: click.Command, given: dict[str, Any]) -> list[str]:
    """The options of a command, spelled out again."""
    words: list[str] = []
    for option in command.params:
        value = given.get(option.name or "")
        if not isinstance(option, click.Option) or option.name in _NOT_SENT or value in (None, False, ()):
            continue
        for one in value if option.multiple else (value,):
            words += [option.opts[0]] if option.is_flag else [option.opts[0], str(one)]
    return words


def _watch(server: JobServer, id: str, as_json: bool) -> Ended:
    from diurnal.cluster.watch import watch as follow

    try:
        return follow(server, id, lambda line: click.echo(line, err=as_json))
    except KeyboardInterrupt:
        _say(f"\nnot watched any more; the job goes on: `diurnal watch {id}`, `diurnal stop {id}`")
        sys.exit(EXIT_ERROR)


def _tell(ended: Ended) -> None:
    _say(ended.text())


def _say(text: str) -> None:
    click.echo(text, err=True)
