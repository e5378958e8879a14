"""The one place where the name of a metric, a tag or a run is spelled, and where an increment gets its step.

A metric is `section/name` with one slash: MLflow draws one group of charts per section. On an increment's run the
step is the rows seen of that increment; on the lineage run it is the increment's place in time (`increment_step`).
What Prometheus is given of them, and beside them, is in `series`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from types import MappingProxyType

from diurnal.data.ids import IncrementId

PROGRESSIVE = "progressive"
"""Section of the scores that were made before the row was learned."""
EVAL = "eval"
"""Section of the scores of a frozen version over an increment that it has not seen."""

SLICE = "slice"
"""Section of the progressive scores of the rows of one id, `slice/<feature>.<id>.<number>`."""

TRAIN_LOG_LOSS = "train/log_loss"
TRAIN_SKIPPED_STEPS = "train/skipped_steps"
TRAIN_GLOBAL_STEP = "train/global_step"
TRAIN_REPLAYED_ROWS = "train/replayed_rows"
THROUGHPUT_ROWS_PER_S = "throughput/rows_per_s"
THROUGHPUT_STEP_S = "throughput/step_s"
THROUGHPUT_DATA_WAIT_SHARE = "throughput/data_wait_share"
THROUGHPUT_FIRST_STEP_S = "throughput/first_step_s"
THROUGHPUT_INCREMENT_S = "throughput/increment_s"
LR_SPARSE = "lr/sparse"
LR_DENSE = "lr/dense"
CLUSTER_WORLD_SIZE = "cluster/world_size"
CLUSTER_RESTARTS = "cluster/restarts"
CLUSTER_RESIZES = "cluster/resizes"
CLUSTER_RECOVERY_S = "cluster/recovery_s"
CHECKPOINT_SAVE_S = "checkpoint/save_s"
CHECKPOINT_STALL_S = "checkpoint/stall_s"
CHECKPOINT_BYTES = "checkpoint/bytes"
DATA_ROWS = "data/rows"
DATA_QUARANTINED_FILES = "data/quarantined_files"
DATA_DROPPED_NEGATIVES = "data/dropped_negatives"
DATA_FRESHNESS_S = "data/freshness_s"
GATE_NE_RISE = "gate/ne_rise"
GATE_NE_RISE_LOW = "gate/ne_rise_low"
GATE_NE_RISE_HIGH = "gate/ne_rise_high"
GATE_CALIBRATION = "gate/calibration"
GATE_ROWS = "gate/rows"
GATE_PROMOTED = "gate/promoted"
PROFILE_ROWS = "profile/rows"
PROFILE_LABEL_RATE = "profile/label_rate"
PROFILE_FINDINGS = "profile/findings"
PROFILE_CHAMPION_NE = "profile/champion_ne"

TRAIN_DONE_SHARE = "train/done_share"
STORAGE_FREE_SHARE = "storage/free_share"
WORKER_STEPS = "worker/steps"
WORKER_PHASE_S = "worker/phase_s"
WORKER_STEP_AGE_S = "worker/step_age_s"
MODEL_UP = "model/up"
MODEL_CHAMPION = "model/champion"
MODEL_CHAMPION_AGE_S = "model/champion_age_s"
MODEL_FRESHNESS_S = "model/freshness_s"
MODEL_PENDING = "model/pending"
MODEL_LATE = "model/late"
MODEL_LATE_S = "model/late_s"
MODEL_NEEDS_A_PERSON = "model/needs_a_person"
MODEL_HELD_BY = "model/held_by"
MODEL_LEARNING = "model/learning"
MODEL_NEWEST_STATE = "model/newest_state"
MODEL_TROUBLE = "model/trouble"
INCREMENT_NE = "increment/ne"
INCREMENT_CALIBRATION = "increment/calibration"
INCREMENT_ROWS = "increment/rows"
INCREMENT_STATE = "increment/state"
TABLE_ROWS = "table/rows"
TABLE_LEARNED_ROWS = "table/learned_rows"
TABLE_NEW_ROWS = "table/new_rows"
TABLE_DEAD_ROWS = "table/dead_rows"
TABLE_NONFINITE = "table/nonfinite"
TABLE_RMS = "table/rms"
TABLE_MAX_ABS = "table/max_abs"
FEATURE_IDS = "feature/ids"
FEATURE_UNKNOWN_IDS = "feature/unknown_ids"
FEATURE_NO_ID = "feature/no_id"

_REPORT = {
    "rows": "rows that were scored (padding and zero weight are not)",
    "weight": "sum of their weights",
    "positives": "rows with label 1",
    "negatives": "rows with label 0",
    "nonfinite_rows": "rows whose logit is not finite; they are in no other number",
    "base_rate": "weighted mean label",
    "log_loss": "weighted mean binary cross-entropy, nats",
    "ne": "normalized entropy: log loss over the entropy of the base rate; below 1 beats the constant base rate",
    "auc": "area under the ROC curve",
    "auc_error": "bound on what the histogram adds to or takes from the AUC",
    "calibration": "mean prediction over mean label; 1 is right",
    "running_rate_ne": "NE of predicting the click rate of all rows before",
    "gauc": "mean AUC of the groups with both classes, weighted by their rows; where the schema has a group",
    "gauc_error": "standard error of it from the groups that were left out; 0 when none was",
    "gauc_groups": "groups that it is the mean of",
    "gauc_rows": "rows of these groups",
    "gauc_share": "share of all groups, by a hash, that was looked at",
    "one_class_groups": "groups that were looked at and have rows of one class alone",
    "rows_without_group": "rows that belong to no group",
}

_OF_TASK = ("rows", "base_rate", "log_loss", "ne", "auc", "calibration", "nonfinite_rows")
"""What is told of an outcome beside the label, with the same meaning."""

METRICS: Mapping[str, str] = MappingProxyType(
    {
        **{f"{section}/{name}": text for section in (PROGRESSIVE, EVAL) for name, text in _REPORT.items()},
        TRAIN_LOG_LOSS: "weighted mean loss of the last steps, nats",
        TRAIN_SKIPPED_STEPS: "steps of this increment that were skipped since the loss was not finite",
        TRAIN_GLOBAL_STEP: "optimizer steps of the whole lineage",
        TRAIN_REPLAYED_ROWS: "rows of this increment that were learned again after a restart, from its last commit on",
        THROUGHPUT_ROWS_PER_S: "rows per second over all workers",
        THROUGHPUT_STEP_S: "seconds of one step",
        THROUGHPUT_DATA_WAIT_SHARE: "share of the time in which the step loop waits for a batch",
        THROUGHPUT_FIRST_STEP_S: "seconds from the start of the increment to the end of its first step",
        THROUGHPUT_INCREMENT_S: "seconds of the whole increment, commit included",
        LR_SPARSE: "learning rate of the embedding tables, schedule applied",
        LR_DENSE: "learning rate of the dense layers, schedule applied",
        CLUSTER_WORLD_SIZE: "training workers",
        CLUSTER_RESTARTS: "times that the workers of this increment were started again after a failure",
        CLUSTER_RESIZES: "times that the number of workers changed in this increment",
        CLUSTER_RECOVERY_S: "seconds from a failure or a resize to the end of the next step",
        CHECKPOINT_SAVE_S: "seconds of the commit",
        CHECKPOINT_STALL_S: "seconds that training stood still for a commit",
        CHECKPOINT_BYTES: "size of the version on disk",
        DATA_ROWS: "rows of the increment",
        DATA_QUARANTINED_FILES: "files that were left out since they cannot be read",
        DATA_DROPPED_NEGATIVES: "negatives that were not learned, as label.keep_negatives says",
        DATA_FRESHNESS_S: "age of the newest row of the newest version when it was committed, seconds",
        GATE_NE_RISE: "NE of the challenger less that of the champion, on rows that neither has learned",
        GATE_NE_RISE_LOW: "lower end of its confidence interval",
        GATE_NE_RISE_HIGH: "upper end of its confidence interval",
        GATE_CALIBRATION: "mean prediction of the challenger over mean label on the rows it was judged on; 1 is right",
        GATE_ROWS: "rows that the version was judged on",
        GATE_PROMOTED: "1 if the version was promoted, 0 if it was not",
        PROFILE_ROWS: "rows that the increment's profile counted",
        PROFILE_LABEL_RATE: "mean label of the increment",
        PROFILE_FINDINGS: "what was implausible about the increment beside those before it",
        PROFILE_CHAMPION_NE: "NE of the champion over the increment before it was learned",
    }
)
"""Every metric with a fixed name, and what it means. Counts per feature are named by `count_metrics`."""

TAG_KIND = "diurnal.kind"
"""`lineage` or `increment`."""
TAG_MODEL = "diurnal.model"
TAG_INCREMENT = "diurnal.increment"
TAG_ATTEMPT = "diurnal.attempt"
"""The newest attempt; the outcome of an earlier one is in `diurnal.attempt.<number>`."""
TAG_VERSION = "diurnal.version"
TAG_PARENT_VERSION = "diurnal.parent_version"
TAG_FINGERPRINT = "diurnal.fingerprint"
TAG_VERDICT = "diurnal.verdict"
"""What the gate said: `promote`, `hold`, `undecided` or `superseded`; `held` if the increment never got that far."""
TAG_VERDICT_REASON = "diurnal.verdict_reason"
TAG_DESCRIPTION = "mlflow.note.content"
"""MLflow shows it at the top of a run's page, where tags are many and cut off."""
TAG_PATH = "diurnal.path"
"""Where the version lies; MLflow's own source may be another."""
TAG_WATERMARK = "diurnal.watermark"
"""Event time up to which the version has learned, microseconds since the epoch."""
TAG_CREATED_AT = "diurnal.created_at"
TAG_CHANGED_PARAMS = "diurnal.changed_params"
"""JSON of the parameters that differ in the newest attempt, since a parameter itself cannot change."""
TAG_WRITER = "diurnal.writer"
"""Marks the process that created the run; it may delete only such runs."""

