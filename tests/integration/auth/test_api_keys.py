"""API keys: only digests are kept, and what was taken away is gone within seconds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from headgate.auth.api_keys import CACHE_KEYS_MAX, CACHE_SECONDS, ApiKeys, IssuedKey
from headgate.auth.principals import LOCAL, CredentialKind, Principal
from headgate.auth.roles import Role
from headgate.clock import VirtualClock
from headgate.errors import (
    CorruptionError,
    ForbiddenError,
    InvalidPayloadError,
    NotFoundError,
    OutcomeUnknownError,
    StoreBusyError,
    UnauthenticatedError,
    VersionConflictError,
)
from headgate.health.audit.log import Audit
from headgate.ids import IdMaker
from headgate.store.catalogue.tables import API_KEYS, AUDIT
from headgate.store.keyring import Keyring
from headgate.store.model.requests import Query, Write
from headgate.store.model.schema import Key
from headgate.store.port import Store
from headgate.store.sqlite.store import Synchronous
from tests.stores import open_sqlite


class WatchedStore:
    """A store that counts reads and updates, and fails when asked to."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.gets = 0
        self.updates = 0
        self.failure: Exception | None = None
        self.before_transact: Callable[[], object] = lambda: None
        self.after_get: Callable[[], object] = lambda: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def get(self, *args: Any, **options: Any) -> Any:
        self.gets += 1
        self._fail()
        found = self._store.get(*args, **options)
        self.after_get()
        return found

    def update(self, *args: Any, **options: Any) -> Any:
        self.updates += 1
        self._fail()
        return self._store.update(*args, **options)

    def transact(self, writes: Sequence[Write], *, token: str | None = None) -> None:
        self.before_transact()
        self._store.transact(writes, token=token)

    def _fail(self) -> None:
        if self.failure is not None:
            raise self.failure


class Rig:
    def __init__(self, folder: Path) -> None:
        self.clock = VirtualClock()
        self.opened = open_sqlite(folder, clock=self.clock, synchronous=Synchronous.NORMAL)
        self.store = WatchedStore(self.opened)
        self.audit = Audit(self.store, self.clock, IdMaker(self.clock), Keyring.generate(self.clock))
        self.keys = self.process()

    def process(self) -> ApiKeys:
        """The keys as another process has them."""
        return ApiKeys(self.store, self.clock, IdMaker(self.clock), self.audit)

    def issue(self, **options: Any) -> IssuedKey:
        return self.keys.issue("svc", [Role.VIEWER], **{"issuer": LOCAL, **options})

    def row(self, key_id: str) -> dict[str, Any]:
        found = self.opened.get(API_KEYS, Key(key_id), consistent=True)
        assert found is not None
        return found


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    with closing(made.opened):
        yield made


def refused(keys: ApiKeys, issued: IssuedKey | str) -> str:
    text = issued if isinstance(issued, str) else issued.key.reveal()
    with pytest.raises(UnauthenticatedError) as caught:
        keys.principal(text)
    secret = text.rpartition("_")[2]
    assert not secret or secret not in caught.value.message
    return caught.value.message


def test_issue__given_roles_and_scopes__makes_a_key_that_is_recognised(rig: Rig) -> None:
    issued = rig.keys.issue("svc", [Role.VIEWER, Role.ENFORCER], ["urn:dp:a:*"], issuer=LOCAL, note="ci")

    expected = Principal(
        "svc", frozenset({Role.VIEWER, Role.ENFORCER}), ("urn:dp:a:*",), CredentialKind.API_KEY, issued.about.key_id
    )
    assert issued.key.reveal().startswith(f"hg_{issued.about.key_id}_")
    assert rig.keys.principal(issued.key.reveal()) == expected
    assert rig.process().principal(issued.key.reveal()) == expected


