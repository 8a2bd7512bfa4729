"""Machines: state machines on LocalStack's Step Functions, a second opinion beside MiniStack's.

The corpus `tests/asl_machines` and the lifecycle as it is shipped run on Headgate and on LocalStack. Where LocalStack
does otherwise, the file of the machine says so, and what it says has to be true.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Final

import boto3
from botocore.exceptions import ClientError
from msgspec.structs import replace

from tests.asl_peers import NODE, Case, HeadgatePeer, Outcome, StepFunctions, inner_names, load_cases, nested, outermost
from tests.lifecycle_answers import counts
from tests.lifecycle_scenarios import MACHINE, SCENARIOS, TABLE, Ended, OurLifecycle, input_of, substituted
from tests.ministack import REGION, Localstack
from tests.soak.figures import Figure

PYTHON: Final = Path(__file__).parents[2] / ".venv-localstack" / "bin" / "python"
_FUNCTION: Final = f"arn:aws:lambda:{REGION}:{Localstack.ACCOUNT}:function:{{}}"
# The time-outs that matter to the corpus are shorter, and to no machine does it matter which of two waits is longer.
_LONGEST_SECONDS: Final = 3.0
# LocalStack runs all in one process: more at a time would make it miss the shortest time-outs.
_AT_A_TIME: Final = 6


def run(folder: Path) -> list[Figure]:
    """Run both, print each deviation, and return the counts."""
    if not PYTHON.exists():
        raise SystemExit("LocalStack is not installed: run `make localstack`")
    ours, theirs = folder / "ours", folder / "theirs"
    ours.mkdir()
    theirs.mkdir()
    with _localstack(folder, theirs) as states, ThreadPoolExecutor(_AT_A_TIME) as pool:
        return [*_corpus(ours, states, pool), *_lifecycle(ours, theirs, states, pool)]


def _corpus(calls: Path, states: StepFunctions, pool: ThreadPoolExecutor) -> list[Figure]:
    cases = load_cases()
    with HeadgatePeer(calls) as peer:
        ours = {case.name: peer.run(case) for case in cases}
    theirs = dict(zip(ours, pool.map(lambda case: _outcome(states, case), cases), strict=True))
    wrong = [case.name for case in cases if not case.is_met_by(ours[case.name])]
    otherwise = [case for case in cases if not _is_same(case, theirs[case.name])]
    noted = [case for case in otherwise if "localstack" in case.deviates]
    unexplained = [case for case in cases if (case in otherwise) is not ("localstack" in case.deviates)]
    for case in noted:
        print(f"{case.name}: {case.deviates['localstack']}")
    for case in unexplained:
        print(f"{case.name}: expected {case.expect}\n  LocalStack: {theirs[case.name]}")
    return [
        Figure("machines of the corpus; not as documented on Headgate", f"{len(cases)}; {_all(wrong)}", not wrong),
        Figure(
            "the same status, error, output and states on LocalStack",
            f"{len(cases) - len(otherwise)}",
            len(otherwise) < len(cases),
        ),
        Figure("LocalStack does otherwise, and the machine's file says why", f"{len(noted)}", holds=True),
        Figure(
            "otherwise without a reason, or with one that is not true",
            _all([case.name for case in unexplained]),
            not unexplained,
        ),
    ]


def _lifecycle(calls: Path, their_calls: Path, states: StepFunctions, pool: ThreadPoolExecutor) -> list[Figure]:
    with OurLifecycle(calls) as peer:
        ours = {name: peer.run(name)._replace(seconds=0.0) for name in SCENARIOS}
    arn = states.create("lifecycle", substituted(_FUNCTION.format("canned")))
    inside = frozenset(inner_names(MACHINE))

    def ended(name: str) -> Ended:
        found = states.ended(states.start(arn, name, input_of(name)))
        visited = [str(state) for state in found.visited if state not in inside]
        return Ended(found.status, found.error, visited, counts(their_calls, name))

    theirs = dict(zip(ours, pool.map(ended, ours), strict=True))
    different = [name for name in ours if ours[name] != theirs[name]]
    for name in different:
        print(f"lifecycle {name}\n  Headgate:   {ours[name]}\n  LocalStack: {theirs[name]}")
    states_entered = len({state for each in theirs.values() for state in each.visited})
    return [
        Figure("scenarios of the lifecycle, and states that they enter", f"{len(ours)}, {states_entered}", holds=True),
        Figure("another way, end or number of calls on LocalStack", _all(different), not different),
    ]


@contextmanager
def _localstack(folder: Path, calls: Path) -> Iterator[StepFunctions]:
    """Give LocalStack's Step Functions, on which nothing waits for long and functions count their calls in a folder."""
    table = folder / "table.json"
    table.write_text(json.dumps(TABLE))
    environment = {
        "CALLS": str(calls),
        "TABLE": str(table),
        "LONGEST_SECONDS": f"{_LONGEST_SECONDS:g}",
        "NODE_FOLDER": str(NODE),
    }
    with Localstack.start(PYTHON, folder, environment) as server:
        session = boto3.session.Session(Localstack.ACCOUNT, "-", region_name=REGION)
        states = StepFunctions(session.client("stepfunctions", endpoint_url=server.endpoint), Localstack.ACCOUNT)
        try:
            yield states
        finally:
            states.close()


def _outcome(states: StepFunctions, case: Case) -> Outcome:
    try:
        arn = states.create(case.name, json.dumps(case.resolved(_FUNCTION)))
    except ClientError as exc:
        return Outcome(status="REFUSED", cause=str(exc))
    found = states.ended(states.start(arn, case.name, case.input))
    found.visited = nested(case, [str(state) for state in found.visited])
    return found


def _is_same(case: Case, outcome: Outcome) -> bool:
    """Whether LocalStack goes the way that the machine must go.

    How far the other branches come, before one that fails stops them, is a matter of time.
    """
    entered = Counter(chain.from_iterable(names for names in outcome.visited if isinstance(names, list)))
    expected = Counter(chain.from_iterable(names for names in case.expect.visited if isinstance(names, list)))
    if entered < expected:
        return case.is_met_by(replace(outcome, visited=outermost(outcome.visited)), sees_inside=False)
    return case.is_met_by(outcome)


def _all(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"
