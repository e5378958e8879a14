"""What every way to install the chart has in common: it is valid, safe, of one image, and its configuration loads."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from jsonschema.validators import Draft202012Validator
from referencing import Registry, Resource

from diurnal import __version__, stack
from diurnal.config.load import load_config

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "diurnal"
KUBERNETES = "1.35"
CUSTOM = {
    "RayCluster": "cluster",
    "RayJob": "job",
    "RayCronJob": "scheduled",
    "PodMonitor": "monitor",
    "PrometheusRule": "rules",
}
WAYS: dict[str, tuple[str, ...]] = {
    "trial": ("trial",),
    "production": ("production",),
    "per-run": ("per-run",),
    "per-run once": ("per-run", "schedule.mode=none"),
    "per-run by KubeRay": ("per-run", "schedule.mode=rayCronJob", "kueue.queue="),
    "trial, everything on": (
        "trial",
        "monitoring.podMonitors=true",
        "monitoring.alerts=true",
        "monitoring.dashboards=true",
        "cluster.faultTolerance.redisAddress=redis.cache.svc:6379",
        "cluster.faultTolerance.secret=redis",
        'image.pullSecrets=["registry"]',
        'networkPolicy.peers.people=[{"namespaceSelector": {}}]',
    ),
    "trial, everything off": (
        "trial",
        "mlflow.mode=off",
        "exporter.enabled=false",
        "networkPolicy.enabled=false",
        "schedule.mode=none",
        "cluster.tokenAuth=false",
        "storage.claim=mine",
    ),
}

Json = dict[str, Any]


@pytest.fixture(scope="module", params=list(WAYS))
def objects(request, chart) -> list[Json]:
    return chart.objects(*WAYS[request.param])


@pytest.fixture(scope="module")
def validator(kuberay):
    folder = Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema" / f"v{KUBERNETES}.0-local-strict"
    core = Resource.from_contents(yaml.load((folder / "_definitions.json").read_text(), Loader=yaml.CSafeLoader))
    registry = Registry().with_resources([("kubernetes", core), ("ours", Resource.from_contents(kuberay))])

    def check(document: Json) -> None:
        reference = {"$ref": f"ours#/$defs/{CUSTOM[document['kind']]}"}
        schema = {"type": "object", "properties": {"spec": reference}, "required": ["spec"]}
        Draft202012Validator(schema, registry=registry).validate(document)

    return check


def test_objects_are_valid(objects, validator):
    for document in objects:
        if document["kind"] in CUSTOM:
            validator(document)
        else:
            kubernetes_validate.validate(document, KUBERNETES, strict=True)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec.headGroupSpec.template.spec.contaners", []),
        ("spec.workerGroupSpecs.0.minReplicas", "0"),
        ("spec.autoscalerOptions.version", "v1"),
        ("spec.workerGroupSpec", []),
        ("spec.headGroupSpec.template.spec.containers.0.env.0.valeu", "x"),
    ],
)
def test_the_validator_finds_a_planted_fault(chart, validator, path, value):
    (cluster,) = yaml.safe_load_all(chart.text("trial", release="planted").split("cluster.yaml\n")[1].split("\n---")[0])
    at: Any = cluster
    *way, last = path.split(".")
    for step in way:
        at = at[int(step)] if step.isdigit() else at[step]
    at[last] = value
    with pytest.raises(jsonschema.ValidationError):
        validator(cluster)


def test_no_rule_is_broken(objects, check):
    assert [fault for document in objects for fault in check(document)] == []


def test_names_are_used_once_and_exist(objects):
    names = [(document["kind"], document["metadata"]["name"]) for document in objects]
    assert len(names) == len(set(names))
    made = {kind: {name for k, name in names if k == kind} for kind in ("ConfigMap", "ServiceAccount")}
    text = yaml.safe_dump_all(objects)
    assert set(re.findall(r"serviceAccountName: (\S+)", text)) <= made["ServiceAccount"]
    assert set(re.findall(r"configMap:\n\s+name: (\S+)", text)) <= made["ConfigMap"]


def test_services_select_a_pod_and_a_port_of_it(objects, pods_of):
    pods = pods_of(objects)
    for service in (document["spec"] for document in objects if document["kind"] == "Service"):
        pod = pods[service["selector"]["diurnal.dev/part"]]
        assert service["selector"].items() <= pod["metadata"]["labels"].items()
        ports = {port["name"] for container in pod["spec"]["containers"] for port in container["ports"]}
        assert {port["targetPort"] for port in service["ports"]} <= ports


def test_every_part_runs_the_one_image(objects, pods_of):
    """ray-project/kuberay#4140: head and workers of different images."""
    images = {part: {c["image"] for c in pod["spec"]["containers"]} for part, pod in pods_of(objects).items()}
    images.pop("postgresql", None)
    assert len(images) >= 3
    assert len(set().union(*images.values())) == 1


