"""Outcomes beside the label, as they are declared."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from diurnal.config import Schema


def schema(tasks: list[dict[str, Any]], **more: Any) -> Schema:
    raw = {
        "dense": [{"name": "price"}],
        "sparse": [{"name": "user"}],
        "tables": [{"name": "user", "rows": 10, "dim": 4}],
        **more,
    }
    return Schema.model_validate_json(json.dumps({"tasks": tasks, **raw}))


def test_a_task_is_declared_as_the_label_is() -> None:
    found = schema([{"name": "bought", "column": "sold", "positive": "yes", "negative": "no"}, {"name": "kept"}])
    assert [(task.name, task.source, task.weight, task.missing) for task in found.tasks] == [
        ("bought", "sold", 1.0, "refuse"),
        ("kept", "kept", 1.0, "refuse"),
    ]


def test_two_thresholds_of_one_column_are_two_outcomes() -> None:
    found = schema([{"name": "loved", "column": "rating", "at_least": 5}], label={"column": "rating", "at_least": 4})
    assert found.tasks[0].source == found.label.column


@pytest.mark.parametrize(
    ("tasks", "more", "must"),
    [
        ([{"name": "bought"}, {"name": "bought", "column": "b"}], {}, "each name appears once among tasks"),
        ([{"name": "price"}], {}, "task price is not an input: it is known only after the outcome"),
        ([{"name": "bought", "column": "user"}], {}, "task bought is not an input"),
        ([{"name": "bought", "positive": "yes"}], {}, "positive and negative are two spellings"),
        ([{"name": "train"}], {}, "none that torch modules use"),
        ([{"name": "a.b"}], {}, "match pattern"),
        ([{"name": "bought", "weight": 0}], {}, "greater than 0"),
        ([{"name": "bought", "missing": "zero"}], {}, "refuse"),
    ],
)
def test_what_cannot_be_a_task(tasks: list[dict[str, Any]], more: dict[str, Any], must: str) -> None:
    with pytest.raises(ValidationError, match=must):
        schema(tasks, **more)
