"""Encryption: what is stored is ciphertext bound to its place; code sees plain values; keys rotate, go and return."""

from __future__ import annotations

import json
import re
import secrets
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec import Raw
from msgspec.structs import replace

import headgate as hg
from headgate.clock import VirtualClock
from headgate.durable.model.history import StartActivity, dump_turn
from headgate.durable.model.payload_codec import sealed_of
from headgate.durable.service import Service
from headgate.errors import (
    AlreadyStartedError,
    DefinitionError,
    SealedPayloadError,
    SettingsError,
    UnknownWorkflowError,
)
from headgate.store.blobs.folder import FolderBlobs
from headgate.store.keyring import Keyring, Purpose
from tests.scenarios import map_handlers
from tests.scenarios.conftest import OpenEnvironment
from tests.scenarios.histories import notes, turns

OLD, NEW = secrets.token_bytes(32), secrets.token_bytes(32)
SECRET = "4111-1111"


class Keys:
    """A key management service of the test."""

    def __init__(self) -> None:
        self.held = {"old": OLD}
        self.active = "old"

    def current(self) -> str:
        return self.active

    def key(self, key_id: str) -> bytes | None:
        return self.held.get(key_id)


@pytest.fixture
def keys() -> Keys:
    return Keys()


@dataclass
class Card:
    number: str
    cents: int = 0


class CardDeclined(Exception):
    pass


paid = hg.Signal("paid", Card)
shown = hg.Query("shown", Card, returns=Card)
added = hg.Update("added", Card, returns=Card)


def build(keys: hg.KeyProvider, *, encrypt_errors: bool = True, accept_plain: bool = True) -> hg.App:  # noqa: C901 - an app of one piece
    """Return an app whose values all contain SECRET."""
    app = hg.App("sealed", codec=hg.Encryption(keys, encrypt_errors=encrypt_errors, accept_plain=accept_plain))

    @app.activity(retry=hg.Retry(attempts=2, first="1s"), heartbeat="1m")
    def charge(card: Card) -> Card:
        assert card.number == SECRET
        if card.cents == 13:
            raise CardDeclined(f"card {card.number}")
        if card.cents == 7 and hg.activity().attempt == 1:
            hg.heartbeat(card)
            raise ConnectionError(card.number)
        if card.cents == 7:
            assert hg.activity().heartbeat_details(Card) == card
        return card

    @app.activity
    async def charge_async(card: Card) -> Card:
        assert card.number == SECRET
        return card

    @app.activity(timeout="1d")
    def by_hand(card: Card) -> Card:
        answer: Card = hg.complete_later()
        return answer

    @app.workflow
    async def child(card: Card) -> Card:
        if card.cents == 13:
            raise CardDeclined(card.number)
        return await charge_async(card)

    @app.workflow
    async def order(card: Card, run: int = 1) -> Card:
        assert hg.info().memo == {"card": SECRET}
        hg.on_query(shown, lambda given: given)
        hg.on_update(added, lambda given: given)
        assert await charge(card) == card
        assert await charge_async(card) == card
        assert await child(card) == card
        assert hg.side_effect(lambda: card, Card) == card
        await hg.sleep(1)
        assert await hg.wait_signal(paid) == card
        if run == 1:
            hg.continue_as_new(card, 2)
        return card

    @app.workflow
    async def fails(card: Card) -> str:
        try:
            await (charge if card.cents == 13 else child)(card)
        except CardDeclined as declined:
            return str(declined)
        except hg.ChildFailure as failure:
            return failure.message
        raise CardDeclined(card.number)

    @app.workflow
    async def waits_for_a_person(card: Card) -> Card:
        return await by_hand(card)

    @app.workflow
    async def sends(to: str, card: Card) -> None:
        await hg.signal(to, paid, card)

    return app


def files(env: hg.testing.Environment) -> bytes:
    """Return the content of every file of the store, except for the keys of the server."""
    found = [each for each in env.opened.settings.home.rglob("*") if each.is_file() and each.name != "keys.json"]
    return b"".join(each.read_bytes() for each in found)


def run_order(env: hg.testing.Environment, card: Card, id: str = "o-1") -> hg.Handle[Card]:
    order = env.app.workflows["order"]
    handle: hg.Handle[Card] = env.start(order, card, id=id, memo={"card": card.number}, tags={"k": "v"})
    for _ in range(2):
        env.advance("5s")
        handle.signal(paid, card)
    return handle


