"""The same state machines on three interpreters: ours, MiniStack's, and what asl-validator says of them.

What a machine must do is in its file under `tests/asl_machines`, as AWS documents it. Where MiniStack does otherwise,
the file says so, and what it says has to be true. `tests/soak/machines.py` does the same with LocalStack.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.asl_peers import (
    COMPARISON,
    MACHINES,
    Case,
    HeadgatePeer,
    MinistackPeer,
    Outcome,
    comparison_page,
    inner_names,
    load_cases,
    validate,
)
from tests.ministack import Ministack

CASES: Final = load_cases()
WRONG: Final = Case(
    name="wrong",
    about="A state that leads nowhere.",
    definition={"StartAt": "A", "States": {"A": {"Type": "Pass", "Next": "Nowhere"}}},
    input={},
    expect=Outcome(status="FAILED"),
)
every_machine = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@pytest.fixture(scope="module")
def ministack_outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    folder = tmp_path_factory.mktemp("ministack-asl")
    calls = folder / "calls"
    calls.mkdir()
    with pytest.MonkeyPatch.context() as environment:
        # Its waits and pauses take no time.
        environment.setenv("SFN_WAIT_SCALE", "0")
        server = Ministack.start(folder)
    try:
        peer = MinistackPeer(server.endpoint, calls)
        outcomes = peer.run_all(CASES)
        peer.close()
    finally:
        server.stop()
    return outcomes


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeadgatePeer]:
    with HeadgatePeer(tmp_path_factory.mktemp("calls")) as peer:
        yield peer


@pytest.fixture(scope="module")
def faults() -> dict[str, str]:
    return validate([*CASES, WRONG])


@every_machine
def test_machine__run_by_headgate__ends_as_aws_documents(case: Case, ours: HeadgatePeer) -> None:
    outcome = ours.run(case)

    assert case.is_met_by(outcome), f"expected {case.expect}\ngot {outcome}"


@every_machine
def test_machine__run_by_ministack__ends_the_same_unless_noted(
    case: Case, ministack_outcomes: dict[str, Outcome]
) -> None:
    outcome = ministack_outcomes[case.name]

    is_met = case.is_met_by(outcome, sees_inside=False)

    if "ministack" in case.deviates:
        assert not is_met, "MiniStack now does as AWS documents: remove the note"
    else:
        assert is_met, f"expected {case.expect}\ngot {outcome}"


@every_machine
def test_machine__checked_by_asl_validator__is_valid(case: Case, faults: dict[str, str]) -> None:
    assert faults[case.name] == ""


def test_validator__machine_that_is_wrong__says_so(faults: dict[str, str]) -> None:
    assert "Nowhere" in faults[WRONG.name]


def test_corpus__as_a_whole__covers_both_languages_and_has_names_that_report_states_apart() -> None:
    languages = [case.language for case in CASES]

    assert languages.count("JSONPath") >= 60
    assert languages.count("JSONata") >= 30
    assert [case.name for case in CASES] == [path.stem for path in sorted(MACHINES.glob("*.json"))]
    # The name shows where a state was entered.
    for case in CASES:
        names = inner_names(case.definition)
        assert not set(names) & set(case.definition["States"]), case.name
        assert len(names) == len(set(names)), case.name


def test_comparison__page_in_the_documents__is_what_the_corpus_says_today() -> None:
    assert Path(COMPARISON).read_text() == comparison_page(CASES), "run `python -m tests.asl_peers`"
