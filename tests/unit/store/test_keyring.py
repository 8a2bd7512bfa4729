"""The keyring signs, encrypts, rotates, and is readable by its owner alone."""

from __future__ import annotations

import base64
import json
import multiprocessing
import stat
import string
from pathlib import Path
from typing import Any

import pytest

from headgate.clock import SystemClock, VirtualClock
from headgate.errors import CorruptionError, ForeignFileError, SettingsError, SignatureError, StoreIOError
from headgate.store.keyring import RETIRED_KEPT_MAX, Keyring, Purpose

CLOCK = VirtualClock(2_208_988_800.0)
URL_SAFE = string.ascii_letters + string.digits + "-_"
CONTEXT = "observability-incident-index/INC#1/META/oncall_user"


@pytest.fixture
def keyring() -> Keyring:
    return Keyring.generate(CLOCK)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "home" / "keys.json"


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def _verifies(keyring: Keyring, purpose: Purpose, signed: str) -> bool:
    try:
        keyring.verify(purpose, signed)
    except SignatureError:
        return False
    return True


def _decrypts(keyring: Keyring, sealed: str) -> bool:
    try:
        keyring.decrypt(sealed, context=CONTEXT)
    except SignatureError:
        return False
    return True


# Signing


@pytest.mark.parametrize("purpose", Purpose)
@pytest.mark.parametrize("payload", [b"", b"x", b"{}", bytes(range(256)), b"." * 5000], ids=len)
def test_verify__what_was_signed__gives_the_payload(keyring: Keyring, purpose: Purpose, payload: bytes) -> None:
    assert keyring.verify(purpose, keyring.sign(purpose, payload)) == payload


def test_sign__any_payload__is_url_safe_text(keyring: Keyring) -> None:
    assert set(keyring.sign(Purpose.TOKEN, bytes(range(256)))) <= set(URL_SAFE + ".")


@pytest.mark.parametrize("signed_for", Purpose)
@pytest.mark.parametrize("verified_for", Purpose)
def test_verify__another_purpose__is_refused(keyring: Keyring, signed_for: Purpose, verified_for: Purpose) -> None:
    signed = keyring.sign(signed_for, b"payload")

    assert _verifies(keyring, verified_for, signed) is (signed_for is verified_for)


def test_verify__any_character_replaced__is_refused(keyring: Keyring) -> None:
    signed = keyring.sign(Purpose.TOKEN, b"payload of some length")

    accepted = [
        (place, character)
        for place, original in enumerate(signed)
        for character in set(URL_SAFE) - {original}
        if _verifies(keyring, Purpose.TOKEN, signed[:place] + character + signed[place + 1 :])
    ]

    assert accepted == []


@pytest.mark.parametrize(
    "alter", [lambda t: t[:-1], lambda t: t[1:], lambda t: t + "A", lambda t: t + "=", lambda t: f" {t}"]
)
def test_verify__cut_or_lengthened__is_refused(keyring: Keyring, alter: Any) -> None:
    assert not _verifies(keyring, Purpose.TOKEN, alter(keyring.sign(Purpose.TOKEN, b"payload")))


@pytest.mark.parametrize(
    "garbage", ["", ".", "..", "...", "a.b", "a.b.c", "a.b.c.d", "é.ü.ß", "\0.\0.\0", "x" * 10_000]
)
def test_verify__garbage__is_refused(keyring: Keyring, garbage: str) -> None:
    with pytest.raises(SignatureError) as caught:
        keyring.verify(Purpose.TOKEN, garbage)

    assert caught.type is SignatureError


def test_verify__signature_swapped_between_payloads__is_refused(keyring: Keyring) -> None:
    first, second = (keyring.sign(Purpose.TOKEN, payload).split(".") for payload in (b"one", b"two"))

    assert not _verifies(keyring, Purpose.TOKEN, ".".join((first[0], first[1], second[2])))


def test_verify__by_another_keyring__is_refused(keyring: Keyring) -> None:
    assert not _verifies(Keyring.generate(CLOCK), Purpose.TOKEN, keyring.sign(Purpose.TOKEN, b"payload"))


# Rotation


def test_rotated__the_old_key__still_verifies_and_the_new_one_signs(keyring: Keyring) -> None:
    old = keyring.sign(Purpose.TOKEN, b"old")

    rotated = keyring.rotated(Purpose.TOKEN, CLOCK)
    new = rotated.sign(Purpose.TOKEN, b"new")

    assert rotated.verify(Purpose.TOKEN, old) == b"old"
    assert rotated.verify(Purpose.TOKEN, new) == b"new"
    assert not _verifies(keyring, Purpose.TOKEN, new)


def test_rotated__one_purpose__leaves_the_others_alone(keyring: Keyring) -> None:
    rotated = keyring.rotated(Purpose.TOKEN, CLOCK)

    assert rotated.keys(Purpose.CURSOR) == keyring.keys(Purpose.CURSOR)
    assert rotated.keys(Purpose.FIELD) == keyring.keys(Purpose.FIELD)
    assert len(rotated.keys(Purpose.TOKEN)) == 2


