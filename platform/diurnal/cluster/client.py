"""The job server of a Ray cluster: what is asked of it, in bounded time, and what its errors mean to a person."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diurnal.errors import EXIT_ERROR, DiurnalError, Fault, StackError

ANSWER_S = 30.0
"""For one answer of the server. A head that is frozen must not freeze whoever asks."""
PATIENCE_S = 120.0
"""How long a server that does not answer is asked again while a job is watched: a head may be replaced meanwhile."""
QUIET_S = 15.0
"""A log that says nothing for so long: is the job still there?"""
RETAIL_S = 90.0
"""A log that says nothing for so long is opened anew, since the connection may be dead."""

OVER = ("SUCCEEDED", "FAILED", "STOPPED")
"""Ray's statuses of a job that has ended."""
FIX_ADDRESS = "--address http://HEAD:8265, or the same in RAY_API_SERVER_ADDRESS"


class ClusterError(DiurnalError):
    """The cluster cannot be reached, does not let us in, or does not do what was asked."""

    title = "cluster"


class Refused(ClusterError):
    """The server answered that it does not do what was asked."""

    def __init__(self, address: str, answer: str = "") -> None:
        self.is_unknown = "status code 404" in answer
        super().__init__(f"cluster: {address} refuses: {_last_line(answer)}" if answer else address)


class JobLost(DiurnalError):
    """A job that was there is not any more, or nobody can say: its head was replaced or does not answer."""

    title = "cluster"
    exit_code = EXIT_ERROR


@dataclass(frozen=True)
class Job:
    """A job as the server tells of it."""

    id: str
    status: str
    """PENDING, RUNNING, or one of `OVER`."""
    message: str
    exit_code: int | None
    """Of its process, once that has ended by itself."""
    metadata: dict[str, str]

    @property
    def is_over(self) -> bool:
        return self.status in OVER


def address_of(given: str | None) -> str:
    """Where the job server is: as given, or as the environment says.

    Raises:
        ClusterError: nowhere, or at an address of another kind.
    """
    names = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")
    where, text = next(
        ((name, value) for name, value in (("--address", given), *((n, os.environ.get(n)) for n in names)) if value),
        ("--address", ""),
    )
    if text and "://" not in text and text != "auto":
        text = f"http://{text}"
    if text.startswith(("http://", "https://")):
        return text.rstrip("/")
    rule = "the address of the cluster's job server, http:// or https://"
    raise ClusterError([Fault(where, text or "nothing", rule, FIX_ADDRESS)])