LINEAGE = "lineage"
INCREMENT = "increment"

HELD = "held"
"""Verdict on an increment that was kept from training."""

ALIAS_CHAMPION = "champion"
ALIAS_CHALLENGER = "challenger"
ALIAS_PREVIOUS = "previous"
"""What a rollback would go back to."""

USED = "used"
"""Prefix of the parameters that say what the optimizers really use."""

CONFIG_ARTIFACT = "config.json"
PLAN_ARTIFACT = "plan.txt"
CALIBRATION_ARTIFACT = "calibration.png"
LIFT_ARTIFACT = "lift.png"
SLICES_ARTIFACT = "slices.csv"


def identity(model: str, increment_id: str | None) -> dict[str, str]:
    """Tags by which the run of an increment is found again, or for None the lineage run."""
    if increment_id is None:
        return {TAG_KIND: LINEAGE, TAG_MODEL: model}
    return {TAG_KIND: INCREMENT, TAG_MODEL: model, TAG_INCREMENT: increment_id}


def increment_time(increment_id: str) -> datetime:
    """The first instant of the increment, UTC; that of a part as if the rows were spread evenly over its folder's time.

    Raises:
        ValueError: it is no increment's name, see `data.ids`.
    """
    return IncrementId.parse(increment_id).start


def increment_step(increment_id: str) -> int:
    """Days since 1970-01-01 for a day, hours since then for an hour, and for a part that many times the parts: points
    sort, and a gap in time is a gap."""
    return IncrementId.parse(increment_id).place