def test_rotated__the_keyring_it_came_from__is_unchanged(keyring: Keyring) -> None:
    before = keyring.keys(Purpose.TOKEN)

    keyring.rotated(Purpose.TOKEN, CLOCK)

    assert keyring.keys(Purpose.TOKEN) == before


def test_rotated__retired_key__says_when_and_keeps_that_time(keyring: Keyring) -> None:
    clock = VirtualClock(2_208_988_800.0)
    once = keyring.rotated(Purpose.TOKEN, clock)
    clock.advance(3_600)

    twice = once.rotated(Purpose.TOKEN, clock)

    retired = [key.retired_at for key in twice.keys(Purpose.TOKEN)]
    assert retired == ["2040-01-01T00:00:00+00:00", "2040-01-01T01:00:00+00:00", None]


def test_rotated__more_often_than_keys_are_kept__drops_the_oldest(keyring: Keyring) -> None:
    signed = keyring.sign(Purpose.TOKEN, b"payload")

    for _ in range(RETIRED_KEPT_MAX):
        keyring = keyring.rotated(Purpose.TOKEN, CLOCK)
    assert _verifies(keyring, Purpose.TOKEN, signed)

    keyring = keyring.rotated(Purpose.TOKEN, CLOCK)
    assert not _verifies(keyring, Purpose.TOKEN, signed)
    assert len(keyring.keys(Purpose.TOKEN)) == RETIRED_KEPT_MAX + 1


def test_rotated__field_keys__are_kept_for_ever(keyring: Keyring) -> None:
    sealed = keyring.encrypt(b"secret", context=CONTEXT)

    for _ in range(RETIRED_KEPT_MAX * 3):
        keyring = keyring.rotated(Purpose.FIELD, CLOCK)

    assert keyring.decrypt(sealed, context=CONTEXT) == b"secret"


# Field encryption


@pytest.mark.parametrize("plain", [b"", b"x", bytes(range(256)), b"z" * 100_000], ids=len)
def test_decrypt__what_was_encrypted__gives_it_back(keyring: Keyring, plain: bytes) -> None:
    assert keyring.decrypt(keyring.encrypt(plain, context=CONTEXT), context=CONTEXT) == plain


def test_encrypt__the_same_twice__looks_different_and_shows_nothing(keyring: Keyring) -> None:
    first, second = (keyring.encrypt(b"john.doe@example.com", context=CONTEXT) for _ in range(2))

    assert first != second
    assert "john" not in first
    assert base64.urlsafe_b64encode(b"john.doe").decode()[:8] not in first


def test_decrypt__another_context__is_refused(keyring: Keyring) -> None:
    sealed = keyring.encrypt(b"secret", context=CONTEXT)

    with pytest.raises(SignatureError):
        keyring.decrypt(sealed, context=CONTEXT.replace("INC#1", "INC#2"))


def test_decrypt__any_character_replaced__is_refused(keyring: Keyring) -> None:
    sealed = keyring.encrypt(b"a secret of 24 bytes ...", context=CONTEXT)

    accepted = [
        (place, character)
        for place, original in enumerate(sealed)
        for character in set(URL_SAFE) - {original}
        if _decrypts(keyring, sealed[:place] + character + sealed[place + 1 :])
    ]

    assert accepted == []


@pytest.mark.parametrize("garbage", ["", ".", "abc", "abc.def", "é.é", "\0"])
def test_decrypt__garbage__is_refused(keyring: Keyring, garbage: str) -> None:
    with pytest.raises(SignatureError):
        keyring.decrypt(garbage, context=CONTEXT)


def test_decrypt__cut_short_with_a_known_key__is_refused(keyring: Keyring) -> None:
    key_id = keyring.keys(Purpose.FIELD)[-1].id

    for body in ("", "AAAA", "A" * 16, "A" * 17):
        with pytest.raises(SignatureError):
            keyring.decrypt(f"{key_id}.{body}", context=CONTEXT)


def test_decrypt__by_another_keyring__is_refused(keyring: Keyring) -> None:
    with pytest.raises(SignatureError):
        Keyring.generate(CLOCK).decrypt(keyring.encrypt(b"secret", context=CONTEXT), context=CONTEXT)


# The file


def test_open__no_file__creates_one_for_the_owner_alone(path: Path) -> None:
    Keyring.open(path, CLOCK)

    assert _mode(path) == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["keys.json"]


def test_open__again__has_the_same_keys(path: Path) -> None:
    signed = Keyring.open(path, CLOCK).sign(Purpose.TOKEN, b"payload")

    assert Keyring.open(path, CLOCK).verify(Purpose.TOKEN, signed) == b"payload"


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660, 0o610])
def test_open__others_may_read_it__is_refused(path: Path, mode: int) -> None:
    Keyring.open(path, CLOCK)
    path.chmod(mode)

    with pytest.raises(SettingsError, match="chmod 600") as caught:
        Keyring.open(path, CLOCK)

    assert caught.type is SettingsError


def test_open__owner_may_only_read_it__is_allowed(path: Path) -> None:
    Keyring.open(path, CLOCK)
    path.chmod(0o400)

    assert Keyring.open(path, CLOCK).keys(Purpose.TOKEN)


