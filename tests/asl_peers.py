"""Runs one state machine on Headgate and on MiniStack, checks it with asl-validator, and compares the outcomes."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from headgate.asl.machines.registry import checked_definition
from headgate.asl.runtime.history import HistoryEvent
from headgate.durable.model.failures import ExecutionFailure
from headgate.durable.sdk.activity_context import activity, complete_later
from headgate.durable.sdk.app import App
from headgate.errors import NotFoundError, StaleClaimError
from headgate.testing import Environment
from tests.asl_tasks import Tasks
from tests.ministack import aws_session, fresh_account

MACHINES: Final = Path(__file__).parent / "asl_machines"
COMPARISON: Final = Path(__file__).parents[1] / "docs" / "reference" / "asl-comparison.md"
NODE: Final = Path(sys.prefix) / "node"
_ENDS_WITHIN_SECONDS: Final = 60.0


class Outcome(Struct, kw_only=True, omit_defaults=True):
    """How an execution ended, and which states it entered, in order.

    After a Parallel or a Map comes a list of what was entered inside it, at any depth, sorted by name: the order of
    what runs at the same time means nothing.
    """

    status: str
    output: Any = None
    error: str | None = None
    cause: str | None = None
    visited: list[str | list[str]] = []


class Case(Struct, kw_only=True):
    """One file of the corpus."""

    name: str
    about: str
    definition: dict[str, Any]
    input: Any
    expect: Outcome
    deviates: dict[str, str] = {}

    @property
    def language(self) -> str:
        return str(self.definition.get("QueryLanguage", "JSONPath"))

    def resolved(self, resource_of: str) -> dict[str, Any]:
        """Return the definition with each `${name}` replaced; `resource_of` is the resource of a function called {}."""
        text = json.dumps(self.definition)
        for name in FUNCTIONS:
            text = text.replace(f"${{{name}}}", resource_of.format(name))
        definition: dict[str, Any] = json.loads(text)
        return definition

    def is_met_by(self, outcome: Outcome, *, sees_inside: bool = True) -> bool:
        """Whether this is how the machine must end. A cause that is not given may be anything."""
        expected = self.expect
        same_end = (expected.status, expected.error) == (outcome.status, outcome.error)
        same_cause = expected.cause is None or expected.cause == outcome.cause
        same_output = canonical(expected.output) == canonical(outcome.output)
        visited = expected.visited if sees_inside else outermost(expected.visited)
        return same_end and same_cause and same_output and visited == outcome.visited


FUNCTIONS: Final = tuple(Tasks(Path()).functions())


def load_cases() -> list[Case]:
    """Return the whole corpus, sorted by name."""
    return [msgspec.json.decode(path.read_bytes(), type=Case) for path in sorted(MACHINES.glob("*.json"))]


def canonical(value: Any) -> str:
    """Return a text that is the same for the same JSON: 1 is 1.0, and not true."""

    def number(text: str) -> float | int:
        return int(float(text)) if float(text).is_integer() else float(text)

    return json.dumps(json.loads(json.dumps(value), parse_float=number, parse_int=number), sort_keys=True)


def outermost(visited: Sequence[str | list[str]]) -> list[str | list[str]]:
    """Return the states of the machine itself, without those inside of a Parallel or a Map."""
    return [name for name in visited if isinstance(name, str)]


def inner_names(definition: Mapping[str, Any]) -> list[str]:
    """Return the names of all states inside of a Parallel or a Map, at any depth."""
    found: list[str] = []
    for state in definition["States"].values():
        processor = state.get("ItemProcessor", state.get("Iterator"))
        for machine in [*state.get("Branches", []), *([processor] if processor else [])]:
            found += [*machine["States"], *inner_names(machine)]
    return found


# asl-validator.

# It compiles its schemas for every machine, which takes a hundred times as long as the check: here once for all.
_CHECK: Final = """
const ajv = require("ajv");
const Ajv = ajv.default;
let shared;
ajv.default = function (options) {
  if (shared) shared.addKeyword = () => shared;
  return (shared ??= new Ajv(options));
};
const check = require("asl-validator");
const definitions = JSON.parse(require("fs").readFileSync(0, "utf8"));
const found = Object.entries(definitions).map(([name, definition]) => [name, check(definition).errorsText()]);
process.stdout.write(JSON.stringify(Object.fromEntries(found)));
"""


def validate(cases: Sequence[Case]) -> dict[str, str]:
    """Return what asl-validator says of each machine: nothing, if it is content."""
    definitions = {case.name: case.resolved("arn:aws:lambda:us-east-1:123456789012:function:{}") for case in cases}
    done = subprocess.run(
        ["node", "-e", _CHECK], cwd=NODE, input=json.dumps(definitions), capture_output=True, text=True, check=True
    )
    found: dict[str, str] = json.loads(done.stdout)
    return found


# Step Functions of an emulator.


class StepFunctions:
    """Creates state machines through the API of Step Functions, runs them, and reads how they ended."""

    def __init__(self, client: Any, account: str) -> None:
        """Take a client of boto3, which `close` closes."""
        self.role = f"arn:aws:iam::{account}:role/any"
        self._client = client

    def create(self, name: str, definition: str) -> str:
        """Create a machine, and return its ARN. Raises botocore's error if the definition is refused."""
        machine = self._client.create_state_machine(name=name, definition=definition, roleArn=self.role)
        return str(machine["stateMachineArn"])

    def start(self, machine_arn: str, name: str, given: Any) -> str:
        """Start an execution, and return its ARN."""
        started = self._client.start_execution(stateMachineArn=machine_arn, name=name, input=json.dumps(given))
        return str(started["executionArn"])

    def ended(self, arn: str) -> Outcome:
        """Wait until an execution has ended, and return how; `visited` has every state of its history."""
        deadline = time.monotonic() + _ENDS_WITHIN_SECONDS
        while (found := self._client.describe_execution(executionArn=arn))["status"] == "RUNNING":
            assert time.monotonic() < deadline, f"{arn} is still running"
            time.sleep(0.02)
        failed = found["status"] != "SUCCEEDED"
        return Outcome(
            status=found["status"],
            output=None if failed else json.loads(found["output"]),
            error=found.get("error"),
            cause=found.get("cause"),
            visited=[*self._entered(arn)],
        )

    def close(self) -> None:
        self._client.close()

    def _entered(self, arn: str) -> Iterator[str]:
        """Give the states that were entered. Those inside of a Parallel or a Map leave no event on MiniStack."""
        for page in self._client.get_paginator("get_execution_history").paginate(executionArn=arn):
            for event in page["events"]:
                if "stateEnteredEventDetails" in event:
                    yield event["stateEnteredEventDetails"]["name"]


