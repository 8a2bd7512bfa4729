"""Airflow: a real Airflow 3 and 2 with the package headgate-airflow and Airflow's own OpenLineage events.

Scheduler, triggerer and API server run as their users run them. DAGs wait for the gate, report their runs, fail, are
retried and are fixed, and the Headgate server is killed while sensors wait.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

import httpx

from tests.acceptance import program
from tests.acceptance.program import Server, until
from tests.soak.figures import Figure

ROOT: Final = Path(__file__).parents[2]
VENVS: Final = {"3": ROOT / ".venv-airflow3", "2": ROOT / ".venv-airflow2"}
RAW: Final = "urn:dp:shop:raw:v1"
ORDERS: Final = "urn:dp:shop:orders:v1"
KILLED: Final = "urn:dp:shop:killed:v1"
LAKE: Final = "urn:dp:s3+lake:orders"
TABLE: Final = "urn:dp:postgres+db@5432:shop.public.orders"
DAGS: Final = ("shop", "reader", "held", "killed", "lake")
PAGE: Final = ROOT / "docs" / "how-to" / "use-airflow.md"
# Generous: each task is a process of its own that imports Airflow, which takes a busy machine a minute.
DAG_SECONDS_MAX: Final = 900.0
PASSWORD: Final = "a password of the soak"
_PIPELINE: Final = """\
id: shop-in-airflow
readiness: {{rules: [{{dataset: "{raw}"}}]}}
trigger:
  type: airflow
  check_interval: 2s
  config:
    url: {url}
    dag_id: shop
    username: admin
    password: "${{env:HG_SECRET_AIRFLOW}}"
