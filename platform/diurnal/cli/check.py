"""Commands that look and change nothing: doctor, validate."""

from __future__ import annotations

import dataclasses
import sys

import click

from diurnal.cli.options import config_options, json_option, print_json


@click.command()
@json_option
def doctor(as_json: bool) -> None:
    """Versions that belong together, one lookup, one collective; GPU seen or not."""
    from diurnal.cli.doctor import run_doctor

    report = run_doctor()
    if as_json:
        print_json(report.to_dict())
    else:
        click.echo(report.text())
    sys.exit(0 if report.is_healthy else 2)


@click.command()
@click.option("--day", metavar="DAY", help="One day, YYYY-MM-DD, or one hour, YYYY-MM-DDTHH; all when left out.")
@click.option("--to", metavar="DAY", help="Last day of a range that starts with --day.")
@click.option("--rows", metavar="N", type=click.IntRange(min=2), help="Rows of each file to look at; 20,000 or fewer.")
@click.option("--full", is_flag=True, help="Look at the values of all rows.")
@click.option("--duplicates", is_flag=True, help="Refuse request ids that are there more than once.")
@config_options
def validate(
    day: str | None,
    to: str | None,
    rows: int | None,
    full: bool,
    duplicates: bool,
    files: tuple[str, ...],
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Config, schema, every footer of the days, and a sample of their values, before any worker starts."""
    from diurnal.config import load_config
    from diurnal.data.validate import validate as run
    from diurnal.errors import DataError
    from diurnal.train.progress import Progress

    config, progress = load_config(files, overrides), Progress(table=False)
    shown = ""

    def on_progress(what: str, done: int, of: int) -> None:
        nonlocal shown
        if what != shown:
            shown = what
            progress.begin(what, of, "folder" if what == "footers" else "row")
        progress.at(what, done, of, {})

    try:
        found = run(config, day, to, rows=rows, full=full, duplicates=duplicates, on_progress=on_progress)
    finally:
        progress.end()
    error = DataError(found.faults) if found.faults else None
    if as_json:
        document = {
            "name": config.name,
            "increments": [{"increment": i.id, "rows": i.num_rows, "files": len(i.files)} for i in found.increments],
            "rows": found.num_rows,
            "rows_looked_at": found.rows_looked_at,
            "notes": [dataclasses.asdict(note) for note in found.notes],
        }
        faults = [dataclasses.asdict(fault) for fault in found.faults]
        failed = {"error": {"kind": "DataError", "message": str(error), "faults": faults}} if error else {}
        print_json({**document, **failed})
    else:
        for increment in found.increments:
            left_out = f"  {len(increment.quarantined_files)} left out" if increment.quarantined_files else ""
            click.echo(f"{increment.id}  {increment.num_rows:>12,} rows  {len(increment.files):>5} files{left_out}")
        for note in found.notes:
            click.echo(f"note: {note}")
    if error is not None:
        click.echo(str(error), err=True)
        sys.exit(error.exit_code)
    if not as_json:
        told = f"{len(found.increments)} increments fit config and schema: {found.num_rows:,} rows"
        click.echo(f"{told}, of which {found.rows_looked_at:,} were looked at")
