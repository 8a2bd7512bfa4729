"""Provenance: where a stored definition came from, and the seal of those that were loaded from the project folder.

A definition that runs a program (a command trigger, a command evaluator) needs a valid seal at the moment it starts: a
row that was written in any other way, copied or altered does not run one. A seal is a signature of the server over the
pipeline, its version, the digest of the definition and its source.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec
from msgspec import Struct

from headgate.errors import SignatureError
from headgate.pipelines.definition.model import Pipeline
from headgate.pipelines.definition.serialization import digest
from headgate.store.keyring import Keyring, Purpose

# The source of definitions that are stored through the API.
API: Final = "api"
# Tokens are JSON arrays: nothing else that the server signs begins like this.
_DOMAIN: Final = b"headgate definition\0"


class Origin(enum.StrEnum):
    """How a definition came into the store."""

    # The server loaded it from its project folder, and the row is unaltered since.
    FOLDER = "folder"
    API = "api"
    # Another program, an altered row, or a build that recorded no origin.
    UNKNOWN = "unknown"


class Provenance(Struct, frozen=True, kw_only=True):
    """Where a definition came from: file or call, the digest of its text, who and when."""

    origin: Origin
    source: str
    sha256: str
    by: str
    at: str


class DefinitionSeals:
    """Makes and verifies seals. Without a keyring there are none, and no definition may run a program."""

    def __init__(self, keyring: Keyring | None = None) -> None:
        self._keyring = keyring

    def seal(self, pipeline: Pipeline, version: int, source: str, source_digest: str) -> str:
        """Return the seal of a definition from the folder; empty without a keyring."""
        if self._keyring is None:
            return ""
        return self._keyring.sign(Purpose.TOKEN, _sealed(pipeline, version, source, source_digest))

    def holds(self, seal: str, pipeline: Pipeline, version: int, source: str, source_digest: str) -> bool:
        """Whether a seal is that of this definition in this version."""
        if self._keyring is None or not seal:
            return False
        try:
            return self._keyring.verify(Purpose.TOKEN, seal) == _sealed(pipeline, version, source, source_digest)
        except SignatureError:
            return False


def _sealed(pipeline: Pipeline, version: int, source: str, source_digest: str) -> bytes:
    # The digest is computed from the definition that would run, not taken from the row.
    return _DOMAIN + msgspec.json.encode([pipeline.id, version, digest(pipeline), source, source_digest])
