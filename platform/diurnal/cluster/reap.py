"""Ends the starter of a job that waits: run as a job of its own on the head, since only a member of the cluster can.

Ray's own stop is a message to the starter, an actor that does not read while it waits for a place or an environment.
"""

from __future__ import annotations

import sys


def main() -> None:
    import ray
    from ray.dashboard.modules.job.common import JOB_ACTOR_NAME_TEMPLATE, SUPERVISOR_ACTOR_RAY_NAMESPACE

    ray.init(address="auto", log_to_driver=False)
    try:
        starter = ray.get_actor(JOB_ACTOR_NAME_TEMPLATE.format(job_id=sys.argv[1]), SUPERVISOR_ACTOR_RAY_NAMESPACE)
    except ValueError:
        return  # ended by itself meanwhile
    ray.kill(starter)


if __name__ == "__main__":
    main()
