"""Dockerfile, Kubernetes manifests and ECS task are valid and agree with the program. Soak builds the image."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from typing import Any, Final

import kubernetes_validate
import pytest
import yaml
from botocore.session import Session
from botocore.validate import ParamValidator

from headgate.settings import Settings
from headgate.store.catalogue.tables import ALL_TABLES
from tests.aws_rig import FANOUT_FUNCTIONS, WORKFLOW_FUNCTIONS
from tests.container_build import IMAGE, Stage, read_stages, sources

ROOT: Final = Path(__file__).parents[2]
DEPLOY: Final = ROOT / "deploy"
KUBERNETES: Final = DEPLOY / "kubernetes"
# The oldest release that has all fields of the manifests without a feature gate, and the latest one.
KUBERNETES_VERSIONS: Final = ("1.29", "1.37")
TASK: Final[dict[str, Any]] = json.loads((DEPLOY / "ecs" / "worker-task.json").read_text())


def stages() -> list[Stage]:
    return read_stages((ROOT / "Dockerfile").read_text())


def manifests(file: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((KUBERNETES / file).read_text()))


def the(kind: str, file: str) -> dict[str, Any]:
    (found,) = [each for each in manifests(file) if each["kind"] == kind]
    return found


def pods() -> list[dict[str, Any]]:
    return [the("Deployment", file)["spec"]["template"]["spec"] for file in ("server.yaml", "workers.yaml")]


def containers() -> list[dict[str, Any]]:
    return [each for pod in pods() for each in (*pod.get("initContainers", ()), *pod["containers"])]


# The image.


def test_dockerfile__its_image__runs_as_a_numbered_user_and_keeps_its_state_on_a_volume() -> None:
    *_, image = stages()

    assert {each.base for each in stages()} == {IMAGE}
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", image.user)
    assert image.environ["HEADGATE_HOME"].startswith(f"{image.volumes[0]}/")
    assert [*image.entrypoint, *image.command] == ["headgate", "up"]
    assert set(image.ports) == {Settings().http.port, Settings().grpc.port}


def test_dockerfile__what_it_copies__is_there_and_not_ignored() -> None:
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    copied = [sources(step.text) for stage in stages() for step in stage.steps if step.instruction == "COPY"]
    found = {each for stage, files, _ in copied if not stage for each in files}

    assert lines[0] == "*"
    assert {line.removeprefix("!") for line in lines if line.startswith("!")} == found
    assert all(list(ROOT.glob(each)) for each in found)
    assert {stage for stage, _, _ in copied if stage} <= {stage.name for stage in stages()}


def test_dockerfile__an_instruction_that_is_not_read__is_refused() -> None:
    with pytest.raises(ValueError, match="ADD"):
        read_stages("FROM scratch\nADD a b\n")


def test_image__its_requirements__are_pins_of_the_lock() -> None:
    rendered = runpy.run_path(str(DEPLOY / "container" / "lock.py"))["rendered"]()

    for name, text in rendered.items():
        assert (DEPLOY / "container" / name).read_text() == text, "run: python deploy/container/lock.py"
    pinned = set(re.findall(r"(?m)^([\w.-]+)==", rendered["requirements.lock"]))
    assert {"boto3", "litestar", "redis"} <= pinned
    assert pinned.isdisjoint({"pytest", "ministack", "mypy"})


# Kubernetes.


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
@pytest.mark.parametrize("file", sorted(path.name for path in KUBERNETES.glob("*.yaml")))
def test_manifests__checked_strictly__are_valid(file: str, version: str) -> None:
    for each in manifests(file):
        assert kubernetes_validate.validate(each, version, strict=True) == version


def test_manifests__a_field_that_does_not_exist__is_found_by_this_check() -> None:
    broken = the("Deployment", "server.yaml")
    broken["spec"]["template"]["spec"]["containers"][0]["livenesProbe"] = {}

    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, KUBERNETES_VERSIONS[-1], strict=True)


def test_manifests__every_container__is_confined_to_the_user_of_the_image() -> None:
    *_, image = stages()
    user, group = map(int, image.user.split(":"))

    for pod in pods():
        context = pod["securityContext"]
        assert (context["runAsUser"], context["runAsGroup"], context["runAsNonRoot"]) == (user, group, True)
        assert pod["automountServiceAccountToken"] is False
    for each in containers():
        assert each["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert each["resources"]["limits"]["memory"]
        assert image.volumes[0] in {mount["mountPath"] for mount in each["volumeMounts"]}


def test_manifests__their_settings__are_those_of_the_program() -> None:
    server, worker = (pod["containers"][0] for pod in pods())
    store = {"store.backend": worker["args"][worker["args"].index("--store") + 1]}

    served = Settings.load({each["name"]: each["value"] for each in server["env"]}, None, {})
    working = Settings.load({each["name"]: each["value"] for each in worker["env"]}, None, store)

    assert {each["containerPort"] for each in server["ports"]} == {served.http.port, served.grpc.port}
    assert str(working.worker.metrics) in worker["livenessProbe"]["exec"]["command"][-1]
    for pod, settings in zip(pods(), (served, working), strict=True):
        assert pod["terminationGracePeriodSeconds"] > settings.drain_seconds
    probes = [server[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")]
    assert {each["path"] for each in probes} == {"/health/live", "/health/ready"}
    assert {header["value"] for each in probes for header in each["httpHeaders"]} <= set(served.allowed_hosts)


def test_manifests__of_the_server_on_sqlite__never_run_two_at_once() -> None:
    deployment = the("Deployment", "server.yaml")["spec"]

    assert (deployment["replicas"], deployment["strategy"]) == (1, {"type": "Recreate"})
    assert the("PersistentVolumeClaim", "server.yaml")["spec"]["accessModes"] == ["ReadWriteOncePod"]


def test_manifests__selectors__select_the_pods_they_mean() -> None:
    for file in ("server.yaml", "workers.yaml"):
        deployment = the("Deployment", file)["spec"]
        labels = deployment["template"]["metadata"]["labels"].items()
        selectors = [deployment["selector"]["matchLabels"], the("NetworkPolicy", file)["spec"]["podSelector"]]
        more = [the("Service", file)["spec"]["selector"]] if file == "server.yaml" else []
        more += [the("PodDisruptionBudget", file)["spec"]["selector"]["matchLabels"]] if file == "workers.yaml" else []
        for each in (*selectors, *more):
            assert each.get("matchLabels", each).items() <= labels
        assert deployment["template"]["spec"]["serviceAccountName"] == the("ServiceAccount", file)["metadata"]["name"]


# ECS.


def test_task__as_register_task_definition_takes_it__is_valid() -> None:
    model = Session().get_service_model("ecs").operation_model("RegisterTaskDefinition").input_shape
    assert model is not None

    report = ParamValidator().validate(TASK, model)

    assert not report.has_errors(), report.generate_report()
    *_, image = stages()
    for each in TASK["containerDefinitions"]:
        assert (each["user"], each["readonlyRootFilesystem"]) == (image.user, True)
        assert {mount["containerPath"] for mount in each["mountPoints"]} <= set(image.volumes)


def test_task__its_settings__are_those_of_the_program() -> None:
    _, worker = TASK["containerDefinitions"]
    environ = {each["name"]: each["value"] for each in worker["environment"]}

    settings = Settings.load(environ, None, {"store.backend": "dynamodb"})

    assert worker["stopTimeout"] > settings.drain_seconds
    assert str(settings.worker.metrics) in worker["healthCheck"]["command"][-1]


def test_policy_of_workers__names_tables_of_the_catalogue_and_no_wildcard() -> None:
    statements = json.loads((DEPLOY / "ecs" / "worker-policy.json").read_text())["Statement"]
    named = {arn.split("table/")[1].split("/")[0] for each in statements for arn in each["Resource"] if "table/" in arn}
    functions = (*WORKFLOW_FUNCTIONS.values(), *FANOUT_FUNCTIONS.values())

    assert named <= {table.name for table in ALL_TABLES}
    assert named >= {table for each in functions for table in (*each["reads"], *each["writes"])}
    assert not [action for each in statements for action in each["Action"] if "*" in action]
    assert not [arn for each in statements for arn in each["Resource"] if arn.endswith(("table/*", ":*", ":::*"))]
