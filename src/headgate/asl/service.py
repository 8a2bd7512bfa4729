"""ASL service: registers the machine workflow and its activities with an app, and gives access to machines."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Raw

from headgate.asl.expressions.scope import Json
from headgate.asl.machines import task_activities
from headgate.asl.machines.executions import MachineExecutions
from headgate.asl.machines.registry import MachineRegistry
from headgate.asl.map.distributed import Distributor
from headgate.asl.runtime.durable_host import WORKFLOW, HostDependencies, machine_workflow
from headgate.asl.runtime.execution_request import compiled
from headgate.asl.runtime.replay import HistoryReplayer
from headgate.asl.runtime.task_tokens import sign_token
from headgate.asl.state_tests import StateTester, StateTestRequest, StateTestResult
from headgate.asl.tasks.local_tasks import LocalTasks
from headgate.asl.tasks.task_backends import TaskBackends
from headgate.asl.tasks.task_routes import TaskRoutes, case_of
from headgate.asl.tasks.user_tables import UserTables
from headgate.durable.engine.function_apps import serving_members
from headgate.durable.model.history import ActivityOptions
from headgate.durable.sdk.definitions import Workflow
from headgate.durable.service import Service
from headgate.fanout.service import FanoutService
from headgate.store.blobs.folder import Blobs
from headgate.store.keyring import Keyring
from headgate.store.port import Store


class AslService:
    """Runs machines in the workers of an app. Construct one per app, before its worker starts."""

    def __init__(
        self,
        service: Service,
        store: Store,
        keyring: Keyring,
        fanouts: FanoutService,
        blobs: Blobs,
        tables: UserTables | None = None,
        backends: TaskBackends | None = None,
    ) -> None:
        """`tables` are those that DynamoDB Tasks may use, `backends` what they may call outside; by default none."""
        backends = backends or TaskBackends()
        routes = TaskRoutes(backends.resources, backends.access)
        app = service.app
        self.app = app
        self._routes = routes
        self._tester = StateTester(app, service.clock, service.ids, routes.find)
        self._store = store
        self._clock = service.clock
        self.machines = MachineRegistry(store, service.clock)
        distributor = Distributor(fanouts, blobs, routes.find)
        dependencies = HostDependencies(
            sign=lambda execution_id, signal: sign_token(keyring, execution_id, signal),
            options_of=self._options_of,
            distribute=distributor.run,
            definition_of=self.machines.definition,
            find_route=routes.find,
            read_inline=self._read_inline,
        )
        self.executions = MachineExecutions(
            service.client,
            self.machines,
            HistoryReplayer(dependencies),
            keyring,
            service.clock,
            service.ids,
            known_functions=self._known_functions,
            local_tasks=LocalTasks(backends.resources, backends.access, tables or UserTables(store)),
            routes=routes,
        )
        app.workflows[WORKFLOW] = Workflow(
            machine_workflow(dependencies),
            name=WORKFLOW,
            timeout_seconds=None,
            retention_seconds=None,
            client=app.client,
        )
        distributor.register(app, self.executions)
        task_activities.register(app, self.executions, service.bus, store, fanouts, tables=tables, backends=backends)

    def test_state(
        self,
        machine: str,
        definition: str,
        state: str,
        input: Json,
        *,
        variables: Mapping[str, Json],
        test_case: str = "",
    ) -> StateTestResult:
        """Run one state of a valid definition once, in this process. Raises `NotFoundError`."""
        if test_case:
            self._routes.resources.mocks.check_case(machine, test_case)
        request = StateTestRequest(
            compiled(definition),
            machine,
            state,
            input,
            variables,
            is_routed=self._routes.is_active,
            case=case_of(machine, test_case),
        )
        return self._tester.run(request)

    def _options_of(self, name: str, input: Raw) -> ActivityOptions | None:
        activity = self.app.activities.get(name)
        if activity is None:
            return None
        if activity.limit is None:
            return activity.activity_options
        args, kwargs = activity.signature.unpack(input, what=f"input of {name}")
        return activity.options_for(args, kwargs)

    def _read_inline(self, name: str, input: Json) -> Json:
        activity = self.app.activities.get(name)
        return None if activity is None or activity.look is None else activity.look(input)

    def _known_functions(self) -> set[str]:
        """Return the names of the activities of this app and of every live worker, and those that functions serve."""
        now_ms = int(self._clock.seconds() * 1000)
        serving = serving_members(self._store, now_ms)
        return {*self.app.activities, *(name for member in serving for name in member.activities)}
