"""Several apps on one server: the worker of each runs Tasks with the resource map and the rules of the settings."""

from __future__ import annotations

import json
from pathlib import Path

from headgate.clock import SystemClock
from headgate.durable.sdk.app import App
from headgate.serve.app_workers import app_services
from headgate.serve.components import open_components
from headgate.settings import Settings, TaskSettings
from headgate.telemetry import Tracing
from tests.asl_rig import machine

MAP = {"resources": [{"resource": "glue:startJobRun", "answer": {"JobRunId": "1"}}]}


def test_services__of_further_apps__have_the_resource_map_of_the_server(tmp_path: Path) -> None:
    (tmp_path / "resources.json").write_text(json.dumps(MAP))
    tasks = TaskSettings(resources=Path("resources.json"))
    settings = Settings(home=tmp_path / "home", project=tmp_path, tasks=tasks)
    definition = machine(("Call", {"Type": "Task", "Resource": "arn:aws:states:::glue:startJobRun"}))
    clock, tracing = SystemClock(), Tracing()

    with open_components(
        settings, version="1", clock=clock, tracing=tracing, app=App("first"), environ={}
    ) as components:
        [second] = app_services(
            [App("second")], components.store, clock, components.task_backends, components.service.meters, tracing
        )
        tested = second.asl.test_state("m", json.dumps(definition), "Call", {}, variables={})

    assert tested.output == {"JobRunId": "1"}
