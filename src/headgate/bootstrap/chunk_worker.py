"""Chunk worker bootstrap: connects a worker of chunks to a server, or to the store itself."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, Self
from urllib.parse import parse_qs, urlsplit

from headgate.clock import SystemClock
from headgate.errors import SettingsError
from headgate.fanout.remote import sdk
from headgate.fanout.remote.http_tracker import HttpTracker
from headgate.fanout.remote.trackers import ChunkTracker
from headgate.ids import IdMaker
from headgate.settings import Settings

TIMEOUT_SECONDS: Final = 30.0
# A server that is restarted is back within this time.
RETRY_SECONDS: Final = 60.0
_HOME_VARIABLE: Final = "HEADGATE_HOME"
_environment: Final = os.environ  # noqa: TID251 - the entry point of a worker, which reads its settings once


class ChunkWorker(sdk.ChunkWorker):
    """Runs chunks of fan-outs under one worker name. Safe to use from many threads.

    `connect` is the way to get one. `clock` measures durations.
    """

    _on_close: Callable[[], None] | None = None
    # Its home, if it has one of its own.
    _folder: tempfile.TemporaryDirectory[str] | None = None

    @classmethod
    def connect(
        cls,
        target: str | Path | Settings | None = None,
        *,
        api_key: str | None = None,
        ca: Path | str | None = None,
        name: str | None = None,
    ) -> Self:
        """Connect a worker to a server or to a store, and return it.

        `target` is the URL of a server (default: HEADGATE_SERVER, or http://127.0.0.1:8400), with `api_key` and `ca` as
        for `hg.Client`; or the store itself, whose rows the worker then writes: the home folder of a server on this
        machine, `dynamodb://REGION?table_prefix=PREFIX`, or settings. A DynamoDB target takes all other settings from
        the environment (`HEADGATE_*`). Close the worker, or use it in a `with` block. Raises `SettingsError`, and
        errors of the store.
        """
        if isinstance(target, str) and target.startswith(("http://", "https://")):
            return cls._with_server(target, api_key, ca, name)
        if target is None:
            return cls._with_server(None, api_key, ca, name)
        if api_key is not None or ca is not None:
            raise SettingsError(f"api_key and ca are for a server, and {target!s:.80} is a store; omit them")
        if isinstance(target, str) and target.startswith("dynamodb:"):
            return cls._with_tables(target, name)
        return cls._with_store(target if isinstance(target, Settings) else _home_settings(target), name)

    @classmethod
    def _with_server(cls, url: str | None, api_key: str | None, ca: Path | str | None, name: str | None) -> Self:
        from headgate.durable.remote.access import Access
        from headgate.durable.remote.sync_client import Connection

        clock = SystemClock()
        access = Access.of(url, api_key, ca)
        connection = Connection(access, clock, timeout_seconds=TIMEOUT_SECONDS, retry_seconds=RETRY_SECONDS)
        return cls._made(HttpTracker(connection, IdMaker(clock)), name, connection.close)

    @classmethod
    def _with_tables(cls, target: str, name: str | None) -> Self:
        # Nothing of a worker outlives it; in a Lambda, only this folder is writable.
        folder = None if _environment.get(_HOME_VARIABLE) else tempfile.TemporaryDirectory(prefix="headgate-")
        try:
            worker = cls._with_store(_table_settings(target, None if folder is None else folder.name), name)
        except BaseException:
            if folder is not None:
                folder.cleanup()
            raise
        worker._folder = folder
        return worker

    @classmethod
    def _with_store(cls, settings: Settings, name: str | None) -> Self:
        from headgate.bootstrap.store import AppService, open_store
        from headgate.durable.sdk.app import App

        clock = SystemClock()
        opened = open_store(settings, clock)
        # Publishes the events of fan-outs that end here; it runs no workflow.
        service = AppService(App("headgate"), opened, clock)
        return cls._made(service.fanouts.tracker, name, opened.store.close)

    @classmethod
    def _made(cls, tracker: ChunkTracker, name: str | None, on_close: Callable[[], None]) -> Self:
        worker = cls(tracker, name=name)
        worker._on_close = on_close
        return worker

    def close(self) -> None:
        """Close the connections. Idempotent."""
        if self._on_close is not None:
            self._on_close()
            self._on_close = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _table_settings(target: str, home: str | None) -> Settings:
    """Return the settings of tables, with all others from the environment. Raises `SettingsError`."""
    parts = urlsplit(target)
    query = parse_qs(parts.query, keep_blank_values=True)
    prefixes = query.pop("table_prefix", [])
    if not parts.netloc or parts.path not in ("", "/") or parts.fragment or query or len(prefixes) > 1:
        raise SettingsError(f"target {target[:80]!r}: write dynamodb://REGION?table_prefix=PREFIX")
    flags = {"store.backend": "dynamodb", "store.aws_region": parts.netloc, "home": home}
    flags["store.table_prefix"] = prefixes[0] if prefixes else None
    return Settings.load(_environment, None, flags)


def _home_settings(target: str | Path) -> Settings:
    """Return the settings of a home folder. Raises `SettingsError` for a target of another form."""
    if isinstance(target, str) and "://" in target:
        raise SettingsError(f"target {target[:80]!r}: use https://, dynamodb:// or the home folder of a server")
    home = Path(target)
    if not home.is_dir():
        raise SettingsError(f"target {home}: there is no such folder; name the home folder of a server")
    return Settings.load({}, None, {"home": str(home)})