def test_execution__every_way_of_values__stores_ciphertext_only(open_env: OpenEnvironment, keys: Keys) -> None:
    env = open_env(build(keys))
    card = Card(SECRET, 7)
    handle: hg.Handle[Card] = env.start(env.app.workflows["order"], card, id="o-1", memo={"card": SECRET})
    env.advance("5s")
    assert handle.query(shown, card) == card
    assert handle.update(added, card) == card
    handle.signal(paid, card)
    assert SECRET.encode() not in files(env)
    env.advance("5s")
    env.start(env.app.workflows["sends"], "o-1", card)

    assert env.result(handle) == card
    env.advance("30d")  # The history moves to the archive.
    assert handle.describe().archive is not None
    assert handle.result() == card
    assert SECRET.encode() not in files(env)
    assert b"headgate.encrypted" in files(env)
    assert SECRET not in "".join(map(dump_turn, turns(env, handle)))


def test_errors__of_activities_children_and_workflows__are_ciphertext_with_their_class(
    open_env: OpenEnvironment, keys: Keys
) -> None:
    env = open_env(build(keys))
    fails = env.app.workflows["fails"]
    caught = env.start(fails, Card(SECRET, 13))
    assert env.result(caught) == f"card {SECRET}"
    failed = env.start(fails, Card(SECRET, 1), id="failed")
    with pytest.raises(hg.ExecutionFailure, match=SECRET):
        env.result(failed)

    stored = json.loads(failed.describe().error or "")
    assert (stored["type"], stored["message"]) == ("CardDeclined", "encrypted with key old")
    assert SECRET.encode() not in files(env)


def test_errors__of_a_run_that_is_retried__are_not_in_the_log(open_env: OpenEnvironment, keys: Keys) -> None:
    app = build(keys)

    @app.workflow(retry=hg.Retry(attempts=2, first="1s"))
    async def stubborn(card: Card) -> str:
        if hg.info().attempt == 1:
            raise CardDeclined(f"card {card.number}")
        return "paid"

    env = open_env(app)
    handle = env.start(stubborn, Card(SECRET))

    assert env.result(handle) == "paid"
    assert notes(env, handle)[0].startswith("attempt 1 failed: CardDeclined: encrypted with key old; the next one")
    assert SECRET.encode() not in files(env)


def test_errors__encrypt_errors_false__stay_readable(open_env: OpenEnvironment, keys: Keys) -> None:
    env = open_env(build(keys, encrypt_errors=False))
    failed = env.start(env.app.workflows["fails"], Card(SECRET, 1))
    env.run()
    assert SECRET in (failed.describe().error or "")


def test_activity__completed_from_outside__stores_ciphertext(open_env: OpenEnvironment, keys: Keys) -> None:
    env = open_env(build(keys))
    by_hand = env.app.activities["by_hand"]
    env.stand_in(by_hand).waits()
    handle: hg.Handle[Card] = env.start(env.app.workflows["waits_for_a_person"], Card(SECRET))
    client = env.service.client
    client.beat_activity(env.tokens[0], Raw(f'{{"at": "{SECRET}"}}'.encode()))
    client.complete_activity(env.tokens[0], Raw(f'{{"number": "{SECRET}", "cents": 3}}'.encode()))

    assert env.result(handle) == Card(SECRET, 3)
    assert SECRET.encode() not in files(env)


def test_start__the_same_input_again__starts_nothing_also_after_a_rotation(
    open_env: OpenEnvironment, keys: Keys
) -> None:
    env = open_env(build(keys))
    child = env.app.workflows["child"]
    assert child.start(Card(SECRET), id="c").was_started is True
    assert child.start(Card(SECRET), id="c").was_started is False
    keys.held["new"], keys.active = NEW, "new"
    assert child.start(Card(SECRET), id="c").was_started is False
    with pytest.raises(AlreadyStartedError):
        child.start(Card(SECRET, 99), id="c")


def test_rotation__new_key_encrypts_and_old_key_decrypts(open_env: OpenEnvironment, keys: Keys) -> None:
    env = open_env(build(keys))
    card = Card(SECRET, 5)
    handle: hg.Handle[Card] = env.start(env.app.workflows["order"], card, id="o-1", memo={"card": SECRET})
    keys.held["new"], keys.active = NEW, "new"
    env.advance("5s")
    handle.signal(paid, card)
    env.advance("5s")
    handle.signal(paid, card)

    assert env.result(handle) == card
    found = re.findall(r'"key":"(old|new)"', "".join(map(dump_turn, turns(env, handle))))
    assert set(found) == {"old", "new"}
    result = sealed_of((handle.describe().result or "").encode())
    assert result is not None
    assert result.key == "new"


