"""State store service: declares the RPC methods of all its services."""

from __future__ import annotations

from headgate.durable.bus.bus import Bus
from headgate.health.service import HealthService
from headgate.serve.rpc.methods import Method, MethodRegistry
from headgate.serve.rpc.statestore import proto as pb
from headgate.serve.rpc.statestore.gate import GateMethods
from headgate.serve.rpc.statestore.lineage import LineageMethods
from headgate.serve.rpc.statestore.registry import RegistryMethods
from headgate.serve.rpc.statestore.signals import EvidenceMethods, IncidentMethods, SignalMethods
from headgate.serve.rpc.statestore.watch import WatchMethods
from headgate.serve.runtime.thread_pool import WorkPool
from headgate.serve.runtime.watch_hub import WatchHub


def statestore_methods(
    health: HealthService, bus: Bus, *, watches: WatchHub, pool: WorkPool, local_reads: bool
) -> list[Method]:
    """Return the methods of all services. With `local_reads` the store is on this machine, and reads run inline."""
    rpcs = MethodRegistry(pb.DESCRIPTOR)
    SignalMethods(health, pool).declare(rpcs, local_reads=local_reads)
    EvidenceMethods(health).declare(rpcs, local_reads=local_reads)
    IncidentMethods(health).declare(rpcs)
    WatchMethods(health, bus, watches, pool).declare(rpcs)
    LineageMethods(health).declare(rpcs)
    RegistryMethods(health, watches, pool).declare(rpcs, local_reads=local_reads)
    GateMethods(health).declare(rpcs, local_reads=local_reads)
    return rpcs.methods()


def intake_methods(health: HealthService, pool: WorkPool) -> list[Method]:
    """Return the methods that the intake process answers."""
    rpcs = MethodRegistry(pb.DESCRIPTOR)
    SignalMethods(health, pool).declare(rpcs, local_reads=False)
    EvidenceMethods(health).declare(rpcs, local_reads=False)
    IncidentMethods(health).declare(rpcs)
    return [method for method in rpcs.methods() if method.runs_in_intake]
