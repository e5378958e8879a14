"""Makes the RayJob of one tick of a CronJob, waits for its end, and ends as it did.

Runs in a pod of the chart with nothing but the standard library. The run's name is the name of the pod's Job, so that
a second pod of the same tick finds the first one's run and waits for that; the Job owns the run, so that it goes when
the CronJob's history drops the Job.
"""

from __future__ import annotations

import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
POLL_S = 15.0
PATIENCE_S = 600.0
"""How long the API server may be away."""
DONE, FAILED, REFUSED, UNKNOWN = 0, 1, 2, 75
"""Exit codes. After UNKNOWN another pod goes on watching."""

Json = dict[str, Any]


@dataclass(frozen=True)
class Api:
    """The RayJobs of one namespace."""

    url: str
    token_file: Path
    """Read for each request: a token is replaced every hour."""
    ca_file: Path | None = None

    def call(self, method: str, name: str = "", body: Json | None = None) -> Json:
        """Raises OSError (also for any answer but 2xx, as HTTPError)."""
        headers = {"Authorization": f"Bearer {self.token_file.read_text().strip()}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/{name}".rstrip("/"), data, headers, method=method)
        context = ssl.create_default_context(cafile=str(self.ca_file)) if self.ca_file else None
        with urllib.request.urlopen(request, timeout=30, context=context) as answer:
            return json.load(answer)


def named(manifest: Json, name: str, owner_uid: str) -> Json:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": owner_uid}
    return {**manifest, "metadata": {**manifest["metadata"], "name": name, "ownerReferences": [owner]}}


def launch(api: Api, run: Json, poll_s: float = POLL_S, patience_s: float = PATIENCE_S) -> int:
    """Makes the run, or finds it made, waits for its end, and returns the exit code."""
    name = run["metadata"]["name"]
    is_made = False
    told = ""
    away_since: float | None = None
    while True:
        try:
            if not is_made:
                is_made = _make(api, run)
            status = api.call("GET", name).get("status") or {}
            away_since = None
        except urllib.error.HTTPError as error:
            if is_made and error.code == 404:
                say(f"{name} was deleted")
                return FAILED
            if error.code in (400, 401, 403, 404, 422):
                say(f"{name}: {error.code} {error.read().decode(errors='replace')[:2000]}")
                return REFUSED
            away_since = _away(name, error, away_since)
        except OSError as error:
            away_since = _away(name, error, away_since)
        else:
            state = " ".join(filter(None, (status.get("jobDeploymentStatus"), status.get("jobStatus"))))
            if state != told:
                say(f"{name}: {state}")
                told = state
            if status.get("jobDeploymentStatus") in ("Complete", "Failed"):
                return _outcome(name, status)
        if away_since is not None and time.monotonic() - away_since > patience_s:
            say(f"the API server was away for {patience_s:g} s; {name} goes on by itself")
            return UNKNOWN
        time.sleep(poll_s)


def _make(api: Api, run: Json) -> bool:
    name = run["metadata"]["name"]
    try:
        api.call("POST", body=run)
        say(f"{name} was made")
    except urllib.error.HTTPError as error:
        if error.code != 409:
            raise
        say(f"{name} was there already: waiting for it")
    return True


def _away(name: str, error: OSError, since: float | None) -> float:
    if since is None:
        say(f"{name}: the API server does not answer: {error}")
        return time.monotonic()
    return since


def _outcome(name: str, status: Json) -> int:
    if status.get("jobDeploymentStatus") == "Complete" and status.get("jobStatus") == "SUCCEEDED":
        return DONE
    say(f"{name}: {status.get('reason', '')} {status.get('message', '')}".rstrip())
    return FAILED


def say(text: str) -> None:
    print(text, flush=True)


def main() -> int:
    namespace = (ACCOUNT / "namespace").read_text().strip()
    server = f"https://{os.environ['KUBERNETES_SERVICE_HOST']}:{os.environ['KUBERNETES_SERVICE_PORT']}"
    api = Api(f"{server}/apis/ray.io/v1/namespaces/{namespace}/rayjobs", ACCOUNT / "token", ACCOUNT / "ca.crt")
    manifest = json.loads(Path(sys.argv[1]).read_text())
    return launch(api, named(manifest, os.environ["RUN_NAME"], os.environ["RUN_UID"]))


if __name__ == "__main__":
    sys.exit(main())
