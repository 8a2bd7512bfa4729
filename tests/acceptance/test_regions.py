"""Two regions as two servers on one machine: one writes, the other refuses, and who watches says how both are."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest

from tests.acceptance.program import Server, run

EAST, WEST = "us-east-1", "us-west-2"
URN: Final = "urn:dp:regions:orders"


class Regions:
    """Both servers, with one authority beside them."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.urls = {EAST: "http://127.0.0.1:1", WEST: "http://127.0.0.1:1"}
        self.servers: dict[str, Server] = {}
        for name in (EAST, WEST):
            self.config(name, f'name = "{name}"')
            server = stack.enter_context(Server(folder / name, "--config", str(folder / f"{name}.toml")))
            self.servers[name], self.urls[name] = server, server.url

    def config(self, file: str, who: str) -> str:
        (self.folder / file).mkdir(exist_ok=True)
        path = self.folder / f"{file}.toml"
        urls = "\n".join(f'"{name}" = "{url}"' for name, url in self.urls.items())
        path.write_text(
            f'[region]\n{who}\nhome = "{EAST}"\nstandby = "{WEST}"\n'
            f'authority_home = "{self.folder / "authority"}"\n[region.urls]\n{urls}\n'
        )
        return str(path)

    def said(self, *arguments: str, exit_code: int = 0) -> Any:
        ended = run(*arguments, "--json", folder=self.folder)
        assert ended.returncode == exit_code, ended.stdout + ended.stderr
        return json.loads(ended.stdout) if exit_code == 0 else ended.stderr


@pytest.fixture(scope="module")
def regions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Regions]:
    with ExitStack() as stack:
        yield Regions(tmp_path_factory.mktemp("regions"), stack)


def test_regions__two_servers__only_the_home_one_takes_writes(regions: Regions) -> None:
    east, west = (regions.servers[name].url for name in (EAST, WEST))

    assert regions.said("dataset", "register", URN, "--server", east)["config_version"] == 1
    regions.said("signal", "set", URN, "VOLUME", "OK", "--score", "1", "--server", east)
    refused = regions.said("dataset", "register", URN, "--server", west, exit_code=75)
    assert "not the writer" in refused
    assert regions.said("dataset", "ls", "--server", west) == []
    assert regions.said("audit", "verify", "--server", east)["problems"] == []


def test_regions__an_observer_beside_them__reports_that_both_are_well(regions: Regions) -> None:
    path = regions.config("third", 'observer = "third"')

    looked = regions.said("region", "watch", "--once", "--config", path)

    assert (looked["writer"], looked["move_to"]) == (EAST, None)
    shown = regions.said("region", "show", "--config", path)
    assert (shown["lease"]["region"], shown["lease"]["epoch"]) == (EAST, 1)
    assert [shown["reports"][name]["third"]["failures"] for name in (EAST, WEST)] == [0, 0]
