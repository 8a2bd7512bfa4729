"""Task tokens: signed, and valid for one attempt of one Task. The holder of a token completes that attempt."""

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


class CallbackKind(enum.StrEnum):
    """What the holder of a token reports."""

    SUCCESS = "success"
    FAILURE = "failure"
    HEARTBEAT = "heartbeat"


class TaskCallback(Struct, frozen=True, omit_defaults=True):
    """A report on a Task, as the payload of the signal that delivers it."""

    callback: CallbackKind
    output: Json = None
    error: str = ""
    cause: str = ""


class TaskToken(Struct, frozen=True, array_like=True):
    """The waiting execution, and the name of the signal that it waits for."""

    kind: str
    execution_id: str
    signal: str


def sign_token(keyring: Keyring, execution_id: str, signal: str) -> str:
    """Return the token for a signal of an execution."""
    return keyring.sign(Purpose.TOKEN, msgspec.json.encode(TaskToken("asl", execution_id, signal)))


def read_token(keyring: Keyring, token: str) -> TaskToken:
    """Verify and parse a token. Raises `SignatureError`."""
    try:
        read = typed_decode.from_json(keyring.verify(Purpose.TOKEN, token), TaskToken)
    except msgspec.MsgspecError as exc:
        raise SignatureError("this is not a task token; use the value of $$.Task.Token") from exc
    if read.kind != "asl":
        raise SignatureError("this is not a task token; use the value of $$.Task.Token")
    return read
