"""Regions: an outage of the writer's region, a failover, the return of the old writer, and a failback.

Each region is a MiniStack and a server; a third observer keeps the quorum, and `headgate region merge` replicates as
global tables would. The outage freezes the MiniStack and kills the server. Commands are those of the page, verbatim.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from tests.acceptance.program import PROGRAM, Server
from tests.ministack import REGION, Ministack, aws_session, fresh_account
from tests.ports import free_port
from tests.soak.figures import Figure

EAST, WEST = "us-east-1", "us-west-2"
PAGE: Final = Path(__file__).parents[2] / "docs" / "how-to" / "operate-on-aws.md"
URN: Final = "urn:dp:regions:orders"
# Three failed probes of 30 seconds, a lease of a minute, the next evaluation; and time for a busy machine.
FAILOVER_SECONDS_MAX: Final = 600.0
# A failed region must be healthy for a quarter of an hour.
FAILBACK_SECONDS_MAX: Final = 2_400.0
_REPLICATED_SECONDS: Final = 45.0
_PAUSE_SECONDS: Final = 2.0
_COMMAND_SECONDS_MAX: Final = 240.0


def commands() -> list[str]:
    """Return the commands of the page about regions."""
    section = PAGE.read_text().partition("## Fail over between regions")[2].partition("\n## ")[0]
    return re.findall(r"(?m)^(headgate .*)$", section)


class World:
    """Both regions with their settings files, named as the page names them."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.account = fresh_account()
        self.environ = {"AWS_ACCESS_KEY_ID": self.account, "AWS_SECRET_ACCESS_KEY": "-"}
        self.aws: dict[str, Ministack] = {}
        # A region keeps its address when its server starts again, as a name in DNS does.
        self.urls = {name: f"http://127.0.0.1:{free_port()}" for name in (EAST, WEST)}
        self.servers: dict[str, Server] = {}
        for name in (EAST, WEST):
            (folder / name).mkdir(parents=True)
            self.aws[name] = server = Ministack.start(folder / name)
            stack.callback(server.stop)
            bucket = f"blobs-{self.account}"
            aws_session(self.account).client("s3", endpoint_url=server.endpoint).create_bucket(Bucket=bucket)
        self._write()
        for file in ("east", "west"):
            # An emulator on a busy machine may answer too late: the command says so, and is repeated.
            _until(
                lambda file=file: self.run(f"headgate table create --config {file}.toml").returncode == 0,
                FAILOVER_SECONDS_MAX,
            )
        # The keys are those of all machines.
        (folder / f"{WEST}-home").mkdir()
        for name in (EAST, WEST):
            self.start(name, stack)
            if name == EAST:
                shutil.copy2(folder / f"{EAST}-home" / "keys.json", folder / f"{WEST}-home" / "keys.json")

    def start(self, name: str, stack: ExitStack) -> None:
        """Start the server of a region at its address."""
        file = "east" if name == EAST else "west"
        address = self.urls[name].removeprefix("http://")
        options = ["--config", str(self.folder / f"{file}.toml"), "--http", address]
        self.servers[name] = stack.enter_context(Server(self.folder / f"{name}-server", *options, **self.environ))

    def _write(self) -> None:
        for file, who, store in (("east", "name", EAST), ("west", "name", WEST), ("third", "observer", EAST)):
            name = "third" if file == "third" else store
            urls = "\n".join(f'"{region}" = "{url}"' for region, url in self.urls.items())
            (self.folder / f"{file}.toml").write_text(
                f'home = "{self.folder / f"{name}-home"}"\n[store]\nbackend = "dynamodb"\naws_region = "{REGION}"\n'
                f'aws_endpoint_url = "{self.aws[store].endpoint}"\nblob_bucket = "blobs-{self.account}"\n'
                f'[region]\n{who} = "{name}"\nhome = "{EAST}"\nstandby = "{WEST}"\n'
                f'authority_home = "{self.folder / "authority"}"\n[region.urls]\n{urls}\n'
            )

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        """Run a command until it ends. Raises `subprocess.TimeoutExpired`."""
        return subprocess.run(
            [PROGRAM, *command.split()[1:], "--json"],
            cwd=self.folder,
            env={"PATH": "/usr/bin:/bin", **self.environ},
            capture_output=True,
            text=True,
            timeout=_COMMAND_SECONDS_MAX,
            check=False,
        )

    def said(self, command: str, *, exit_code: int = 0) -> Any:
        """Run a command and return its answer, or its error output."""
        ended = self.run(command)
        assert ended.returncode == exit_code, f"{command}: {ended.stdout}{ended.stderr}"
        return json.loads(ended.stdout) if exit_code == 0 else ended.stderr

    def state(self) -> Any:
        return self.said("headgate region show --config third.toml")

    @contextmanager
    def replicating(self, command: str) -> Iterator[None]:
        """Copy newer rows all the time, until the end of the block."""
        is_over = threading.Event()

        def copy() -> None:
            while not is_over.is_set():
                # A copy that is ended in the middle is repeated.
                with suppress(subprocess.TimeoutExpired):
                    self.run(command)
                is_over.wait(_PAUSE_SECONDS)

        thread = threading.Thread(target=copy)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    @contextmanager
    def watching(self, command: str) -> Iterator[None]:
        """Run the third observer during the block."""
        with (self.folder / "third.log").open("ab") as log:
            environ = {"PATH": "/usr/bin:/bin", **self.environ}
            process = subprocess.Popen(
                [PROGRAM, *command.split()[1:]], cwd=self.folder, env=environ, stdout=log, stderr=log
            )
        try:
            yield
        finally:
            process.kill()
            process.wait()


