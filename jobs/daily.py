"""`diurnal daily` as the entry point of a Ray job: `python jobs/daily.py --config FILE ...`."""

from __future__ import annotations

import sys

from diurnal.cluster.job import main

if __name__ == "__main__":
    sys.exit(main(["daily", *sys.argv[1:]]))
