"""Ids that the shell completes: the server has each list, and an argument without one takes no id."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest
import typer.main

from docs.generator.served import served
from headgate.cli.main import load
from headgate.cli.navigation.listed_ids import LISTINGS, PAGED, nouns_of

# Arguments that take a new name, a text, a file or a token, or an id that no list of the server has.
FREE: Final = frozenset(
    """
    api-key first: principal
    api-key issue: principal
    asl put: file
    asl task fail: token
    asl task heartbeat: token
    asl task succeed: token
    asl test: file
    asl validate: file
    aws cost: file
    aws deploy: package_file
    aws destroy: package_file
    aws package: target
    aws plan: package_file
    backup: file
    check try: check_id
    check try: name
    dataset alias: name
    dataset alias: namespace
    dataset baseline: metric
    dataset diff: after
    dataset diff: before
    dataset import-contract: file
    dataset name: name
    dataset name: namespace
    dataset producers: topic
    dataset resolve: topic
    dataset rollback: version
    dataset rule add: pattern
    dataset rule delete: name
    dataset rule delete: pattern
    dataset schema: name
    dataset unalias: name
    dataset unalias: namespace
    event dead-letter: event_id
    event emit: type
    event purge: event_ids
    event redeliver: event_ids
    evidence show: id
    execution query: name
    execution signal: name
    execution update: name
    fanout campaign: name
    fanout drain: queue_url
    fanout upload: manifest
    incident assign: who
    incident note: text
    incident quota: team
    incident snooze: duration
    init: folder
    lineage dbt: folder
    lineage dead: event_ids
    lineage push: file
    pipeline apply: paths
    pipeline plan: paths
    pipeline schema: kind
    pipeline validate: paths
    region merge: other
    restore: file
    schedule create: id
    signal set: state
    table compare: table
    table costs: file
    table repair: table
    table swap: name
    table swap: table
    """.strip().split("\n    ")
)


def arguments() -> Iterator[tuple[list[str], Any]]:
    """Give each argument that is no choice, with the path of its command."""

    def below(command: Any, path: list[str]) -> Iterator[tuple[list[str], Any]]:
        for name, each in command.commands.items():
            if each.hidden:
                continue
            if hasattr(each, "commands"):
                yield from below(each, [*path, name])
                continue
            for parameter in each.params:
                if parameter.param_type_name == "argument" and not getattr(parameter.type, "choices", ()):
                    yield [*path, name], parameter

    yield from below(typer.main.get_command(load()), [])


def resolved(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    if "$ref" not in schema:
        return schema
    found: Mapping[str, Any] = served().document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return found


def test_arguments__all_commands__are_completed_or_take_no_id() -> None:
    found = {
        f"{' '.join(path)}: {each.name}" for path, each in arguments() if not nouns_of(path[0], path[-1], each.name)
    }

    assert found == FREE


@pytest.mark.parametrize("noun", LISTINGS)
def test_listing__of_each_noun__is_one_of_the_server(noun: str) -> None:
    listing = LISTINGS[noun]
    pattern = re.escape(f"/api/v1{listing.path}").replace(re.escape("{}"), r"\{[a-z_]+\}")
    (operation,) = [
        each["get"]
        for path, each in served().document["paths"].items()
        if re.fullmatch(pattern, path) and "get" in each
    ]

    (media,) = operation["responses"]["200"]["content"].values()
    entry = resolved(media["schema"])
    for member in listing.member.split("."):
        entry = resolved(resolved(entry["properties"][member])["items"])
    taken = {each["name"] for each in operation["parameters"]}

    assert listing.field in entry["properties"]
    assert {*listing.query, *filter(None, [listing.limit])} <= taken


@pytest.mark.parametrize("noun", PAGED)
def test_page__of_each_noun__has_the_path_of_an_operation_that_shows_one(noun: str) -> None:
    page = LISTINGS[noun].page

    assert page is not None
    pattern = re.escape(f"/api/v1{page}").replace(re.escape("{}"), r"\{[a-z_]+\}")
    assert [path for path, each in served().document["paths"].items() if re.fullmatch(pattern, path) and "get" in each]