@pytest.mark.parametrize("content", ["", "{", '{"format": 1, "keys', "\x00\x01"])
def test_open__damaged_file__says_so_and_leaves_it(path: Path, content: str) -> None:
    Keyring.open(path, CLOCK)
    path.write_text(content)

    with pytest.raises(CorruptionError) as caught:
        Keyring.open(path, CLOCK)

    assert caught.type is CorruptionError
    assert path.read_text() == content


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        "{}",
        '"text"',
        '{"format": 1, "keys": {}}',
        '{"format": 1, "keys": {"cursor": [], "token": [], "field": []}}',
        '{"format": 1, "keys": {"other": []}}',
        '{"name": "package", "version": "1.0"}',
    ],
)
def test_open__file_of_something_else__says_so_and_leaves_it(path: Path, content: str) -> None:
    Keyring.open(path, CLOCK)
    path.write_text(content)

    with pytest.raises(ForeignFileError) as caught:
        Keyring.open(path, CLOCK)

    assert caught.type is ForeignFileError
    assert path.read_text() == content


def test_open__newer_format__is_refused(path: Path) -> None:
    Keyring.open(path, CLOCK)
    file = json.loads(path.read_text())
    path.write_text(json.dumps({**file, "format": 2}))

    with pytest.raises(ForeignFileError):
        Keyring.open(path, CLOCK)


@pytest.mark.parametrize("secret", ["", "not base64", "QUJD", "A"])
def test_open__secret_that_is_none__is_refused(path: Path, secret: str) -> None:
    Keyring.open(path, CLOCK)
    file = json.loads(path.read_text())
    file["keys"]["field"][0]["secret"] = secret
    path.write_text(json.dumps(file))

    with pytest.raises((CorruptionError, ForeignFileError)):
        Keyring.open(path, CLOCK)


def test_open__folder_that_cannot_be_made__says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")

    with pytest.raises(StoreIOError) as caught:
        Keyring.open(tmp_path / "file" / "keys.json", CLOCK)

    assert caught.type is StoreIOError


def test_save__rotated_keyring__replaces_the_file_for_the_owner_alone(path: Path) -> None:
    keyring = Keyring.open(path, CLOCK).rotated(Purpose.TOKEN, CLOCK)

    keyring.save(path)

    assert _mode(path) == 0o600
    assert Keyring.open(path, CLOCK).keys(Purpose.TOKEN) == keyring.keys(Purpose.TOKEN)
    assert [entry.name for entry in path.parent.iterdir()] == ["keys.json"]


def test_save__over_the_remains_of_a_crash__is_still_for_the_owner_alone(path: Path) -> None:
    keyring = Keyring.open(path, CLOCK)
    remains = path.with_suffix(".new")
    remains.write_text("half a file")
    remains.chmod(0o644)

    keyring.save(path)

    assert _mode(path) == 0o600


def test_repr__of_a_keyring_and_its_keys__shows_no_secret(path: Path) -> None:
    keyring = Keyring.open(path, CLOCK)
    key = keyring.keys(Purpose.TOKEN)[0]

    assert key.secret in path.read_text()
    assert key.secret not in repr(key)
    assert key.secret not in repr(keyring)
    assert key.secret not in str([key, keyring])


def _open_and_sign(path: str, barrier: Any, results: Any) -> None:
    barrier.wait()
    keyring = Keyring.open(Path(path), SystemClock())
    results.put(keyring.sign(Purpose.TOKEN, b"payload"))


def test_open__by_many_processes_at_once__gives_all_of_them_one_keyring(path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    count = 4
    barrier, results = context.Barrier(count), context.Queue()
    processes = [context.Process(target=_open_and_sign, args=(str(path), barrier, results)) for _ in range(count)]
    for process in processes:
        process.start()
    signed = [results.get(timeout=60) for _ in processes]
    for process in processes:
        process.join(60)

    keyring = Keyring.open(path, CLOCK)

    assert [keyring.verify(Purpose.TOKEN, token) for token in signed] == [b"payload"] * count
    assert [entry.name for entry in path.parent.iterdir()] == ["keys.json"]


def test_verify_and_decrypt__rotated_by_another_process__the_new_keys_are_found(path: Path) -> None:
    running = Keyring.open(path, CLOCK)
    rotated = Keyring.open(path, CLOCK).rotated(Purpose.CURSOR, CLOCK).rotated(Purpose.FIELD, CLOCK)
    rotated.save(path)

    signed, sealed = rotated.sign(Purpose.CURSOR, b"page 2"), rotated.encrypt(b"secret", context="c")

    assert running.verify(Purpose.CURSOR, signed) == b"page 2"
    assert running.decrypt(sealed, context="c") == b"secret"


def test_verify__unknown_key_and_the_file_is_gone__is_refused(path: Path) -> None:
    running = Keyring.open(path, CLOCK)
    path.unlink()

    with pytest.raises(SignatureError):
        running.verify(Purpose.CURSOR, Keyring.generate(CLOCK).sign(Purpose.CURSOR, b"x"))
