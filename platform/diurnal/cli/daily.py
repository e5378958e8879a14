"""The daily loop: daily, backfill, status, promote, rollback, ledger."""

from __future__ import annotations

import sys
from typing import Any

import click

from diurnal.cli.options import config_options, print_json
from diurnal.errors import EXIT_HELD

Texts = tuple[str, ...]


@click.command()
@click.option("--until", metavar="DAY", help="Last day or hour; what is ready, when left out.")
@click.option("--max-days", type=click.IntRange(min=1), help="Increments at most.")
@click.option("--follow", is_flag=True, help="Wait for the next increment, and go on, until somebody ends this.")
@click.option("--retry", metavar="DAY", multiple=True, help="Try a held or skipped increment again; repeatable.")
@click.option("--retrain", metavar="DAY", multiple=True, help="Go back to before this increment; repeatable.")
@config_options
def daily(
    until: str | None,
    max_days: int | None,
    follow: bool,
    retry: Texts,
    retrain: Texts,
    files: Texts,
    overrides: Texts,
    as_json: bool,
) -> None:
    """Every ready increment in order: profile, score, train, judge, promote."""
    from diurnal.daily.agenda import Asked

    asked = Asked(None, until, max_days, frozenset(retrain), frozenset(retry))
    _run(asked, follow, files, overrides, as_json)


@click.command()
@click.option("--from", "first", metavar="DAY", required=True, help="First day or hour.")
@click.option("--to", "last", metavar="DAY", required=True, help="Last day or hour.")
@config_options
def backfill(first: str, last: str, files: Texts, overrides: Texts, as_json: bool) -> None:
    """The same as daily over a range of history; goes on where it was cut off."""
    from diurnal.daily.agenda import Asked

    _run(Asked(first, last), False, files, overrides, as_json)


@click.command()
@click.option("--from", "first", metavar="DAY", required=True, help="First day or hour that is scored.")
@click.option("--to", "last", metavar="DAY", required=True, help="Last one.")
@click.option("--age", "ages", type=click.IntRange(min=0), multiple=True, help="Days; repeatable. [1, 2, 3, 7, 14]")
@click.option("--frozen", type=int, metavar="VERSION", help="A version that scores all days, beside the ages.")
@click.option("--plot", metavar="FILE", help="Writes a PNG.")
@config_options
def replay(
    first: str,
    last: str,
    ages: tuple[int, ...],
    frozen: int | None,
    plot: str | None,
    files: Texts,
    overrides: Texts,
    as_json: bool,
) -> None:
    """Quality against staleness: versions of the past score days that they have not learned. Nothing is learned."""
    from pathlib import Path

    from diurnal.config import load_config
    from diurnal.daily.replay import AGES
    from diurnal.daily.replay import replay as run

    config = load_config(files, overrides)
    found = run(config, first, last, ages or AGES, frozen)
    if plot:
        from diurnal.tracking.plots import staleness_png

        by_day = {name: [one.report for one in scored] for name, scored in found.columns.items()}
        Path(plot).write_bytes(staleness_png(found.increments, by_day, config.name))
    if as_json:
        print_json(found.to_dict())
        return
    click.echo(f"{len(found.increments)} increments, {found.increments[0]} to {found.increments[-1]}")
    click.echo(f"{'model':>20}  {'pooled NE':>9}  {'above, %':>11}  {'mean AUC':>8}  {'calibration':>11}")
    for row in found.table():
        cells = (row["pooled_ne"], row["excess_ne_pct"], row["mean_day_auc"], row["calibration"])
        ne, excess, auc, calibration = ("-" if cell is None else f"{cell:.4f}" for cell in cells)
        click.echo(f"{row['model']:>20}  {ne:>9}  {excess:>11}  {auc:>8}  {calibration:>11}")


def _run(asked: Any, follow: bool, files: Texts, overrides: Texts, as_json: bool) -> None:
    from diurnal.config import load_config
    from diurnal.daily.run import daily as run

    result = run(load_config(files, overrides), asked, follow=follow)
    if as_json:
        print_json(result.to_dict())
    elif not result.increments:
        click.echo("nothing to do")
    if result.needs_a_person:
        sys.exit(EXIT_HELD)


@click.command()
@click.option("--sweep", is_flag=True, help="First closes runs, attempts and leases of processes that died.")
@click.option("--listen", metavar="HOST:PORT", help="Serve it to Prometheus, at /metrics, until somebody ends this.")
@config_options
def status(sweep: bool, listen: str | None, files: Texts, overrides: Texts, as_json: bool) -> None:
    """Champion, freshness, what is late, what is held and why: from the ledger alone. 3 when a person is needed."""
    from diurnal.config import load_config
    from diurnal.daily.status import status as look
    from diurnal.ledger.claims import Ledger

    config = load_config(files, overrides)
    with Ledger.of(config) as ledger:
        swept = _sweep(config, ledger) if sweep else []
        if listen is not None:
            from diurnal.daily.exporter import serve

            serve(config, ledger, listen, lambda line: click.echo(line, err=True))
            return
        found = look(config, ledger)
    if as_json:
        print_json({**found.to_dict(), "swept": swept})
    else:
        for line in swept:
            click.echo(f"closed {line}")
        click.echo(found.text())
    if found.needs_a_person:
        sys.exit(EXIT_HELD)


