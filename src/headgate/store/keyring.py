"""Keyring: the secret keys that sign cursors and tokens and encrypt fields, with rotation.

The keys are in `HOME/keys.json`, readable by the owner only. Each purpose has one active key; retired keys still verify
and decrypt until they are dropped, so a rotation breaks no cursor or token in use.
"""

from __future__ import annotations

import base64
import contextlib
import enum
import hashlib
import hmac
import os
import secrets
import stat
from pathlib import Path
from typing import Final

import msgspec

from headgate import typed_decode
from headgate.clock import Clock
from headgate.errors import CorruptionError, ForeignFileError, SettingsError, SignatureError, StoreIOError
from headgate.store.durable_files import sync_folder, write_private

_FORMAT: Final = 1
_SECRET_BYTES: Final = 32
_SIGNATURE_BYTES: Final = 16
_NONCE_BYTES: Final = 12
_CHECK_BYTES: Final = 8
RETIRED_KEPT_MAX: Final = 5


class Purpose(enum.StrEnum):
    """The purpose of a key. A key serves one purpose only."""

    CURSOR = "cursor"
    TOKEN = "token"
    FIELD = "field"


class SecretKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One secret. `retired_at` is set once a newer key is active."""

    id: str
    secret: str
    created_at: str
    retired_at: str | None = None

    def __repr__(self) -> str:
        return f"SecretKey({self.id})"


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: int
    keys: dict[Purpose, list[SecretKey]]


class Keyring:
    """Signs and verifies, encrypts and decrypts. The newest key of a purpose is the active one."""

    def __init__(self, keys: dict[Purpose, list[SecretKey]], path: Path | None = None) -> None:
        """`path` is the file of the keys, if any: it is read again when a key is missing."""
        self._path = path
        self._keys = keys
        self._secrets = {
            (purpose, key.id): base64.b64decode(key.secret) for purpose, held in keys.items() for key in held
        }

    @classmethod
    def generate(cls, clock: Clock) -> Keyring:
        """Return a keyring with one new key per purpose."""
        return cls({purpose: [_new_key(clock)] for purpose in Purpose})

    @classmethod
    def open(cls, path: Path, clock: Clock) -> Keyring:
        """Load the keyring at `path`, creating it if it does not exist.

        Raises `SettingsError` if other users can read it, `ForeignFileError` or `CorruptionError` for an invalid file.
        """
        try:
            if not path.exists():
                _create(path, cls.generate(clock)._file())
            mode = stat.S_IMODE(path.stat().st_mode)
            content = path.read_bytes()
        except OSError as exc:
            raise StoreIOError(
                f"{path}: the keyring cannot be read: {exc.strerror}; correct its owner and permissions"
            ) from exc
        if mode & 0o077:
            raise SettingsError(f"{path}: mode {mode:04o} lets other users read the keys; run: chmod 600 {path}")
        try:
            file = typed_decode.from_json(content, _File)
        except msgspec.ValidationError as exc:
            raise ForeignFileError(
                f"{path}: not a Headgate keyring ({exc}); move it away or name another home"
            ) from exc
        except msgspec.DecodeError as exc:
            raise CorruptionError(f"{path}: the keyring is damaged ({exc}); restore it from a backup") from exc
        if file.format != _FORMAT or any(not file.keys.get(purpose) for purpose in Purpose):
            raise ForeignFileError(f"{path}: keyring format {file.format} or a purpose without keys; restore a backup")
        if any(not _is_secret(key.secret) for held in file.keys.values() for key in held):
            raise CorruptionError(f"{path}: a key of the keyring is damaged; restore it from a backup")
        return cls(file.keys, path)

    def rotated(self, purpose: Purpose, clock: Clock) -> Keyring:
        """Return a keyring with a new active key for `purpose`; the current one is retired."""
        retired_at = clock.now().isoformat()
        older = [
            key if key.retired_at else msgspec.structs.replace(key, retired_at=retired_at)
            for key in self._keys[purpose]
        ]
        # Field keys are never dropped: tables hold what they encrypted.
        retired = older if purpose is Purpose.FIELD else older[-RETIRED_KEPT_MAX:]
        return Keyring({**self._keys, purpose: [*retired, _new_key(clock)]})

    def save(self, path: Path) -> None:
        """Replace the keyring at `path` atomically: a crash leaves the old or the new file."""
        fresh = path.with_suffix(".new")
        try:
            fresh.unlink(missing_ok=True)
            write_private(fresh, self._file())
            fresh.replace(path)
            sync_folder(path.parent)
        except OSError as exc:
            raise StoreIOError(
                f"{path}: the keyring cannot be written: {exc.strerror}; the old one is unchanged"
            ) from exc

    def keys(self, purpose: Purpose) -> list[SecretKey]:
        """Return the keys of a purpose, oldest first; the last is active."""
        return list(self._keys[purpose])

    def check_value(self, purpose: Purpose, key_id: str) -> str | None:
        """Return a value by which a key is recognised and that does not reveal it, or None if it is not held."""
        secret = self._secret(purpose, key_id)
        if secret is None:
            return None
        return hmac.digest(secret, b"key check\0" + purpose.encode(), hashlib.sha256)[:_CHECK_BYTES].hex()

    def sign(self, purpose: Purpose, payload: bytes) -> str:
        """Return `payload` with its signature as URL-safe text. The payload is readable but cannot be altered."""
        key_id = self._keys[purpose][-1].id
        signature = self._signature(purpose, key_id, payload)
        return f"{key_id}.{_text(signature)}.{_text(payload)}"

    def verify(self, purpose: Purpose, signed: str) -> bytes:
        """Return the payload of a text made by `sign`. Raises `SignatureError` for anything else."""
        try:
            key_id, signature, payload = signed.split(".")
            body = _bytes(payload)
            signature_bytes = _bytes(signature)
        except (ValueError, AttributeError, UnicodeError) as exc:
            raise SignatureError(f"{purpose} is malformed") from exc
        if self._secret(purpose, key_id) is None:
            raise SignatureError(
                f"{purpose} was signed with key {key_id[:12]!r}, which has been dropped; request a new one"
            )
        if not hmac.compare_digest(signature_bytes, self._signature(purpose, key_id, body)):
            raise SignatureError(f"{purpose} was altered after it was issued")
        return body

    def encrypt(self, plain: bytes, *, context: str) -> str:
        """Return `plain` encrypted under the active field key, bound to `context` (table, key and attribute)."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        key_id = self._keys[Purpose.FIELD][-1].id
        nonce = secrets.token_bytes(_NONCE_BYTES)
        sealed = AESGCM(self._secrets[Purpose.FIELD, key_id]).encrypt(nonce, plain, context.encode())
        return f"{key_id}.{_text(nonce + sealed)}"

    def decrypt(self, sealed: str, *, context: str) -> bytes:
        """Decrypt a text made by `encrypt` with the same context. Raises `SignatureError` for anything else."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        key_id, _, body = sealed.partition(".")
        secret = self._secret(Purpose.FIELD, key_id)
        if secret is None:
            raise SignatureError(f"field was encrypted with key {key_id[:12]!r}, which this keyring does not hold")
        try:
            raw = _bytes(body)
            return AESGCM(secret).decrypt(raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], context.encode())
        except (InvalidTag, ValueError) as exc:
            raise SignatureError("field was altered, or belongs to another item") from exc

    def _secret(self, purpose: Purpose, key_id: str) -> bytes | None:
        """Return a key's secret, reading the file again for a key that another process has added."""
        if (purpose, key_id) not in self._secrets and self._path is not None:
            with contextlib.suppress(OSError, msgspec.DecodeError):
                file = typed_decode.from_json(self._path.read_bytes(), _File)
                for held_for, held in file.keys.items():
                    self._secrets |= {(held_for, key.id): base64.b64decode(key.secret) for key in held}
        return self._secrets.get((purpose, key_id))

    def _signature(self, purpose: Purpose, key_id: str, payload: bytes) -> bytes:
        message = purpose.encode() + b"\0" + payload
        return hmac.digest(self._secrets[purpose, key_id], message, hashlib.sha256)[:_SIGNATURE_BYTES]

    def _file(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(_File(_FORMAT, self._keys)), indent=2) + b"\n"


def _new_key(clock: Clock) -> SecretKey:
    secret = base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()
    return SecretKey(secrets.token_hex(4), secret, clock.now().isoformat())


def _create(path: Path, content: bytes) -> None:
    # Processes may start concurrently: each writes its own file, and the link succeeds for exactly one.
    draft = path.with_suffix(f".{secrets.token_hex(4)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_private(draft, content)
    try:
        os.link(draft, path)
    except FileExistsError:
        return
    finally:
        draft.unlink()
    sync_folder(path.parent)


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    # Base64 has unused bits at its end: only the canonical encoding is accepted.
    if _text(raw) != text:
        raise ValueError("not canonical base64")
    return raw


def _is_secret(text: str) -> bool:
    try:
        return len(base64.b64decode(text, validate=True)) == _SECRET_BYTES
    except ValueError:
        return False