"""


class Airflow:
    """An Airflow with its processes, files and database in a folder."""

    def __init__(self, version: str, folder: Path, headgate_url: str, api_key: str) -> None:
        self.version = version
        self.folder = folder
        self._bin = VENVS[version] / "bin"
        self.mode = folder / "mode"
        self.mode.write_text("ok")
        (folder / "dags").mkdir()
        shutil.copy(Path(__file__).parent / "airflow_dags" / "shop.py", folder / "dags")
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = int(free.getsockname()[1])
        parts = httpx.URL(headgate_url)
        connection = {"conn_type": "headgate", "host": parts.host, "port": parts.port, "schema": "http"}
        transport = {"type": "http", "url": headgate_url, "auth": {"type": "api_key", "apiKey": api_key}}
        passwords = folder / "passwords.json"
        passwords.write_text(json.dumps({"admin": PASSWORD}))
        self._environ = {
            "PATH": f"{self._bin}:{os.environ['PATH']}",
            "HOME": str(folder),
            "AIRFLOW_HOME": str(folder),
            "SHOP_MODE": str(self.mode),
            "AIRFLOW_CONN_WRONG_KEY": json.dumps(connection | {"password": "hg_wrong"}),
            "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(transport),
            # Not that of the reports: Airflow sends an event of every failed try.
            "AIRFLOW__OPENLINEAGE__NAMESPACE": "airflow-events",
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor" if version == "3" else "SequentialExecutor",
            "AIRFLOW__CORE__FERNET_KEY": "",
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{self.port}/execution/",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "admin:admin",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords),
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": str(self.port),
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__API__BASE_URL": f"http://127.0.0.1:{self.port}",
            "AIRFLOW__API_AUTH__JWT_SECRET": "a secret of the soak, " * 4,
            "AIRFLOW__API__AUTH_BACKENDS": "airflow.api.auth.backend.basic_auth",
            "AIRFLOW__WEBSERVER__WEB_SERVER_HOST": "127.0.0.1",
            "AIRFLOW__WEBSERVER__WEB_SERVER_PORT": str(self.port),
            "AIRFLOW__WEBSERVER__WORKERS": "1",
            "AIRFLOW__WEBSERVER__SECRET_KEY": "a secret of the soak",
        }
        self._processes: list[subprocess.Popen[bytes]] = []
        self._api_key = api_key
        self._port_of_headgate = str(parts.port)

    def command(self, *arguments: str) -> str:
        """Run a command of Airflow, and return its output."""
        ended = subprocess.run(
            [self._bin / "airflow", *arguments],
            cwd=self.folder,
            env=self._environ,
            capture_output=True,
            text=True,
            timeout=DAG_SECONDS_MAX,
            check=False,
        )
        assert ended.returncode == 0, f"airflow {arguments}: {ended.stdout[-3000:]}{ended.stderr[-3000:]}"
        return ended.stdout

    def start(self) -> None:
        """Create the database and start the processes."""
        self.command("db", "migrate")
        line = self._shown("airflow connections add ").replace('"$(cat airflow.key)"', self._api_key)
        local = ("--conn-port", self._port_of_headgate, "--conn-schema", "http")
        self.command(*line.replace("headgate.example", "127.0.0.1").split()[1:], *local)
        services = ["scheduler", "triggerer"]
        services += ["api-server", "dag-processor"] if self.version == "3" else ["webserver"]
        if self.version == "2":
            person = ("--firstname", "A", "--lastname", "B", "--email", "a@example.com")
            self.command("users", "create", "-u", "admin", "-p", PASSWORD, "-r", "Admin", *person)
        for service in services:
            with (self.folder / f"{service}.log").open("wb") as log:
                process = subprocess.Popen(
                    [self._bin / "airflow", service],
                    cwd=self.folder,
                    env=self._environ,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            self._processes.append(process)
        self._until(lambda: len(self._rows("select dag_id from dag")) == len(DAGS), "the DAGs are parsed")

    def run_page(self) -> str:
        """Run the DAG of the page as the page says, and return what it printed."""
        (python,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
        if self.version == "2":
            python = python.replace("from airflow.sdk import dag, task", "from airflow.decorators import dag, task")
        (self.folder / "dags" / "shop_orders.py").write_text(python)
        self._until(lambda: "shop_orders" in self.command("dags", "list"), "the DAG of the page is parsed")
        return self.command(*self._shown("airflow dags test ").split()[1:])

    @staticmethod
    def _shown(command: str) -> str:
        """Return the line of the page that begins with a command."""
        return next(line[2:] for line in PAGE.read_text().splitlines() if line.startswith(f"$ {command}"))

    def stop(self) -> None:
        """End the processes with all that they started."""
        for process in self._processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def trigger(self, dag_id: str, run_id: str) -> None:
        """Start a run of a DAG."""
        self.command("dags", "trigger", dag_id, "--run-id", run_id)

    def ended(self, dag_id: str, run_id: str) -> str:
        """Wait for the end of a run, and return its state."""
        self._until(lambda: self.state(dag_id, run_id) in ("success", "failed"), f"{dag_id} {run_id} ends")
        return self.state(dag_id, run_id)

    def state(self, dag_id: str, run_id: str) -> str:
        found = self._rows("select state from dag_run where dag_id = ? and run_id = ?", dag_id, run_id)
        return str(found[0][0]) if found else ""

    def tasks(self, dag_id: str, run_id: str) -> dict[str, tuple[str, int]]:
        """Return the state and the number of tries of each task."""
        rows = self._rows(
            "select task_id, state, try_number from task_instance where dag_id = ? and run_id = ?", dag_id, run_id
        )
        return {task_id: (state, tries) for task_id, state, tries in rows}

    def log(self, dag_id: str, run_id: str, task_id: str) -> str:
        """Return the log of a task."""
        folder = self.folder / "logs" / f"dag_id={dag_id}" / f"run_id={run_id}" / f"task_id={task_id}"
        text = "\n".join(path.read_text(errors="replace") for path in sorted(folder.rglob("attempt=*")))
        # Airflow 3 writes a JSON object a line.
        return text.replace("\\n", "\n")

    def all_logs(self) -> str:
        """Return the logs of all tasks and processes."""
        paths = [*(self.folder / "logs").rglob("*.log*"), *self.folder.glob("*.log")]
        return "\n".join(path.read_text(errors="replace") for path in paths)

    def triggers(self) -> str:
        """Return the triggers, as the database of Airflow has them."""
        return json.dumps(self._rows("select classpath, kwargs from trigger"))

    def run_ids(self, dag_id: str) -> list[str]:
        return [str(row[0]) for row in self._rows("select run_id from dag_run where dag_id = ?", dag_id)]

    def wait_state(self, dag_id: str, run_id: str, wanted: dict[str, set[str]]) -> None:
        """Wait until tasks have one of some states."""

        def is_so() -> bool:
            found = self.tasks(dag_id, run_id)
            return all(task in found and found[task][0] in states for task, states in wanted.items())

        self._until(is_so, f"{dag_id} {run_id}: {wanted}, not {self.tasks(dag_id, run_id)}")

    def _rows(self, query: str, *values: str) -> list[Any]:
        database = self.folder / "airflow.db"
        connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=30)
        try:
            return connection.execute(query, values).fetchall()
        except sqlite3.OperationalError:
            # Not created yet, or being written.
            return []
        finally:
            connection.close()

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + DAG_SECONDS_MAX
        while not condition():
            assert time.monotonic() < deadline, f"Airflow {self.version}: {what}: not within {DAG_SECONDS_MAX:g} s"
            dead = [each.args for each in self._processes if each.poll() is not None]
            assert not dead, f"Airflow {self.version}: ended: {dead}"
            time.sleep(0.25)


class Site:
    """A Headgate server that can be killed and started again at its address."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "pipelines").mkdir(parents=True)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = int(free.getsockname()[1])
        issued = program.run("api-key", "first", "--json", folder=folder)
        assert issued.returncode == 0, issued.stderr
        self._admin = json.loads(issued.stdout)["text"]
        self.server = self._start()
        self.url = self.server.url

    def _start(self) -> Server:
        options = {
            "HEADGATE_AUTH_REQUIRED": "true",
            "HG_SECRET_AIRFLOW": PASSWORD,
            "HEADGATE_FORWARD_PLAIN_HTTP": "true",
            "HEADGATE_FORWARD_PRIVATE_NETWORKS": "127.0.0.0/8",
        }
        flags = ("--pipelines", "pipelines", "--http", f"127.0.0.1:{self._port}")
        return Server(self.folder, *flags, **options)

    def kill(self) -> None:
        self.server.signal(signal.SIGKILL)
        self.server.exit_code()

    def start_again(self) -> None:
        self.server = self._start()

    def headgate(self, *arguments: str, exit_code: int | None = 0) -> str:
        ended = program.run(*arguments, folder=self.folder, HEADGATE_SERVER=self.url, HEADGATE_API_KEY=self._admin)
        assert exit_code in (None, ended.returncode), ended.stdout + ended.stderr
        return ended.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self.headgate(*arguments, "--json", exit_code=None))

    def state(self, urn: str, signal_type: str = "JOB_RUN") -> str:
        key = {"authorization": f"Bearer {self._admin}"}
        answer = httpx.get(f"{self.url}/api/v1/datasets/{urn}/signals/{signal_type}", headers=key, timeout=30)
        return str(answer.json()["state"]) if answer.is_success else ""

    def key(self, *roles: str) -> str:
        flags = [part for role in roles for part in ("--role", role)]
        return str(self.json("api-key", "issue", "airflow", *flags)["text"])

    def healthy(self, urn: str) -> None:
        """Report that a dataset is healthy."""
        self.headgate("signal", "set", urn, "FRESHNESS", "OK")


