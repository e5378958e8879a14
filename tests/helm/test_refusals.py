"""Values that cannot work are refused while nothing is installed yet, with what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

CHART = Path(__file__).parents[2] / "helm" / "diurnal"


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ("cluster.train.mx=3", "/cluster/train"),
        ("clutser.mode=perRun", "'clutser' not allowed"),
        ("cluster.mode=both", "/cluster/mode"),
        ("cluster.train.max=0", "/cluster/train/max"),
        ("cluster.train.max=many", "/cluster/train/max"),
        ("cluster.train.memory=64G", "/cluster/train/memory"),
        ("cluster.train.idleSeconds=5", "/cluster/train/idleSeconds"),
        ("cluster.head.cpu=0", "/cluster/head/cpu"),
        ("image.digest=sha256:12", "/image/digest"),
        ("image=null", "missing property 'image'"),
        ("schedule.cron=daily", "/schedule/cron"),
        ("schedule.cron=TZ=Europe/Berlin 1 * * *", "/schedule/cron"),
        ("schedule.timeZone=berlin time", "/schedule/timeZone"),
        ('schedule.command=["serve"]', "/schedule/command/0"),
        ('schedule.command=["daily", "--until; rm"]', "/schedule/command/1"),
        ("run.deadlineSeconds=10", "/run/deadlineSeconds"),
        ("postgresql.database=a-b", "/postgresql/database"),
        ("mlflow.uri=mlflow.example.com", "/mlflow/uri"),
        ('networkPolicy.peers.dns=[{"namespace": "x"}]', "/networkPolicy/peers/dns/0"),
        ("data.path=build/data", "/data/path"),
        ("secrets.ray=Not A Name", "/secrets/ray"),
        ("storage.url=s3://me:secret@models", "/storage/url"),
    ],
)
def test_the_schema_refuses(chart, value, where):
    assert where in chart.refusal("trial", value)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (("config.run=",), "config.run is empty; fix: --set-file config.run=FILE.toml"),
        (("config.schema=a = = 1",), "config.schema is no TOML"),
        (("config.run=\"[data]\\npath = 'build/data'\"",), "which means nothing on a cluster; fix: data.path"),
        (("data.path=/var/lib/elsewhere",), "no pod has a folder"),
        (("data.claim=days",), "mounted at /var/lib/diurnal-data"),
        (("cluster.train.max=1",), "workers.max = 2, and cluster.train has room for max 1 pods x 1 workers = 1"),
        (("cluster.train.min=3",), "cluster.train.min = 3 is more than max = 2"),
        (("cluster.train.gpu=true",), "workers.gpus = 0, and cluster.train.gpu is true"),
        (("cluster.train.memory=1Gi",), "cluster.train.memory = 1Gi must hold the object store (512Mi"),
        (("cluster.train.workers=2",), "less than its 2 workers reserve, 2 CPUs"),
        (("cluster.data.cpu=1",), "2 workers read with 2 CPUs, and cluster.data has max 1 pods x 1 CPUs"),
        (("storage.oneNode=false",), "holds on one node alone"),
        (("storage.url=s3://models", "storage.claim=mine", "data.path=s3://logs"), "fix: give one of them"),
        (("storage.url=s3://models", "data.path=/var/lib/diurnal/days"), "no pod has a folder"),
        (("postgresql.mode=external",), "fix: postgresql.host"),
        (("postgresql.host=db",), "postgresql.mode is bundled"),
        (("mlflow.mode=external",), "fix: mlflow.uri"),
        (("mlflow.uri=http://mlflow",), "mlflow.mode is bundled"),
        (("schedule.mode=rayCronJob",), "fix: cluster.mode=perRun"),
        (("kueue.queue=training",), "kueue.queue admits whole runs"),
        (("kueue.elastic=true",), "kueue.elastic needs kueue.queue"),
        (("cluster.faultTolerance.secret=redis",), "a Redis that is not named"),
        (("fullnameOverride=1st",), "must begin with a letter"),
    ],
)
def test_what_contradicts_is_refused(chart, values, says):
    assert says in chart.refusal("trial", *values)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (("schedule.mode=rayCronJob",), "a RayCronJob cannot label its runs"),
        (("run.waitSeconds=80000",), "run.waitSeconds = 80000 is more than run.deadlineSeconds = 43200"),
        (("cluster.faultTolerance.redisAddress=redis:6379",), "for a cluster that outlives its runs"),
    ],
)
def test_what_contradicts_a_cluster_of_its_own_is_refused(chart, values, says):
    assert says in chart.refusal("per-run", *values)


def test_a_long_name_is_refused(chart):
    assert "has 37 characters" in chart.refusal("trial", release="a" * 37)


def test_another_kubernetes_is_refused(chart):
    done = chart.run("template", "x", CHART, "--kube-version", "1.26.0")
    assert done.returncode != 0
