"""The commands about health: what they are given, what they print, and how they end."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headgate.cli import input_files, times
from headgate.cli.health import api_key, dataset, gate, incident_views, signal
from headgate.clock import SystemClock
from headgate.errors import HeadgateError, InvalidPayloadError, UserError
from headgate.health.evidence.rows import from_outside
from headgate.health.gate.decisions import GateQuestion, OnUnknown, Ruling, Verb
from headgate.health.lineage.specs import LineageSpec
from headgate.health.model.datasets import DatasetSpec
from headgate.health.model.enums import SignalState, Tier
from headgate.health.model.incidents import Changes, Resolution
from headgate.health.model.signals import ANY_VERSION, Producer, SignalUpdate, SignalValue
from headgate.health.model.timestamps import instant
from headgate.health.service import HealthOptions, HealthService
from headgate.ids import IdMaker
from headgate.serve.rest.health.models import signal_view
from headgate.store.blobs.folder import FolderBlobs
from headgate.store.cache.read_through import Cache
from headgate.store.keyring import Keyring
from tests.stores import open_sqlite
from tests.unit.cli.program import invoke

ORDERS, PAID = "urn:dp:orders:created:v1", "urn:dp:orders:paid"
NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


class World:
    """An orders dataset whose freshness broke, with all that is known around it, as the API would show it."""

    def __init__(self, folder: Path) -> None:
        clock = SystemClock()
        self.now_ms = int(clock.seconds() * 1000)
        self.store = open_sqlite(folder)
        blobs, keyring = FolderBlobs(folder / "evidence"), Keyring.generate(clock)
        self.health = HealthService(
            self.store,
            clock,
            IdMaker(clock),
            Cache(clock=clock),
            keyring,
            blobs,
            options=HealthOptions(tier_1_needs_ticket=False),
        )
        for urn in (ORDERS, PAID):
            spec = DatasetSpec(tier=Tier.TIER_1, owner_team="orders", owner_email="orders@example.com")
            self.health.registry.create(urn, spec, actor="ann")
        reads = LineageSpec(
            spec_id="lspec:bill:git:abc",
            producer_id="bill",
            updated_at=instant(self.now_ms),
            dataset_reads=(ORDERS,),
            dataset_writes=(PAID,),
        )
        self.health.lineage.update(reads)
        self.offer("PASS", 3_600)
        self.offer("FAIL", 60)
        self.incident_id = self.say(SignalState.CRITICAL, 0)

    def offer(self, result: str, seconds_ago: int) -> None:
        reasons = {"reason_codes": ["LATE"]} if result == "FAIL" else {}
        given = {
            "dataset_urn": ORDERS,
            "created_at": instant(self.now_ms - 1000 * seconds_ago),
            "validation": {"result": result, **reasons},
            "producer": {"producer_id": "shop"},
        }
        assert self.health.evidence.put(from_outside(given)).stored

    def say(self, state: SignalState, seconds: int) -> str:
        result = SignalValue(
            state=state,
            score=0.5,
            window_start=instant(self.now_ms + 1000 * seconds - 300_000),
            window_end=instant(self.now_ms + 1000 * seconds),
            failure_signature="LATE" if state.is_breach else None,
            top_producer=Producer(producer_id="shop", version="v9"),
        )
        update = SignalUpdate(dataset_urn=ORDERS, signal_type="FRESHNESS", value=result, expected_version=ANY_VERSION)
        taken = self.health.signals.update(update).signal
        assert taken is not None
        return taken.value.incident_id or ""

    def incident(self) -> Any:
        return shown(self.health.incidents.get(self.incident_id))

    def context(self) -> Any:
        result = self.health.contexts.of(self.incident_id)
        return {**shown(result), "signals": [shown(signal_view(each)) for each in result.signals]}

    def decision(self, *urns: str, on_unknown: OnUnknown = OnUnknown.WARN) -> Any:
        question = GateQuestion(principal="bill", verb=Verb.READ, on_unknown=on_unknown)
        return shown(self.health.gatekeeper.check(urns, question))


def shown(answer: object) -> Any:
    return msgspec.json.decode(msgspec.json.encode(answer))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.store.close()


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")


# What is given


def run(*arguments: str, home: Path) -> Any:
    return invoke(arguments, {"HEADGATE_HOME": str(home)})


@pytest.mark.parametrize(
    "arguments",
    [
        ["dataset"],
        ["dataset", "ls", "--status", "GONE"],
        ["dataset", "rollback", "urn:dp:a", "0"],
        ["signal", "set", "urn:dp:a", "FRESHNESS"],
        ["signal", "reset", "urn:dp:a"],
        ["incident", "resolve", "INC-1"],
        ["incident", "open", "urn:dp:a", "--type", "FRESHNESS"],
        ["incident", "merge", "INC-1"],
        ["incident", "reopen", "INC-1"],
        ["evidence", "put"],
        ["lineage", "dead", "burn"],
        ["gate", "check"],
        ["gate", "check", "urn:dp:a", "--verb", "eat"],
        ["gate", "check", "urn:dp:a", "--on-unknown", "guess"],
        ["gate", "override", "urn:dp:a", "--for-time", "1h"],
        ["api-key", "issue", "bob"],
        ["audit", "ls", "--limit", "0"],
    ],
)
def test_health_commands__wrong_usage__exit_with_2(tmp_path: Path, arguments: list[str]) -> None:
    assert run(*arguments, home=tmp_path).exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["dataset", "register"], "user", "a URN such as"),
        (["dataset", "register", "-f", "none.json"], "user", "cannot be read"),
        (["dataset", "register", "urn:dp:a", "--tag", "x"], "user", "NAME:VALUE"),
        (["dataset", "register", "urn:dp:a", "--freshness", "soon"], "user", "--freshness"),
        (["dataset", "update", "urn:dp:a"], "user", "no changes"),
        (["dataset", "alias", "urn:dp:a", "kafka://x"], "user", "NAME is required"),
        (["dataset", "resolve", "t", "--payload", "{"], "bad_payload", "--payload"),
        (["dataset", "resolve", "t", "--header", "x"], "user", "--header"),
        (["dataset", "rule", "add", "urn:dp:a"], "user", "topic_pattern"),
        (["signal", "set", "urn:dp:a", "F", "PERHAPS"], "bad_payload", "CRITICAL"),
        (["signal", "set", "urn:dp:a", "F", "OK", "--window", "x"], "user", "--window"),
        (["signal", "set", "urn:dp:a", "F", "OK", "--window-end", "x"], "user", "--window-end"),
        (["signal", "history", "urn:dp:a", "F", "--since", "x"], "user", "--since"),
        (["incident", "ls", "--until", "x"], "user", "--until"),
        (["incident", "watch", "--severity", "x"], "bad_payload", "SEV_1"),
        (["evidence", "put", "-f", "none.json"], "user", "cannot be read"),
        (["lineage", "push", "none.json"], "user", "cannot be read"),
        (["lineage", "dbt", "none"], "user", "manifest.json"),
        (["lineage", "dead", "drop"], "user", "event ids are required"),
        (["api-key", "issue", "bob", "--role", "viewer", "-o", "none/key"], "user", "--output"),
    ],
)
def test_health_commands__bad_input__is_refused_before_anyone_is_asked(
    tmp_path: Path, arguments: list[str], code: str, said: str
) -> None:
    error = run(*arguments, "--server", "http://127.0.0.1:1", home=tmp_path).exception

    assert isinstance(error, HeadgateError), error
    assert (error.code, error.exit_code) == (code, 2)
    assert said in error.message


@pytest.mark.parametrize(
    "arguments", [["gate", "check", "urn:dp:a"], ["incident", "watch", "--limit", "1"], ["audit", "verify"]]
)
def test_health_commands__no_server__say_so_with_75(tmp_path: Path, arguments: list[str]) -> None:
    error = run(*arguments, "--server", "http://127.0.0.1:1", home=tmp_path).exception

    assert isinstance(error, HeadgateError)
    assert error.exit_code == 75


def test_gate__help__reports_the_exit_codes(tmp_path: Path) -> None:
    output = " ".join(run("gate", "check", "--help", home=tmp_path).output.split())

    assert "0 for allow, 10 warn, 20 block, 30 unknown" in output
    assert gate.EXIT_CODES.keys() == set(Ruling)


@pytest.mark.parametrize(
    ("given", "moment"),
    [
        ("2026-01-31", "2026-01-31T00:00:00+00:00"),
        ("2026-01-31T06:00:00+02:00", "2026-01-31T06:00:00+02:00"),
        ("2h", "2026-03-01T10:00:00+00:00"),
        ("1d", "2026-02-28T12:00:00+00:00"),
        (None, None),
    ],
)
def test_asked__a_time_or_how_long_ago__is_a_moment(given: str | None, moment: str | None) -> None:
    assert times.past_time(given, "--since", NOW) == moment


@pytest.mark.parametrize("given", ["", "yesterday", "-2h"])
def test_asked__neither__names_the_option(given: str) -> None:
    with pytest.raises(UserError, match="--since"):
        times.past_time(given, "--since", NOW)


@pytest.mark.parametrize(
    ("moment", "text"),
    [
        (None, ""),
        ("", ""),
        ("2026-03-01T12:00:00.000Z", "0s ago"),
        ("2026-03-01T11:58:01.000Z", "119s ago"),
        ("2026-03-01T11:55:10.000Z", "4m ago"),
        ("2026-03-01T10:00:00.000Z", "2h ago"),
        ("2026-02-27T11:59:00.000Z", "2d ago"),
        ("2026-03-01T12:00:30.500Z", "in 31s"),
        ("2026-03-01T13:59:59.000Z", "in 120m"),
        ("2026-05-30T11:59:59.000Z", "in 90d"),
    ],
)
def test_ago__a_moment__is_as_precise_as_a_glance(moment: str | None, text: str) -> None:
    assert times.ago(moment, NOW) == text


@pytest.mark.parametrize(
    ("name", "content", "found"),
    [
        ("d.json", '{"tier": 1}', {"tier": 1}),
        ("d.toml", "tier = 1\n[slos.volume]\nmin = 60\n", {"tier": 1, "slos": {"volume": {"min": 60}}}),
        ("d", '{"tier": 1}', {"tier": 1}),
    ],
)
def test_document__json_or_toml__is_read_by_its_name(tmp_path: Path, name: str, content: str, found: object) -> None:
    path = tmp_path / name
    path.write_text(content)

    assert input_files.read_document(str(path), "--file") == found


@pytest.mark.parametrize(
    ("name", "content"), [("d.json", "[]"), ("d.json", "{"), ("d.toml", "= 1"), ("d.json", "\xff")]
)
def test_document__something_else__names_the_file(tmp_path: Path, name: str, content: str) -> None:
    path = tmp_path / name
    path.write_bytes(content.encode("latin-1"))

    with pytest.raises(InvalidPayloadError, match=name):
        input_files.read_document(str(path), "--file")


@pytest.mark.parametrize("content", ['[{"a": 1}, {"a": 2}]', '{"a": 1}\n{"a": 2}\n', '\n{"a": 1}\n\n{"a": 2}'])
def test_documents__list_or_lines__are_the_same(tmp_path: Path, content: str) -> None:
    path = tmp_path / "e.json"
    path.write_text(content)

    assert input_files.read_documents(str(path), "--file") == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize("content", ["[1]", '{"a": 1}\n{"a"', "x"])
def test_documents__no_objects__are_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "e.json"
    path.write_text(content)

    with pytest.raises(InvalidPayloadError, match="expected JSON objects"):
        input_files.read_documents(str(path), "--file")


def test_config_options__fields_of_the_server__are_not_sent_back() -> None:
    answered = {"dataset_urn": PAID, "tier": "TIER_1", "config_version": 3, "updated_by": "ann", "slos": {"volume": {}}}

    made = dataset.ConfigOptions(tier="2", freshness="30m").applied_to(answered)

    assert made == {
        "dataset_urn": PAID,
        "tier": "2",
        "slos": {"volume": {}, "freshness": {"max_delay_seconds": 1800.0}},
    }


# What is printed


def test_why__critical_incident__reports_the_whole_story(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    incident_views.show_context(world.context())
    output = capsys.readouterr().out

    assert output.startswith(f"OPEN  SEV_1  {world.incident_id}  ")
    assert "orders, TIER_1, orders@example.com" in output
    assert "shop v9" in output
    first_bad = next(line for line in output.splitlines() if line.startswith("first bad"))
    assert "FAIL evd-" in first_bad
    assert "LATE by shop" in first_bad
    assert "PASS evd-" in next(line for line in output.splitlines() if line.startswith("last good"))
    assert "CRITICAL  FRESHNESS  " in output
    assert "HIGH: 1 datasets (1 of TIER_1), 1 users" in output
    assert (
        output.index("SIGNALS")
        < output.index("WRITERS\nnone known")
        < output.index("READERS")
        < output.index("TIMELINE")
    )
    assert "FRESHNESS first -> CRITICAL" in output
    assert "missing" not in output


def test_why__parts_that_could_not_be_had__are_named_last(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    missing = [{"part": "blast_radius", "why": "the store is busy"}]
    result = {**world.context(), "blast_radius": None, "dataset": None, "missing": missing, "complete": False}

    incident_views.show_context(result)

    lines = capsys.readouterr().out.splitlines()
    assert "no downstream datasets known" in lines
    assert lines[-1] == "missing: blast_radius: the store is busy"


def test_incidents__each_standing__is_reported_first(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    incidents = world.health.incidents
    incidents.change(world.incident_id, Changes(status="ACKNOWLEDGED", assignee="ann"), actor="ann")
    assert incident_views.incident_text(world.incident()).endswith(", assigned to ann")
    world.say(SignalState.OK, 1)
    resolution = Resolution(root_cause="a stuck job", mitigation="restarted", false_positive=True)
    incidents.change(world.incident_id, Changes(status="RESOLVED", resolution=resolution), actor="ann")

    incident_views.show_incidents([world.incident()])
    incident_views.show_incident(world.incident())

    output = capsys.readouterr().out
    header, row, standing, *_ = output.splitlines()
    assert header.startswith("STATUS")
    assert row.split()[:3] == ["RESOLVED", "SEV_1", world.incident_id]
    assert standing.endswith("(false positive)")
    assert "a stuck job" in output
    assert "restarted" in output


def test_incidents__none__is_said(capsys: pytest.CaptureFixture[str]) -> None:
    incident_views.show_incidents([])

    assert capsys.readouterr().out == "no incidents\n"


def test_recovery__nothing_and_something__are_reported(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    nothing: dict[str, Any] = {
        "resolved": 0,
        "mttr_seconds": None,
        "by_severity": {},
        "false_positives": 0,
        "complete": True,
    }
    incident_views.show_recovery(nothing)
    incident_views.show_recovery(
        {**nothing, "resolved": 2, "mttr_seconds": 3_700.0, "by_severity": {"SEV_1": 61.0}, "complete": False}
    )

    output = capsys.readouterr().out
    assert "no resolved incidents" in output
    assert "at least 2" in output
    assert "1h01m" in output


def test_signals__several__have_the_worst_first(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    critical = shown(signal_view(world.health.signals.of_dataset(ORDERS)[0]))
    fine = {**critical, "state": "OK", "signal_type": "VOLUME", "stale": True, "age_seconds": 12.0}

    signal.show_signals([fine, critical], names_datasets=True)

    header, first, second = capsys.readouterr().out.splitlines()
    assert header.split()[:3] == ["STATE", "SIGNAL", "DATASET"]
    assert first.split()[:3] == ["CRITICAL", "FRESHNESS", ORDERS]
    assert second.split()[:2] == ["OK", "VOLUME"]
    assert "12 s old" in second


def test_decision__blocked_then_overridden__gives_reasons_and_the_way_out(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    gate.show_decision(world.decision(ORDERS))
    blocked = capsys.readouterr().out
    world.health.overrides.grant(ORDERS, Verb.READ, seconds=60.0, reason="month's end", actor="ann")
    gate.show_decision(world.decision(ORDERS))
    warned = capsys.readouterr().out

    assert blocked.startswith(f"BLOCK  {ORDERS}  since ")
    assert f"block: {world.incident_id} is OPEN" in blocked
    assert "headgate gate override URN --for-time 2h --reason" in blocked
    assert warned.startswith(f"WARN  {ORDERS}  since ")
    assert "month's end" in warned
    assert "gate override" not in warned


def test_decision__nothing_known__is_unknown_if_so_asked(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    found = world.decision(PAID, on_unknown=OnUnknown.ASK)
    gate.show_decision({**found, "complete": False, "verb": "publish"})

    output = capsys.readouterr().out
    assert gate.EXIT_CODES[found["decision"]] == 30
    assert "UNKNOWN" in output
    assert "some signals are from the cache" in output
    assert "--verb publish" in output


def test_deliver__to_a_file__is_for_its_owner_alone_and_not_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = {"key": {"key_id": "k1", "principal": "bob"}, "text": "hg_k1_secret"}
    path = tmp_path / "key"

    api_key._deliver(made, path, as_json=False)
    api_key._deliver(made, tmp_path / "other", as_json=True)

    output = capsys.readouterr()
    assert path.read_text() == "hg_k1_secret\n"
    assert path.stat().st_mode & 0o777 == 0o600
    assert "secret" not in output.out + output.err
    with pytest.raises(UserError, match="revoke k1"):
        api_key._deliver(made, path, as_json=False)


def test_deliver__to_the_terminal__has_the_key_alone_on_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    api_key._deliver({"key": {"key_id": "k1", "principal": "bob"}, "text": "hg_k1_secret"}, None, as_json=False)

    output = capsys.readouterr()
    assert output.out == "hg_k1_secret\n"
    assert "cannot be printed again" in output.err


@pytest.mark.parametrize(
    ("key", "state"),
    [
        ({"revoked_at": "2020-01-01T00:00:00.000Z", "expires_at": None}, "revoked"),
        ({"revoked_at": None, "expires_at": "2020-01-01T00:00:00.000Z"}, "expired"),
        ({"revoked_at": None, "expires_at": None}, "active"),
    ],
)
def test_state__of_a_key__is_reported_in_a_word(key: dict[str, Any], state: str) -> None:
    assert api_key._state(key) == state
