"""MLflow's model registry as a mirror of the ledger: what the ledger says is read, compared, and only the rest written.

Each version of the ledger is one version of the registered model named like the configuration. It is found again by
its tag `diurnal.version`, never by MLflow's own number: the two are equal as long as versions are registered in order
and nobody deletes one, since MLflow gives no number twice. The tag is written in the same call that creates the
version, so whatever dies in between leaves a version that is whole or none. Versions of that model without the tag are
a person's, and stay as they are; one that a person deleted is registered again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from diurnal.tracking import names

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

MAX_TAG_CHARS = 5000
"""Longest tag of a version, which is less than that of a run."""
VERSIONS_PER_CALL = 1000


@dataclass(frozen=True)
class RegisteredVersion:
    """One version of the ledger."""

    number: int
    increment: str
    parent: int | None
    path: str
    """Folder or URL of the committed version."""
    verdict: str
    """The gate's; empty while it is not judged."""
    reason: str
    watermark_us: int | None
    """Microseconds since the epoch."""
    created_at: str

    def tags(self) -> dict[str, str]:
        values = {
            names.TAG_VERSION: str(self.number),
            names.TAG_INCREMENT: self.increment,
            names.TAG_PARENT_VERSION: "none" if self.parent is None else str(self.parent),
            names.TAG_PATH: self.path,
            names.TAG_VERDICT: self.verdict,
            names.TAG_VERDICT_REASON: self.reason,
            names.TAG_WATERMARK: "none" if self.watermark_us is None else str(self.watermark_us),
            names.TAG_CREATED_AT: self.created_at,
        }
        return {key: value[:MAX_TAG_CHARS] for key, value in values.items()}


@dataclass(frozen=True)
class RegistryState:
    """What the ledger says about one model. Numbers are the ledger's."""

    versions: tuple[RegisteredVersion, ...]
    champion: int | None = None
    previous: int | None = None
    """What a rollback would go back to."""
    challenger: int | None = None

    def __post_init__(self) -> None:
        numbers = {version.number for version in self.versions}
        assert len(numbers) == len(self.versions), "a version of the ledger is named once"
        assert numbers.issuperset(self.aliases().values()), "an alias names a version of the ledger"

    def aliases(self) -> dict[str, int]:
        wanted = {
            names.ALIAS_CHAMPION: self.champion,
            names.ALIAS_PREVIOUS: self.previous,
            names.ALIAS_CHALLENGER: self.challenger,
        }
        return {alias: number for alias, number in wanted.items() if number is not None}


def reconcile(
    client: MlflowClient, model: str, state: RegistryState, find_run: Callable[[str], str | None], *, by_server: bool
) -> int:
    """Makes the registered model say what `state` says; a call that was cut off anywhere is completed by the next.

    Args:
        model: name of the registered model, created if it is missing.
        find_run: id of the run of an increment, None if it has none; asked for versions that are not registered yet.
        by_server: the store is a server, which takes no local path as a source.

    Returns:
        Number of writes: 0 when nothing differs, whatever the number of versions. Reading is two calls.

    Raises:
        MlflowException: whatever the store answers.
    """
    aliases = _aliases_of(client, model)
    writes = 0
    if aliases is None:
        _create_model(client, model)
        aliases, writes = {}, 1
    registered, surplus = _registered(client, model)
    for version in sorted(state.versions, key=lambda version: version.number):
        found = registered.get(version.number)
        if found is None:
            registered[version.number] = _register(client, model, version, find_run, by_server=by_server)
            writes += 1
        else:
            writes += _retag(client, model, found, version.tags())
    writes += _move_aliases(client, model, aliases, state, registered)
    for extra in surplus:
        client.delete_model_version(model, extra.version)
    return writes + len(surplus)


def source_of(model: str, version: RegisteredVersion, *, by_server: bool) -> str:
    """Where MLflow is told that a version lies: its folder or URL.

    A server refuses a local path that is not among the run's own artifacts, lest a client make it read any file, so
    there it is `diurnal://<model>/<number>`, which MLflow does not open. The tag `diurnal.path` always has the place.
    """
    is_url = "://" in version.path and not version.path.startswith("file:")
    return version.path if is_url or not by_server else f"diurnal://{model}/{version.number}"


def _aliases_of(client: MlflowClient, model: str) -> dict[str, str] | None:
    """Alias to MLflow's number; None if there is no such model."""
    from mlflow.exceptions import MlflowException

    try:
        return {alias: str(number) for alias, number in client.get_registered_model(model).aliases.items()}
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return None


def _create_model(client: MlflowClient, model: str) -> None:
    from mlflow.exceptions import MlflowException

    try:
        client.create_registered_model(model, tags={names.TAG_MODEL: model})
    except MlflowException as error:  # another process was quicker, or an answer was lost
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise


def _registered(client: MlflowClient, model: str) -> tuple[dict[int, ModelVersion], list[ModelVersion]]:
    """The ledger's versions that are registered, and those registered twice: a creation may arrive after the client
    has given it up and made another. The oldest one stays."""
    first: dict[int, ModelVersion] = {}
    surplus: list[ModelVersion] = []
    for found in sorted(_search(client, model), key=lambda found: int(found.version)):
        tag = found.tags.get(names.TAG_VERSION, "")
        if not tag.isdecimal():
            continue
        if int(tag) in first:
            surplus.append(found)
        else:
            first[int(tag)] = found
    return first, surplus


def _search(client: MlflowClient, model: str) -> Iterable[ModelVersion]:
    token = None
    while True:
        page = client.search_model_versions(f"name = '{model}'", max_results=VERSIONS_PER_CALL, page_token=token)
        yield from page
        token = page.token
        if not token:
            return


def _register(
    client: MlflowClient,
    model: str,
    version: RegisteredVersion,
    find_run: Callable[[str], str | None],
    *,
    by_server: bool,
) -> ModelVersion:
    source = source_of(model, version, by_server=by_server)
    run_id = find_run(version.increment)
    return client.create_model_version(model, source, run_id, tags=version.tags(), await_creation_for=0)


def _retag(client: MlflowClient, model: str, found: ModelVersion, tags: dict[str, str]) -> int:
    changed = {key: value for key, value in tags.items() if found.tags.get(key) != value}
    for key, value in changed.items():
        client.set_model_version_tag(model, found.version, key, value)
    return len(changed)


def _move_aliases(
    client: MlflowClient,
    model: str,
    aliases: dict[str, str],
    state: RegistryState,
    registered: dict[int, ModelVersion],
) -> int:
    wanted = {alias: str(registered[number].version) for alias, number in state.aliases().items()}
    changes = list(_alias_changes(aliases, wanted))
    for alias, version in changes:
        if version is None:
            client.delete_registered_model_alias(model, alias)
        else:
            client.set_registered_model_alias(model, alias, version)
    return len(changes)


def _alias_changes(has: dict[str, str], wanted: dict[str, str]) -> Iterator[tuple[str, str | None]]:
    """The champion first: it is what others load."""
    for alias in (names.ALIAS_CHAMPION, names.ALIAS_PREVIOUS, names.ALIAS_CHALLENGER):
        if has.get(alias) != wanted.get(alias):
            yield alias, wanted.get(alias)
