"""Every `ls` command on a terminal of 80 columns, with rows made from the OpenAPI document of the server."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest
import typer.main

from docs.generator.served import served
from headgate.cli.main import load
from headgate.clock import SystemClock
from headgate.store.keyring import Keyring
from tests.integration.cli.http_peer import Peer, responds
from tests.unit.cli.program import invoke

WIDTH: Final = 80
_STYLE: Final = re.compile(r"\x1b\[[0-9;]*m")
# As long as ids, times and texts of real projects are.
_ID: Final = "01M7QRTA69BQPTFS66X8Q3PXHE"
_MOMENT: Final = "2026-11-18T06:30:01.123456+00:00"
_TEXT: Final = "the nightly export of the source was late, so the period waited for it until the morning"
_BY_NAME: Final = {
    "date": "2026-11-18",
    "timezone": "America/Argentina/Buenos_Aires",
    "zone": "America/Argentina/Buenos_Aires",
    "cron": "15,45 6-20 * * 1-5",
    "dataset_urn": "urn:dp:commerce:orders:created:v2",
    "urn": "urn:dp:commerce:orders:created:v2",
    "cursor": None,
    "next_cursor": None,
    "pipeline_id": "commerce-orders-daily",
    "schedule_id": "every-morning",
    "workflow": "commerce_orders_reconciliation",
    "handler": "commerce.jobs:reconcile_orders",
    "by": "operations@example.com",
    "principal": "operations@example.com",
    "owner": "data-platform",
}
_MOMENTS: Final = ("_at", "since", "until", "_start", "_end", "last_updated")
_TEXTS: Final = ("reason", "note", "message", "description", "text", "help", "error", "summary", "purpose")


class Rows:
    """Answers with one row, made from the schema of the operation that is called."""

    def __init__(self) -> None:
        self._document = served().document
        self._paths = [
            (re.compile(re.sub(r"\\{[^}]*\\}", "[^/]+", re.escape(path))), operations["get"])
            for path, operations in self._document["paths"].items()
            if "get" in operations
        ]
        # A path without parameters comes first.
        self._paths.sort(key=lambda each: each[0].pattern.count("[^/]+"))
        self.calls = 0

    def respond(self, handler: BaseHTTPRequestHandler) -> None:
        path = urlsplit(handler.path).path
        operation = next(found for pattern, found in self._paths if pattern.fullmatch(path))
        (media,) = operation["responses"]["200"]["content"].values()
        self.calls += 1
        responds(200, json.dumps(self._value(media["schema"], "", 0)).encode(), **{"content-type": "application/json"})(
            handler
        )

    def _value(self, schema: Mapping[str, Any], name: str, depth: int) -> Any:
        if "$ref" in schema:
            schema = self._document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        for either in ("anyOf", "oneOf"):
            if either in schema:
                kinds = [each for each in schema[either] if each.get("type") != "null"]
                return self._value(kinds[0], name, depth)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return max((each for each in schema["enum"] if each is not None), key=lambda each: len(str(each)))
        kind = schema.get("type")
        if kind == "object":
            members = schema.get("properties", {})
            made = {key: self._value(each, key, depth + 1) for key, each in members.items() if depth < 8}
            further = schema.get("additionalProperties")
            if isinstance(further, dict) and not members:
                made["first"] = self._value(further, "first", depth + 1)
            return made
        if kind == "array":
            return [] if depth >= 8 else [self._value(schema.get("items", {}), name.removesuffix("s"), depth + 1)]
        return self._scalar(kind, schema, name)

    def _scalar(self, kind: str | None, schema: Mapping[str, Any], name: str) -> Any:
        if name in _BY_NAME:
            return _BY_NAME[name]
        if kind == "integer":
            return max(12_345, int(schema.get("minimum", 0)))
        if kind == "number":
            return 12_345.678
        if kind == "boolean":
            return True
        if name == "at" or name.endswith(_MOMENTS):
            return _MOMENT
        if name.endswith("_id") or name == "id":
            return f"{name.removesuffix('_id').removesuffix('id')}_{_ID}"
        return _TEXT if name in _TEXTS else "commerce-orders"


def _commands() -> Iterator[tuple[tuple[str, ...], Any]]:
    groups = typer.main.get_command(load()).commands  # type: ignore[attr-defined]  # of click, which typer hides
    for group, found in sorted(groups.items()):
        if not found.hidden and "ls" in getattr(found, "commands", {}):
            yield (group, "ls"), found.commands["ls"]


COMMANDS: Final = dict(_commands())


@pytest.fixture(scope="module")
def rows() -> Iterator[tuple[Peer, Rows]]:
    peer, made = Peer(), Rows()
    peer.response = made.respond
    yield peer, made
    peer.close()


def test_ls__commands__are_found_in_the_tree() -> None:
    assert len(COMMANDS) > 30


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_ls__at_80_columns__no_line_is_longer_and_no_header_is_broken(
    words: tuple[str, ...], rows: tuple[Peer, Rows], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The commands about keys read a file.
    Keyring.generate(SystemClock()).save(tmp_path / "keys.json")
    peer, made = rows
    command, calls_before = COMMANDS[words], made.calls
    calls_server = any(each.name == "server" for each in command.params)
    given = ["commerce-orders" for each in command.params if each.param_type_name == "argument" and each.required]

    def lines(width: int) -> list[str]:
        monkeypatch.setenv("COLUMNS", str(width))
        # A terminal, as rich sees it.
        monkeypatch.setenv("FORCE_COLOR", "1")
        environ = {"HEADGATE_HOME": str(tmp_path), **({"HEADGATE_SERVER": peer.url} if calls_server else {})}
        ended = invoke([*words, *given], environ)
        assert ended.exit_code == 0, f"{ended.output} {ended.exception!r}"
        return _STYLE.sub("", ended.stdout).splitlines()

    header, row = lines(1000)[:2]
    narrow = lines(WIDTH)

    assert [line for line in narrow if len(line) > WIDTH] == []
    assert (made.calls > calls_before) is calls_server
    if narrow[0].split() != header.split():
        # Each row is a block: its id, and a line for each further column.
        assert narrow[0] in row
        labels = {name.lower() for name in header.split()}
        assert {line.split()[0] for line in narrow[1:] if re.match(r"  \S", line)} <= labels