def increment_run_name(increment_id: str) -> str:
    name = IncrementId.parse(increment_id)
    kind = "part" if name.parts > 1 else "daily" if name.hour is None else "hourly"
    return f"{kind}-{increment_id}"


def attempt_tag(attempt: int | str) -> str:
    """Tag that says how an earlier attempt ended."""
    return f"{TAG_ATTEMPT}.{attempt}"


def verdict_tags(verdict: str, reason: str) -> dict[str, str]:
    """What the gate said, for queries and for people; empty texts take it back."""
    words = f"**{verdict}**: {reason}" if verdict else ""
    return {TAG_VERDICT: verdict, TAG_VERDICT_REASON: reason, TAG_DESCRIPTION: words}


def undefined_tag(section: str) -> str:
    """Tag that says why a metric of the section has no number."""
    return f"diurnal.undefined.{section}"


def library_tag(library: str) -> str:
    return f"diurnal.library.{library}"


def report_metrics(section: str, report: Mapping[str, object]) -> dict[str, float | None]:
    """Metrics of a metrics report's `to_dict()`; its undefined values stay None."""
    return {f"{section}/{name}": _number(report[name]) for name in _REPORT if name in report}


def report_tags(section: str, report: Mapping[str, object]) -> dict[str, str]:
    """Why something of the report is undefined; the empty text when nothing is, so that a retry clears it."""
    return {undefined_tag(section): str(report.get("reason") or "")}


