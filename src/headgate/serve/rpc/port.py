"""RPC port of a process: the gRPC server with its methods, health and reflection."""

from __future__ import annotations

from functools import partial

from headgate.serve.http.connection.tls import Tls
from headgate.serve.rpc.dispatcher import Dispatcher
from headgate.serve.rpc.grpc import GrpcServer, add_methods, add_reflection, check_free
from headgate.serve.rpc.methods import services
from headgate.settings import Settings


def open_port(
    settings: Settings, rpcs: Dispatcher, tls: Tls | None, *, shares_port: bool, is_first: bool
) -> GrpcServer:
    """Return the gRPC server of these calls, which is not started.

    Processes may share the port; the first one raises `SettingsError` if another program has it.
    """
    if shares_port and is_first:
        check_free(settings.grpc)
    methods = rpcs.methods.values()
    return GrpcServer(
        settings.grpc,
        [partial(add_methods, rpcs, limits=settings.limits), partial(add_reflection, methods)],
        names=services(methods),
        tls=tls,
        limits=settings.limits,
        shares_port=shares_port,
    )
