"""The command line: parse, build, run, close. Nothing heavy is imported before a command runs."""

from __future__ import annotations

import signal
import threading

import click

from diurnal import __version__
from diurnal.cli.check import doctor, validate
from diurnal.cli.daily import backfill, daily, ledger, promote, replay, rollback, status
from diurnal.cli.init import init
from diurnal.cli.learn import evaluate, train
from diurnal.cli.schedule import schedule
from diurnal.cli.submit import stop, submit, watch


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="diurnal")
def main() -> None:
    """Trains a DLRM on each day's impressions, as the days arrive.

    Exit codes: 0 done; 2 a person's fault (config, data, usage); 3 held or undecided by the gate; 4 someone else
    trains this model; 1 anything else.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _as_interrupt)


def _as_interrupt(number: int, _: object) -> None:
    """Whoever is asked to end lets go of what it holds, whatever it is at."""
    raise KeyboardInterrupt(f"stopped by {signal.Signals(number).name}")


for command in (
    doctor,
    init,
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
    submit,
    watch,
    stop,
):
    main.add_command(command)


if __name__ == "__main__":
    main()