def slice_metrics(slices: Iterable[Mapping[str, object]]) -> dict[str, float | None]:
    """NE and calibration of slices (`Slice.to_dict()`): `slice/country.NZ.ne`. An id that the store's alphabet does
    not have room for is spelled by it."""
    return {
        f"{SLICE}/{_flat(one['feature'])}.{_flat(one['id'])}.{name}": _number(one[name])
        for one in slices
        for name in ("ne", "calibration")
    }


def task_metrics(section: str, tasks: Mapping[str, Mapping[str, object]]) -> dict[str, float | None]:
    """Metrics of the outcomes beside the label, by task a report's `to_dict()`: `progressive/bought.ne`."""
    return {f"{section}/{task}.{name}": _number(report[name]) for task, report in tasks.items() for name in _OF_TASK}


def count_metrics(counts: Mapping[str, int]) -> dict[str, float | None]:
    """Metrics of encode's counts `kind/feature/what`: a total per what, and each feature that is not zero.

    `sparse/user/unknown` becomes `sparse/user.unknown` and adds to `sparse/unknown`; dense features are in `data/`,
    tasks in `task/`.
    """
    metrics: dict[str, float | None] = {}
    for name, count in counts.items():
        kind, feature, what = name.split("/", 2)
        section = "data" if kind == "dense" else kind
        total = f"{section}/{what}"
        metrics[total] = (metrics.get(total) or 0.0) + count
        if count:
            metrics[f"{section}/{feature}.{what}"] = float(count)
    return metrics


def prometheus_name(metric: str) -> str:
    """As Prometheus spells it, without what Ray or a counter adds: `throughput/rows_per_s` is
    `diurnal_throughput_rows_per_s`."""
    return "diurnal_" + re.sub(r"[^A-Za-z0-9_]", "_", metric)


def defined(metrics: Mapping[str, float | None]) -> Iterable[tuple[str, float]]:
    """The metrics that are numbers, under keys that the store takes: None, NaN and infinities are left out."""
    for key, value in metrics.items():
        if value is not None and math.isfinite(value):
            yield store_key(key), float(value)


def store_key(key: str) -> str:
    """`key` within MLflow's alphabet and length, so that one odd name does not refuse a whole batch."""
    return re.sub(r"[^A-Za-z0-9_\-./ ]", "_", key)[:250]


def _flat(text: object) -> str:
    """Without slashes, which make sections, and short enough that what follows it is not cut off."""
    return str(text).replace("/", "_")[:100]


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None
