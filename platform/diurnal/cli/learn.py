"""Commands that start workers: train, evaluate."""

from __future__ import annotations

import click

from diurnal.cli.options import config_options, print_json


@click.command()
@click.option("--day", metavar="DAY", required=True, help="First day, YYYY-MM-DD, or hour, YYYY-MM-DDTHH.")
@click.option("--to", metavar="DAY", help="Last day or hour; the first one, when left out.")
@config_options
def train(day: str, to: str | None, files: tuple[str, ...], overrides: tuple[str, ...], as_json: bool) -> None:
    """One increment or a run of them, each scored by the version before it, then learned and committed; no gate."""
    from diurnal.config import load_config
    from diurnal.train.run import train as run

    result = run(load_config(files, overrides), day, to)
    if as_json:
        print_json(result.to_dict())


@click.command()
@click.option("--version", "number", type=int, required=True, help="Number of a committed version.")
@click.option("--day", metavar="DAY", required=True, help="Day, YYYY-MM-DD, or hour, YYYY-MM-DDTHH.")
@config_options
def evaluate(number: int, day: str, files: tuple[str, ...], overrides: tuple[str, ...], as_json: bool) -> None:
    """A frozen version scores an increment; nothing is learned, nothing is written."""
    from diurnal.config import load_config
    from diurnal.train.run import evaluate as run

    result = run(load_config(files, overrides), number, day)
    if as_json:
        print_json(result.to_dict())
        return
    for outcome in result.outcomes:
        report = (outcome.evaluated or {})["report"]
        click.echo(f"{outcome.increment}, scored by version {number}")
        shown = ["rows", "ne", "log_loss", "auc", "auc_error", "calibration", "base_rate", "nonfinite_rows"]
        if report["gauc_groups"] is not None:
            shown += ["gauc", "gauc_error", "gauc_groups", "gauc_rows", "rows_without_group"]
        for name in shown:
            value = report[name]
            click.echo(f"  {name:20}{_shown(value)}")
        if report["reason"]:
            click.echo(f"  {report['reason']}")
        for name, of_task in (outcome.evaluated or {}).get("tasks", {}).items():
            shown = ("rows", "ne", "auc", "calibration", "base_rate")
            click.echo(f"  task {name}: {'  '.join(f'{what} {_shown(of_task[what])}' for what in shown)}")
        for one in (outcome.evaluated or {})["slices"]:
            numbers = "  ".join(f"{name} {_shown(one[name])}" for name in ("rows", "ne", "calibration"))
            click.echo(f"  {one['feature']}={one['id']}: {numbers}")


def _shown(value: float | None) -> str:
    return "undefined" if value is None else f"{value:,.6g}"
