"""Everything the state store offers over RPC."""

from __future__ import annotations

from headgate.durable.bus.bus import Bus
from headgate.health.service import HealthService
from headgate.serve import statestore as pb
from headgate.serve.pool import WorkPool
from headgate.serve.rpc import Declarations, Method
from headgate.serve.statestore_gate import GateMethods
from headgate.serve.statestore_lineage import LineageMethods
from headgate.serve.statestore_methods import EvidenceMethods, IncidentMethods, SignalMethods
from headgate.serve.statestore_registry import RegistryMethods
from headgate.serve.statestore_watching import StateWatching
from headgate.serve.watching import Watches


def statestore_methods(
    health: HealthService, bus: Bus, *, watches: Watches, pool: WorkPool, quick_reads: bool
) -> list[Method]:
    """Return the methods of all services. `quick_reads`: a row is read from this machine, without a network between."""
    rpcs = Declarations(pb.DESCRIPTOR)
    SignalMethods(health, pool).declare(rpcs, quick_reads=quick_reads)
    EvidenceMethods(health).declare(rpcs, quick_reads=quick_reads)
    IncidentMethods(health).declare(rpcs)
    StateWatching(health, bus, watches, pool).declare(rpcs)
    LineageMethods(health).declare(rpcs)
    RegistryMethods(health, watches, pool).declare(rpcs, quick_reads=quick_reads)
    GateMethods(health).declare(rpcs, quick_reads=quick_reads)
    return rpcs.methods()


def taken_in_methods(health: HealthService, pool: WorkPool) -> list[Method]:
    """Return the methods that another process of a server may answer for it."""
    rpcs = Declarations(pb.DESCRIPTOR)
    SignalMethods(health, pool).declare(rpcs, quick_reads=False)
    EvidenceMethods(health).declare(rpcs, quick_reads=False)
    IncidentMethods(health).declare(rpcs)
    return [method for method in rpcs.methods() if method.is_taken_in]