class MinistackPeer:
    """Step Functions and Lambda of MiniStack, with the functions of the corpus, in an account of its own."""

    def __init__(self, endpoint: str, calls: Path) -> None:
        self._account = fresh_account()
        session = aws_session(self._account)
        self._states = StepFunctions(session.client("stepfunctions", endpoint_url=endpoint), self._account)
        self._lambda: Any = session.client("lambda", endpoint_url=endpoint)
        self._calls = calls

    def run_all(self, cases: Sequence[Case]) -> dict[str, Outcome]:
        """Run every machine, all at the same time, and return how each ended."""
        self._create_functions()
        executions = {case.name: self._start(case) for case in cases}
        return {name: self._states.ended(arn) for name, arn in executions.items()}

    def close(self) -> None:
        self._states.close()
        self._lambda.close()

    def _create_functions(self) -> None:
        code = _runtime_zip()
        for name in FUNCTIONS:
            self._lambda.create_function(
                FunctionName=name,
                Runtime="provided.al2023",
                Handler=name,
                Role=self._states.role,
                Code={"ZipFile": code},
                Environment={"Variables": {"CALLS": str(self._calls)}},
                Timeout=30,
            )

    def _start(self, case: Case) -> str:
        definition = case.resolved(f"arn:aws:lambda:us-east-1:{self._account}:function:{{}}")
        return self._states.start(self._states.create(case.name, json.dumps(definition)), case.name, case.input)


