from __future__ import annotations

from dataclasses import fields
from datetime import date, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diurnal.metrics.report import Report, report_from_sums
from diurnal.tracking import names


@given(st.dates(date(1970, 1, 1), date(2100, 1, 1)))
def test_steps_of_days_are_one_apart(day: date) -> None:
    assert names.increment_step((day + timedelta(days=1)).isoformat()) == names.increment_step(day.isoformat()) + 1


@given(st.datetimes(datetime(1970, 1, 1), datetime(2100, 1, 1)))
def test_steps_of_hours_are_one_apart(time: datetime) -> None:
    ids = [f"{t:%Y-%m-%dT%H}" for t in (time, time + timedelta(hours=1))]
    assert names.increment_step(ids[1]) == names.increment_step(ids[0]) + 1


def test_steps_of_parts_are_one_apart_over_the_edges_of_days_and_hours() -> None:
    for ids in (["2026-01-01P24of24", "2026-01-02P01of24"], ["2026-01-01T23P04of04", "2026-01-02T00P01of04"]):
        assert names.increment_step(ids[1]) == names.increment_step(ids[0]) + 1
    assert names.increment_step("2026-01-02P06of24") == names.increment_step("2026-01-02T05")


def test_an_increment_has_a_place_in_time() -> None:
    at = [names.increment_time(i) for i in ("2026-01-02", "2026-01-02T05", "2026-01-02P02of24", "2026-01-02T05P03of04")]
    assert [f"{time:%dT%H:%M%z}" for time in at] == ["02T00:00+0000", "02T05:00+0000", "02T01:00+0000", "02T05:30+0000"]
    for no_name in ("January", "2026-01-02P05of04"):
        with pytest.raises(ValueError, match="YYYY-MM-DD"):
            names.increment_step(no_name)


def test_run_names_say_what_an_increment_is() -> None:
    assert names.increment_run_name("2026-01-02") == "daily-2026-01-02"
    assert names.increment_run_name("2026-01-02T05") == "hourly-2026-01-02T05"
    assert names.increment_run_name("2026-01-02P03of24") == "part-2026-01-02P03of24"
    assert names.increment_run_name("2026-01-02T05P03of04") == "part-2026-01-02T05P03of04"


def test_every_metric_is_in_one_section() -> None:
    sections = {
        "train",
        "eval",
        "progressive",
        "data",
        "throughput",
        "lr",
        "cluster",
        "checkpoint",
        "sparse",
        "gate",
        "profile",
    }
    assert all(key.count("/") == 1 and key.split("/")[0] in sections for key in names.METRICS)
    assert all(names.store_key(key) == key for key in names.METRICS)


def test_every_number_of_a_report_is_a_metric() -> None:
    report = report_from_sums([30, 10, 0, 30.0, 10.0, 9.0, 20.0]).to_dict()
    metrics = names.report_metrics(names.EVAL, report)
    assert set(metrics) == {f"eval/{f.name}" for f in fields(Report)} - {"eval/reason"}
    assert set(metrics) <= set(names.METRICS)


@pytest.mark.parametrize("sums", [[50, 0, 0, 50.0, 0.0, 5.0, 6.0], [0, 50, 0, 0.0, 50.0, 5.0, 6.0], [0] * 7])
def test_what_is_undefined_is_no_number_but_has_counts_and_a_reason(sums: list[float]) -> None:
    """torchmetrics#2494: one class makes an AUC of 0 elsewhere."""
    report = report_from_sums(sums).to_dict()
    sent = dict(names.defined(names.report_metrics(names.EVAL, report)))
    assert not {"eval/ne", "eval/auc"} & set(sent)
    assert (sent["eval/negatives"], sent["eval/positives"]) == (sums[0], sums[1])
    assert names.report_tags(names.EVAL, report)["diurnal.undefined.eval"]


def test_slices_are_named_by_feature_and_id_in_the_alphabet_of_the_store() -> None:
    slices = [
        {"feature": "country", "id": "NZ", "rows": 10, "ne": 0.9, "calibration": None},
        {"feature": "url", "id": "a/b?c" + "x" * 300, "rows": 10, "ne": 0.8, "calibration": 1.1},
    ]
    metrics = names.slice_metrics(slices)
    assert (metrics["slice/country.NZ.ne"], metrics["slice/country.NZ.calibration"]) == (0.9, None)
    sent = dict(names.defined(metrics))
    assert len(sent) == 3
    assert all(key.count("/") == 1 and key.rsplit(".", 1)[1] in ("ne", "calibration") for key in sent)


def test_only_finite_numbers_are_sent() -> None:
    metrics = {"a/x": 1, "a/none": None, "a/nan": float("nan"), "a/inf": float("inf"), "a/odd(name)": 2.0}
    assert dict(names.defined(metrics)) == {"a/x": 1.0, "a/odd_name_": 2.0}


def test_counts_are_totals_and_the_features_that_have_some() -> None:
    counts = {"dense/age/null": 2, "dense/size/null": 0, "sparse/user/unknown": 3, "sparse/item/unknown": 4}
    assert names.count_metrics(counts) == {
        "data/null": 2,
        "data/age.null": 2,
        "sparse/unknown": 7,
        "sparse/user.unknown": 3,
        "sparse/item.unknown": 4,
    }
