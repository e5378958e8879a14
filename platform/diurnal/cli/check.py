"""Commands that look and change nothing: doctor, validate."""

from __future__ import annotations

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
@config_options
def validate(
    day: str | None, to: str | None, files: tuple[str, ...], overrides: tuple[str, ...], as_json: bool
) -> None:
    """Config, schema, and every footer of the days, before any worker starts."""
    from diurnal.config import load_config
    from diurnal.data.selection import select_increments

    config = load_config(files, overrides)
    increments = select_increments(config.data.path, config.dataset, day, to, parts=config.data.parts)
    if as_json:
        rows = [{"increment": i.id, "rows": i.num_rows, "files": len(i.files)} for i in increments]
        print_json({"name": config.name, "increments": rows, "rows": sum(i.num_rows for i in increments)})
        return
    for increment in increments:
        click.echo(f"{increment.id}  {increment.num_rows:>12,} rows  {len(increment.files):>5} files")
    click.echo(f"{len(increments)} increments fit config and schema: {sum(i.num_rows for i in increments):,} rows")
