"""Callback tokens: let a job report on its own run, and on no other, until they expire.

A token is signed with the server's keyring and names the run and its attempt. It is derived from the run, so that a
repeated start sends a token for the same run, and it survives a restart of the server.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

import msgspec
from msgspec import Struct

from headgate import typed_decode
from headgate.clock import Clock
from headgate.errors import SignatureError, UnauthenticatedError
from headgate.pipelines.definition.model import POLL_WINDOW_SECONDS, TriggerSpec
from headgate.pipelines.runs.rows import Run
from headgate.store.keyring import Keyring, Purpose

PATH: Final = "/api/v1/callbacks"
# A report that arrives when the time of the job is over still gets the answer that it is late.
MARGIN_SECONDS: Final = 3_600
_KIND: Final = "callback"


class Callback(Struct, frozen=True):
    """Where and with which token a job reports. Both are empty if this process cannot issue any."""

    url: str
    token: str

    def __repr__(self) -> str:
        return f"<callback {self.url}>"


class CallbackToken(Struct, frozen=True, array_like=True):
    """The content of a token."""

    kind: str
    run_id: str
    attempt: int
    expires_at_seconds: int


class CallbackTokens:
    """Issues and verifies callback tokens. `base_url` is the public URL of the server."""

    def __init__(self, keyring: Keyring | None, clock: Clock, base_url: str | None) -> None:
        self._keyring = keyring
        self._clock = clock
        self._base_url = base_url

    def issue(self, run: Run, trigger: TriggerSpec) -> Callback:
        """Return the callback of a run, valid until its job is out of time; empty without a keyring or a base URL."""
        if self._keyring is None or self._base_url is None:
            return Callback("", "")
        begun_seconds = (run.triggered_at_ms or run.created_at_ms) // 1000
        lifetime_seconds = round(trigger.poll_window or POLL_WINDOW_SECONDS) + MARGIN_SECONDS
        token = CallbackToken(_KIND, run.run_id, run.attempt, begun_seconds + lifetime_seconds)
        signed = self._keyring.sign(Purpose.TOKEN, msgspec.json.encode(token))
        return Callback(f"{self._base_url.rstrip('/')}{PATH}/{quote(run.run_id, safe='')}", signed)

    def verify(self, run_id: str, token: str) -> CallbackToken:
        """Return the content of a token of this run. Raises `UnauthenticatedError` for any other text."""
        refused = UnauthenticatedError(
            f"callback of run {run_id[:80]}: the token is missing or not of this run; send the one that came with the "
            "request that started the job, in the header headgate-callback-token"
        )
        if self._keyring is None or not token:
            raise refused
        try:
            read = typed_decode.from_json(self._keyring.verify(Purpose.TOKEN, token), CallbackToken)
        except (SignatureError, msgspec.MsgspecError) as exc:
            raise refused from exc
        if read.kind != _KIND or read.run_id != run_id:
            raise refused
        if self._clock.seconds() >= read.expires_at_seconds:
            raise UnauthenticatedError(f"callback of run {run_id}: the token has expired; the run is no longer open")
        return read