def test_issue__given_key__keeps_the_secret_nowhere(rig: Rig, tmp_path: Path) -> None:
    issued = rig.issue(reason="for the nightly job")
    rig.keys.rotate(issued.about.key_id, issuer=LOCAL, overlap_seconds=60)
    secret = issued.key.reveal().rpartition("_")[2]

    assert secret not in str(rig.row(issued.about.key_id))
    chains = [rig.opened.query(Query(table=AUDIT, partition=f"AUDIT#{chain}")).items for chain in range(16)]
    assert secret not in str(chains)
    # Nor does the trail hold digests, against which a stolen key could be compared.
    assert rig.row(issued.about.key_id)["digest"] not in str(chains)
    assert secret not in repr(issued)
    assert all(secret.encode() not in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_changes__are_audited_with_who_and_why(rig: Rig) -> None:
    admin = Principal("ann", frozenset({Role.ADMIN}), ("*",))
    key_id = rig.issue(issuer=admin, reason="new job").about.key_id
    rig.keys.rotate(key_id, issuer=admin, reason="yearly")
    rig.keys.revoke(key_id, issuer=admin, reason="leaked")

    trail = [
        (entry.action, entry.actor, entry.reason, entry.before_version, entry.after_version)
        for entry in rig.audit.ls().entries
    ]
    assert sorted(trail) == [
        ("key.issue", "ann", "new job", None, 1),
        ("key.revoke", "ann", "leaked", 2, 3),
        ("key.rotate", "ann", "yearly", 1, 2),
    ]
    assert rig.audit.verify().problems == []


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text[:-1] + ("0" if text[-1] != "0" else "1"),
        lambda text: text[:-1],
        lambda text: text + "0",
        lambda text: text.upper(),
        lambda text: f" {text}",
        lambda text: f"{text}\n",
        lambda text: "hg_" + "0" * 26 + "_" + text.rpartition("_")[2],
        lambda text: text.replace("hg_", "hx_"),
        lambda _text: "hg__",
        lambda _text: "",
        lambda _text: "hg_" + "é" * 26 + "_" + "0" * 64,
    ],
)
def test_principal__given_key_that_is_not_quite_one__is_refused(rig: Rig, spoil: Callable[[str], str]) -> None:
    issued = rig.issue()

    refused(rig.keys, spoil(issued.key.reveal()))


def test_principal__given_secret_of_another_key__is_refused_like_an_unknown_key(rig: Rig) -> None:
    first, second = rig.issue(), rig.issue()
    mixed = f"hg_{first.about.key_id}_{second.key.reveal().rpartition('_')[2]}"

    assert refused(rig.keys, mixed) == refused(rig.keys, "hg_" + "0" * 26 + "_" + "0" * 64)


def test_principal__given_expiry__is_accepted_until_then_and_listed_for_a_while(rig: Rig) -> None:
    issued = rig.issue(expires_seconds=60)
    rig.clock.advance(59.9)
    rig.keys.principal(issued.key.reveal())
    rig.clock.advance(0.1)

    assert "expired" in refused(rig.keys, issued)
    rig.clock.advance(29 * 86_400)
    assert "expired" in refused(rig.keys, issued)
    assert rig.keys.show(issued.about.key_id).expires_at is not None
    rig.clock.advance(2 * 86_400)
    assert "not valid" in refused(rig.keys, issued)


def test_revoke__given_key__is_known_here_at_once_and_elsewhere_within_seconds(rig: Rig) -> None:
    other = rig.process()
    issued = rig.issue()
    other.principal(issued.key.reveal())

    rig.keys.revoke(issued.about.key_id, issuer=LOCAL)

    assert "revoked" in refused(rig.keys, issued)
    other.principal(issued.key.reveal())
    rig.clock.advance(CACHE_SECONDS)
    assert "revoked" in refused(other, issued)
    # Only to the owner of the secret.
    assert "revoked" not in refused(other, issued.key.reveal()[:-4] + "0000")


@pytest.mark.parametrize("ticks", [0, 1, 6, 11, 16])
def test_revoke__given_just_the_seconds_of_the_cache__is_known_elsewhere(rig: Rig, ticks: int) -> None:
    """Sums of floats: 5.0125 + 5.0 - 5.0125 is less than 5.0."""
    other = rig.process()
    issued = rig.issue()
    for _ in range(ticks):
        rig.clock.advance(0.0125)
    rig.clock.advance(CACHE_SECONDS)
    other.principal(issued.key.reveal())

    rig.keys.revoke(issued.about.key_id, issuer=LOCAL)
    rig.clock.advance(CACHE_SECONDS)

    assert other.remembered(issued.key.reveal()) is None
    assert "revoked" in refused(other, issued)


def test_revoke__given_twice__changes_nothing_more(rig: Rig) -> None:
    key_id = rig.issue().about.key_id
    first = rig.keys.revoke(key_id, issuer=LOCAL)
    rig.clock.advance(10)

    assert rig.keys.revoke(key_id, issuer=LOCAL) == first
    with pytest.raises(VersionConflictError, match="revoked"):
        rig.keys.rotate(key_id, issuer=LOCAL)


