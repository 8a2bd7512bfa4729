"""Everything the state store offers over RPC."""

from __future__ import annotations

from headgate.durable.bus.bus import Bus
from headgate.health.service import HealthService
from headgate.serve.rpc.methods import Method, MethodRegistry
from headgate.serve.rpc.statestore import proto as pb
from headgate.serve.rpc.statestore.gate import GateMethods
from headgate.serve.rpc.statestore.lineage import LineageMethods
from headgate.serve.rpc.statestore.registry import RegistryMethods
from headgate.serve.rpc.statestore.signals import EvidenceMethods, IncidentMethods, SignalMethods
from headgate.serve.rpc.statestore.watch import StateWatching
from headgate.serve.runtime.thread_pool import WorkPool
from headgate.serve.runtime.watch_hub import WatchHub


def statestore_methods(
    health: HealthService, bus: Bus, *, watches: WatchHub, pool: WorkPool, local_reads: bool
) -> list[Method]:
    """Return the methods of all services. `local_reads`: a row is read from this machine, without a network between."""
    rpcs = MethodRegistry(pb.DESCRIPTOR)
    SignalMethods(health, pool).declare(rpcs, local_reads=local_reads)
    EvidenceMethods(health).declare(rpcs, local_reads=local_reads)
    IncidentMethods(health).declare(rpcs)
    StateWatching(health, bus, watches, pool).declare(rpcs)
    LineageMethods(health).declare(rpcs)
    RegistryMethods(health, watches, pool).declare(rpcs, local_reads=local_reads)
    GateMethods(health).declare(rpcs, local_reads=local_reads)
    return rpcs.methods()


def intake_methods(health: HealthService, pool: WorkPool) -> list[Method]:
    """Return the methods that another process of a server may answer for it."""
    rpcs = MethodRegistry(pb.DESCRIPTOR)
    SignalMethods(health, pool).declare(rpcs, local_reads=False)
    EvidenceMethods(health).declare(rpcs, local_reads=False)
    IncidentMethods(health).declare(rpcs)
    return [method for method in rpcs.methods() if method.runs_in_intake]
