"""State machines: the same steps as a machine and as a workflow in Python, and what an item of a Map costs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import headgate as hg
from bench.measure import Figure, ratio
from headgate.asl.runtime.durable_host import WORKFLOW
from headgate.asl.service import AslService
from headgate.bootstrap.store import connect

app = hg.App("bench-asl")


@app.activity
def step(number: int) -> int:
    return number


@app.workflow
async def serial(steps: int) -> int:
    total = 0
    for number in range(steps):
        total += await step(number)
    return total


# The same: a step, a sum, and a look at whether there is more to do.
_SERIAL = {
    "StartAt": "Step",
    "States": {
        "Step": {
            "Type": "Task", "Resource": "${step}", "InputPath": "$.number", "ResultPath": "$.result", "Next": "Add",
        },
        "Add": {
            "Type": "Pass",
            "Parameters": {
                "steps.$": "$.steps",
                "number.$": "States.MathAdd($.number, 1)",
                "total.$": "States.MathAdd($.total, $.result)",
            },
            "Next": "More",
        },
        "More": {
            "Type": "Choice",
            "Choices": [{"Variable": "$.number", "NumericLessThanPath": "$.steps", "Next": "Step"}],
            "Default": "Done",
        },
        "Done": {"Type": "Succeed", "OutputPath": "$.total"},
    },
}  # fmt: skip
_SERIAL_JSONATA = {
    "QueryLanguage": "JSONata",
    "StartAt": "Step",
    "States": {
        "Step": {
            "Type": "Task",
            "Resource": "${step}",
            "Arguments": "{% $states.input.number %}",
            "Output": {
                "steps": "{% $states.input.steps %}",
                "number": "{% $states.input.number + 1 %}",
                "total": "{% $states.input.total + $states.result %}",
            },
            "Next": "More",
        },
        "More": {
            "Type": "Choice",
            "Choices": [{"Condition": "{% $states.input.number < $states.input.steps %}", "Next": "Step"}],
            "Default": "Done",
        },
        "Done": {"Type": "Succeed", "Output": "{% $states.input.total %}"},
    },
}


def _mapped(mode: dict[str, str]) -> dict[str, object]:
    processor = {"StartAt": "Step", "States": {"Step": {"Type": "Task", "Resource": "${step}", "End": True}}}
    return {
        "StartAt": "All",
        "States": {"All": {"Type": "Map", "ItemProcessor": {"ProcessorConfig": mode, **processor}, "End": True}},
    }


@contextmanager
def running() -> Iterator[AslService]:
    """Give machines at work on a store in a folder of its own, power-safe."""
    with TemporaryDirectory(prefix="headgate-bench-") as home, connect(app, home=Path(home)) as service:
        yield service.asl


def run() -> list[Figure]:
    """Return every figure of this group."""
    return [_steps("JSONPath", _SERIAL), _steps("JSONata", _SERIAL_JSONATA), *_items()]


def _steps(language: str, definition: Mapping[str, object]) -> Figure:
    steps = 500
    text = json.dumps(definition)
    with running() as asl:
        serial.start(50).result(60)

        def in_python(_: int) -> int:
            serial.start(steps).result(600)
            return steps

        def as_machine(_: int) -> int:
            _run(asl, text, {"steps": steps, "number": 0, "total": 0})
            return steps

        return ratio(
            f"steps of a machine ({language}) / the same steps as a workflow",
            yardstick=in_python,
            subject=as_machine,
            goal=0.60,
            counted=lambda: f"{steps} steps",
        )


def _items() -> Iterator[Figure]:
    count = 10_000
    modes = {
        "inline": {"Mode": "INLINE"},
        "distributed, express": {"Mode": "DISTRIBUTED", "ExecutionType": "EXPRESS"},
        "distributed, standard": {"Mode": "DISTRIBUTED", "ExecutionType": "STANDARD"},
    }
    for name, mode in modes.items():
        with running() as asl:
            started = perf_counter()
            output = _run(asl, json.dumps(_mapped(mode)), list(range(count)))
            seconds = perf_counter() - started
            assert output == list(range(count)), "every item has its result, in its place"
        cost = f"{seconds / count * 1e6:.0f} µs an item"
        yield Figure(f"a Map of {count:,} items, {name}", cost, "finishes", reached=True)


def _run(asl: AslService, definition: str, input: object) -> object:
    execution_id, _ = asl.executions.start_definition("bench", definition, input)
    return app.workflows[WORKFLOW].handle(execution_id).result(600)
