"""From a folder of Parquet to a schema and a run: init."""

from __future__ import annotations

import contextlib
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from diurnal.cli.options import json_option, print_json

if TYPE_CHECKING:
    from diurnal.data.guess.proposal import Proposal

_FILES = ("schema.toml", "run.toml")


@click.command()
@click.argument("folder", metavar="DIR")
@click.option("--out", metavar="FOLDER", default=".", show_default=True, help="Where schema.toml and run.toml go.")
@click.option("--force", is_flag=True, help="Writes over files that are there.")
@click.option("--days", "num_days", type=click.IntRange(min=1), default=7, show_default=True, help="Days to look at.")
@click.option("--label", "column", metavar="COLUMN", default="", help="The column with the outcome.")
@click.option("--positive", metavar="VALUE", default="", help="Which of the label's two values is a positive.")
@click.option("--at-least", type=float, metavar="NUMBER", help="From which number on the label is a positive.")
@json_option
def init(
    folder: str,
    out: str,
    force: bool,
    num_days: int,
    column: str,
    positive: str,
    at_least: float | None,
    as_json: bool,
) -> None:
    """Writes a schema.toml and a run.toml from the data in DIR, for you to edit.

    DIR is a folder or URL with dt=YYYY-MM-DD[/hr=HH]/*.parquet. Each guess has a comment that says what speaks for it;
    what looks as if it were known only after the outcome is left out.
    """
    from diurnal.data.guess.label import Wish
    from diurnal.data.guess.propose import propose
    from diurnal.data.guess.text import run_text, schema_text

    if (positive or at_least is not None) and not column:
        raise click.UsageError("--positive and --at-least belong to a column: add --label COLUMN")
    if positive and at_least is not None:
        raise click.UsageError("a label has either --positive or --at-least")
    schema_file, run_file = (Path(out) / name for name in _FILES)
    _refuse_to_overwrite([schema_file, run_file], force)
    path = folder if "://" in folder else str(Path(folder).absolute())
    proposal = propose(path, num_days, Wish(column, positive, at_least))
    texts = {schema_file: schema_text(proposal), run_file: run_text(proposal, str(schema_file))}
    _write(texts)
    if as_json:
        print_json({"files": [str(file) for file in texts], **proposal.to_dict()})
    else:
        click.echo(proposal.table())
        click.echo(_what_next(proposal, run_file))


def _refuse_to_overwrite(files: list[Path], force: bool) -> None:
    from diurnal.errors import ConfigError, Fault

    must, fix = "nothing is written over", "choose another folder with --out, or add --force"
    faults = [Fault(str(file), "a file that is there", must, fix) for file in files if file.exists() and not force]
    if faults:
        raise ConfigError(faults)


def _write(texts: dict[Path, str]) -> None:
    """Each file whole or not at all.

    Raises:
        ConfigError: the folder cannot be written.
    """
    from diurnal.errors import ConfigError, Fault

    for file, text in texts.items():
        part = file.with_name(f".{file.name}.{os.getpid()}")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(text, encoding="utf-8")
            os.replace(part, file)
        except OSError as error:
            with contextlib.suppress(OSError):
                part.unlink()
            raise ConfigError(
                [Fault(str(file), str(error), "a folder that can be written", "give another: --out")]
            ) from error


def _what_next(proposal: Proposal, run_file: Path) -> str:
    config = shlex.quote(str(run_file))
    day = next(folder.increment for folder in proposal.survey.folders if folder.rows)
    return (
        f"\nwritten: {run_file.with_name(_FILES[0])} and {run_file}; read them, then\n"
        f"  diurnal validate --config {config}\n  diurnal train --config {config} --day {day}"
    )
