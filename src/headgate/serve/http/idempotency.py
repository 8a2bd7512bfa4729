"""Answers that were given under an Idempotency-Key, so that a request that is sent again is not done again."""

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
# After so long a request that has no answer is taken to have died, and may be done again.
IN_PROGRESS_SECONDS: Final = 60
_KEY_MAX: Final = 200


class IdempotencyStore:
    """Answers of one store, kept for a day."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def once(self, scope: str, key: str, content: bytes, run: Callable[[], Answer]) -> Answer:
        """Return what was answered to this request before, or run it and remember what it answers.

        Raises `KeyReusedError` for another content under the same key, and `StillRunningError`. What `run` raises is
        not remembered: the request may be sent again.
        """
        text = key.strip().strip('"')
        if not text or len(text) > _KEY_MAX or not text.isprintable():
            raise InvalidPayloadError(f"Idempotency-Key: send 1 to {_KEY_MAX} printable characters")
        digest = hashlib.sha256(content).hexdigest()
        name = f"http#{hashlib.sha256(f'{scope}#{text}'.encode()).hexdigest()}"
        now = int(self._clock.seconds())
        begun = {"idempotency_key": name, "digest": digest, "begun_at": now, "ttl": now + IN_PROGRESS_SECONDS}
        try:
            self._store.put(IDEMPOTENCY, begun, condition=absent())
        except ConflictError as exc:
            return self._earlier(exc.current or {}, digest, text)
        try:
            answer = run()
        except BaseException:
            # Nothing was answered, so that the next one may try.
            self._forget(name, now)
            raise
        done = {
            **begun,
            "ttl": now + RETENTION_SECONDS,
            "status": answer.status,
            "headers": dict(answer.headers),
            "body": None if answer.body is None else msgspec.json.encode(answer.body).decode(),
        }
        self._store.put(IDEMPOTENCY, done)
        return answer

    def _earlier(self, row: dict[str, Any], digest: str, key: str) -> Answer:
        if row.get("digest") != digest:
            raise KeyReusedError(f"Idempotency-Key {key}: it was sent with another body before; use a new key")
        if "status" not in row:
            raise StillRunningError(f"Idempotency-Key {key}: the first request is still being worked on; ask again")
        body = None if row["body"] is None else msgspec.Raw(row["body"].encode())
        return Answer(body, row["status"], {**row["headers"], "idempotency-replayed": "true"})

    def _forget(self, name: str, begun_at: int) -> None:
        try:
            self._store.delete(IDEMPOTENCY, Key(name), condition=equals("begun_at", begun_at))
        except ConflictError:
            return