class JobServer:
    """Speaks to the server at an address that `address_of` answered.

    Raises:
        ClusterError: nobody answers there, it is no job server, or it does not let us in.
        StackError: it runs another version of Ray.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        # Ray lets the environment win over what it is told; and a token without the mode is left aside.
        os.environ["RAY_API_SERVER_ADDRESS"] = address
        if os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH"):
            os.environ.setdefault("RAY_AUTH_MODE", "token")
        import ray
        from ray.job_submission import JobSubmissionClient

        logging.getLogger("ray.dashboard").setLevel(logging.WARNING)  # tells of each package and connection

        class Client(JobSubmissionClient):
            def _do_request(self, method: str, endpoint: str, **more: Any) -> Any:
                return super()._do_request(method, endpoint, timeout=ANSWER_S, **more)

        with self._understood():
            self._client = Client(address)
        there = self._client._server_ray_version
        if there != ray.__version__:
            fix = f"pip install ray=={there} here, or use an image with ray {ray.__version__} there"
            raise StackError([Fault(f"{address}: ray", str(there), f"the submitter's version, {ray.__version__}", fix)])

    def jobs(self) -> list[Job]:
        """All that were submitted to this cluster and that it still knows."""
        with self._understood():
            return [_job(details) for details in self._client.list_jobs() if details.submission_id]

    def find(self, id: str) -> Job | None:
        try:
            with self._understood():
                return _job(self._client.get_job_info(id))
        except Refused as error:
            if error.is_unknown:
                return None
            raise

    def submit(
        self, id: str, entrypoint: str, folder: Path | None, env: dict[str, str], metadata: dict[str, str]
    ) -> bool:
        """Starts a job on the head, which has no other work; False when there is one of this id already.

        Args:
            folder: becomes its current directory, and is on its module path; None for none.
        """
        runtime_env: dict[str, Any] = {"env_vars": env} | ({"working_dir": str(folder)} if folder is not None else {})
        try:
            with self._understood():
                self._client.submit_job(
                    entrypoint=entrypoint, submission_id=id, runtime_env=runtime_env, metadata=metadata
                )
        except ClusterError:
            # Somebody was faster, or the answer to this very call was lost on its way.
            if self._is_there(id):
                return False
            raise
        return True

    def stop(self, id: str) -> None:
        """Asks for its end and does not wait."""
        with self._understood():
            self._client.stop_job(id)

    def log(self, id: str) -> str:
        """All that it has written; empty when that is gone."""
        try:
            with self._understood():
                return self._client.get_job_logs(id)
        except ClusterError:
            return ""

    def follow(self, id: str, take: Callable[[str], None]) -> Job:
        """Hands over what a job writes until it has ended, and answers how. A broken connection is made again.

        Raises:
            JobLost: the cluster does not know the job any more, or gives no answer for `PATIENCE_S`.
        """
        log = _Log(take)
        while True:
            log.start_anew()
            # Whatever is wrong with the stream, the next question tells.
            with suppress(Exception):
                asyncio.run(self._stream(id, log))
            job = self._ask_patiently(id)
            if job.is_over:
                log.start_anew()
                log.add(self.log(id))
                return job
            time.sleep(0.5)

    async def _stream(self, id: str, log: _Log) -> None:
        stream = self._client.tail_job_logs(id)
        part: asyncio.Future[str | None] | None = None
        last_s = time.monotonic()
        try:
            while time.monotonic() - last_s < RETAIL_S:
                part = part or asyncio.ensure_future(anext(stream, None))
                done, _ = await asyncio.wait({part}, timeout=QUIET_S)
                if not done:
                    job = await asyncio.to_thread(self.find, id)
                    if job is None or job.is_over:
                        return
                    continue
                text, part, last_s = part.result(), None, time.monotonic()
                if text is None:
                    return
                log.add(text)
        finally:
            if part is not None:
                part.cancel()

    def _ask_patiently(self, id: str) -> Job:
        begun_s = time.monotonic()
        while True:
            try:
                job = self.find(id)
            except ClusterError as error:
                waited_s = time.monotonic() - begun_s
                if waited_s >= PATIENCE_S:
                    words = f"cluster: {self.address} gave no answer about job {id} for {waited_s:.0f} s"
                    raise JobLost(f"{words}; `diurnal watch {id}` looks again\n{error}") from None
                time.sleep(1.0)
                continue
            if job is None:
                words = f"cluster: {self.address} does not know job {id} any more: its head was replaced"
                raise JobLost(f"{words}. The same command starts it again, and goes on from the newest commit")
            return job

    def _is_there(self, id: str) -> bool:
        try:
            return self.find(id) is not None
        except ClusterError:
            return False

    @contextmanager
    def _understood(self) -> Iterator[None]:
        from ray.exceptions import AuthenticationError

        try:
            yield
        except AuthenticationError:
            mode = os.environ.get("RAY_AUTH_MODE", "disabled")
            token = "a token of another cluster" if os.environ.get("RAY_AUTH_TOKEN") else "no RAY_AUTH_TOKEN"
            fix = "RAY_AUTH_MODE=token, and the cluster's token in RAY_AUTH_TOKEN or its file in RAY_AUTH_TOKEN_PATH"
            found = f"RAY_AUTH_MODE={mode}, {token}"
            raise ClusterError([Fault(self.address, found, "the token of this cluster", fix)]) from None
        except (ValueError, KeyError) as error:
            found = f"an answer that is none of Ray's ({type(error).__name__})"
            raise ClusterError([Fault(self.address, found, "the job server of Ray", FIX_ADDRESS)]) from None
        except OSError as error:
            rule = "the address of a running cluster's job server"
            found = f"no answer ({type(error).__name__})"
            raise ClusterError([Fault(self.address, found, rule, FIX_ADDRESS)]) from None
        except RuntimeError as error:
            raise Refused(self.address, str(error)) from None


class _Log:
    """Hands on each part of a log once, although every stream begins at its start."""

    def __init__(self, take: Callable[[str], None]) -> None:
        self._take = take
        self._num_taken = self._at = 0

    def start_anew(self) -> None:
        self._at = 0

    def add(self, text: str) -> None:
        new = text[max(0, self._num_taken - self._at) :]
        self._at += len(text)
        if new:
            self._num_taken = self._at
            self._take(new)


def _job(details: Any) -> Job:
    return Job(
        details.submission_id,
        str(getattr(details.status, "value", details.status)),
        details.message or "",
        details.driver_exit_code,
        dict(details.metadata or {}),
    )


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip(". \t")), "no reason given")
