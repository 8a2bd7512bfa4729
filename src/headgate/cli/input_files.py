"""Input files of commands: JSON, JSON lines or TOML; `-` is standard input."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from headgate.errors import InvalidPayloadError, UserError


def read_content(name: str, what: str) -> bytes:
    """Return the content of a file, or of standard input for `-`. Raises `UserError`."""
    if name == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(name).read_bytes()
    except OSError as exc:
        raise UserError(f"{what} {name}: the file cannot be read: {exc.strerror}") from exc


def read_document(name: str, what: str) -> dict[str, Any]:
    """Return the object in a JSON file, or in a TOML file if its name ends in .toml.

    Raises `UserError` if the file cannot be read, `InvalidPayloadError` if it holds no object.
    """
    import tomllib

    import msgspec

    from headgate import typed_decode

    content = read_content(name, what)
    try:
        if name.endswith(".toml"):
            return tomllib.loads(content.decode())
        return typed_decode.from_json(content, dict[str, Any])
    except (msgspec.DecodeError, tomllib.TOMLDecodeError, UnicodeError, RecursionError) as exc:
        raise InvalidPayloadError(f"{what} {name}: expected an object in JSON or TOML ({exc})") from exc


def read_documents(name: str, what: str) -> list[dict[str, Any]]:
    """Return the objects in a file: one object, a list, or JSON lines. Raises as `read_document` does."""
    import msgspec

    from headgate import typed_decode

    content = read_content(name, what)
    try:
        if content.lstrip()[:1] == b"[":
            return typed_decode.from_json(content, list[dict[str, Any]])
        try:
            return [typed_decode.from_json(content, dict[str, Any])]
        except msgspec.DecodeError:
            return [typed_decode.from_json(line, dict[str, Any]) for line in content.splitlines() if line.strip()]
    except (msgspec.DecodeError, UnicodeError, RecursionError) as exc:
        raise InvalidPayloadError(f"{what} {name}: expected JSON objects ({exc})") from exc
