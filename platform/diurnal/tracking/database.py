"""A SQLite tracking database comes into being once, whole, whoever else starts at the same moment.

Two processes that open a fresh file through MLflow race through its migrations and leave it broken for good. So the
tables are made in a file beside it, under a lock, and the file gets its name only when it is complete.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def exclusive(file: Path) -> Iterator[None]:
    """Holds `<file>.lock`; waits for other processes. A process that dies lets go."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{file}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def ensure_database(file: Path, artifact_root: str) -> None:
    """Creates the database unless it is there. Call it before anything opens the file."""
    if file.exists():
        return
    with exclusive(file):
        if file.exists():
            return
        for noisy in ("alembic", "mlflow.store.db.utils"):
            logging.getLogger(noisy).setLevel(logging.ERROR)
        from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

        draft = file.with_name(f"{file.name}.{os.getpid()}.tmp")
        draft.unlink(missing_ok=True)
        store = SqlAlchemyStore(f"sqlite:///{draft}", artifact_root)
        store.engine.dispose()
        os.replace(draft, file)
