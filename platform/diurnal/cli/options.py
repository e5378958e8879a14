"""What all commands share: --config, --set, --json, and how an error becomes an exit code."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from diurnal.errors import EXIT_ERROR, DiurnalError, LeaseLost

F = TypeVar("F", bound=Callable[..., Any])


def json_option(command: F) -> F:
    """Adds --json, and turns a person's fault into one clear message and its exit code."""
    option = click.option("--json", "as_json", is_flag=True, help="Machine-readable output on stdout; logs on stderr.")

    @functools.wraps(command)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except DiurnalError as error:
            if kwargs.get("as_json"):
                faults = [dataclasses.asdict(fault) for fault in error.faults]
                print_json({"error": {"kind": type(error).__name__, "message": str(error), "faults": faults}})
            click.echo(str(error), err=True)
            if isinstance(error, LeaseLost):
                # Ray may have given this process up while it was frozen, and crashes when such a one ends in order.
                sys.stdout.flush()
                os._exit(error.exit_code)
            sys.exit(error.exit_code)
        except KeyboardInterrupt as interrupt:
            words = f"{interrupt or 'interrupted'}; the same command goes on from the newest commit"
            if kwargs.get("as_json"):
                print_json({"error": {"kind": "Interrupted", "message": words, "faults": []}})
            click.echo(words, err=True)
            sys.exit(EXIT_ERROR)

    return option(guarded)  # pyright: ignore[reportReturnType]


def config_options(command: F) -> F:
    """Adds --config, --set and --json."""
    command = json_option(command)
    command = click.option(
        "--set",
        "overrides",
        metavar="KEY=VALUE",
        multiple=True,
        help="One setting, as --set data.batch_rows=512; repeatable.",
    )(command)
    return click.option(
        "--config", "files", metavar="FILE", multiple=True, help="TOML file; repeatable, later files win."
    )(command)


def print_json(value: Any) -> None:
    """One JSON document on stdout. Undefined numbers are null: JSON has no NaN."""
    click.echo(json.dumps(value, indent=2, allow_nan=False))
