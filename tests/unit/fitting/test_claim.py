from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from diurnal.errors import EXIT_LEASED, ConfigError, LeaseHeld
from diurnal.train.claim import exclusive, next_attempt, record_attempt

HOLD = """
import sys, time
from diurnal.train.claim import exclusive
with exclusive(sys.argv[1], "clicks"):
    print("held", flush=True)
    time.sleep(60)
"""


def test_the_lock_names_its_holder_and_ends_with_its_process(tmp_path: Path) -> None:
    """One folder, two trainers (HazyResearch/metal#128): the second is told who trains; a dead holder holds nothing."""
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(LeaseHeld, match=f"process {holder.pid} on") as caught, exclusive(str(tmp_path), "clicks"):
            pass
        assert caught.value.exit_code == EXIT_LEASED
        with exclusive(str(tmp_path), "another"):
            pass
    finally:
        holder.kill()
        holder.wait()
    with exclusive(str(tmp_path), "clicks"):
        pass


def test_a_storage_that_cannot_be_written_is_a_fault_of_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "storage").write_text("a file")
    with pytest.raises(ConfigError, match="can be written"), exclusive(str(tmp_path / "storage"), "clicks"):
        pass


def test_attempts_count_what_has_begun(tmp_path: Path) -> None:
    assert next_attempt(str(tmp_path), "clicks", "2026-01-01") == 1
    assert next_attempt(str(tmp_path), "clicks", "2026-01-01") == 1
    record_attempt(str(tmp_path), "clicks", "2026-01-01", 1)
    assert next_attempt(str(tmp_path), "clicks", "2026-01-01") == 2
    assert next_attempt(str(tmp_path), "clicks", "2026-01-02") == 1
