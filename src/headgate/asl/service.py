"""The service: machines and their executions around one app, its store and its workers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from msgspec import Raw

from headgate.asl.executions import MachineExecutions
from headgate.asl.expressions.scope import Json
from headgate.asl.machines import Machines
from headgate.asl.map.distributed import Distributor
from headgate.asl.requests import Request
from headgate.asl.runtime.durable_host import WORKFLOW, Surroundings, machine_workflow
from headgate.asl.runtime.replay import Inspector
from headgate.asl.runtime.task_tokens import sign_token
from headgate.asl.tasks import service_tasks as services
from headgate.durable.engine.membership import list_members
from headgate.durable.model.history import ActivityOptions
from headgate.durable.sdk.app import App
from headgate.durable.sdk.definitions import Workflow
from headgate.durable.service import Service
from headgate.fanout.service import FanoutService
from headgate.store.blobs.folder import Blobs
from headgate.store.keyring import Keyring
from headgate.store.port import Store
from headgate.store.table_names import TableNames


class AslService:
    """Runs machines in the worker of an app. Made once for an app, before its worker starts."""

    def __init__(
        self,
        service: Service,
        store: Store,
        keyring: Keyring,
        fanouts: FanoutService,
        blobs: Blobs,
        names: TableNames | None = None,
    ) -> None:
        app = service.app
        self._app = app
        self._store = store
        self._clock = service.clock
        self.machines = Machines(store, service.clock)
        distributor = Distributor(fanouts, blobs)
        surroundings = Surroundings(
            sign=lambda execution_id, signal: sign_token(keyring, execution_id, signal),
            options_of=self._options_of,
            distribute=distributor.run,
            definition_of=self.machines.definition,
            look=self._look,
        )
        self.executions = MachineExecutions(
            service.client,
            self.machines,
            Inspector(surroundings),
            keyring,
            service.clock,
            service.ids,
            known_functions=self._known_functions,
        )
        app.workflows[WORKFLOW] = _workflow(app, machine_workflow(surroundings))
        distributor.register(app, self.executions)
        services.register(app, self.executions, service.bus, store, fanouts, names=names)

    def _options_of(self, name: str, input: Raw) -> ActivityOptions | None:
        activity = self._app.activities.get(name)
        if activity is None:
            return None
        if activity.limit is None:
            return activity.activity_options
        args, kwargs = activity.signature.unpack(input, what=f"input of {name}")
        return activity.options_for(args, kwargs)

    def _look(self, name: str, input: Json) -> Json:
        activity = self._app.activities.get(name)
        return None if activity is None or activity.look is None else activity.look(input)

    def _known_functions(self) -> set[str]:
        """Return the names of all functions that a worker has, here or elsewhere."""
        now_ms = int(self._clock.seconds() * 1000)
        alive = [member for member in list_members(self._store) if member.seems_alive(now_ms)]
        return {*self._app.activities, *(name for member in alive for name in member.activities)}


def _workflow(app: App, function: Callable[[Request], Awaitable[Json]]) -> Workflow[..., Json]:
    return Workflow(
        function,
        name=WORKFLOW,
        timeout_seconds=None,
        retention_seconds=None,
        client=app.client,
    )
