"""Idempotency store: responses by Idempotency-Key, so that a retried request is not executed twice."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, Final

import msgspec

from headgate.clock import Clock
from headgate.errors import ConflictError, InvalidPayloadError, KeyReusedError, StillRunningError
from headgate.serve.http.operations import Answer
from headgate.store.catalogue.tables import IDEMPOTENCY
from headgate.store.model.conditions import absent, equals
from headgate.store.model.schema import Key
from headgate.store.port import Store

RETENTION_SECONDS: Final = 24 * 3600
# After this a request without a recorded response counts as failed, and may run again.
IN_PROGRESS_SECONDS: Final = 60
_KEY_MAX: Final = 200


class IdempotencyStore:
    """Stores responses for `kept_seconds`, a day by default."""

    def __init__(self, store: Store, clock: Clock, *, kept_seconds: int = RETENTION_SECONDS) -> None:
        self._store = store
        self._kept_seconds = kept_seconds
        self._clock = clock

    def run_once(self, scope: str, key: str, content: bytes, run: Callable[[], Answer]) -> Answer:
        """Return the stored response of this key, or run the request and store its response.

        Raises `KeyReusedError` if the key was used with another body, and `StillRunningError`. Errors of `run` are not
        stored: the request may be retried.
        """
        text = key.strip().strip('"')
        if not text or len(text) > _KEY_MAX or not text.isprintable():
            raise InvalidPayloadError(f"Idempotency-Key: send 1 to {_KEY_MAX} printable characters")
        digest = hashlib.sha256(content).hexdigest()
        name = f"http#{hashlib.sha256(f'{scope}#{text}'.encode()).hexdigest()}"
        now = int(self._clock.seconds())
        started = {"idempotency_key": name, "digest": digest, "begun_at": now, "ttl": now + IN_PROGRESS_SECONDS}
        try:
            self._store.put(IDEMPOTENCY, started, condition=absent())
        except ConflictError as exc:
            return self._replay(exc.current or {}, digest, text)
        try:
            answer = run()
        except BaseException:
            # No response: the next attempt may run.
            self._release(name, now)
            raise
        done = {
            **started,
            "ttl": now + self._kept_seconds,
            "status": answer.status,
            "headers": dict(answer.headers),
            "body": None if answer.body is None else msgspec.json.encode(answer.body).decode(),
        }
        self._store.put(IDEMPOTENCY, done)
        return answer

    def _replay(self, row: dict[str, Any], digest: str, key: str) -> Answer:
        if row.get("digest") != digest:
            raise KeyReusedError(f"Idempotency-Key {key}: already used with another body; use a new key")
        if "status" not in row:
            raise StillRunningError(f"Idempotency-Key {key}: the first request is still in progress; retry later")
        body = None if row["body"] is None else msgspec.Raw(row["body"].encode())
        return Answer(body, row["status"], {**row["headers"], "idempotency-replayed": "true"})

    def _release(self, name: str, started_at: int) -> None:
        try:
            self._store.delete(IDEMPOTENCY, Key(name), condition=equals("begun_at", started_at))
        except ConflictError:
            return
