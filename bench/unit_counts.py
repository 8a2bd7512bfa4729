"""Unit counts: measures what AWS bills for a run, an execution, a step, a chunk and a signal.

`python -m bench.unit_counts` writes them to src/headgate/deployment/costs/unit_counts.json, which prices them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import structlog

from bench import load_stories
from bench.load_stories import AFTER, Story

FILE: Final = Path(__file__).parents[1] / "src" / "headgate" / "deployment" / "costs" / "unit_counts.json"
_STEPS: Final = 5
# Terraform's default: one chunk an invocation. Messages are sent ten at a time; the
# visibility of each is set when its chunk is about to begin, and then to the lease.
_CHUNK_REQUESTS: Final = {"invocations": 1, "sqs_standard": 4.1}
# Calls by the clock: clockwork and both sweeps each minute, the watchdog each five minutes. An event source mapping
# polls a queue without messages over five connections, each for 20 seconds at a time: 15 requests a minute.
_MINUTES: Final = 30 * 24 * 60
_POLLS: Final = 15 * _MINUTES
_STANDING: Final = {"invocations": 3 * _MINUTES + _MINUTES // 5, "sqs_standard": 4 * _POLLS, "sqs_fifo": _POLLS}
_NAMES: Final = {"transitions": "state_transitions"}


def measure() -> dict[str, Any]:
    """Return the content of the file, measured now."""
    health = load_stories.health_operations(AFTER)
    functions = of(load_stories.executions_of_functions(AFTER))
    workers = of(load_stories.executions_of_workers(AFTER))
    run = load_stories.pipelines_on_the_hour(AFTER, is_on_step_functions=True)
    server_run = load_stories.pipelines_on_the_hour(AFTER)._replace(requests={})
    units = [
        unit("run", "a run of a pipeline, ready at once, on functions and Step Functions", of(run)),
        unit("run_on_server", "the same run on a server with its tables on DynamoDB", of(server_run)),
        unit("execution", "an execution of a workflow with one activity, on functions", functions),
        unit("execution_on_workers", "the same execution on worker processes", workers),
        unit("step", "one more activity of an execution, on functions", step_of_functions(functions)),
        unit("step_on_workers", "one more activity, on worker processes", step_of_workers(workers)),
        unit("chunk", "a chunk of a fan-out, on functions", chunk_of_functions()),
        unit("chunk_on_workers", "a chunk, on worker processes", of(load_stories.chunks_of_workers(AFTER))),
        unit("signal", "a report that a dataset is as healthy as before", of(health.refreshes)),
        unit("breach", "a first report of a breach, with an incident", of(health.breaches)),
        unit("recovery", "a report that ends a breach", of(health.recoveries)),
        unit("evidence", "a stored piece of evidence", of(health.evidence)),
        unit("deployment", "a month of functions without any load", _STANDING),
    ]
    return {"measured_by": "python -m bench.unit_counts", "units": units}


def step_of_functions(one: Mapping[str, float], units: int = 200, **options: int) -> dict[str, float]:
    return _step(one, of(load_stories.executions_of_functions(AFTER, units, steps=_STEPS, **options)))


def step_of_workers(one: Mapping[str, float], units: int = 200) -> dict[str, float]:
    return _step(one, of(load_stories.executions_of_workers(AFTER, units, steps=_STEPS)))


def chunk_of_functions(units: int = 400) -> dict[str, float]:
    return {**of(load_stories.chunks_of_functions(AFTER, units)), **_CHUNK_REQUESTS}


def of(story: Story) -> dict[str, float]:
    """Return what one unit of a story takes."""
    return {
        "dynamodb_writes": story.counts.total_written() / story.units,
        "dynamodb_reads": story.counts.total_read() / story.units,
        **{_NAMES.get(name, name): number / story.units for name, number in story.requests.items()},
    }


def _step(one: Mapping[str, float], many: Mapping[str, float]) -> dict[str, float]:
    return {name: (value - one[name]) / (_STEPS - 1) for name, value in many.items()}


def unit(name: str, title: str, quantities: Mapping[str, float]) -> dict[str, Any]:
    return {"name": name, "title": title, "quantities": {key: round(value, 2) for key, value in quantities.items()}}


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    FILE.write_text(json.dumps(measure(), indent=2) + "\n")
    print(f"wrote {FILE}")
