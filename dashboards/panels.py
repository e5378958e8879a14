"""Grafana's words for what a dashboard is made of: queries, panels, and the page that holds them."""

from __future__ import annotations

from typing import Any

from diurnal.tracking import names
from diurnal.tracking.series import SERIES

GREEN, ORANGE, RED, BLUE = "green", "orange", "red", "blue"
WIDTH = 24
SOURCE = {"type": "prometheus", "uid": "${datasource}"}

Panel = dict[str, Any]


def of(metric: str, **labels: str) -> str:
    """The selector of a series of ours, of the models that are chosen."""
    more = "".join(f', {label}="{value}"' for label, value in labels.items())
    return f'{SERIES[metric].exposed}{{model=~"$model"{more}}}'


def most(metric: str, *by: str, **labels: str) -> str:
    """Its largest value for each model, or whatever it is to be told apart by; where a process runs does not count."""
    return f"max by ({', '.join(by or ('model',))}) ({of(metric, **labels)})"


def rate(metric: str, *by: str, **labels: str) -> str:
    return f"sum by ({', '.join(by)}) (rate({of(metric, **labels)}[$__rate_interval]))"


def here(expr: str) -> str:
    """Of Ray's own series, those of the cluster that trains a model which is chosen."""
    return f"{expr} and on (SessionName) {of(names.CLUSTER_WORLD_SIZE)}"


def steps(*limits: tuple[float, str], base: str = GREEN) -> dict[str, Any]:
    """Colours from each limit on."""
    found = [{"value": None, "color": base}, *({"value": value, "color": color} for value, color in limits)]
    return {"mode": "absolute", "steps": found}


def words(**of_value: tuple[str, str]) -> list[dict[str, Any]]:
    """What is shown in place of a number, and its colour."""
    options = {name.lstrip("_"): {"text": text, "color": color} for name, (text, color) in of_value.items()}
    return [{"type": "value", "options": options}]


def _panel(kind: str, title: str, about: str, width: int, height: int, defaults: dict[str, Any]) -> Panel:
    size = {"w": width, "h": height}
    config = {"defaults": defaults, "overrides": []}
    return {"type": kind, "title": title, "description": about, "gridPos": size, "datasource": SOURCE} | {
        "fieldConfig": config
    }


def _targets(queries: dict[str, str], **more: Any) -> list[dict[str, Any]]:
    refs = "ABCDEFGH"
    return [
        {"refId": ref, "expr": expr, "legendFormat": legend, "datasource": SOURCE, **more}
        for ref, (legend, expr) in zip(refs, queries.items(), strict=False)
    ]


def stat(
    title: str,
    expr: str,
    about: str,
    unit: str = "none",
    thresholds: dict[str, Any] | None = None,
    mappings: list[dict[str, Any]] | None = None,
    legend: str = "{{model}}",
    is_name: bool = False,
) -> Panel:
    defaults = {"unit": unit, "mappings": mappings or [], "thresholds": thresholds or steps(base=BLUE)}
    made = _panel("stat", title, about, 4, 4, {**defaults, "noValue": "-"})
    made["targets"] = _targets({legend: expr}, instant=True)
    made["options"] = {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "textMode": "name" if is_name else "auto",
        "colorMode": "background",
        "graphMode": "none",
    }
    return made


def lines(
    title: str,
    queries: dict[str, str],
    about: str,
    unit: str = "none",
    thresholds: dict[str, Any] | None = None,
    stacked: bool = False,
    top: float | None = None,
    width: int = 8,
) -> Panel:
    custom = {"lineWidth": 1, "fillOpacity": 40 if stacked else 8, "spanNulls": False, "showPoints": "auto"}
    custom |= {"stacking": {"mode": "normal" if stacked else "none"}}
    custom |= {"thresholdsStyle": {"mode": "line" if thresholds else "off"}}
    defaults: dict[str, Any] = {"unit": unit, "custom": custom, "thresholds": thresholds or steps(base=BLUE)}
    if top is not None:
        defaults |= {"min": 0, "max": top}
    made = _panel("timeseries", title, about, width, 7, defaults)
    made["targets"] = _targets(queries)
    made["options"] = {
        "legend": {"displayMode": "list", "placement": "bottom"},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    return made


def bars(title: str, expr: str, about: str, unit: str, label: str, thresholds: dict[str, Any], width: int) -> Panel:
    """One bar for each value of a label."""
    defaults = {"unit": unit, "thresholds": thresholds, "color": {"mode": "thresholds"}, "custom": {"fillOpacity": 70}}
    made = _panel("barchart", title, about, width, 8, defaults)
    made["targets"] = _targets({"": expr}, instant=True, format="table")
    made["options"] = {"xField": label, "xTickLabelRotation": -45, "showValue": "auto", "legend": {"showLegend": False}}
    made["transformations"] = _tidy(label, {"Value": title})
    return made


def table(title: str, queries: dict[str, str], about: str, label: str, width: int, unit: str = "none") -> Panel:
    """One row for each value of a label, one column for each query."""
    made = _panel("table", title, about, width, 8, {"unit": unit, "noValue": "-"})
    made["targets"] = _targets(queries, instant=True, format="table")
    columns = {f"Value #{target['refId']}": target["legendFormat"] for target in made["targets"]}
    columns = columns if len(columns) > 1 else {"Value": next(iter(queries))}
    merge = [{"id": "merge", "options": {}}] if len(queries) > 1 else []
    made["options"] = {"showHeader": True, "cellHeight": "sm"}
    made["transformations"] = [*merge, *_tidy(label, columns)]
    return made


def _tidy(label: str, columns: dict[str, str]) -> list[dict[str, Any]]:
    return [
        {"id": "organize", "options": {"excludeByName": {"Time": True}, "renameByName": columns}},
        {"id": "sortBy", "options": {"sort": [{"field": label, "desc": label == "increment"}]}},
    ]


def dashboard(uid: str, title: str, about: str, span: str, refresh: str, rows: list[list[Panel]]) -> dict[str, Any]:
    panels, y = [], 0
    for row in rows:
        x = 0
        for panel in row:
            panels.append({**panel, "id": len(panels) + 1, "gridPos": {"x": x, "y": y, **panel["gridPos"]}})
            x += panel["gridPos"]["w"]
        assert x <= WIDTH, f"{title}: a row of {x}"
        y += max(panel["gridPos"]["h"] for panel in row)
    model = {"type": "query", "name": "model", "label": "model", "datasource": SOURCE, "refresh": 2}
    model |= {"query": f"label_values({SERIES[names.MODEL_UP].exposed}, model)", "includeAll": True, "allValue": ".*"}
    model |= {"current": {"text": "All", "value": "$__all"}, "multi": True, "sort": 1}
    source = {"type": "datasource", "name": "datasource", "label": "data", "query": "prometheus", "refresh": 1}
    others = {"type": "dashboards", "title": "diurnal", "tags": ["diurnal"], "asDropdown": False, "keepTime": False}
    return {
        "uid": uid,
        "title": title,
        "description": about,
        "tags": ["diurnal"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "timezone": "utc",
        "time": {"from": f"now-{span}", "to": "now"},
        "refresh": refresh,
        "templating": {"list": [source, model]},
        "links": [others],
        "annotations": {"list": []},
        "panels": panels,
    }
