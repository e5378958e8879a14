"""Serves the tracking store of a configuration and prints the link that opens the right page in the right mode.

python -m diurnal.tracking.ui --config FILE [--set KEY=VALUE] [--host HOST] [--port N]
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

from diurnal.config import Config, load_config
from diurnal.errors import EXIT_DONE, EXIT_ERROR, ConfigError, DiurnalError, Fault
from diurnal.tracking.location import (
    MACHINE_LEARNING_MODE,
    artifact_root,
    database_file,
    experiment_link,
    experiment_name,
    is_server,
    tracking_uri,
)
from diurnal.tracking.outbox import describe
from diurnal.tracking.store import connect

_WHAT = "Serves the tracking store of a configuration and prints the link that opens it in the right mode."

START_LIMIT_S = 120
"""A calm machine needs 8 seconds."""
STOP_LIMIT_S = 10
_STDERR = 2


class ServerError(Exception):
    """The MLflow server did not start, or does not answer."""


def server_command(uri: str, artifacts: str | None, host: str, port: int) -> tuple[list[str], dict[str, str]]:
    """The arguments and the environment of a small MLflow server: one worker, no job runners (they take a gigabyte
    and serve language models alone), no telemetry. The URI may hold a password, so it is not an argument."""
    command = [sys.executable, "-m", "mlflow", "server", "--host", host, "--port", str(port), "--workers", "1"]
    command += ["--uvicorn-opts", "--log-level warning"]
    if artifacts is not None:
        command += ["--artifacts-destination", artifacts]
    own = {
        "MLFLOW_BACKEND_STORE_URI": uri,
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }
    return command, {**os.environ, **own}


@contextmanager
def serving(
    uri: str, artifacts: str | None, host: str, port: int, log: int | IO[bytes] = _STDERR
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Runs a server while the context lasts: its process, and its address once it answers.

    Raises:
        ServerError: if it ends, or does not answer in `START_LIMIT_S`.
    """
    command, environment = server_command(uri, artifacts, host, port)
    process = subprocess.Popen(command, env=environment, start_new_session=True, stdout=log, stderr=log)
    try:
        address = f"http://{'127.0.0.1' if host == '0.0.0.0' else host}:{port}"
        _wait_until_healthy(process, address)
        yield process, address
    finally:
        _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ends the server and its workers, which are a process group of their own."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sign)
            process.wait(STOP_LIMIT_S)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m diurnal.tracking.ui", description=_WHAT)
    parser.add_argument("--config", action="append", default=[], metavar="FILE")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=5000)
    options = parser.parse_args(arguments)
    try:
        config = load_config(options.config, options.overrides)
        if is_server(tracking_uri(config)):
            print(_experiment_page(config, tracking_uri(config)))
            return EXIT_DONE
        _check_store_exists(config)
        _check_port_is_free(options.host, options.port)
        return _serve(config, options.host, options.port)
    except DiurnalError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except ServerError as error:
        print(error, file=sys.stderr)
        return EXIT_ERROR


def _serve(config: Config, host: str, port: int) -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with serving(tracking_uri(config), artifact_root(config), host, port) as (process, address):
            print(f"{_experiment_page(config, address)}\n(Ctrl-C ends the server)", flush=True)
            return process.wait()
    except KeyboardInterrupt:
        return EXIT_DONE


def _experiment_page(config: Config, address: str) -> str:
    """The experiment's link; the start page's, with a word, while nothing was tracked there.

    Raises:
        ServerError: if the server does not answer.
    """
    client = connect(address)
    from mlflow.exceptions import MlflowException

    try:
        experiment = client.get_experiment_by_name(experiment_name(config))
    except MlflowException as error:
        raise ServerError(describe(error)) from error
    if experiment is None:
        return f"{address}/#/experiments?{MACHINE_LEARNING_MODE} (no experiment {experiment_name(config)} yet)"
    return experiment_link(address, experiment.experiment_id)


def _check_store_exists(config: Config) -> None:
    file = database_file(tracking_uri(config))
    if file is not None and not file.exists():
        must = "the tracking database, which the first training creates"
        raise ConfigError([Fault("tracking.uri", f"no file {file}", must, "train first, or correct storage")])


def _check_port_is_free(host: str, port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            found = f"{host}:{port}: {error.strerror}"
            raise ConfigError([Fault("--port", found, "a free port of this machine", "choose another one")]) from None


def _wait_until_healthy(process: subprocess.Popen[bytes], address: str) -> None:
    direct = build_opener(ProxyHandler({}))
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise ServerError(f"the MLflow server ended with code {process.returncode} while it started")
        try:
            with direct.open(f"{address}/health", timeout=5):
                return
        except (URLError, OSError):
            time.sleep(0.2)
    raise ServerError(f"the MLflow server did not answer at {address} within {START_LIMIT_S} s")


if __name__ == "__main__":
    sys.exit(main())
