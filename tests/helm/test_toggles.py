"""Each value that switches something does so, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from diurnal.train.limits import NODE_LIMITS, attainable

Json = dict[str, Any]


def of_kind(objects: list[Json], kind: str) -> list[Json]:
    return [document for document in objects if document["kind"] == kind]


def kinds(objects: list[Json]) -> set[str]:
    return {document["kind"] for document in objects}


def spec(objects: list[Json], kind: str) -> Json:
    (document,) = of_kind(objects, kind)
    return document["spec"]


def group(cluster: Json, name: str) -> Json:
    (found,) = [g for g in cluster["workerGroupSpecs"] if g["groupName"] == name]
    return found


def env(pod: Json) -> Json:
    return {variable["name"]: variable for variable in pod["spec"]["containers"][0].get("env", [])}


def test_gpus_scale_from_zero(chart):
    """ray-project/kuberay#321: a group at zero is scaled when its resources are declared."""
    cluster = spec(chart.objects("production"), "RayCluster")
    train, data = group(cluster, "train"), group(cluster, "data")
    assert (train["minReplicas"], train["maxReplicas"], train["idleTimeoutSeconds"]) == (0, 8, 900)
    resources = train["template"]["spec"]["containers"][0]["resources"]
    assert resources["limits"]["nvidia.com/gpu"] == resources["requests"]["nvidia.com/gpu"] == "1"
    assert train["rayStartParams"]["num-gpus"] == "1"
    assert train["rayStartParams"]["num-cpus"] == "2", "a data task would fit beside the worker"
    assert "nvidia.com/gpu" not in data["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert (data["rayStartParams"]["num-cpus"], data["rayStartParams"]["num-gpus"]) == ("8", "0")
    assert [g["labels"] for g in (train, data)] == [{"diurnal.dev/role": "train"}, {"diurnal.dev/role": "data"}]
    assert cluster["enableInTreeAutoscaling"] is True
    assert cluster["autoscalerOptions"]["version"] == "v2"


def test_the_head_knows_what_the_cluster_can_become(chart, pods_of, monkeypatch):
    """ray-project/kuberay#321: eight workers where four fit are refused with the numbers."""
    head = pods_of(chart.objects("production"))["head"]
    monkeypatch.setenv(NODE_LIMITS, env(head)[NODE_LIMITS]["value"])
    groups = attainable([])
    assert groups is not None
    told = {group.name: (group.most, dict(group.resources)) for group in groups}
    assert told == {"data": (8, {"CPU": 8, "GPU": 0}), "train": (8, {"CPU": 2, "GPU": 1})}


def test_shared_memory_holds_the_object_store(chart):
    train = group(spec(chart.objects("trial", "cluster.train.objectStore=1Gi"), "RayCluster"), "train")
    (shm,) = [v["emptyDir"] for v in train["template"]["spec"]["volumes"] if v["name"] == "shm"]
    assert train["rayStartParams"]["object-store-memory"] == str(2**30)
    assert shm == {"medium": "Memory", "sizeLimit": str(2**30 + 2**29)}


def test_the_schedule_submits_and_waits(chart, pods_of):
    objects = chart.objects("production")
    cron = spec(objects, "CronJob")
    assert (cron["schedule"], cron["timeZone"], cron["concurrencyPolicy"]) == ("30 4 * * *", "Europe/Berlin", "Forbid")
    assert cron["startingDeadlineSeconds"] == 3600
    job = cron["jobTemplate"]["spec"]
    assert (job["activeDeadlineSeconds"], job["backoffLimit"]) == (82800, 2)
    fail = job["podFailurePolicy"]["rules"][0]
    assert (fail["action"], fail["onExitCodes"]["values"]) == ("FailJob", [2])
    command = pods_of(objects)["submit"]["spec"]["containers"][0]["command"]
    assert command[:3] == ["diurnal", "submit", "daily"]
    assert command[-3:] == ["--address", "http://trial-head-svc:8265", "--scheduled"]
    assert command.count("--config") == 2
    assert env(pods_of(objects)["submit"])["RAY_AUTH_TOKEN"]["valueFrom"]["secretKeyRef"] == {
        "name": "trial-ray",
        "key": "auth_token",
    }


def test_a_run_of_its_own(chart):
    """ray-project/kuberay#3903: it has an end, retries and a clearing away."""
    objects = chart.objects("per-run")
    assert "RayCluster" not in kinds(objects)
    (run,) = of_kind(objects, "RayJob")
    assert run["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "training"
    job = run["spec"]
    assert (job["activeDeadlineSeconds"], job["backoffLimit"], job["ttlSecondsAfterFinished"]) == (43200, 1, 600)
    assert job["preRunningDeadlineSeconds"] == 7200
    assert job["shutdownAfterJobFinishes"] is True
    assert job["entrypoint"].startswith("python -P -m diurnal.cluster.job daily --config /etc/diurnal/run.toml ")
    assert job["rayClusterSpec"]["enableInTreeAutoscaling"] is False
    assert [g["replicas"] for g in job["rayClusterSpec"]["workerGroupSpecs"]] == [4, 4]
    watching = spec(objects, "CronJob")["jobTemplate"]["spec"]
    assert watching["activeDeadlineSeconds"] > 2 * job["activeDeadlineSeconds"], "one try and one retry"
    assert watching["podFailurePolicy"]["rules"][0]["onExitCodes"]["values"] == [1, 2]
    (role,) = of_kind(objects, "Role")
    assert role["rules"] == [{"apiGroups": ["ray.io"], "resources": ["rayjobs"], "verbs": ["create", "get"]}]


def test_an_elastic_run_in_a_queue(chart):
    (run,) = of_kind(chart.objects("per-run", "kueue.elastic=true"), "RayJob")
    assert run["metadata"]["annotations"] == {"kueue.x-k8s.io/elastic-job": "true"}
    assert run["spec"]["rayClusterSpec"]["enableInTreeAutoscaling"] is True
    assert group(run["spec"]["rayClusterSpec"], "train")["minReplicas"] == 0


def test_once_for_each_revision(chart):
    objects = chart.objects("per-run", "schedule.mode=none")
    (run,) = of_kind(objects, "RayJob")
    assert run["metadata"]["name"] == "trial-r1"
    assert not kinds(objects) & {"CronJob", "RayCronJob", "Role"}


def test_by_kuberays_own_schedule(chart):
    objects = chart.objects("per-run", "schedule.mode=rayCronJob", "kueue.queue=")
    cron = spec(objects, "RayCronJob")
    assert set(cron) == {"schedule", "timeZone", "suspend", "jobTemplate"}
    assert not kinds(objects) & {"CronJob", "RayJob", "Role"}


def test_large_numbers_stay_whole(chart):
    """Helm keeps numbers as floating point, and would print a million as 1e+06."""
    values = ("run.deadlineSeconds=2000000", "run.waitSeconds=1000000", "run.keepSeconds=3000000")
    (run,) = of_kind(chart.objects("per-run", *values), "RayJob")
    fields = ("activeDeadlineSeconds", "preRunningDeadlineSeconds", "ttlSecondsAfterFinished")
    assert [run["spec"][field] for field in fields] == [2_000_000, 1_000_000, 3_000_000]
    assert all(isinstance(run["spec"][field], int) for field in fields)
    assert "deadlineSeconds: 2000000\n" in chart.text("trial", values[0]).replace("activeD", "d")


def test_suspended(chart):
    assert spec(chart.objects("trial", "schedule.suspend=true"), "CronJob")["suspend"] is True
    assert "CronJob" not in kinds(chart.objects("trial", "schedule.mode=none"))


def test_an_upgrade_replaces_pods_when_asked(chart):
    """ray-project/kuberay#4140: another image changed nothing."""
    assert spec(chart.objects("trial"), "RayCluster")["upgradeStrategy"] == {"type": "Recreate"}
    kept = spec(chart.objects("trial", "cluster.recreateOnUpgrade=false"), "RayCluster")
    assert "upgradeStrategy" not in kept


def test_another_image_is_one_everywhere(chart, pods_of):
    pods = pods_of(chart.objects("trial", 'image.tag="2"'))
    assert {c["image"] for part, pod in pods.items() if part != "postgresql" for c in pod["spec"]["containers"]} == {
        "diurnal:2"
    }


def test_a_run_is_not_moved_to_tidy_nodes_up(chart, pods_of):
    pods = pods_of(chart.objects("trial"))
    for part in ("head", "data", "train", "submit"):
        assert pods[part]["metadata"]["annotations"]["karpenter.sh/do-not-disrupt"] == "true"
        assert pods[part]["metadata"]["annotations"]["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"


@pytest.mark.parametrize("is_on", [True, False])
def test_token_authentication(chart, pods_of, is_on):
    objects = chart.objects("trial", f"cluster.tokenAuth={str(is_on).lower()}")
    cluster = spec(objects, "RayCluster")
    wanted = {"mode": "token", "secretName": "trial-ray"} if is_on else None
    assert cluster.get("authOptions") == wanted
    pods = pods_of(objects)
    assert env(pods["submit"])["RAY_AUTH_MODE"]["value"] == ("token" if is_on else "disabled")
    assert ("RAY_AUTH_MODE" in env(pods["head"])) is not is_on, "the operator adds it where it knows the token"


def test_mlflow_bundled(chart, pods_of):
    objects = chart.objects("trial", 'mlflow.allowedHosts=["mlflow.example.com"]')
    container = pods_of(objects)["mlflow"]["spec"]["containers"][0]
    assert env(pods_of(objects)["mlflow"])["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"]["value"] == "false"
    (hosts,) = [a.partition("=")[2].split(",") for a in container["args"] if a.startswith("--allowed-hosts=")]
    assert {"trial-mlflow", "trial-mlflow:*", "trial-mlflow.ml.svc.cluster.local:*", "mlflow.example.com"} <= set(hosts)
    assert "--app-name=basic-auth" in container["args"]
    assert "MLFLOW_TRACKING_PASSWORD" in env(pods_of(objects)["head"])
    assert not {"MLFLOW_TRACKING_PASSWORD", "PGPASSWORD"} & set(env(pods_of(objects)["train"]))
    plain = pods_of(chart.objects("trial", "mlflow.auth=false"))
    assert "--app-name=basic-auth" not in plain["mlflow"]["spec"]["containers"][0]["args"]
    assert "MLFLOW_TRACKING_PASSWORD" not in env(plain["head"])


def test_mlflow_and_postgresql_of_others(chart, pods_of):
    objects = chart.objects("production")
    assert not {"mlflow", "postgresql"} & set(pods_of(objects))
    assert not kinds(objects) & {"Service", "StatefulSet", "PersistentVolumeClaim"}
    (config,) = [d["data"]["cluster.toml"] for d in objects if "cluster.toml" in d.get("data", {})]
    assert 'uri = "https://mlflow.example.com"' in config
    assert 'url = "postgresql+psycopg://diurnal@postgres.databases.svc:5432/diurnal?sslmode=require"' in config
    assert "exporter" not in pods_of(chart.objects("production", "exporter.enabled=false"))


def test_volumes(chart, pods_of):
    (claim,) = [
        d for d in of_kind(chart.objects("trial"), "PersistentVolumeClaim") if "storage" in d["metadata"]["name"]
    ]
    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    values = ("trial", "data.claim=days", "data.path=/var/lib/diurnal-data/x", "storage.claim=mine")
    pods = pods_of(chart.objects(*values))
    for part in ("head", "data", "train"):
        claims = {
            v["name"]: v["persistentVolumeClaim"]
            for v in pods[part]["spec"]["volumes"]
            if v["name"] in ("data", "storage")
        }
        assert claims == {"storage": {"claimName": "mine"}, "data": {"claimName": "days", "readOnly": True}}


def test_a_storage_in_an_object_store_needs_no_volume(chart, pods_of):
    url = "s3://models/clicks"
    objects = chart.objects("trial", f"storage.url={url}", "storage.oneNode=false", "data.path=s3://logs/clicks")
    assert not [d for d in of_kind(objects, "PersistentVolumeClaim") if "storage" in d["metadata"]["name"]]
    (config,) = [d["data"]["cluster.toml"] for d in objects if "cluster.toml" in d.get("data", {})]
    assert f'storage = "{url}"' in config
    for part in ("head", "data", "train"):
        pod = pods_of(objects)[part]["spec"]
        assert "storage" not in {volume["name"] for volume in pod["volumes"]}
        assert "storage" not in {mount["name"] for mount in pod["containers"][0]["volumeMounts"]}


def test_fault_tolerance(chart):
    values = ("cluster.faultTolerance.redisAddress=redis:6379", "cluster.faultTolerance.secret=redis")
    options = spec(chart.objects("trial", *values), "RayCluster")["gcsFaultToleranceOptions"]
    assert options["redisAddress"] == "redis:6379"
    assert options["redisPassword"] == {"valueFrom": {"secretKeyRef": {"name": "redis", "key": "password"}}}
    assert "gcsFaultToleranceOptions" not in spec(chart.objects("trial"), "RayCluster")


def test_monitors_name_ports_of_their_pods(chart, pods_of):
    objects = chart.objects("production")
    pods, scraped = pods_of(objects), {}
    for monitor in of_kind(objects, "PodMonitor"):
        assert monitor["metadata"]["labels"]["release"] == "prometheus"
        labels = monitor["spec"]["selector"]["matchLabels"]
        pod = pods[labels["diurnal.dev/part"]]
        assert labels.items() <= pod["metadata"]["labels"].items()
        ports = {port["name"] for port in pod["spec"]["containers"][0]["ports"]}
        scraped[labels["diurnal.dev/part"]] = {end["port"] for end in monitor["spec"]["podMetricsEndpoints"]}
        assert scraped[labels["diurnal.dev/part"]] <= ports
    assert scraped == {
        "head": {"metrics", "as-metrics", "dash-metrics"},
        "data": {"metrics"},
        "train": {"metrics"},
        "exporter": {"metrics"},
    }
    assert not kinds(chart.objects("trial")) & {"PodMonitor", "PrometheusRule"}
