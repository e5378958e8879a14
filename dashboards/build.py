"""Writes the Grafana dashboards: python dashboards/build.py [FOLDER]

What a dashboard shows stands here in short; the JSON in grafana/ is what comes of it. Names of our own series come from
`diurnal.tracking.series`, those of Ray are Ray's.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from panels import GREEN, ORANGE, RED, WIDTH, Panel, bars, dashboard, here, lines, most, rate, stat, steps, table, words

from diurnal.tracking import names
from diurnal.tracking.series import SERIES

FOLDER = Path(__file__).parent / "grafana"


def live() -> dict[str, Any]:
    day = 86_400.0
    age = steps((1.5 * day, ORANGE), (2.5 * day, RED))
    now = [
        stat(
            "Newest increment",
            most(names.MODEL_NEWEST_STATE, "model", "increment", "state"),
            "The newest increment that is known, and how far the model has come with it.",
            legend="{{increment}} {{state}}",
            is_name=True,
        ),
        stat(
            "In time",
            most(names.MODEL_LATE),
            "Late: an increment is not done days.wait_s after its end.",
            mappings=words(_0=("in time", GREEN), _1=("late", RED)),
        ),
        stat(
            "Needs a person",
            most(names.MODEL_NEEDS_A_PERSON),
            "Something is held, failed or late. The table below says what.",
            mappings=words(_0=("no", GREEN), _1=("yes", RED)),
        ),
        stat(
            "Freshness",
            most(names.MODEL_FRESHNESS_S),
            "Age of the newest row that the champion has learned.",
            "s",
            age,
        ),
        stat("Champion", most(names.MODEL_CHAMPION), "Number of the version that serving should use."),
        stat("Champion age", most(names.MODEL_CHAMPION_AGE_S), "Since the champion was committed.", "s", age),
    ]
    to_do = "Newest first. prometheus/runbook.md says what to do about each kind, and so does `diurnal status`."
    trouble = [
        table(
            "What is wrong, and why",
            {"is so": most(names.MODEL_TROUBLE, "model", "increment", "kind", "reason")},
            to_do,
            "increment",
            16,
        ),
        stat(
            "At work",
            most(names.MODEL_HELD_BY, "model", "holder"),
            "The process that has the model, and for what.",
            legend="{{holder}}",
            is_name=True,
        ),
        stat("Not done", most(names.MODEL_PENDING), "Increments that are known and not done."),
    ]
    quality = [
        bars(
            "NE, last 30 increments",
            most(names.INCREMENT_NE, "increment"),
            "The champion of then scores each increment before it is learned. Below 1 beats the constant rate.",
            "none",
            "increment",
            steps((1.0, RED)),
            12,
        ),
        bars(
            "Calibration, last 30 increments",
            most(names.INCREMENT_CALIBRATION, "increment"),
            "Mean prediction over mean label, of the same scores. 1 is right.",
            "none",
            "increment",
            steps((0.8, GREEN), (1.25, RED), base=RED),
            12,
        ),
    ]
    past = [
        table(
            "Last 30 increments",
            {
                "version": most(names.INCREMENT_STATE, "increment", "state", "reason"),
                "rows": most(names.INCREMENT_ROWS, "increment"),
                "NE": most(names.INCREMENT_NE, "increment"),
            },
            "Version 0: none was made of it.",
            "increment",
            16,
        ),
        lines(
            "Freshness over time",
            {"{{model}}": most(names.MODEL_FRESHNESS_S)},
            "Falls with each promotion.",
            "s",
            steps((2.5 * day, RED)),
        ),
    ]
    about = "State, freshness and quality of the champion, from the ledger alone."
    return dashboard("diurnal-live", "Is today's model live?", about, "7d", "1m", [now, trouble, quality, past])


def training() -> dict[str, Any]:
    phase = f'{SERIES[names.WORKER_PHASE_S].exposed}{{model=~"$model", phase'
    window = "[$__rate_interval]"
    working = f'rate({phase}!~"start|between"}}{window})'
    exchange = f'sum by (model) (rate({phase}=~"exchange|vote|dense"}}{window})) / sum by (model) ({working})'
    step_s = f"sum by (model, rank) ({working}) / {rate(names.WORKER_STEPS, 'model', 'rank')}"
    now = [
        stat("Done", most(names.TRAIN_DONE_SHARE), "Of the increment that is being learned.", "percentunit"),
        stat("Workers", most(names.CLUSTER_WORLD_SIZE), "Training workers now."),
        stat("Rows/s", most(names.THROUGHPUT_ROWS_PER_S), "Over all workers.", "short"),
        stat(
            "Restarts",
            most(names.CLUSTER_RESTARTS),
            "After a failure, in this increment.",
            thresholds=steps((1, ORANGE)),
        ),
        stat("Resizes", most(names.CLUSTER_RESIZES), "Changes of the number of workers, in this increment."),
        stat(
            "Skipped steps",
            most(names.TRAIN_SKIPPED_STEPS),
            "The loss was not finite, in this increment.",
            thresholds=steps((1, RED)),
        ),
    ]
    speed = [
        lines("Rows/s over time", {"{{model}}": most(names.THROUGHPUT_ROWS_PER_S)}, "Over all workers.", "short"),
        lines("Step time, by rank", {"rank {{rank}}": step_s}, "All phases of a step, pauses left out.", "s"),
        lines(
            "Waiting for data, exchanging",
            {"data": most(names.THROUGHPUT_DATA_WAIT_SHARE), "exchange": exchange},
            "Shares of the time. Exchange: ids on their way, the vote, dense gradients; of what the host waits for.",
            "percentunit",
            steps((0.2, ORANGE)),
            top=1.0,
        ),
    ]
    where = [
        lines(
            "Where the time goes",
            {"{{phase}}": f"sum by (phase) ({working}) / scalar(sum({working}))"},
            "Phases of a step, all ranks together.",
            "percentunit",
            stacked=True,
            top=1.0,
        ),
        lines(
            "In this step since, by rank",
            {"rank {{rank}}": most(names.WORKER_STEP_AGE_S, "model", "rank")},
            "Rises while a step hangs; after workers.stall_s the run goes on without it.",
            "s",
        ),
        lines(
            "Workers over time", {"{{model}}": most(names.CLUSTER_WORLD_SIZE)}, "Staircases are resizes and restarts."
        ),
    ]
    quality = [
        lines(
            "NE so far",
            {"{{model}}": most(f"{names.PROGRESSIVE}/ne")},
            "Each row is scored just before it is learned. Above 1 is worse than the constant rate.",
            thresholds=steps((1.0, RED)),
        ),
        lines("Log loss, last steps", {"{{model}}": most(names.TRAIN_LOG_LOSS)}, "Nats, of the last steps alone."),
        lines(
            "Commits",
            {"writing": most(names.CHECKPOINT_SAVE_S), "standing still": most(names.CHECKPOINT_STALL_S)},
            "Seconds of the newest commit, and seconds that training stood still for commits in this increment.",
            "s",
        ),
    ]
    about = "The run that is at work; empty while none is. Nodes and disks are those of its Ray cluster."
    return dashboard("diurnal-training", "Training now", about, "3h", "15s", [now, speed, where, quality, _nodes()])


def _nodes() -> list[Panel]:
    gpu = "avg by (instance, GpuIndex) (" + here("ray_node_gpus_utilization") + ")"
    used, free = here("ray_node_gram_used"), here("ray_node_gram_available")
    used, free = (f"sum by (instance, GpuIndex) ({memory})" for memory in (used, free))
    disk = f"min by (instance) ({here('ray_node_disk_free / (ray_node_disk_free + ray_node_disk_usage)')})"
    store = f"sum by (Location) ({here('ray_object_store_memory')})"
    return [
        lines(
            "GPU",
            {
                "busy {{instance}}/{{GpuIndex}}": f"{gpu} / 100",
                "memory {{instance}}/{{GpuIndex}}": f"{used} / ({used} + {free})",
            },
            "Of each GPU: share of the time in which it works, and of its memory that is used.",
            "percentunit",
            top=1.0,
        ),
        lines(
            "Object store", {"{{Location}}": store}, "Batches pass through it, nothing stays.", "bytes", stacked=True
        ),
        lines(
            "Free disk",
            {"node {{instance}}": disk, "storage of {{model}}": most(names.STORAGE_FREE_SHARE)},
            "Share that is free.",
            "percentunit",
            steps((0.1, GREEN), base=RED),
            top=1.0,
        ),
    ]


def embeddings() -> dict[str, Any]:
    def share(part: str, whole: str, by: str) -> str:
        return f"{most(part, 'model', by)} / {most(whole, 'model', by)}"

    learned, dead = (names.TABLE_LEARNED_ROWS, names.TABLE_DEAD_ROWS)
    tables = [
        table(
            "Tables of the newest judged version",
            {
                "rows": most(names.TABLE_ROWS, "model", "table"),
                "touched": most(learned, "model", "table"),
                "new": most(names.TABLE_NEW_ROWS, "model", "table"),
                "dead": most(dead, "model", "table"),
                "norm": most(names.TABLE_RMS, "model", "table"),
                "largest": most(names.TABLE_MAX_ABS, "model", "table"),
                "not finite": most(names.TABLE_NONFINITE, "model", "table"),
            },
            "touched: a gradient has ever reached the row; new: in this increment for the first time; dead: all zero.",
            "table",
            WIDTH,
        )
    ]
    rows = [
        lines("Touched rows", {"{{table}}": share(learned, names.TABLE_ROWS, "table")}, "Of all rows.", "percentunit"),
        lines("New rows", {"{{table}}": most(names.TABLE_NEW_ROWS, "model", "table")}, "An increment.", "short"),
        lines(
            "Dead rows",
            {"{{table}}": share(dead, learned, "table")},
            "Of those that were touched. The gate holds a version above gate.max_dead_rows.",
            "percentunit",
            steps((0.5, RED)),
        ),
    ]
    norms = [
        lines("Norm", {"{{table}}": most(names.TABLE_RMS, "model", "table")}, "Root mean square of touched rows."),
        lines(
            "Largest value",
            {"{{table}}": most(names.TABLE_MAX_ABS, "model", "table")},
            "Of weights and optimizer state. The gate holds a version above gate.max_weight.",
            "short",
        ),
        lines(
            "Unknown ids",
            {"{{feature}}": share(names.FEATURE_UNKNOWN_IDS, names.FEATURE_IDS, "feature")},
            "Beyond the table; of those that were looked up.",
            "percentunit",
        ),
    ]
    ids = [
        lines("Ids", {"{{feature}}": most(names.FEATURE_IDS, "model", "feature")}, "Looked up, an increment.", "short"),
        lines("No id", {"{{feature}}": most(names.FEATURE_NO_ID, "model", "feature")}, "Null or negative.", "short"),
        lines(
            "Unknown ids, number",
            {"{{feature}}": most(names.FEATURE_UNKNOWN_IDS, "model", "feature")},
            "Beyond the table.",
            "short",
        ),
    ]
    about = "Tables and ids of the newest version that the gate has judged, from the ledger."
    return dashboard("diurnal-embeddings", "Embedding health", about, "30d", "5m", [tables, rows, norms, ids])


def main(folder: Path) -> None:
    for name, made in {"live": live(), "training": training(), "embeddings": embeddings()}.items():
        (folder / f"{name}.json").write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
