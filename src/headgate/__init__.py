"""Headgate: a control plane for data pipelines. Nothing flows until it is safe.

The public SDK: `import headgate as hg`. Names are loaded on first use, which keeps importing the package cheap.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headgate import testing as testing
    from headgate.bootstrap.chunk_worker import ChunkWorker
    from headgate.bootstrap.store import connect
    from headgate.durable.bus.events import Event
    from headgate.durable.bus.subscriptions import Filter
    from headgate.durable.client.handle import Handle
    from headgate.durable.http.messages import HttpError, Request, Response
    from headgate.durable.http.router import Cors
    from headgate.durable.model.async_invocation import AsyncInvocation
    from headgate.durable.model.encryption import Encryption, KeyProvider, KeyringKeys
    from headgate.durable.model.failures import (
        ActivityFailure,
        ActivityTimeout,
        Cancelled,
        ChildFailure,
        ExecutionFailure,
        Failure,
        NonRetryable,
        UpdateFailure,
    )
    from headgate.durable.model.history import ParentClose, Status
    from headgate.durable.model.interceptors import (
        ActivityCall,
        ClientCall,
        Interceptor,
        OutboundCall,
        SignalCall,
        WorkflowCall,
    )
    from headgate.durable.model.message_types import Query, Signal, Update
    from headgate.durable.model.payload_types import register_type
    from headgate.durable.model.retry import Retry
    from headgate.durable.model.schedule_declarations import Cron
    from headgate.durable.model.starts import Reuse
    from headgate.durable.remote.async_client import AsyncClient, AsyncRemoteHandle
    from headgate.durable.remote.sync_client import Client, RemoteHandle
    from headgate.durable.sdk.activity_context import activity, complete_later, heartbeat
    from headgate.durable.sdk.app import App
    from headgate.durable.sdk.by_name import call_activity, start_child
    from headgate.durable.sdk.definitions import Activity, Child, Limit, Workflow
    from headgate.durable.sdk.emitting import emit
    from headgate.durable.sdk.execution_log import log
    from headgate.durable.sdk.workflow import (
        continue_as_new,
        deprecate_patch,
        info,
        now,
        on_query,
        on_signal,
        on_update,
        patched,
        random,
        set_tags,
        side_effect,
        signal,
        sleep,
        sleep_until,
        uuid,
        wait_condition,
        wait_signal,
    )
    from headgate.errors import NotAdmittedError
    from headgate.fanout.handlers import Work
    from headgate.fanout.hg_map import FanoutFailure, Mapped, map
    from headgate.fanout.model.rows import Policy
    from headgate.fanout.remote.chunk_handler import chunk_handler
    from headgate.fanout.remote.sdk import ActiveChunk

    __version__: str

_NAMES_BY_MODULE = {
    "durable.sdk.activity_context": ("activity", "complete_later", "heartbeat"),
    "durable.sdk.app": ("App",),
    "durable.sdk.by_name": ("call_activity", "start_child"),
    "durable.remote.async_client": ("AsyncClient", "AsyncRemoteHandle"),
    "durable.remote.sync_client": ("Client", "RemoteHandle"),
    "durable.sdk.definitions": ("Activity", "Child", "Limit", "Workflow"),
    "durable.sdk.emitting": ("emit",),
    "durable.sdk.execution_log": ("log",),
    "durable.bus.events": ("Event",),
    "durable.model.failures": (
        "ActivityFailure",
        "ActivityTimeout",
        "Cancelled",
        "ChildFailure",
        "ExecutionFailure",
        "Failure",
        "NonRetryable",
        "UpdateFailure",
    ),
    "durable.client.handle": ("Handle",),
    "durable.model.history": ("ParentClose", "Status"),
    "durable.model.interceptors": (
        "ActivityCall",
        "ClientCall",
        "Interceptor",
        "OutboundCall",
        "SignalCall",
        "WorkflowCall",
    ),
    "durable.http.router": ("Cors",),
    "durable.http.messages": ("HttpError", "Request", "Response"),
    "durable.model.message_types": ("Query", "Signal", "Update"),
    "durable.model.async_invocation": ("AsyncInvocation",),
    "durable.model.encryption": ("Encryption", "KeyProvider", "KeyringKeys"),
    "durable.model.payload_types": ("register_type",),
    "durable.model.retry": ("Retry",),
    "durable.model.schedule_declarations": ("Cron",),
    "durable.model.starts": ("Reuse",),
    "durable.bus.subscriptions": ("Filter",),
    "durable.sdk.workflow": (
        "continue_as_new",
        "deprecate_patch",
        "info",
        "now",
        "on_query",
        "on_signal",
        "on_update",
        "patched",
        "random",
        "set_tags",
        "side_effect",
        "signal",
        "sleep",
        "sleep_until",
        "uuid",
        "wait_condition",
        "wait_signal",
    ),
    "errors": ("NotAdmittedError",),
    "fanout.remote.chunk_handler": ("chunk_handler",),
    "fanout.handlers": ("Work",),
    "fanout.hg_map": ("FanoutFailure", "Mapped", "map"),
    "fanout.model.rows": ("Policy",),
    "fanout.remote.sdk": ("ActiveChunk",),
    "bootstrap.chunk_worker": ("ChunkWorker",),
    "bootstrap.store": ("connect",),
}
_MODULES = {name: f"headgate.{home}" for home, names in _NAMES_BY_MODULE.items() for name in names}

__all__ = (
    "ActiveChunk",
    "Activity",
    "ActivityCall",
    "ActivityFailure",
    "ActivityTimeout",
    "App",
    "AsyncClient",
    "AsyncInvocation",
    "AsyncRemoteHandle",
    "Cancelled",
    "Child",
    "ChildFailure",
    "ChunkWorker",
    "Client",
    "ClientCall",
    "Cors",
    "Cron",
    "Encryption",
    "Event",
    "ExecutionFailure",
    "Failure",
    "FanoutFailure",
    "Filter",
    "Handle",
    "HttpError",
    "Interceptor",
    "KeyProvider",
    "KeyringKeys",
    "Limit",
    "Mapped",
    "NonRetryable",
    "NotAdmittedError",
    "OutboundCall",
    "ParentClose",
    "Policy",
    "Query",
    "RemoteHandle",
    "Request",
    "Response",
    "Retry",
    "Reuse",
    "Signal",
    "SignalCall",
    "Status",
    "Update",
    "UpdateFailure",
    "Work",
    "Workflow",
    "WorkflowCall",
    "__version__",
    "activity",
    "call_activity",
    "chunk_handler",
    "complete_later",
    "connect",
    "continue_as_new",
    "deprecate_patch",
    "emit",
    "heartbeat",
    "info",
    "log",
    "map",
    "now",
    "on_query",
    "on_signal",
    "on_update",
    "patched",
    "random",
    "register_type",
    "set_tags",
    "side_effect",
    "signal",
    "sleep",
    "sleep_until",
    "start_child",
    "testing",
    "uuid",
    "wait_condition",
    "wait_signal",
)


def __dir__() -> "list[str]":
    return sorted({*globals(), *__all__})


if not TYPE_CHECKING:
    # Hidden from type checkers and editors: they see the imports above, and refuse every other name.
    def __getattr__(name: str) -> object:
        from importlib import import_module

        if name in _MODULES:
            value = getattr(import_module(_MODULES[name]), name)
            globals()[name] = value
            return value
        if name == "testing":
            return import_module("headgate.testing")
        # Lazy too: reading package metadata takes longer than importing this package.
        if name == "__version__":
            from importlib.metadata import version

            return version("headgate")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