def test_revoke__given_read_that_began_before__is_not_undone(rig: Rig) -> None:
    """A thread has read the row, then another revokes the key, then the first one keeps what it has read."""
    issued = rig.issue()
    rig.clock.advance(CACHE_SECONDS)

    def revoke() -> None:
        rig.store.after_get = lambda: None
        rig.keys.revoke(issued.about.key_id, issuer=LOCAL)

    rig.store.after_get = revoke
    # This one request was under way before it was revoked.
    rig.keys.principal(issued.key.reveal())

    assert "revoked" in refused(rig.keys, issued)


def test_rotate__given_overlap__accepts_both_secrets_for_that_long(rig: Rig) -> None:
    old = rig.issue()
    new = rig.keys.rotate(old.about.key_id, issuer=LOCAL, overlap_seconds=60)

    assert new.about.key_id == old.about.key_id
    assert rig.keys.principal(old.key.reveal()) == rig.keys.principal(new.key.reveal())
    rig.clock.advance(60)
    refused(rig.keys, old)
    rig.keys.principal(new.key.reveal())


def test_rotate__given_no_overlap__refuses_the_old_secret_at_once(rig: Rig) -> None:
    old = rig.issue()
    new = rig.keys.rotate(old.about.key_id, issuer=LOCAL)

    refused(rig.keys, old)
    rig.keys.principal(new.key.reveal())


def test_revoke__given_rotation_with_overlap__ends_both_secrets(rig: Rig) -> None:
    old = rig.issue()
    new = rig.keys.rotate(old.about.key_id, issuer=LOCAL, overlap_seconds=60)
    rig.keys.revoke(old.about.key_id, issuer=LOCAL)

    refused(rig.keys, old)
    refused(rig.keys, new)


def test_rotate__given_someone_faster__reports_and_gives_no_secret(rig: Rig) -> None:
    key_id = rig.issue().about.key_id

    def rival() -> None:
        rig.store.before_transact = lambda: None
        rig.process().rotate(key_id, issuer=LOCAL)

    rig.store.before_transact = rival
    with pytest.raises(VersionConflictError, match="changed concurrently"):
        rig.keys.rotate(key_id, issuer=LOCAL)


def test_rotate__given_outcome_that_is_unknown__says_so(rig: Rig) -> None:
    key_id = rig.issue().about.key_id

    def fail() -> None:
        raise OutcomeUnknownError("the connection broke")

    rig.store.before_transact = fail
    with pytest.raises(OutcomeUnknownError):
        rig.keys.rotate(key_id, issuer=LOCAL)


@pytest.mark.parametrize(
    ("holder", "roles", "scopes"),
    [
        (Principal("op", frozenset({Role.OPERATOR}), ("*",)), [Role.ADMIN], ["*"]),
        (Principal("adm", frozenset({Role.ADMIN}), ("urn:dp:a:*",)), [Role.VIEWER], ["*"]),
    ],
)
def test_issue_rotate_revoke__given_more_rights_than_the_issuers__are_refused(
    rig: Rig, holder: Principal, roles: list[Role], scopes: list[str]
) -> None:
    issued = rig.keys.issue("svc", roles, scopes, issuer=LOCAL)

    with pytest.raises(ForbiddenError):
        rig.keys.issue("svc", roles, scopes, issuer=holder)
    with pytest.raises(ForbiddenError):
        rig.keys.rotate(issued.about.key_id, issuer=holder)
    with pytest.raises(ForbiddenError):
        rig.keys.revoke(issued.about.key_id, issuer=holder)
    rig.keys.principal(issued.key.reveal())


@pytest.mark.parametrize(
    "wrong",
    [
        {"principal": ""}, {"principal": "x" * 201}, {"principal": "a\nb"}, {"principal": "local"}, {"roles": []},
        {"scopes": ["[a]"]},
        {"expires_seconds": 0}, {"expires_seconds": 10**10}, {"note": "x" * 1001},
    ],
)  # fmt: skip
def test_issue__given_what_a_key_cannot_have__is_refused(rig: Rig, wrong: dict[str, Any]) -> None:
    given: dict[str, Any] = {"principal": "svc", "roles": [Role.VIEWER], "scopes": ["*"], **wrong}

    with pytest.raises(InvalidPayloadError):
        rig.keys.issue(issuer=LOCAL, **given)
    assert rig.keys.ls().keys == []


