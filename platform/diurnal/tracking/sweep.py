"""Closes runs that say RUNNING though nobody works on them: their process was killed, and MLflow does not notice.
And those that say that they failed although what they did was committed before their process came to its end."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from diurnal.config import Config
from diurnal.tracking import names
from diurnal.tracking.location import database_file, experiment_name, tracking_uri
from diurnal.tracking.mail import TrackingError
from diurnal.tracking.outbox import describe
from diurnal.tracking.store import Store, connect, refusals

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run


def sweep_runs(config: Config, is_alive: Callable[[str], bool], committed: Collection[str]) -> list[str]:
    """Ends the runs of this model that nobody works on; those of other models stay as they are.

    Args:
        is_alive: whether somebody works on an increment; asked with `names.LINEAGE`, whether anybody trains the model.
            Asked after the runs were read, so that a run that begins meanwhile is not closed.
        committed: increments with a committed version. Their runs end as FINISHED, others that are RUNNING as KILLED.
            The lineage run ends as the increment's run did that was created last.

    Returns:
        What was closed, `<name of the run>: <status>`.

    Raises:
        ConfigError: as `tracking_uri`.
        TrackingError: the store does not answer, or refuses.
    """
    if not config.tracking.enabled:
        return []
    uri = tracking_uri(config)
    file = database_file(uri)
    if file is not None and not file.exists():
        return []
    try:
        return _sweep(connect(uri), config, is_alive, committed)
    except Exception as error:
        raise TrackingError(f"the runs were not swept: {describe(error)}") from error


def close_dead(store: Store, config: Config, committed: Collection[str]) -> None:
    """The same for whoever has the model, of whom `store` knows which runs are its own."""
    with refusals():
        _sweep(store.client(), config, store.is_open, committed)


def _sweep(
    client: MlflowClient, config: Config, is_alive: Callable[[str], bool], committed: Collection[str]
) -> list[str]:
    experiment = client.get_experiment_by_name(experiment_name(config))
    if experiment is None:
        return []
    query = f"tags.`{names.TAG_MODEL}` = '{config.name}'"
    found = _search(client, experiment.experiment_id, f"{query} and attributes.status != 'FINISHED'")
    closed: list[str] = []
    for run in sorted(found, key=_lineage_last):
        increment = run.data.tags.get(names.TAG_INCREMENT)
        if run.info.status != "RUNNING" and increment not in committed:
            continue
        if is_alive(increment or names.LINEAGE):
            continue
        if increment is None:
            ended = _status_of_newest(client, experiment.experiment_id, query)
        else:
            ended = "FINISHED" if increment in committed else "KILLED"
        client.set_terminated(run.info.run_id, ended)
        closed.append(f"{run.info.run_name}: {ended}")
    return closed


def _lineage_last(run: Run) -> tuple[bool, str]:
    increment = run.data.tags.get(names.TAG_INCREMENT)
    return increment is None, increment or ""


def _status_of_newest(client: MlflowClient, experiment_id: str, query: str) -> str:
    """How the increment's run that was created last ended; KILLED if there is none."""
    query = f"{query} and tags.`{names.TAG_KIND}` = '{names.INCREMENT}'"
    newest = client.search_runs([experiment_id], query, max_results=1, order_by=["attributes.start_time DESC"])
    status = newest[0].info.status if newest else "KILLED"
    return status if status in ("FINISHED", "FAILED") else "KILLED"


def _search(client: MlflowClient, experiment_id: str, query: str) -> list[Run]:
    """All of them, whatever fits into one answer."""
    found: list[Run] = []
    token = None
    while True:
        page = client.search_runs([experiment_id], query, page_token=token)
        found += page
        token = page.token
        if not token:
            return found
