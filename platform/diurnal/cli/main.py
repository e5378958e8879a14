"""The command line: parse, build, run, close. Nothing heavy is imported before a command runs."""

from __future__ import annotations

import click

from diurnal import __version__
from diurnal.cli.check import doctor, validate
from diurnal.cli.daily import backfill, daily, ledger, promote, replay, rollback, status
from diurnal.cli.learn import evaluate, train
from diurnal.cli.schedule import schedule


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="diurnal")
def main() -> None:
    """Trains a DLRM on each day's impressions, as the days arrive.

    Exit codes: 0 done; 2 a person's fault (config, data, usage); 3 held or undecided by the gate; 4 someone else
    trains this model; 1 anything else.
    """


for command in (
    doctor,
    validate,
    train,
    evaluate,
    daily,
    backfill,
    replay,
    status,
    promote,
    rollback,
    ledger,
    schedule,
):
    main.add_command(command)


if __name__ == "__main__":
    main()
