"""The commands about machines: what they are given, what they print of a file and of progress, and how they end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headgate.asl.runtime.history import HistoryEvent
from headgate.cli.asl.files import is_file, machine_name, read_variables
from headgate.cli.asl.progress import ITEMS_SHOWN_MAX, Progress
from headgate.clock import VirtualClock
from headgate.errors import HeadgateError, NotFoundError, UserError
from headgate.serve.rest.asl.events import event_view
from tests.unit.cli.program import invoke

GOOD = {"StartAt": "A", "States": {"A": {"Type": "Pass", "Result": {"n": 1}, "Next": "B"}, "B": {"Type": "Succeed"}}}
BAD = {"StartAt": "A", "States": {"A": {"Type": "Pass", "Next": "Bee"}, "B": {"Type": "Succeed"}}}
FAILS = {"StartAt": "A", "States": {"A": {"Type": "Fail", "Error": "Broken", "Cause": "on purpose"}}}
LOOP = {
    "StartAt": "Look",
    "TimeoutSeconds": 86_400,
    "States": {
        "Look": {"Type": "Task", "Resource": "look", "Next": "Pause"},
        "Pause": {"Type": "Wait", "Seconds": 1, "Next": "Done"},
        "Done": {
            "Type": "Choice",
            "Choices": [{"Variable": "$.done", "BooleanEquals": True, "Next": "End"}],
            "Default": "Look",
        },
        "End": {"Type": "Succeed"},
    },
}


def run(*arguments: str, home: Path) -> Any:
    return invoke(arguments, {"HEADGATE_HOME": str(home)})


def written(folder: Path, definition: Any, name: str = "m.asl.json") -> str:
    path = folder / name
    path.write_text(definition if isinstance(definition, str) else json.dumps(definition))
    return str(path)


# Files


@pytest.mark.parametrize(
    ("given", "expected"),
    [("order", False), ("order.json", True), ("./order", True), ("-", True), ("a-b_c", False)],
)
def test_argument__file_or_name__is_distinguished(given: str, expected: bool) -> None:
    assert is_file(given) is expected


@pytest.mark.parametrize(
    ("file", "name"),
    [("a/order.asl.json", "order"), ("my order.json", "my-order"), (".json", "machine"), ("x" * 99, "x" * 80)],
)
def test_machine_name__of_a_file__is_one_that_a_machine_can_have(file: str, name: str) -> None:
    assert machine_name(file) == name


def test_variables__name_and_value__are_split_at_the_first_sign() -> None:
    assert read_variables(["a=b=c", "d="]) == {"a": "b=c", "d": ""}
    for wrong in ("a", "=b"):
        with pytest.raises(UserError):
            read_variables([wrong])


def test_validate__good__says_what_it_costs(tmp_path: Path) -> None:
    file = written(tmp_path, GOOD)

    ended = run("asl", "validate", file, home=tmp_path)
    as_json = json.loads(run("asl", "validate", file, "--json", home=tmp_path).stdout)

    assert (ended.exit_code, ended.stdout) == (0, f"{file}: valid; 2 states, 6 events per pass\n")
    assert (as_json["valid"], as_json["problems"], as_json["file"]) == (True, [], file)


def test_validate__bad__names_file_path_and_what_is_allowed(tmp_path: Path) -> None:
    file = written(tmp_path, BAD)

    ended = run("asl", "validate", file, home=tmp_path)

    assert ended.exit_code == 2
    assert f"{file}: $.States.A.Next: UNKNOWN_STATE: there is no state 'Bee'" in ended.stderr
    assert f"{file}: $.States.B: UNREACHABLE_STATE" in ended.stderr
    assert "code: bad_definition" in ended.stderr
    assert run("asl", "validate", file, "--json", home=tmp_path).exit_code == 2


@pytest.mark.parametrize("text", ["", "{", "[]", "\ud800".encode("utf-16", "surrogatepass").decode("latin-1"), "1e999"])
def test_validate__whatever_is_in_the_file__is_no_bug(tmp_path: Path, text: str) -> None:
    ended = run("asl", "validate", written(tmp_path, text), home=tmp_path)

    assert ended.exit_code == 2
    assert ended.exception is None or isinstance(ended.exception, SystemExit | HeadgateError)


def test_validate__variables_and_budget__are_heeded(tmp_path: Path) -> None:
    text = json.dumps(LOOP).replace('"Seconds": 1', '"Seconds": ${pause}')
    file = written(tmp_path, text)

    assert run("asl", "validate", file, home=tmp_path).exit_code == 2
    warned = run("asl", "validate", file, "--var", "pause=1", home=tmp_path)
    strict = run("asl", "validate", file, "--var", "pause=1", "--strict-budget", home=tmp_path)
    slower = run("asl", "validate", file, "--var", "pause=60", "--strict-budget", home=tmp_path)

    assert (warned.exit_code, "warning: $.States.Look: BUDGET_EXCEEDED" in warned.stderr) == (0, True)
    assert (strict.exit_code, "BUDGET_EXCEEDED" in strict.stderr, slower.exit_code) == (2, True, 0)


def test_validate__variable_that_the_definition_does_not_have__is_refused(tmp_path: Path) -> None:
    file = written(tmp_path, json.dumps(GOOD).replace('"n": 1', '"n": "${order.table}"'))

    given = run("asl", "validate", file, "--var", "order.table=x", home=tmp_path)
    wrong = run("asl", "validate", file, "--var", "table=x", home=tmp_path)

    assert (given.exit_code, given.stderr) == (0, "")
    assert wrong.exit_code == 2
    assert "variable 'table': there is no ${table} in the definition; it has ${order.table}" in wrong.stderr
    for command in (("asl", "run", file), ("asl", "put", "m", file)):
        assert run(*command, "--var", "table=x", home=tmp_path).exit_code == 2


def test_validate__definition_for_aws__notes_what_only_aws_can_run(tmp_path: Path) -> None:
    state = {"Type": "Task", "Resource": "arn:aws:states:::glue:startJobRun.sync", "End": True}
    file = written(tmp_path, {"StartAt": "A", "States": {"A": state}})

    here = run("asl", "validate", file, home=tmp_path)
    on_aws = run("asl", "validate", file, "--target", "aws", home=tmp_path)

    assert (here.exit_code, "BAD_RESOURCE" in here.stderr) == (2, True)
    assert on_aws.exit_code == 0
    assert f"{file}: note: $.States.A.Resource: ONLY_ON_AWS: " in on_aws.stderr
    assert on_aws.stdout == f"{file}: valid; 1 state, 8 events per pass\n"


def test_validate__warnings__are_problems_with_strict(tmp_path: Path) -> None:
    idle = {"Type": "Choice", "Choices": [{"Variable": "$.x", "IsNull": True, "Next": "B"}], "Default": "A"}
    file = written(tmp_path, {"StartAt": "A", "States": {"A": idle, "B": {"Type": "Succeed"}}})

    warned = run("asl", "validate", file, home=tmp_path)
    strict = run("asl", "validate", file, "--strict", home=tmp_path)

    assert (warned.exit_code, f"{file}: warning: $.States.A: IDLE_LOOP" in warned.stderr) == (0, True)
    assert (strict.exit_code, f"{file}: $.States.A: IDLE_LOOP" in strict.stderr) == (2, True)


def test_validate__yaml__is_read_as_the_same_machine(tmp_path: Path) -> None:
    text = "StartAt: A\nStates:\n  A: {Type: Pass, Result: {n: 1}, Next: B}\n  B: {Type: Succeed}\n"
    file = written(tmp_path, text, "m.asl.yaml")

    assert run("asl", "validate", file, home=tmp_path).stdout == f"{file}: valid; 2 states, 6 events per pass\n"
    assert json.loads(run("asl", "run", file, home=tmp_path).stdout) == {"n": 1}


def test_validate__folder__one_line_each_then_counts_and_reasons(tmp_path: Path) -> None:
    folder = tmp_path / "machines"
    folder.mkdir()
    glue = {"Type": "Task", "Resource": "arn:aws:states:::glue:startJobRun", "End": True}
    written(folder, GOOD, "good.asl.json")
    written(folder, BAD, "bad.asl.json")
    written(folder, {"StartAt": "A", "States": {"A": glue}}, "glue.json")

    ended = run("asl", "validate", "--all", str(folder), "--target", "aws", home=tmp_path)
    as_json = json.loads(run("asl", "validate", "--all", str(folder), "--json", home=tmp_path).stdout)

    assert ended.exit_code == 2
    lines = [line.rstrip() for line in ended.stdout.splitlines()]
    assert lines[:4] == [
        "bad.asl.json: invalid; errors: UNKNOWN_STATE, UNREACHABLE_STATE",
        "glue.json: valid; notes: ONLY_ON_AWS",
        "good.asl.json: valid",
        "3 machines: 1 valid, 1 with notes, 0 with warnings, 1 invalid",
    ]
    assert [line.split() for line in lines[4:]] == [
        ["SEVERITY", "REASON", "MACHINES", "FINDINGS"],
        ["error", "UNKNOWN_STATE", "1", "1"],
        ["error", "UNREACHABLE_STATE", "1", "1"],
        ["note", "ONLY_ON_AWS", "1", "1"],
    ]
    assert as_json["counts"] == {"machines": 3, "valid": 1, "with_notes": 0, "with_warnings": 0, "invalid": 2}
    assert [each["result"] for each in as_json["machines"]] == ["invalid", "invalid", "valid"]


def test_validate__folder_or_file__exactly_one_is_named(tmp_path: Path) -> None:
    file = written(tmp_path, GOOD)
    (tmp_path / "empty").mkdir()

    wrong = [(), (file, "--all", str(tmp_path)), ("--all", f"{tmp_path}/no"), ("--all", f"{tmp_path}/empty")]
    for arguments in wrong:
        assert isinstance(run("asl", "validate", *arguments, home=tmp_path).exception, UserError)
    assert run("asl", "validate", "--all", str(tmp_path), home=tmp_path).exit_code == 0
    unused = run("asl", "validate", "--all", str(tmp_path), "--var", "a=b", home=tmp_path)
    assert isinstance(unused.exception, HeadgateError)


def test_graph__of_a_file__is_text_or_what_the_ending_says(tmp_path: Path) -> None:
    file, picture = written(tmp_path, GOOD), tmp_path / "m.svg"

    text = run("asl", "graph", file, home=tmp_path)
    mermaid = run("asl", "graph", file, "--format", "mermaid", home=tmp_path)
    drawn = run("asl", "graph", file, "-o", str(picture), home=tmp_path)

    assert "A  Pass" in text.stdout
    assert mermaid.stdout.startswith("flowchart TD")
    assert drawn.exit_code == 0
    assert picture.read_text().lstrip().startswith("<svg")
    nowhere = run("asl", "graph", file, "-o", str(tmp_path / "no" / "m.svg"), home=tmp_path)
    assert isinstance(nowhere.exception, UserError)
    assert isinstance(run("asl", "graph", written(tmp_path, "[]"), home=tmp_path).exception, UserError)


# Running


def test_run__file__prints_its_output_and_nothing_else_on_standard_output(tmp_path: Path) -> None:
    ended = run("asl", "run", written(tmp_path, GOOD), "--name", "one", home=tmp_path)

    assert (ended.exit_code, ended.stdout) == (0, '{"n":1}\n')
    lines = [line.split("s  ", 1)[-1] for line in ended.stderr.splitlines()]
    assert [line.split("  ")[0] for line in lines] == ["m:one", "▶ A", "✓ A", "▶ B", "✓ B"]


def test_run__again_under_the_same_name__shows_how_it_ended(tmp_path: Path) -> None:
    file = written(tmp_path, GOOD)
    run("asl", "run", file, "--name", "one", home=tmp_path)

    again = run("asl", "run", file, "--name", "one", home=tmp_path)
    other = run("asl", "run", file, "--name", "one", "--input", "5", home=tmp_path)

    assert (again.exit_code, again.stdout) == (0, '{"n":1}\n')
    assert again.stderr.startswith("m:one already exists\n")
    assert isinstance(other.exception, HeadgateError)
    assert other.exception.code == "already_started"


def test_run__fails__ends_with_1_and_says_why(tmp_path: Path) -> None:
    file = written(tmp_path, FAILS)

    ended = run("asl", "run", file, "--name", "one", home=tmp_path)
    as_json = run("asl", "run", file, "--json", home=tmp_path)

    assert (ended.exit_code, ended.stdout) == (1, "")
    assert "error: execution m:one ended FAILED: Broken: on purpose" in ended.stderr
    shown = json.loads(as_json.stdout)
    assert (as_json.exit_code, shown["status"], shown["error"]) == (1, "FAILED", "Broken")
    assert "▶" not in as_json.stderr


def test_run__cannot_be__says_why(tmp_path: Path) -> None:
    good, bad, loop = written(tmp_path, GOOD), written(tmp_path, BAD, "bad.json"), written(tmp_path, LOOP, "loop.json")

    assert run("asl", "run", bad, home=tmp_path).exit_code == 2
    missing = run("asl", "run", loop, home=tmp_path).exception
    assert isinstance(missing, NotFoundError)
    assert "look" in missing.message
    for more in (["--detach"], ["--app", "a:b", "--server", "http://127.0.0.1:1"], ["--input", "{"], ["--var", "x"]):
        assert isinstance(run("asl", "run", good, *more, home=tmp_path).exception, UserError), more
    assert isinstance(run("asl", "run", str(tmp_path / "none.json"), home=tmp_path).exception, UserError)


# Progress


def _map(items: int, done: int) -> list[dict[str, Any]]:
    """Events of a Map of one Pass, so many items of which are done."""
    rows: list[tuple[int, str, dict[str, Any]]] = [
        (0, "ExecutionStarted", {}),
        (1, "MapStateEntered", {"name": "M"}),
        (2, "MapStateStarted", {"length": items}),
    ]
    for index in range(done):
        rows.append((3, "MapIterationStarted", {"name": "M", "index": index}))
        rows.append((len(rows), "PassStateEntered", {"name": "I"}))
        rows.append((len(rows), "PassStateExited", {"name": "I"}))
        rows.append((len(rows), "MapIterationSucceeded", {"name": "M", "index": index}))
    return [event_view(HistoryEvent(number, row[0], row[1], number, row[2])) for number, row in enumerate(rows, 1)]


def report_lines(lines: list[str]) -> list[str]:
    return [line.split("s  ", 1)[1] for line in lines]


def test_progress__few_items__shows_each_iteration() -> None:
    progress = Progress(VirtualClock())

    assert report_lines(list(progress.lines(_map(2, 1)))) == [
        "▶ M",
        "  M: 2 items",
        "  [0] ▶ I",
        "  [0] ✓ I  0.00s",
    ]


def test_progress__many_items__counts_them_once_a_second() -> None:
    clock = VirtualClock()
    progress = Progress(clock)
    many = ITEMS_SHOWN_MAX + 1
    events = _map(many, many)

    first = report_lines(list(progress.lines(events[:7])))
    at_once = report_lines(list(progress.lines(events[7:11])))
    clock.advance(1)
    later = report_lines(list(progress.lines(events[11:15])))

    assert first == ["▶ M", f"  M: {many} items", f"  M: 1 of {many} items processed"]
    assert at_once == []
    assert later == [f"  M: 3 of {many} items processed"]


def test_progress__failure_among_many__is_shown_all_the_same() -> None:
    events = _map(100, 1)
    number = events[-1]["id"] + 1
    failing = [
        HistoryEvent(number, 3, "MapIterationStarted", 0, {"name": "M", "index": 1}),
        HistoryEvent(number + 1, number, "TaskStateEntered", 0, {"name": "I"}),
        HistoryEvent(number + 2, number + 1, "LambdaFunctionFailed", 0, {"error": "E", "cause": "c"}),
    ]

    lines = report_lines(list(Progress(VirtualClock()).lines([*events, *map(event_view, failing)])))

    assert "  [1] ✗ I  E: c" in lines


def test_progress__map_run__is_counted_by_its_fan_out() -> None:
    counts = {"run": (7, 40)}
    rows = [
        HistoryEvent(1, 0, "ExecutionStarted", 0),
        HistoryEvent(2, 1, "MapStateEntered", 0, {"name": "M"}),
        HistoryEvent(3, 2, "MapStateStarted", 0, {"length": 0}),
        HistoryEvent(4, 3, "MapRunStarted", 0, {"mapRunArn": "run"}),
    ]

    lines = report_lines(list(Progress(VirtualClock(), counts.get).lines([event_view(each) for each in rows])))

    assert lines == ["▶ M", "  M: map run run", "  M: 7 of 40 items processed"]