def _runtime_zip() -> bytes:
    """Return the code of a function: a program that is this Python, running `asl_tasks`."""
    bootstrap = zipfile.ZipInfo("bootstrap")
    bootstrap.external_attr = 0o755 << 16
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as code:
        program = Path(__file__).with_name("asl_tasks.py")
        code.writestr(bootstrap, f'#!/bin/sh\nexec "{sys.executable}" -E -S "{program}" "$_HANDLER"\n')
    return packed.getvalue()


# Ours.


class HeadgatePeer:
    """Headgate on a store of its own, in virtual time, every turn computed by replaying the whole history."""

    def __init__(self, calls: Path) -> None:
        app = App("machines")
        functions = {**Tasks(calls).functions(), "slow": self._slow}
        for name, function in functions.items():
            app.activity(name=name)(function)
        self._environment = Environment(app)
        # The calls of `slow` under way: when they end, by which token, and with what.
        self._slow_calls: list[tuple[float, str, Any]] = []

    def __enter__(self) -> HeadgatePeer:
        self._environment.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._environment.__exit__()

    def run(self, case: Case) -> Outcome:
        """Run one machine as it is written, let time pass until it has ended, and return how it did."""
        executions = self._environment.service.asl.executions
        definition = checked_definition(json.dumps(case.definition))
        execution_id, _ = executions.start_definition(case.name, definition, case.input, name=case.name)
        self._environment.run()
        while self._slow_calls:
            self._end_slow_call()
        with contextlib.suppress(ExecutionFailure):
            self._environment.result(self._environment.service.client.handle(execution_id))
        found = executions.describe(execution_id)
        return Outcome(
            status=found.status.value,
            output=found.output,
            error=found.error or None,
            cause=found.cause or None,
            visited=nested(case, [*_entered(executions.history(execution_id))]),
        )

    def _slow(self, event: Any) -> Any:
        """Take as long as is asked for, in virtual time."""
        ends_at = self._environment.clock.seconds() + event["seconds"]
        self._slow_calls.append((ends_at, activity().token, event))
        return complete_later()

    def _end_slow_call(self) -> None:
        ends_at, token, event = self._slow_calls.pop(0)
        self._environment.advance(max(0.0, ends_at - self._environment.clock.seconds()))
        # One that took too long is not awaited.
        with contextlib.suppress(StaleClaimError, NotFoundError):
            self._environment.service.client.complete_activity(token, Raw(msgspec.json.encode(event)))
        self._environment.run()


def _entered(events: Sequence[HistoryEvent]) -> Iterator[str]:
    for event in events:
        if event.type.endswith("StateEntered"):
            yield event.details["name"]


def nested(case: Case, entered: Sequence[str]) -> list[str | list[str]]:
    """Return the states that were entered, those inside of a Parallel or a Map in a sorted list after it."""
    inside = frozenset(inner_names(case.definition))
    found: list[str | list[str]] = []
    for is_inside, names in itertools.groupby(entered, inside.__contains__):
        entries = list(names)
        found += [sorted(entries)] if is_inside else entries
    return found


# The page.