def test_key__missing__execution_is_stuck_with_its_id_and_continues_with_it(
    open_env: OpenEnvironment, keys: Keys
) -> None:
    env = open_env(build(keys))
    card = Card(SECRET, 5)
    handle: hg.Handle[Card] = env.start(env.app.workflows["order"], card, id="o-1", memo={"card": SECRET})
    env.advance("5s")
    env.worker.engine.drop()
    env.app.codec._ciphers.clear()  # type: ignore[union-attr]  # another process, without the key
    keys.held, keys.active = {"new": NEW}, "new"
    handle.signal(paid, card)
    env.advance("5m")

    assert handle.status() is hg.Status.STUCK
    assert "encrypted with key old, which this process does not have" in (handle.describe().failure or "")
    keys.held["old"] = OLD
    env.service.client.redrive("o-1")
    env.advance("5s")
    handle.signal(paid, card)
    assert env.result(handle) == card


def test_activity__worker_without_the_key__leaves_it_in_the_queue_without_an_attempt(
    open_env: OpenEnvironment, keys: Keys
) -> None:
    env = open_env(build(keys))
    can_open = env.worker._sealing.can_open
    env.worker._sealing.can_open = lambda _: False  # type: ignore[assignment, method-assign]
    handle = env.start(env.app.workflows["fails"], Card(SECRET, 13))
    env.advance("1m")
    assert handle.status() is hg.Status.RUNNING
    env.worker._sealing.can_open = can_open  # type: ignore[method-assign]
    env.advance("1m")
    assert env.result(handle) == f"card {SECRET}"


def test_app__without_codec__refuses_encrypted_values_instead_of_passing_them_on(
    open_env: OpenEnvironment, keys: Keys
) -> None:
    env = open_env(build(keys))
    handle = run_order(env, Card(SECRET, 5))
    assert env.result(handle).number == SECRET
    for workflow in env.app.workflows.values():
        workflow.codec = None
    with pytest.raises(SealedPayloadError, match="its result is encrypted with key old, and no codec is loaded here"):
        handle.result()
    with pytest.raises(SealedPayloadError, match="execution o-1: its input is encrypted with key old"):
        hg.testing.replay(env.app.workflows["order"], "o-1", turns(env, handle))


def test_replay__of_a_recorded_history__compares_plain_values(open_env: OpenEnvironment, keys: Keys) -> None:
    env = open_env(build(keys))
    handle = run_order(env, Card(SECRET, 5))
    env.result(handle)
    keys.held["new"], keys.active = NEW, "new"

    hg.testing.replay(env.app.workflows["order"], "o-1", turns(env, handle))


def test_value__moved_to_another_execution_or_altered__is_refused(open_env: OpenEnvironment, keys: Keys) -> None:
    env = open_env(build(keys))
    child = env.app.workflows["child"]
    one, other = [env.start(child, Card(SECRET, cents), id=f"c-{cents}") for cents in (1, 2)]
    env.run()
    rows = [each.describe() for each in (one, other)]
    assert rows[0].result != rows[1].result
    moved = replace(rows[0], result=rows[1].result, version=rows[0].version + 1)
    env.service.store.transact([moved.replacing(rows[0].version)])

    with pytest.raises(SealedPayloadError, match="altered, or it belongs to another execution or place"):
        one.result()


def test_value__of_an_activity_moved_to_another_one_of_the_execution__is_refused(
    open_env: OpenEnvironment, keys: Keys
) -> None:
    env = open_env(build(keys))
    handle = run_order(env, Card(SECRET, 5))
    env.result(handle)
    recorded = turns(env, handle)
    started = [each for turn in recorded for each in turn.commands if isinstance(each, StartActivity)]
    assert bytes(started[0].input) != bytes(started[1].input)
    place = next(number for number, turn in enumerate(recorded) if started[0] in turn.commands)
    forged = replace(started[0], input=started[1].input)
    recorded[place] = replace(
        recorded[place], commands=tuple(forged if each == started[0] else each for each in recorded[place].commands)
    )

    with pytest.raises(SealedPayloadError, match="its activity 1 input: encrypted with key old, and it was altered"):
        hg.testing.replay(env.app.workflows["order"], "o-1", recorded)


def test_value__stored_before_the_codec__is_accepted_or_refused_by_choice(
    open_env: OpenEnvironment, keys: Keys
) -> None:
    strict = build(keys, accept_plain=False)
    env = open_env(strict)
    child = env.app.workflows["child"]
    codec, child.codec = child.codec, None
    plain = child.start(Card(SECRET), id="plain")
    child.codec = codec
    env.advance("5m")
    assert plain.status() is hg.Status.STUCK
    assert "its input is not encrypted" in (plain.describe().failure or "")
    codec.accepts_plain = True  # type: ignore[union-attr, misc]
    env.service.client.redrive("plain")
    assert env.result(plain) == Card(SECRET)


