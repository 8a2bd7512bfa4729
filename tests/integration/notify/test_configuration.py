"""What is refused before anything runs, so that no alert finds a channel that could not send it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.clock import SystemClock
from headgate.errors import SettingsError
from headgate.notify.channels.factory import open_channels
from headgate.notify.configuration import NotifyConfig, parse_config
from headgate.notify.enums import DefaultRoute
from headgate.store.sqlite.store import SqliteStore
from tests.stores import open_sqlite
from tests.unit.notify.rig import surroundings

FILE = {"kind": "file", "path": "alerts.jsonl"}
SLACK = {"kind": "slack", "channel": "C024BE91L"}
TOKEN = "xoxb-1234567890-abcdefABCDEF"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    opened = open_sqlite(tmp_path)
    yield opened
    opened.close()


def test_config__nothing_is_said__troubles_go_to_the_console_and_successes_nowhere() -> None:
    config = parse_config({})

    assert list(config.channels) == ["console"]
    assert config.default_channels() == {
        DefaultRoute.PAGE: ("console",),
        DefaultRoute.NOTIFY: ("console",),
        DefaultRoute.LOG: (),
    }
    assert config == NotifyConfig()


def test_config__a_default_is_left_out__its_events_go_to_all_channels() -> None:
    config = parse_config({"channels": {"a": FILE, "b": FILE}, "defaults": {"page": ["a"], "log": []}})

    assert config.default_channels() == {
        DefaultRoute.PAGE: ("a",),
        DefaultRoute.NOTIFY: ("a", "b"),
        DefaultRoute.LOG: (),
    }


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"channels": {}}, "no channel is configured"),
        ({"channels": {"a": {"kind": "pigeon"}}}, "channels.*pigeon"),
        ({"channels": {"a": {"path": "x"}}}, "missing required field `kind`"),
        ({"channels": {"a": {**FILE, "colour": "red"}}}, "unknown field `colour`"),
        ({"channels": {"A b": FILE}}, r"matching regex .* `key` in `\$.channels`"),
        ({"channels": {"a": FILE}, "routes": [{"channels": ["b"]}]}, r"routes\[0\]: no channel \['b'\]; there are"),
        ({"channels": {"a": FILE}, "routes": [{"channels": []}]}, r"routes\[0\]: it names no channel"),
        ({"channels": {"a": FILE}, "routes": [{"channels": ["a"], "severty_min": "info"}]}, "severty_min"),
        ({"channels": {"a": FILE}, "routes": [{"channels": ["a"], "severity_min": "bad"}]}, "severity_min: .*'bad'"),
        ({"channels": {"a": FILE}, "defaults": {"page": ["b"]}}, r"defaults.page: no channel \['b'\]"),
        ({"channels": {"a": FILE}, "defaults": {"wake": ["a"]}}, "wake"),
        ({"channels": {"a": FILE}, "escalation": [{"after_seconds": 5, "channels": ["b"]}]}, r"escalation\[0\]"),
        ({"escalation": [{"after_seconds": 0, "channels": ["console"]}]}, "more than 0"),
        (
            {"escalation": [{"after_seconds": seconds, "channels": ["console"]} for seconds in (9, 5)]},
            "grow from step to step",
        ),
        ({"channels": {"s": {**SLACK, "token": "file:x", "channel": "no channel"}}}, "channel"),
        ({"channels": {"s": {"kind": "sns", "topic_arn": "alerts"}}}, "topic_arn"),
        ({"channels": {"w": {"kind": "webhook", "url": "ftp://x", "secret": "file:x"}}}, "url"),
        (
            {"channels": {"m": {"kind": "email", "host": "h", "sender": "nobody", "recipients": ["a@b.c"]}}},
            "sender",
        ),
        ({"channels": {"m": {"kind": "email", "host": "h", "sender": "a@b.c", "recipients": []}}}, "recipients"),
        (
            {
                "channels": {
                    "m": {
                        "kind": "email", "host": "h", "sender": "a@b.c", "recipients": ["a@b.c"], "security": "none",
                        "username": "u", "password": "file:p",
                    }
                }
            },
            "a password is not sent without TLS",
        ),
    ],
)  # fmt: skip
def test_config__wrong__is_refused_with_the_place(given: dict[str, Any], says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        parse_config(given)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "No such file"),
        ("", "it is empty"),
        (" \n", "it is empty"),
        ("None", "its content is malformed"),
        ("xoxb", "its content is malformed"),
        ("Bearer xoxb-1234567890-abc", "its content is malformed"),
        ("xoxb-1234567890-abc xoxb-1234567890-abc", "its content is malformed"),
        ("hunter2-hunter2-hunter2", "its content is malformed"),
        ("x" * 5000, "larger than"),
    ],
)
def test_slack__token_missing_empty_or_malformed__is_refused_at_the_start(
    store: SqliteStore, tmp_path: Path, content: str | None, says: str
) -> None:
    # bug 72: with such a token every alert would be dropped, one by one.
    file = tmp_path / "token"
    if content is not None:
        file.write_text(content)
    config = parse_config({"channels": {"slack": {**SLACK, "token": f"file:{file}"}}})

    with pytest.raises(SettingsError, match=f"notify.channels.slack.token .*{says}") as raised:
        open_channels(config, surroundings(store, SystemClock(), tmp_path))

    assert not content or len(content.strip()) < 5 or content.strip() not in str(raised.value)


@pytest.mark.parametrize("kind", ["slack", "pagerduty", "webhook", "email"])
def test_channel__secret_in_the_setting_itself__is_refused_and_not_repeated(
    store: SqliteStore, tmp_path: Path, kind: str
) -> None:
    # bug 81: a token in plain settings or variables ends up in logs, plans and backups.
    specs: dict[str, dict[str, Any]] = {
        "slack": {**SLACK, "token": TOKEN},
        "pagerduty": {"kind": "pagerduty", "routing_key": "R0123456789abcdefR0123456789abcd"},
        "webhook": {"kind": "webhook", "url": "https://a.example/x", "secret": "0123456789abcdef0123456789abcdef"},
        "email": {
            "kind": "email", "host": "h", "sender": "a@b.c", "recipients": ["a@b.c"], "username": "u",
            "password": "hunter2",
        },
    }  # fmt: skip
    config = parse_config({"channels": {"c": specs[kind]}})

    with pytest.raises(SettingsError, match="it is not a reference, and a secret has no place in settings") as raised:
        open_channels(config, surroundings(store, SystemClock(), tmp_path))

    given = next(value for name, value in specs[kind].items() if name in ("token", "routing_key", "secret", "password"))
    assert given not in str(raised.value)


@pytest.mark.parametrize("token", [TOKEN, "xoxe.xoxb-1-abcdefghijklmnop", "xoxp-1234567890-abc"])
def test_slack__token_of_a_known_form__is_taken(store: SqliteStore, tmp_path: Path, token: str) -> None:
    (tmp_path / "token").write_text(f"{token}\n")
    config = parse_config({"channels": {"slack": {**SLACK, "token": f"file:{tmp_path / 'token'}"}}})

    channel = open_channels(config, surroundings(store, SystemClock(), tmp_path))["slack"]

    assert token not in repr(vars(channel))
