"""Resource maps: which entry replaces a call, and what the file of the project may say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headgate.asl.errors import StateError
from headgate.asl.tasks.resource_map import MappedResource, ResourceMap
from headgate.asl.tasks.resource_map_file import load_resource_map
from headgate.errors import DefinitionError, NotFoundError, SettingsError

GLUE = "arn:aws:states:::glue:startJobRun.sync"
MOCKS: dict[str, Any] = {
    "StateMachines": {"orders": {"TestCases": {"Retried": {"Charge": "Charged"}, "Plain": {}}}},
    "MockedResponses": {
        "Charged": {
            "0": {"Return": {"ok": True}},
            "1-2": {"Throw": {"Error": "Busy", "Cause": "later"}},
        }
    },
}


def loaded(folder: Path, text: str, name: str = "resources.yaml") -> ResourceMap:
    (folder / name).write_text(text)
    return load_resource_map(Path(name), folder)


@pytest.mark.parametrize(
    "pattern",
    [GLUE, "arn:aws:states:::glue:startJobRun", "glue:startJobRun", "glue:startJobRun.sync", "glue:*", "*:glue:*"],
)
def test_find__resource_by_text_pattern_or_integration__fits(pattern: str) -> None:
    found = ResourceMap((MappedResource(pattern, answer={"n": 1}),)).find(GLUE, {})

    assert found is not None
    assert found.recorded() == {"n": 1}


@pytest.mark.parametrize("pattern", ["glue", "glue:start", "aws-sdk:glue:startJobRun", "xglue:*"])
def test_find__other_resource__does_not_fit(pattern: str) -> None:
    assert ResourceMap((MappedResource(pattern, answer=None),)).find(GLUE, {}) is None


def test_find__parameters__first_entry_that_has_them_decides() -> None:
    mapped = ResourceMap(
        (
            MappedResource("glue:*", {"JobName": "night*", "Arguments": {"--day": "1"}}, function="night"),
            MappedResource("glue:*", {"JobName": "noon"}, function="noon"),
            MappedResource("glue:*", function="other"),
        )
    )

    def name(parameters: Any) -> str | None:
        found = mapped.find(GLUE, parameters)
        return None if found is None else found.function

    assert name({"JobName": "nightly", "Arguments": {"--day": "1", "--x": "y"}}) == "night"
    assert name({"JobName": "nightly"}) == "other"
    assert name({"JobName": "noon"}) == "noon"
    assert name("text") == "other"


def test_may_have__unknown_parameter__is_possible() -> None:
    mapped = ResourceMap((MappedResource("glue:*", {"JobName": "noon"}, function="noon"),))

    assert mapped.may_have(GLUE, {})
    assert not mapped.may_have(GLUE, {"JobName": "nightly"})


def test_load__every_kind_of_target__is_read(tmp_path: Path) -> None:
    text = """
resources:
  - {resource: "${price}", function: price}
  - {resource: a, http: "https://example.com/x"}
  - {resource: b, http: {url: "https://example.com/x", method: PUT, timeout: 5s}}
  - {resource: c, command: [python, job.py]}
  - {resource: d, command: {run: "python job.py", timeout: 1h}}
  - {resource: e, fanout: prices.update}
  - {resource: f, fanout: {handler: prices.update, items: $.rows}}
  - {resource: g, answer: {day: 2026-01-31}}
  - {resource: h, answer: null}
  - {resource: i, error: Glue.EntityNotFoundException, cause: gone}