def test_show_rotate_revoke__given_no_such_key__say_so(rig: Rig) -> None:
    for act in (rig.keys.show, lambda key: rig.keys.revoke(key, issuer=LOCAL)):
        with pytest.raises(NotFoundError):
            act("nothing")
    with pytest.raises(InvalidPayloadError):
        rig.keys.rotate("nothing", issuer=LOCAL, overlap_seconds=-1)


def test_ls__given_keys__lists_all_or_those_of_one_principal_the_newest_first(rig: Rig) -> None:
    made = []
    for name in ("a", "b", "a"):
        rig.clock.advance(1)
        made.append(rig.keys.issue(name, [Role.VIEWER], issuer=LOCAL).about)

    assert rig.keys.ls().keys == made[::-1]
    assert rig.keys.ls("a").keys == [made[2], made[0]]
    page = rig.keys.ls(limit=2)
    assert rig.keys.ls(limit=2, cursor=page.cursor).keys == made[:1]


def test_principal__given_many_uses__reads_and_notes_rarely(rig: Rig) -> None:
    issued = rig.issue()
    rig.store.gets = 0
    for _ in range(50):
        rig.keys.principal(issued.key.reveal())
    assert (rig.store.gets, rig.store.updates) == (0, 1)
    assert rig.keys.show(issued.about.key_id).last_used_at == "2025-06-15T15:06:40.000Z"

    rig.clock.advance(3599)
    rig.keys.principal(issued.key.reveal())
    assert rig.store.updates == 1
    rig.clock.advance(2)
    rig.keys.principal(issued.key.reveal())
    rig.keys.principal(issued.key.reveal())
    assert rig.store.updates == 2


def test_principal__given_wrong_secret__is_not_noted_as_use(rig: Rig) -> None:
    issued = rig.issue()

    refused(rig.keys, issued.key.reveal()[:-4] + "0000")

    assert rig.keys.show(issued.about.key_id).last_used_at is None


def test_principal__given_guesses__asks_the_store_once_for_each_key_and_keeps_few(rig: Rig) -> None:
    for _ in range(20):
        refused(rig.keys, "hg_" + "0" * 26 + "_" + "0" * 64)
    assert rig.store.gets == 1

    for number in range(CACHE_KEYS_MAX + 50):
        refused(rig.keys, f"hg_{number:026d}_{'0' * 64}")
    assert len(rig.keys._known) == CACHE_KEYS_MAX


def test_principal__given_store_that_fails__goes_on_for_seconds_and_then_not(rig: Rig) -> None:
    issued = rig.issue()
    rig.store.failure = StoreBusyError("busy")

    # Noting its use fails as well, which is worth less than the request.
    rig.keys.principal(issued.key.reveal())
    rig.clock.advance(CACHE_SECONDS)
    with pytest.raises(StoreBusyError):
        rig.keys.principal(issued.key.reveal())


def test_remembered__given_key__answers_only_without_the_store(rig: Rig) -> None:
    issued, other = rig.issue(), rig.process()
    rig.store.failure = AssertionError("the store was asked")

    assert other.remembered(issued.key.reveal()) is None
    rig.store.failure = None
    found = other.principal(issued.key.reveal())
    rig.store.failure = AssertionError("the store was asked")
    assert other.remembered(issued.key.reveal()) == found
    with pytest.raises(UnauthenticatedError):
        other.remembered(issued.key.reveal()[:-4] + "0000")
    rig.clock.advance(CACHE_SECONDS)
    assert other.remembered(issued.key.reveal()) is None


def test_principal__given_row_that_is_damaged__is_not_trusted(rig: Rig) -> None:
    issued = rig.issue()
    rig.opened.put(API_KEYS, {**rig.row(issued.about.key_id), "roles": ["root"]})

    with pytest.raises(CorruptionError):
        rig.process().principal(issued.key.reveal())


def test_rotate__given_threads__one_wins_and_its_secret_is_the_one(rig: Rig) -> None:
    key_id = rig.issue().about.key_id
    won: list[IssuedKey] = []
    lost: list[Exception] = []

    def rotate() -> None:
        try:
            won.append(rig.keys.rotate(key_id, issuer=LOCAL))
        except VersionConflictError as exc:
            lost.append(exc)

    threads = [threading.Thread(target=rotate) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(won) + len(lost) == 8
    accepted = []
    for issued in won:
        try:
            accepted.append(rig.process().principal(issued.key.reveal()))
        except UnauthenticatedError:
            continue
    assert len(accepted) == 1
    assert rig.keys.show(key_id).version == 1 + len(won)
