"""Encryption: the payload codec with AES-256-GCM, keys with ids, and rotation."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from headgate.clock import SystemClock
from headgate.durable.model.payload_codec import Sealed
from headgate.errors import DefinitionError, SealedPayloadError, SettingsError
from headgate.store.keyring import Keyring, Purpose

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_KEY_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,99}")


class KeyProvider(Protocol):
    """Where the keys are, such as a key management service. Keys are asked for once in a process."""

    def current(self) -> str:
        """Return the id of the key that encrypts new values."""

    def key(self, key_id: str) -> bytes | None:
        """Return a key of 32 bytes, or None if there is none of this id."""


class KeyringKeys:
    """The field keys of `HOME/keys.json`; `headgate key rotate field` adds one."""

    def __init__(self, home: str | Path) -> None:
        self._path = Path(home).expanduser() / "keys.json"
        self._read: tuple[int, Keyring] | None = None

    def current(self) -> str:
        return self._keyring().keys(Purpose.FIELD)[-1].id

    def key(self, key_id: str) -> bytes | None:
        for each in self._keyring().keys(Purpose.FIELD):
            if each.id == key_id:
                return base64.b64decode(each.secret)
        return None

    def _keyring(self) -> Keyring:
        if not self._path.exists():
            # A new file would hold other keys than the home that was meant.
            raise SettingsError(
                f"{self._path}: there is no such file; give the home of the server, which creates its keys when it "
                "starts first ('headgate up')"
            )
        # Read again when it has changed: another process rotates the keys.
        changed_at = self._path.stat().st_mtime_ns
        if self._read is None or self._read[0] != changed_at:
            self._read = (changed_at, Keyring.open(self._path, SystemClock()))
        return self._read[1]


class _GivenKeys:
    def __init__(self, keys: Mapping[str, bytes], current: str) -> None:
        self._keys = keys
        self._current = current

    def current(self) -> str:
        return self._current

    def key(self, key_id: str) -> bytes | None:
        return self._keys.get(key_id)


class _Cipher:
    """One key. Values and nonces have keys of their own, derived from it."""

    def __init__(self, secret: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self.aead: AESGCM = AESGCM(_derived(secret, b"values"))
        self._nonce_key = _derived(secret, b"nonces")

    def nonce(self, plain: bytes, bound_to: bytes) -> bytes:
        """Return a nonce that is the same for the same value and place only.

        So a start that is repeated has the same bytes, and equal values of two executions differ.
        """
        message = len(bound_to).to_bytes(8, "big") + bound_to + plain
        return hmac.digest(self._nonce_key, message, hashlib.sha256)[:_NONCE_BYTES]


class Encryption:
    """Encrypts what an app stores: `hg.App("shop", codec=hg.Encryption({"2026-11": key}))`.

    `keys` are keys of 32 bytes by id, or a `KeyProvider`. The `current` one encrypts, by default the last; the others
    decrypt. With `encrypt_errors`, messages and tracebacks of errors are encrypted too. Without `accept_plain`, values
    that are not encrypted are refused.
    """

    def __init__(
        self,
        keys: Mapping[str, bytes] | KeyProvider,
        *,
        current: str | None = None,
        encrypt_errors: bool = True,
        accept_plain: bool = True,
    ) -> None:
        self._provider = _provider(keys, current)
        self.seals_errors = encrypt_errors
        self.accepts_plain = accept_plain
        self._ciphers: dict[str, _Cipher] = {}

    def seal(self, plain: bytes, bound_to: str) -> Sealed:
        key_id = self._provider.current()
        cipher = self._cipher(key_id)
        if cipher is None:
            raise DefinitionError(f"encryption key {key_id!r}: the provider names it as current and does not have it")
        place = bound_to.encode()
        nonce = cipher.nonce(plain, place)
        return Sealed(key_id, base64.b64encode(nonce + cipher.aead.encrypt(nonce, plain, place)).decode())

    def open(self, sealed: Sealed, bound_to: str) -> bytes:
        from cryptography.exceptions import InvalidTag

        cipher = self._cipher(sealed.key)
        if cipher is None:
            raise SealedPayloadError(
                f"encrypted with key {sealed.key}, which this process does not have; add the key, then run "
                "'headgate execution redrive'"
            )
        try:
            content = base64.b64decode(sealed.data, validate=True)
            return cipher.aead.decrypt(content[:_NONCE_BYTES], content[_NONCE_BYTES:], bound_to.encode())
        except (InvalidTag, ValueError, binascii.Error) as exc:
            raise SealedPayloadError(
                f"encrypted with key {sealed.key}, and it was altered, or it belongs to another execution or place"
            ) from exc

    def has_key(self, key_id: str) -> bool:
        return self._cipher(key_id) is not None

    def _cipher(self, key_id: str) -> _Cipher | None:
        cipher = self._ciphers.get(key_id)
        if cipher is None:
            secret = self._provider.key(key_id)
            if secret is None:
                return None
            cipher = self._ciphers[key_id] = _Cipher(_checked(key_id, secret))
        return cipher


def _provider(keys: Mapping[str, bytes] | KeyProvider, current: str | None) -> KeyProvider:
    if not isinstance(keys, Mapping):
        if current is not None:
            raise DefinitionError("Encryption: current= is for keys given by id; a provider names its own")
        return keys
    if not keys:
        raise DefinitionError("Encryption: give at least one key, by id")
    for key_id, secret in keys.items():
        _checked(key_id, secret)
    current = list(keys)[-1] if current is None else current
    if current not in keys:
        raise DefinitionError(f"Encryption: current={current!r} is none of the keys {sorted(keys)}")
    return _GivenKeys(dict(keys), current)


def _checked(key_id: str, secret: bytes) -> bytes:
    if not isinstance(key_id, str) or _KEY_ID.fullmatch(key_id) is None:
        raise DefinitionError(f"encryption key {key_id!r}: an id has 1 to 100 letters, digits and . _ : / -")
    if not isinstance(secret, bytes) or len(secret) != _KEY_BYTES:
        raise DefinitionError(f"encryption key {key_id!r}: give {_KEY_BYTES} bytes, such as secrets.token_bytes(32)")
    return secret


def _derived(secret: bytes, purpose: bytes) -> bytes:
    return hmac.digest(secret, b"headgate payload " + purpose, hashlib.sha256)
