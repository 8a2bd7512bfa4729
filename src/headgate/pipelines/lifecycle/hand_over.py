"""Hand-over: continues a lifecycle in a new execution before the history of the current one is full.

Step Functions ends an execution after 25,000 history events. Each round of the machine's loops adds events, so a
window of a day with a short interval would not fit. After a number of rounds, the execution passes its state, its lock
and its run to a new one, and ends. The durable engine continues executions as new by itself, and never hands over.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import Final

from headgate.errors import InvalidPayloadError
from headgate.pipelines.definition.model import Json, Pipeline
from headgate.pipelines.lifecycle.messages import Answer, Call
from headgate.pipelines.runs.locks import evaluation_key
from headgate.pipelines.runs.rerun_rows import RerunStatus
from headgate.pipelines.runs.stores import RunStores
from headgate.store.model.requests import Write

# History events of the longest round of a loop with a wait, without its traits and without retries.
ROUND_EVENTS: Final = 43
# History events of one trait in a round.
TRAIT_EVENTS: Final = 7
# More rounds than any window has.
NEVER: Final = 1_000_000_000
_NAME_MAX: Final = 80
_DIGEST: Final = 10
_CONTINUED: Final = re.compile(r"(.*)-h([1-9][0-9]*)", re.DOTALL)
# The counters of rounds in the state of the machine.
_COUNTERS: Final = ("evaluation", "poll", "watch")


def rounds_before_hand_over(pipeline: Pipeline, events_max: int | None) -> int:
    """Return after how many rounds an execution hands over. None: it never does."""
    if events_max is None:
        return NEVER
    return max(1, events_max // (ROUND_EVENTS + TRAIT_EVENTS * len(pipeline.readiness.traits)))


def next_name(execution: str) -> str:
    """Return the name of the execution that continues another: the same for a repeated call, at most 80 characters."""
    found = _CONTINUED.fullmatch(execution)
    root, number = (execution, 1) if found is None else (found[1], int(found[2]))
    suffix = f"-h{number + 1}"
    if len(root) + len(suffix) > _NAME_MAX:
        root = f"{root[: _NAME_MAX - _DIGEST - 8]}-{hashlib.sha256(root.encode()).hexdigest()[:_DIGEST]}"
    return f"{root}{suffix}"


def continued_state(state: dict[str, Json]) -> dict[str, Json]:
    """Return the state of a machine as the input of the execution that continues it: its rounds begin at zero."""
    result = dict(state)
    for name in _COUNTERS:
        counter = state.get(name)
        result[name] = {**counter, "rounds": 0} if isinstance(counter, dict) else {"rounds": 0}
    return result


class HandOver:
    """The action handOver."""

    def __init__(self, stores: RunStores, start: Callable[[str, Json], bool]) -> None:
        """`start` starts an execution with a name and an input; it returns False if there is one of this name."""
        self._stores = stores
        self._start = start

    def __call__(self, call: Call) -> Answer:
        """Make a new execution the owner of run, lock and rerun, and start it. Repeating it changes nothing."""
        if not call.execution_name or not isinstance(call.state, dict):
            raise InvalidPayloadError(
                "a call of the lifecycle: executionName and state are missing; see deploy/statemachine.asl.json"
            )
        name = next_name(call.execution_name)
        run = self._stores.runs.get(call.run_id)
        if run.execution != name:
            self._stores.runs.change(run, execution=name, also=self._owner_writes(call, name))
        self._start(name, continued_state(call.state))
        return {"execution": name}

    def _owner_writes(self, call: Call, name: str) -> list[Write]:
        writes = self._stores.locks.owner_writes(evaluation_key(call.slot), call.lock_token, name)
        rerun = self._stores.reruns.find(call.rerun_id) if call.rerun_id else None
        if rerun is not None and rerun.status is RerunStatus.ACCEPTED:
            writes += self._stores.reruns.execution_writes(rerun, name)
        return writes