def test_the_configuration_loads(objects, tmp_path):
    (data,) = [d["data"] for d in objects if d["kind"] == "ConfigMap" and "run.toml" in d["data"]]
    for name, text in data.items():
        (tmp_path / name).write_text(text.replace("/etc/diurnal/", f"{tmp_path}/"))
    config = load_config([tmp_path / "run.toml", tmp_path / "cluster.toml"])
    assert config.storage == "/var/lib/diurnal"
    assert config.ledger.url.startswith("postgresql+psycopg://diurnal@")
    assert config.workers.address == "auto"
    assert config.data.node_labels == {"diurnal.dev/role": "data"}
    assert config.tracking.enabled == bool(config.tracking.uri)
    assert config.data.path == tomllib.loads(data["run.toml"])["data"]["path"]


@pytest.mark.parametrize("example", ["trial", "production", "per-run"])
def test_lint_is_silent(chart, example):
    done = chart.run("lint", "--strict", CHART, "--values", CHART / "examples" / f"{example}.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[WARNING]" not in done.stdout
    assert "[ERROR]" not in done.stdout


def test_versions_are_those_of_the_package():
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert about["appVersion"] == __version__
    assert values["cluster"]["rayVersion"] == stack.FLOORS["ray"]


def test_the_package_carries_the_dashboards_as_they_are(chart, tmp_path):
    """A chart reads nothing outside itself: a link brings them in, and helm follows it."""
    done = chart.run("package", CHART, "--destination", tmp_path)
    assert done.returncode == 0, done.stderr
    (package,) = tmp_path.glob("*.tgz")
    assert package.stat().st_size < 500_000, "a release is kept in a Secret of 1 MiB"
    boards = {path.name for path in (ROOT / "dashboards" / "grafana").glob("*.json")}
    assert boards
    link = CHART / "dashboards"
    assert os.readlink(link) == "../../dashboards"
    values = ("trial", "monitoring.dashboards=true", "monitoring.alerts=true")
    objects = chart.objects(*values)
    carried = {n: t for d in objects if d["kind"] == "ConfigMap" for n, t in d["data"].items() if n in boards}
    assert carried == {name: (ROOT / "dashboards" / "grafana" / name).read_text() for name in boards}
    (rule,) = [d["spec"] for d in objects if d["kind"] == "PrometheusRule"]
    assert rule == yaml.safe_load((ROOT / "dashboards" / "prometheus" / "alerts.yaml").read_text())


def test_the_files_of_a_laptop_are_enough(chart, tmp_path):
    """The command of the chart's README, with the files that `make demo` and its like use."""
    run, schema = ROOT / "jobs" / "configs" / "synthetic.toml", ROOT / "datasets" / "synthetic" / "schema.toml"
    words = ["--set-file", f"config.run={run}", "--set-file", f"config.schema={schema}"]
    words += ["--set", "data.path=s3://logs/synthetic", "--set", "cluster.train.gpu=false"]
    done = chart.run("template", "clicks", CHART, *words)
    assert done.returncode == 0, done.stderr
    objects = [d for d in yaml.load_all(done.stdout, Loader=yaml.CSafeLoader) if d]
    (data,) = [d["data"] for d in objects if d["kind"] == "ConfigMap" and "run.toml" in d["data"]]
    assert data["run.toml"].rstrip() == run.read_text().rstrip()
    for name, text in data.items():
        (tmp_path / name).write_text(text.replace("/etc/diurnal/", f"{tmp_path}/"))
    assert load_config([tmp_path / "run.toml", tmp_path / "cluster.toml"]).data.path == "s3://logs/synthetic"


def test_the_notes_name_the_secrets(chart):
    done = chart.run("install", "trial", CHART, "--dry-run=client", "--values", CHART / "examples" / "trial.yaml")
    assert done.returncode == 0, done.stderr
    notes = done.stdout.split("NOTES:")[1]
    for line in ("trial-ray: auth_token", "trial-postgresql: password", "trial-mlflow: username, password, cookie-key"):
        assert line in notes