@pytest.mark.parametrize("to", [1, 3, "charge"])
def test_reset__to_a_turn_or_an_activity__keeps_what_was_encrypted(
    open_env: OpenEnvironment, keys: Keys, to: int | str
) -> None:
    env = open_env(build(keys))
    card = Card(SECRET, 5)
    handle: hg.Handle[Card] = env.start(env.app.workflows["order"], card, 2, id="o-1", memo={"card": SECRET})
    env.advance("5s")
    handle.signal(paid, card)
    assert env.result(handle) == card
    keys.held["new"], keys.active = NEW, "new"
    env.service.client.reset("o-1", to)
    env.advance("10s")

    assert env.result(handle) == card
    assert SECRET.encode() not in files(env)
    hg.testing.replay(env.app.workflows["order"], "o-1", turns(env, handle))


def test_retry_from_failure__after_the_fix__goes_on(open_env: OpenEnvironment, keys: Keys) -> None:
    env = open_env(build(keys))
    handle = env.start(env.app.workflows["fails"], Card(SECRET, 1), id="f-1")
    env.run()
    assert handle.status() is hg.Status.FAILED
    env.service.client.retry_from_failure("f-1")
    env.run()
    assert handle.status() is hg.Status.FAILED
    assert SECRET.encode() not in files(env)


def test_schedule__of_a_workflow_with_a_codec__starts_executions_with_encrypted_input(
    open_env: OpenEnvironment, keys: Keys
) -> None:
    app = build(keys, accept_plain=False)
    child = app.workflows["child"]
    app.schedule("hourly", child, hg.Cron("every 1h"), Card(SECRET))
    env = open_env(app)
    env.advance("2h1m")
    found = env.service.client.list(workflow="child", status=hg.Status.SUCCEEDED).executions

    assert len(found) == 2
    (started, *_) = turns(env, env.service.client.handle(found[0].execution_id))
    assert SECRET not in dump_turn(started)


def test_map__in_a_workflow_that_accepts_encrypted_values_only__gets_its_results(
    open_env: OpenEnvironment, keys: Keys
) -> None:
    app = build(keys, accept_plain=False)

    @app.workflow
    async def doubled(numbers: list[int]) -> list[int]:
        mapped = await hg.map(map_handlers.double, numbers)
        return mapped.results or []

    env = open_env(app)
    assert env.result(env.start(doubled, [1, 2])) == [2, 4]


def test_search__by_tags_and_status__needs_no_key(open_env: OpenEnvironment, keys: Keys) -> None:
    env = open_env(build(keys))
    run_order(env, Card(SECRET, 5))
    found = env.service.client.list(workflow="order", tags={"k": "v"}).executions
    assert [row.execution_id for row in found] == ["o-1"]


def test_keyring__home_without_keys__is_refused_and_creates_none(tmp_path: Path) -> None:
    codec = hg.Encryption(hg.KeyringKeys(tmp_path / "elsewhere"))
    with pytest.raises(SettingsError, match=r"elsewhere/keys.json: there is no such file; give the home of the server"):
        codec.seal(b"1", "place")
    assert not (tmp_path / "elsewhere").exists()


def test_query__routed_to_a_worker__input_of_an_encrypted_workflow_is_never_stored(
    open_env: OpenEnvironment, keys: hg.KeyProvider, tmp_path: Path
) -> None:
    env = open_env(build(keys))
    run_order(env, Card(SECRET, 5))
    keyring, blobs = Keyring.open(tmp_path / "keys.json", env.clock), FolderBlobs(tmp_path / "blobs")
    outside = Service(hg.App("outside"), env.service.store, env.clock, keyring, blobs).client
    with pytest.raises(UnknownWorkflowError, match="payloads of workflow 'order' are encrypted"):
        outside.query("o-1", "state", Raw(b'"a secret question"'), timeout_seconds=0.1)


def test_keyring__as_provider__rotates_with_the_file(tmp_path: Path) -> None:
    clock = VirtualClock()
    path = tmp_path / "keys.json"
    keyring = Keyring.open(path, clock)
    codec = hg.Encryption(hg.KeyringKeys(tmp_path))
    before = codec.seal(b"1", "place")
    keyring.rotated(Purpose.FIELD, clock).save(path)
    after = codec.seal(b"1", "place")

    assert before.key != after.key
    assert [codec.open(each, "place") for each in (before, after)] == [b"1", b"1"]


@pytest.mark.parametrize(
    ("keys", "current", "message"),
    [
        ({}, None, "give at least one key"),
        ({"a": b"short"}, None, "give 32 bytes"),
        ({"a b": OLD}, None, "an id has 1 to 100 letters"),
        ({"a": OLD}, "b", "is none of the keys"),
        (Keys(), "old", "a provider names its own"),
    ],
)
def test_encryption__bad_keys__are_refused(keys: dict[str, bytes] | Keys, current: str | None, message: str) -> None:
    with pytest.raises(DefinitionError, match=message):
        hg.Encryption(keys, current=current)
