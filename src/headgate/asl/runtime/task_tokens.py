"""Task tokens: signed, and good for one attempt at one Task. Who has one can end that attempt from outside."""

from __future__ import annotations

import enum
from typing import Final

import msgspec
from msgspec import Struct

from headgate import typed_decode
from headgate.asl.expressions.scope import Json
from headgate.errors import SignatureError
from headgate.store.keyring import Keyring, Purpose

SIGNAL: Final = "asl.task."


class Callback(enum.StrEnum):
    """What whoever has a token can say."""

    SUCCESS = "success"
    FAILURE = "failure"
    HEARTBEAT = "heartbeat"


class Told(Struct, frozen=True, omit_defaults=True):
    """What was said, as the signal that carries it."""

    callback: Callback
    output: Json = None
    error: str = ""
    cause: str = ""


class TaskToken(Struct, frozen=True, array_like=True):
    """The execution that waits, and the name of the signal that it waits for."""

    kind: str
    execution_id: str
    signal: str


def sign_token(keyring: Keyring, execution_id: str, signal: str) -> str:
    """Return the token that stands for a wait."""
    return keyring.sign(Purpose.TOKEN, msgspec.json.encode(TaskToken("asl", execution_id, signal)))


def read_token(keyring: Keyring, token: str) -> TaskToken:
    """Return what a token stands for. Raises `SignatureError`."""
    try:
        read = typed_decode.from_json(keyring.verify(Purpose.TOKEN, token), TaskToken)
    except msgspec.MsgspecError as exc:
        raise SignatureError("the token is not one of a Task; use what $$.Task.Token gave") from exc
    if read.kind != "asl":
        raise SignatureError("the token is not one of a Task; use what $$.Task.Token gave")
    return read
