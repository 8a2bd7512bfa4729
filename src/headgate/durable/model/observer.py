"""Observer: receives commits, so that the worker and the waiting callers of a process need not poll for them."""

from __future__ import annotations

from typing import Final, Protocol

from headgate.durable.model.records import Execution


class DurableObserver(Protocol):
    """Receives what the client, the bus, the schedules and the worker of a process have committed."""

    def on_message_stored(self, execution_id: str) -> None:
        """Handle a message that this process put into the inbox of an execution."""

    def on_work_stored(self) -> None:
        """Handle rows that this process stored and only a poll finds, such as deliveries and schedules."""

    def on_execution_closed(self, execution: Execution) -> None:
        """Handle the end of an execution that this process advanced."""

    def on_remote_commit(self) -> None:
        """Handle a commit of another process."""


class NullObserver:
    """An observer that does nothing."""

    def on_message_stored(self, execution_id: str) -> None:
        pass

    def on_work_stored(self) -> None:
        pass

    def on_execution_closed(self, execution: Execution) -> None:
        pass

    def on_remote_commit(self) -> None:
        pass


NULL_OBSERVER: Final = NullObserver()