def run_all(folder: Path) -> list[Figure]:
    """Let the home region fail, and return what became of the writes."""
    show, drill, watch, replicate, back_merge, failback = _chosen()
    with ExitStack() as stack:
        world = World(folder, stack)
        east, west = (world.urls[name] for name in (EAST, WEST))
        with world.replicating(replicate), world.watching(watch):
            world.said(f"headgate dataset register {URN} --server {east}")
            world.said(f"headgate signal set {URN} VOLUME OK --score 1 --server {east}")
            refused = world.said(f"headgate dataset register {URN}:b --server {west}", exit_code=75)
            assert "not the writer" in refused
            time.sleep(_REPLICATED_SECONDS)
            _until(lambda: URN in world.run(f"headgate dataset ls --server {west}").stdout, FAILOVER_SECONDS_MAX)
        rehearsed = world.said(drill)
        assert rehearsed["move_to"] == WEST, rehearsed
        with world.watching(watch):
            frozen = world.aws[EAST]
            frozen.signal(signal.SIGSTOP)
            world.servers[EAST].process.kill()
            took = _until(lambda: world.state()["state"]["active"] == WEST, FAILOVER_SECONDS_MAX)
            moved = world.said(show)
            _until(lambda: _writes(world, west, "OK"), FAILOVER_SECONDS_MAX)
            frozen.signal(signal.SIGCONT)
            # The old writer comes back, knows of no epoch but its own, and still must not write.
            world.start(EAST, stack)
            returned = world.said(
                f"headgate signal set {URN} VOLUME OK --score 1 --server {world.urls[EAST]}", exit_code=75
            )
        with world.watching(watch), world.replicating(back_merge):
            _until(lambda: _refuses(world, failback), FAILOVER_SECONDS_MAX)
            waited = _until(lambda: _fails_back(world, failback), FAILBACK_SECONDS_MAX)
            _until(lambda: _writes(world, world.urls[EAST], "OK"), FAILOVER_SECONDS_MAX)
        return [
            Figure("Failover after the home region froze", f"{took:.0f} s", took <= FAILOVER_SECONDS_MAX),
            Figure("RTO that the drill promised", f"{rehearsed['rto_ms'] / 1000:.0f} s", holds=True),
            Figure(
                "RTO of the failover (requirement: 15 minutes)",
                f"{moved['rto_ms'] / 1000:.0f} s",
                moved["rto_ms"] <= 900_000,
            ),
            Figure(
                "RPO of the failover (requirement: 5 minutes)",
                f"{moved['rpo_ms'] / 1000:.0f} s",
                moved["rpo_ms"] <= 300_000,
            ),
            Figure("Failovers of one outage", str(moved["state"]["failovers"]), moved["state"]["failovers"] == 1),
            Figure("Writes of the returned writer", "refused", "not the writer" in returned),
            Figure("Failback before the region was healthy for long", "refused", holds=True),
            Figure("Failback after the return", f"{waited / 60:.0f} minutes", holds=True),
        ]


def _chosen() -> list[str]:
    """Return the commands of the page in the order of their use."""
    starts = (
        "headgate region show",
        "headgate region drill",
        "headgate region watch",
        "headgate region merge east.toml",
        "headgate region merge west.toml",
        "headgate region failback",
    )
    return [next(line for line in commands() if line.startswith(start)) for start in starts]


def _until(is_so: Any, seconds_max: float) -> float:
    """Wait until it is so, and return how long that took."""
    began = time.monotonic()
    while not is_so():
        assert time.monotonic() - began < seconds_max, f"not within {seconds_max:g} s"
        time.sleep(_PAUSE_SECONDS)
    return time.monotonic() - began


def _writes(world: World, url: str, state: str) -> bool:
    return world.run(f"headgate signal set {URN} VOLUME {state} --score 1 --server {url}").returncode == 0


def _refuses(world: World, command: str) -> bool:
    """Whether a failback is refused because the home region was not healthy for long enough."""
    ended = world.run(command)
    return ended.returncode == 3 and "was not healthy" in ended.stderr


def _fails_back(world: World, command: str) -> bool:
    return world.run(command).returncode == 0
