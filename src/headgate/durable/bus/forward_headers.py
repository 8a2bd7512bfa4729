"""Forward headers: secret headers that are sent to a receiver with every event, from one file per receiver.

A file has one header per line, as in `Authorization: Bearer …`; empty lines and lines with `#` are skipped. The file is
read for every event, so that a secret can be rotated at any time. Its content is never disclosed: no error repeats a
line, and no row stores one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from headgate.errors import SettingsError, TransientError, UserError
from headgate.settings import Secret

BYTES_MAX: Final = 16_384
_RECEIVER: Final = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?")
_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_VALUE: Final = re.compile(r"[ -~]+")
# Headers that describe the message itself, or that must not be set by a file.
_RESERVED: Final = frozenset({"host", "connection", "te", "trailer", "transfer-encoding", "upgrade", "expect"})
_RESERVED_PREFIXES: Final = ("ce-", "content-", "proxy-", "webhook-")


class HeaderFiles:
    """The files by receiver, a host or `host:port`. Raises `SettingsError` for an invalid receiver."""

    def __init__(self, files: Mapping[str, str]) -> None:
        # Made absolute now: the process may change its working directory later.
        self._files = {_receiver(named): Path(file).expanduser().absolute() for named, file in files.items()}

    def check(self) -> None:
        """Raise `SettingsError` for a file that cannot be read, or has lines that are not headers."""
        for receiver, file in self._files.items():
            _read(receiver, file)

    def headers(self, receiver: str) -> dict[str, Secret]:
        """Return the headers for a receiver, given as `host:port`; none if it has no file.

        Raises `TransientError` if its file cannot be used now, so that deliveries are retried once it is fixed.
        """
        host = receiver.rpartition(":")[0]
        named = receiver if receiver in self._files else host
        if named not in self._files:
            return {}
        try:
            return _read(named, self._files[named])
        except SettingsError as exc:
            raise TransientError(str(exc)) from exc


def _receiver(named: str) -> str:
    match = _RECEIVER.fullmatch(named.lower())
    if match is None:
        raise SettingsError(f"forward.headers {named[:80]!r}: not a receiver; write its host, or host:port")
    return match.group(1).rstrip(".") + (match.group(2) or "")


def _read(receiver: str, file: Path) -> dict[str, Secret]:
    what = f"forward.headers of {receiver}: {file}"
    try:
        with file.open("rb") as opened:
            content = opened.read(BYTES_MAX + 1)
    except OSError as exc:
        raise SettingsError(f"{what}: cannot be read: {exc.strerror}; put the file there, or correct the path") from exc
    if len(content) > BYTES_MAX:
        raise SettingsError(f"{what}: larger than {BYTES_MAX:,} bytes; it should hold a few headers")
    headers: dict[str, Secret] = {}
    # Latin-1 cannot fail, and an error would quote the text. Other characters than ASCII are refused below.
    for number, line in enumerate(content.decode("latin-1").split("\n"), 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            name, value = _header(line)
            if name in headers:
                raise UserError(f"{name} is given twice; keep one")
        except UserError as exc:
            raise SettingsError(f"{what}: line {number}: {exc}") from exc
        headers[name] = value
    if not headers:
        raise SettingsError(f"{what}: it has no header; write lines such as 'Authorization: Bearer …'")
    return headers


def _header(line: str) -> tuple[str, Secret]:
    """Return a line's name, in lower case, and value. Raises `UserError`, which repeats only the name."""
    written, separator, rest = line.partition(":")
    if not separator or not _NAME.fullmatch(written):
        raise UserError("not a header; write 'Name: value'")
    name, value = written.lower(), rest.strip()
    if name in _RESERVED or name.startswith(_RESERVED_PREFIXES):
        raise UserError(f"{name} is not for this file: it says how the event is sent")
    if not value:
        raise UserError(f"{name} has no value")
    if not _VALUE.fullmatch(value):
        raise UserError(f"{name} has a character that no header can have; use ASCII without controls")
    return name, Secret(value)