def _sweep(config: Any, ledger: Any) -> list[str]:
    """Whoever can claim the model is the only one at work on it: what is open otherwise belongs to the dead."""
    from diurnal.daily.mirror import state_of
    from diurnal.errors import LeaseHeld
    from diurnal.tracking.mlflow import TrackingError, mirror_now
    from diurnal.tracking.sweep import sweep_runs

    try:
        lease = ledger.claim(config.name, "sweep", config.ledger.lease_s)
    except LeaseHeld:
        return []
    closed: list[str] = []
    try:
        committed = {commit.increment for commit in ledger.commits(config.name) if commit.is_final}
        closed = sweep_runs(config, lambda _: False, committed)
    except TrackingError as error:
        click.echo(str(error), err=True)
    finally:
        lease.release()
    if config.tracking.enabled and committed:
        mirror_now(config, state_of(ledger, config), config.tracking.timeout_s)
    return closed


@click.command()
@click.argument("number", metavar="VERSION", type=int)
@click.option("--reason", default="", help="Kept in the ledger.")
@config_options
def promote(number: int, reason: str, files: Texts, overrides: Texts, as_json: bool) -> None:
    """Makes a version the champion, whatever the gate said."""
    _decide(lambda ledger, model: ledger.promote(model, number, reason), files, overrides, as_json)


@click.command()
@click.option("--reason", default="", help="Kept in the ledger.")
@config_options
def rollback(reason: str, files: Texts, overrides: Texts, as_json: bool) -> None:
    """Makes the champion before this one the champion again; nothing goes on from the one that is left."""
    _decide(lambda ledger, model: ledger.rollback(model, reason), files, overrides, as_json)


def _decide(change: Any, files: Texts, overrides: Texts, as_json: bool) -> None:
    from diurnal.config import load_config
    from diurnal.daily.mirror import state_of
    from diurnal.ledger.claims import Ledger
    from diurnal.tracking.mlflow import mirror_now

    config = load_config(files, overrides)
    with Ledger.of(config) as ledger:
        before = ledger.champion(config.name)
        change(ledger, config.name)
        champion, state = ledger.champion(config.name), state_of(ledger, config)
    report = mirror_now(config, state, config.tracking.timeout_s)
    if as_json:
        print_json({"name": config.name, "champion": champion, "before": before, "mirror": str(report)})
        return
    click.echo(f"model {config.name}: version {champion} is the champion (before: {before or 'none'})")
    if report.dropped:
        words = f"the registry does not show it yet: {report.reason}; the next `diurnal daily` repairs that"
        click.echo(words, err=True)


@click.group()
def ledger() -> None:
    """The database that says what was claimed, trained, judged and promoted."""


@ledger.command()
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="The newest ones.")
@click.option("--kind", help="Only events of this kind.")
@click.option("--day", "increment", metavar="DAY", help="Only events of this increment.")
@config_options
def events(limit: int, kind: str | None, increment: str | None, files: Texts, overrides: Texts, as_json: bool) -> None:
    """What happened, with time, actor and reason, oldest first."""
    from diurnal.config import load_config
    from diurnal.ledger.claims import Ledger

    config = load_config(files, overrides)
    with Ledger.of(config) as database:
        found = database.events(config.name, limit, kind, increment)
    if as_json:
        print_json([vars(event) for event in found])
        return
    for event in found:
        click.echo(f"{event.at}  {event.kind:10} {event.increment:13} {event.reason}  {event.data}  [{event.actor}]")


@ledger.command()
@config_options
def rebuild(files: Texts, overrides: Texts, as_json: bool) -> None:
    """Registers the versions that are in the storage in a ledger that was lost."""
    from diurnal.checkpoint.history import History
    from diurnal.checkpoint.store import Store
    from diurnal.config import load_config
    from diurnal.ledger.claims import Ledger
    from diurnal.train.run import held_lease

    config = load_config(files, overrides)
    with Ledger.of(config) as database, held_lease(config, database, "rebuild", None) as lease:
        count = History(Store(config.storage, config.name), database, config.name).rebuild(lease)
    if as_json:
        print_json({"name": config.name, "registered": count})
    else:
        click.echo(f"{count} versions registered" if count else "nothing to do: the ledger knows of versions")