# Measured with `python -m tests.soak collections` on the collections as of November 2026.
_COLLECTIONS: Final = """\
## Published collections

The collections of AWS's samples `aws-stepfunctions-examples`, `step-functions-workflows-collection` and
`serverless-patterns` have 300 state machines: in JSON, in YAML, and in CloudFormation and SAM templates.
`headgate asl validate --all DIR --target aws` finds them; `python -m tests.soak collections` runs them with a recorded
answer to every Task, made from what each machine reads.

| Result | Machines |
|---|---|
| found | 300 |
| valid for AWS | 289 |
| broken: the file that a template names is missing | 4 |
| broken: the template is not YAML | 2 |
| broken: the definition is not JSON | 1 |
| broken: QueryLanguage stands among the states | 1 |
| broken: MaxItems of an ItemReader is 0, and must be positive | 3 |
| valid, and run to success | 213 |
| valid, and run into a Fail of their own | 14 |
| valid, and run until they read what the recorded answers do not have | 62 |

Each construct that such a definition has and that Headgate refused before is a machine above, or a test of the
validator. Where documents and programs disagree:

- A word without quotes in a filter (3 machines): neither JSONPath nor AWS's documents have it, asl-validator accepts
  it. Headgate reads it as text, with a warning.
- White space after a path (1): asl-validator accepts it. Headgate ignores it.
- Error names that begin with `States.` and are not AWS's (5): AWS's specification reserves the prefix, and
  asl-validator accepts them. Headgate accepts them, with a warning if one resembles a name of AWS.
- MaxItems of 0 (3): AWS's specification and asl-validator want a positive number. Headgate refuses it too.
- Placeholders in the ARN of a service, a region and account before it, and filters within intrinsic functions and
  payload templates (some 30): asl-validator refuses them; they are in published definitions. Headgate accepts them.
- `yes`, `no`, `on` and `off` in YAML (1): text in YAML 1.2, which asl-validator reads, and booleans in YAML 1.1, which
  SAM reads. Headgate reads text.
- Of the 112 definitions that asl-validator tests itself with, Headgate judges 100 alike for AWS. It refuses a hyphen in
  the name of a variable, fields of a distributed Map without `"Mode": "DISTRIBUTED"`, `[(@.length-1)]` and ARNs of SWF,
  and accepts JSONata without a blank after `{%`, or with several.
- `$$.Execution.Id` is an ARN on AWS, and `MACHINE:NAME` here: a machine that splits it (1) fails here."""


def comparison_page(cases: Sequence[Case]) -> str:
    """Return the table of the documents: what each machine proves, how it ends, and who agrees."""
    ministack, localstack = (sum(peer in case.deviates for case in cases) for peer in ("ministack", "localstack"))
    both = sum({"ministack", "localstack"} <= case.deviates.keys() for case in cases)
    jsonata = sum(case.language == "JSONata" for case in cases)
    lines = [
        "# State machines on four interpreters",
        "",
        "<!-- Written by `python -m tests.asl_peers` from tests/asl_machines; a test compares. -->",
        "",
        f"{len(cases)} machines, {jsonata} of them in JSONata, each with the outcome that AWS documents for it or",
        "that published histories of Step Functions show.",
        "`tests/contract/test_asl_machines.py` runs each on Headgate and on MiniStack 1.5.33, compares the status, the",
        "output, the error and the states that were entered, and has asl-validator 4.0.0 check the definition.",
        "`python -m tests.soak machines` does so with the Step Functions of LocalStack 4.14.0, and runs the lifecycle",
        "of pipelines there as well. Functions and JSONata (its reference implementation) are lent to it: its own",
        "Lambda needs Docker, and its own JSONata a download.",
        "Headgate ends all of them as documented, and asl-validator accepts all of them.",
        f"MiniStack ends {len(cases) - ministack} as documented, LocalStack {len(cases) - localstack}, and one of the",
        f"two {len(cases) - both}; the last columns say what they do otherwise. For the other {both}, AWS's documents",
        "alone are on the side of Headgate.",
        "MiniStack's history leaves out the states inside of a Parallel or a Map; there the output alone is compared.",
        "",
        "| Machine | Proves | Language | Ends | Headgate | asl-validator | MiniStack | LocalStack |",
        "|---|---|---|---|---|---|---|---|",
        *(_row(case) for case in cases),
        "",
        *_COLLECTIONS.splitlines(),
        "",
    ]
    return "\n".join(lines)


def _row(case: Case) -> str:
    ends = case.expect.status if case.expect.error is None else f"{case.expect.status}: {case.expect.error}"
    others = (case.deviates.get(peer, "as documented") for peer in ("ministack", "localstack"))
    cells = (f"`{case.name}`", case.about, case.language, ends, "as documented", "valid", *others)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    COMPARISON.write_text(comparison_page(load_cases()))
