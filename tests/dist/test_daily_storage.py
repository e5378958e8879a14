"""What a model's folder holds after many days, and a folder that is moved in between."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from diurnal.config import Config
from diurnal.daily.agenda import Asked
from diurnal.testing_daily import (
    champion_of,
    config_of,
    daily,
    day_of,
    ledger_of,
    rows_learned,
    rows_of,
    scales_price,
    states_of,
    versions_of,
    write_days,
)


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six days; the fourth is implausible."""
    return write_days(tmp_path_factory.mktemp("days"), 6, {3: scales_price})


def folders_of(config: Config) -> list[str]:
    return sorted(
        folder.name for folder in Path(config.storage, config.name, "versions").iterdir() if any(folder.iterdir())
    )


def slices_of(config: Config) -> list[str]:
    """Increments whose held-out rows are there."""
    return sorted({file.name[:10] for file in Path(config.storage, config.name, "slices").iterdir()})


def test_old_versions_go_and_what_may_still_be_needed_stays(days: Path, tmp_path: Path) -> None:
    config = config_of(days, tmp_path, {"checkpoint": {"keep_versions": 1}})
    daily(config, asked=Asked(last=day_of(4)))
    assert states_of(config) == ["promoted", "promoted", "promoted", "held", "promoted"]
    assert (list(versions_of(config)), champion_of(config)) == ([2, 3, 4], 4)
    assert folders_of(config) == ["2", "3", "4"], "when 4 was committed 3 was the champion, with 2 to go back to"
    assert slices_of(config) == [day_of(1), day_of(2), day_of(4)]
    with ledger_of(config) as ledger:
        assert ledger.rollback(config.name) == 3
    daily(config)
    assert [(v.number, v.parent) for v in versions_of(config).values()][-1] == (5, 3), "nothing goes on from version 4"
    assert folders_of(config) == ["2", "3", "5"]
    assert slices_of(config) == [day_of(1), day_of(2), day_of(5)]
    assert states_of(config)[0] == "promoted", "what was learned into a version that is gone is not learned again"


def test_a_storage_that_was_moved_goes_on_with_all_its_rows(days: Path, tmp_path: Path) -> None:
    before = config_of(days, tmp_path / "before")
    daily(before, asked=Asked(last=day_of(0)))
    shutil.move(before.storage, tmp_path / "after")
    after = before.model_copy(update={"storage": str(tmp_path / "after")})
    daily(after, asked=Asked(last=day_of(1)))
    assert states_of(after) == ["promoted", "promoted"]
    np.testing.assert_array_equal(rows_learned(after, 2), rows_of(after, [0, 1], without_slice=1))
    assert not Path(before.storage).exists()