"""
    entries = loaded(tmp_path, text).entries

    assert [each.resource for each in entries] == ["${price}", *"abcdefghi"]
    assert entries[1].http_target is not None
    assert entries[2].http_target is not None
    assert (entries[1].http_target.method, entries[2].http_target.timeout) == ("POST", 5.0)
    assert entries[3].command_target is not None
    assert entries[4].command_target is not None
    assert (entries[3].command_target.run, entries[4].command_target.timeout) == (["python", "job.py"], 3600.0)
    assert entries[5].fanout_target is not None
    assert entries[6].fanout_target is not None
    assert (entries[5].fanout_target.items, entries[6].fanout_target.items) == ("$", "$.rows")
    assert (entries[7].recorded(), entries[8].recorded()) == ({"day": "2026-01-31"}, None)
    with pytest.raises(StateError, match=r"Glue\.EntityNotFoundException: gone"):
        entries[9].recorded()


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("resources: [{resource: a}]", "one of function, http"),
        ("resources: [{resource: a, function: f, answer: 1}]", "has function and answer"),
        ("resources: [{resource: a, function: headgate.asl.start}]", "functions of Headgate itself"),
        ("resources: [{resource: a, functoin: f}]", "functoin"),
        ("resources: [{resource: '', function: f}]", "it is empty"),
        ("resources: [{resource: a, answer: 1, cause: c}]", "cause: only for an entry with error; this one has answer"),
        ("resources: [{resource: a, http: 'ftp://a'}]", "http 'ftp://a': write an address that begins with https://"),
        ("resources: [{resource: a, http: {url: a}}]", "http 'a': write an address"),
        ("resources: [{resource: a, command: []}]", "command: it is empty"),
        ("entries: []", "resources"),
        ("resources: [", "not YAML"),
        ("[]", "write 'resources:'"),
    ],
)
def test_load__invalid__names_the_entry_and_what_is_allowed(tmp_path: Path, text: str, part: str) -> None:
    with pytest.raises(DefinitionError) as raised:
        loaded(tmp_path, text)

    assert part in str(raised.value)
    assert "resources.yaml" in str(raised.value)


def test_load__file_outside_of_the_project__is_refused(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    outside = tmp_path / "map.yaml"
    outside.write_text("resources: []")
    (project / "link.yaml").symlink_to(outside)

    for file in (outside, Path("../map.yaml"), Path("link.yaml")):
        with pytest.raises(SettingsError, match="outside of the project folder"):
            load_resource_map(file, project)
    with pytest.raises(SettingsError, match="there is no project folder"):
        load_resource_map(outside, None)
    with pytest.raises(SettingsError, match="cannot be read"):
        load_resource_map(Path("missing.yaml"), project)


def test_mocks__calls_of_a_state__get_the_answers_by_their_number(tmp_path: Path) -> None:
    mocks = loaded(tmp_path, json.dumps(MOCKS), "MockConfigFile.json").mocks

    first = mocks.answer("orders", "Retried", "Charge", 0)
    assert first is not None
    assert first.outcome() == {"ok": True}
    for call in (1, 2):
        thrown = mocks.answer("orders", "Retried", "Charge", call)
        assert thrown is not None
        with pytest.raises(StateError, match="Busy: later"):
            thrown.outcome()
    with pytest.raises(StateError, match="no answer to call 3"):
        mocks.answer("orders", "Retried", "Charge", 3)
    assert mocks.answer("orders", "Retried", "Other", 0) is None
    assert mocks.answer("orders", "Plain", "Charge", 0) is None
    with pytest.raises(NotFoundError, match="there is Plain, Retried"):
        mocks.check_case("orders", "Retired")


def test_mocks__file_named_by_a_map__is_read_beside_it(tmp_path: Path) -> None:
    (tmp_path / "maps").mkdir()
    (tmp_path / "maps" / "mocks.json").write_text(json.dumps(MOCKS))

    found = loaded(tmp_path, "resources: []\nmocks: mocks.json", "maps/resources.yaml")

    assert set(found.mocks.cases["orders"]) == {"Retried", "Plain"}


@pytest.mark.parametrize(
    ("response", "part"),
    [
        ({"x": {"Return": 1}}, "number of a call"),
        ({"1": {"Return": 1}}, "0 is missing"),
        ({"0-1": {"Return": 1}, "1": {"Return": 1}}, "2 is missing or repeated"),
        ({"0": {"Return": 1, "Throw": {"Error": "E"}}}, "write Return"),
        ({"0": {"Throw": {}}}, "write Return"),
        ({"1-0": {"Return": 1}}, "ends before it begins"),
    ],
)
def test_mocks__invalid__names_the_field(tmp_path: Path, response: Any, part: str) -> None:
    with pytest.raises(DefinitionError, match="Charged") as raised:
        loaded(tmp_path, json.dumps({**MOCKS, "MockedResponses": {"Charged": response}}), "mocks.json")

    assert part in str(raised.value)


def test_mocks__unknown_response__is_refused(tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match="there is no mocked response 'Charged'"):
        loaded(tmp_path, json.dumps({**MOCKS, "MockedResponses": {}}), "mocks.json")
