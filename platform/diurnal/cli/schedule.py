"""The command that has `diurnal daily` run by itself: schedule."""

from __future__ import annotations

import click

from diurnal.cli.options import config_options, print_json


@click.command()
@click.option("--at", metavar="HH:MM", help="Once a day, UTC.")
@click.option("--every", type=int, metavar="MINUTES", help="Evenly apart; every 60, when nothing else is said.")
@click.option("--cron", metavar="EXPR", help="Five fields of a crontab, UTC.")
@click.option("--systemd/--cron-line", "systemd", default=False, help="A systemd user timer, or a crontab line.")
@click.option("--install", is_flag=True, help="Install it for this user, in place of what was installed before.")
@click.option("--remove", is_flag=True, help="Take it away again.")
@config_options
def schedule(
    at: str | None,
    every: int | None,
    cron: str | None,
    systemd: bool,
    install: bool,
    remove: bool,
    files: tuple[str, ...],
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Prints or installs what runs `daily` for this configuration: a crontab line or a systemd timer. Times are UTC."""
    from diurnal.config import load_config
    from diurnal.daily.schedule import daily_job, schedule_cron, schedule_systemd
    from diurnal.daily.timing import parse_timing
    from diurnal.errors import ConfigError, Fault

    if install and remove:
        must = "one of --install and --remove"
        raise ConfigError([Fault("diurnal schedule", "--install and --remove", must, "leave one out")])
    job = daily_job(load_config(files, overrides), files, overrides)
    what = "install" if install else "remove" if remove else "print"
    act = schedule_systemd if systemd else schedule_cron
    done = act(job, parse_timing(at, every, cron), what)
    if as_json:
        print_json(done.to_dict())
        return
    if what == "print":
        click.echo(done.text, nl=False)
    else:
        click.echo(f"{job.name}: {done.what}")
    for note in done.notes:
        click.echo(note, err=True)