def run(folder: Path) -> list[Figure]:
    """Run the story with each Airflow; return what held."""
    found: list[Figure] = []
    for version, venv in VENVS.items():
        if not (venv / "bin" / "airflow").exists():
            raise FileNotFoundError(f"{venv} is missing; run `make airflow`")
        found += _Story(version, folder / version).figures()
    return found


def _text(value: object) -> str:
    """Return a value as text, without the brackets and quotes of Python."""
    if isinstance(value, dict):
        return ", ".join(f"{name}: {each}" for name, each in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


class _Story:
    def __init__(self, version: str, folder: Path) -> None:
        self._version = version
        self._folder = folder
        self._figures: list[Figure] = []

    def figures(self) -> list[Figure]:
        home = self._folder / "airflow"
        home.mkdir(parents=True)
        with ExitStack() as exits:
            site = Site(self._folder / "headgate")
            exits.callback(lambda: site.server.__exit__(None, None, None))
            for urn in (RAW, ORDERS):
                site.headgate("dataset", "register", urn)
            site.healthy(RAW)
            api_key = site.key("enforcer", "lineage_ingestor")
            airflow = Airflow(self._version, home, site.url, api_key)
            exits.callback(airflow.stop)
            airflow.start()
            self._healthy(airflow, site)
            self._retried(airflow, site)
            self._failed(airflow, site)
            self._held(airflow)
            self._killed(airflow, site)
            self._waits(airflow, site)
            self._own_events(airflow, site)
            self._page(airflow, site)
            self._started_by_headgate(airflow, site)
            self._kept_secret(airflow, api_key)
        return self._figures

    def _note(self, what: str, value: object, *, holds: bool) -> None:
        installed = (VENVS[self._version] / "lib").glob("python*/site-packages/apache_airflow-*.dist-info")
        exact = next(installed).name.removeprefix("apache_airflow-").removesuffix(".dist-info")
        self._figures.append(Figure(f"Airflow {exact}: {what}", _text(value), holds))

    def _healthy(self, airflow: Airflow, site: Site) -> None:
        airflow.trigger("shop", "healthy")
        state = airflow.ended("shop", "healthy")
        until(lambda: site.state(ORDERS) == "OK", "the run is reported", 60)
        writers = site.headgate("lineage", "writers", ORDERS)
        downstream = site.headgate("lineage", "downstream", RAW)
        holds = state == "success" and "shop.load" in writers and ORDERS in downstream
        self._note("a run behind the sensor; its report sets JOB_RUN and lineage", state, holds=holds)

    def _retried(self, airflow: Airflow, site: Site) -> None:
        airflow.mode.write_text("fails once")
        airflow.trigger("shop", "retried")
        seen: set[str] = set()

        def is_over() -> bool:
            seen.add(site.state(ORDERS))
            return airflow.state("shop", "retried") in ("success", "failed")

        until(is_over, "the retried run ends", DAG_SECONDS_MAX)
        until(lambda: self._runs(site, "shop.load")[0]["state"] == "COMPLETED", "the retried run is reported", 60)
        tries = airflow.tasks("shop", "retried")["load"]
        self._note("a failed try that is retried changes no signal", tries, holds=seen == {"OK"} and tries[1] == 2)
        count = len(self._runs(site, "shop.load"))
        self._note("runs of the job after 3 tries of 2 task instances", count, holds=count == 2)

    def _failed(self, airflow: Airflow, site: Site) -> None:
        airflow.mode.write_text("fails")
        airflow.trigger("shop", "failed")
        state = airflow.ended("shop", "failed")
        until(lambda: site.state(ORDERS) == "CRITICAL", "the failure is reported", 60)
        shown = site.headgate("gate", "check", ORDERS, exit_code=20)
        # The callback of the DAG comes later, and must not replace the error text.
        time.sleep(5)
        text = site.headgate("dataset", "tests", ORDERS)
        incidents = site.json("incident", "ls", "--dataset", ORDERS)
        holds = state == "failed" and "BLOCK" in shown and "column amount is missing" in text and bool(incidents)
        self._note("a failed task closes the gate, with its error text and an incident", state, holds=holds)

    def _held(self, airflow: Airflow) -> None:
        airflow.trigger("held", "held")
        airflow.ended("held", "held")
        tasks = airflow.tasks("held", "held")
        wanted = {
            "fails": ("failed", 1),
            "skips": ("skipped", 1),
            "unregistered": ("failed", 1),
            "refused": ("failed", 1),
            "sensor_ends": ("failed", 1),
            "deferred_ends": ("failed", 1),
            "soft_fail": ("skipped", 1),
        }
        states = {name: found[0] for name, found in tasks.items()}
        tries = {name: found[1] for name, found in tasks.items() if name in ("fails", "unregistered", "refused")}
        holds = states == {name: state for name, (state, _) in wanted.items()} and set(tries.values()) == {1}
        self._note("held tasks fail or are skipped, without retries", states, holds=holds)
        reasons = {
            name: "JOB_RUN of urn:dp:shop:orders:v1 is CRITICAL since" in airflow.log("held", "held", name)
            for name in ("fails", "skips", "sensor_ends", "deferred_ends", "soft_fail")
        }
        reasons["unregistered"] = "is not registered" in airflow.log("held", "held", "unregistered")
        reasons["refused"] = "401" in airflow.log("held", "held", "refused")
        missing = [name for name, is_named in reasons.items() if not is_named]
        self._note("logs that do not name the reason", missing or "none", holds=not missing)

    def _waits(self, airflow: Airflow, site: Site) -> None:
        airflow.trigger("reader", "waits")
        waiting = {"reschedule": {"up_for_reschedule"}, "deferrable": {"deferred"}}
        airflow.wait_state("reader", "waits", waiting)
        stored = airflow.triggers()
        site.kill()
        # Long enough that both look at least once without an answer.
        time.sleep(20)
        airflow.wait_state("reader", "waits", waiting)
        site.start_again()
        airflow.mode.write_text("ok")
        airflow.trigger("shop", "fixed")
        fixed, waited = airflow.ended("shop", "fixed"), airflow.ended("reader", "waits")
        until(lambda: site.state(ORDERS) == "OK", "the fix is reported", 60)
        held = [name for name in waiting if "the server does not answer" in airflow.log("reader", "waits", name)]
        self._note(
            "sensors wait while the server is killed, and go on once the dataset is fixed",
            f"{fixed}, {waited}",
            holds=(fixed, waited) == ("success", "success") and len(held) == 2 and "hg_" not in stored,
        )

    def _killed(self, airflow: Airflow, site: Site) -> None:
        airflow.trigger("killed", "killed")
        state = airflow.ended("killed", "killed")
        until(lambda: site.state(KILLED) == "CRITICAL", "the killed task is reported", 60)
        self._note("a task whose process was killed is reported as failed", state, holds=state == "failed")

    def _own_events(self, airflow: Airflow, site: Site) -> None:
        states: list[str] = []
        for mode, wanted in (("ok", "OK"), ("fails", "CRITICAL"), ("ok", "OK")):
            airflow.mode.write_text(mode)
            run_id = f"own-{len(states)}"
            airflow.trigger("lake", run_id)
            airflow.ended("lake", run_id)
            until(lambda wanted=wanted: site.state(LAKE) == wanted, f"the lake is {wanted}", 90)  # type: ignore[misc]
            states.append(wanted)
        downstream = site.headgate("lineage", "downstream", TABLE)
        dead = site.json("lineage", "dead")
        holds = LAKE in downstream and not dead
        self._note(
            "Airflow's own OpenLineage events: health of an outlet, lineage, no dead letter", states, holds=holds
        )

    def _page(self, airflow: Airflow, site: Site) -> None:
        airflow.run_page()
        states = {task: state for task, (state, _) in airflow.tasks("shop_orders", self._page_run(airflow)).items()}
        until(lambda: self._runs(site, "shop_orders.load")[0]["state"] == "COMPLETED", "the run is reported", 60)
        holds = len(states) == 3 and set(states.values()) == {"success"}
        self._note("the DAG of the page, with airflow dags test", states, holds=holds)

    @staticmethod
    def _page_run(airflow: Airflow) -> str:
        return next(each for each in airflow.run_ids("shop_orders") if each.startswith("manual"))

    def _started_by_headgate(self, airflow: Airflow, site: Site) -> None:
        api = "" if self._version == "3" else "    api: v1\n"
        definition = _PIPELINE.format(raw=RAW, url=f"http://127.0.0.1:{airflow.port}") + api
        (site.folder / "pipelines" / "shop.yaml").write_text(definition)
        site.headgate("reload")
        before = set(airflow.run_ids("shop"))
        site.headgate("run", "start", "shop-in-airflow", "--date", "2026-01-05", "--reason", "soak")

        def status() -> str:
            runs = site.json("run", "ls", "shop-in-airflow")
            return str(runs[0]["status"]) if runs else ""

        until(lambda: status() in ("COMPLETED", "FAILED"), "the run that Headgate started ends", DAG_SECONDS_MAX)
        started = set(airflow.run_ids("shop")) - before
        self._note("a DAG run that a pipeline started", status(), holds=status() == "COMPLETED" and len(started) == 1)

    def _kept_secret(self, airflow: Airflow, api_key: str) -> None:
        found = len(re.findall(re.escape(api_key), airflow.all_logs()))
        self._note("the API key in the logs of Airflow", f"{found} times", holds=found == 0)

    @staticmethod
    def _runs(site: Site, job: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = site.json("job", "show", f"job:airflow.{job}")["runs"]
        return found
