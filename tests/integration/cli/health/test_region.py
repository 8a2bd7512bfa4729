"""The commands about two regions, restored tables and costs: what they read, print, and how they end."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from headgate.clock import SystemClock
from headgate.errors import IllegalTransitionError, SettingsError, UserError
from headgate.health.regions.agent import RegionProbe
from headgate.health.regions.failover import LeaseKeeper
from headgate.health.regions.regions import Fence, WriterLease
from headgate.store.catalogue.tables import SIGNAL_STATE
from headgate.store.model.schema import Key
from headgate.store.model.values import Item
from tests.stores import open_sqlite
from tests.unit.cli.program import invoke

EAST, WEST = "us-east-1", "us-west-2"
TABLE = SIGNAL_STATE.name


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")


def run(*arguments: str | Path, exit_code: int = 0) -> Any:
    ended = invoke([str(each) for each in arguments])
    if ended.exception is not None and not isinstance(ended.exception, SystemExit):
        raise ended.exception
    assert ended.exit_code == exit_code, ended.output
    return ended


def said(*arguments: str | Path, exit_code: int = 0) -> Any:
    return json.loads(run(*arguments, "--json", exit_code=exit_code).stdout)


def config(folder: Path, name: str, *, observer: str | None = None) -> Path:
    """The settings of a region, or of an observer beside both."""
    who = f'name = "{name}"' if observer is None else f'observer = "{observer}"'
    path = folder / f"{name}.toml"
    path.write_text(
        f'home = "{folder / name}"\n[region]\n{who}\nhome = "{EAST}"\nstandby = "{WEST}"\n'
        f'authority_home = "{folder / "authority"}"\n[region.urls]\n"{EAST}" = "http://127.0.0.1:1"\n'
        f'"{WEST}" = "http://127.0.0.1:1"\n'
    )
    return path


def keep(folder: Path, *, well: bool) -> None:
    """Let the home region hold the lease, and two observers say how both regions are."""
    clock = SystemClock()
    (folder / "authority").mkdir(exist_ok=True)
    (folder / EAST).mkdir(exist_ok=True)
    with closing(open_sqlite(folder / "authority")) as authority, closing(open_sqlite(folder / EAST)) as store:
        LeaseKeeper(authority, WriterLease(authority, clock), Fence(store, EAST, clock), EAST, EAST).keep()
        for name in ("one", "two"):
            for region in (EAST, WEST):
                RegionProbe(authority, clock, name, lambda _region: well).probe(region)


def test_show__lease_and_reports__are_reported(tmp_path: Path) -> None:
    keep(tmp_path, well=True)

    output = run("region", "show", "--config", config(tmp_path, EAST)).stdout

    assert EAST in output
    assert "epoch 1" in output
    assert [line.split()[:3] for line in output.splitlines() if line.startswith("us-")] == [
        [region, "UP", observer] for region in (EAST, WEST) for observer in ("one", "two")
    ]


def test_drill__everything_well__says_who_would_take_over_and_moves_nothing(tmp_path: Path) -> None:
    keep(tmp_path, well=True)
    path = config(tmp_path, EAST)

    output = said("region", "drill", "--config", path)

    # Three probes of 30 seconds, a lease of a minute, and the evaluation after it.
    assert (output["move_to"], output["rto_ms"]) == (WEST, 180_000)
    assert "RPO unknown, as no pulse has been replicated yet; RTO at most 180.0 s" in (
        run("region", "drill", "--config", path).stdout
    )
    assert said("region", "show", "--config", path)["state"]["active"] == EAST


def test_failback__the_home_region_writes_already__is_refused(tmp_path: Path) -> None:
    keep(tmp_path, well=True)

    with pytest.raises(IllegalTransitionError, match="is the writer already"):
        run("region", "failback", "--lag-seconds", "0", "--config", config(tmp_path, EAST))


@pytest.mark.parametrize("command", [["show"], ["drill"], ["failback", "--lag-seconds", "1"]])
def test_region__none_is_set__is_said(tmp_path: Path, command: list[str]) -> None:
    with pytest.raises(SettingsError, match=r"region\.home"):
        run("region", *command, "--home", tmp_path / "home")


def row(number: int, **changed: object) -> Item:
    return {"PK": f"urn:dp:a:d{number}", "SK": "FRESHNESS", "version": 3, "state": "OK", **changed}


def fill(folder: Path, *rows: Item) -> None:
    folder.mkdir(exist_ok=True)
    with closing(open_sqlite(folder)) as store:
        for each in rows:
            store.put(SIGNAL_STATE, each)


def kept(folder: Path, number: int) -> Item | None:
    with closing(open_sqlite(folder)) as store:
        return store.get(SIGNAL_STATE, Key(f"urn:dp:a:d{number}", "FRESHNESS"))


def test_merge__both_ways__ends_alike(tmp_path: Path) -> None:
    fill(tmp_path / EAST, row(1, version=5), row(2))
    fill(tmp_path / WEST, row(1, version=4), row(3))
    east, west = config(tmp_path, EAST), config(tmp_path, WEST)

    assert said("region", "merge", west, "--config", east) == {"taken": {TABLE: 1}}
    assert said("region", "merge", east, "--config", west) == {"taken": {TABLE: 2}}
    assert "no newer rows" in run("region", "merge", west, "--config", east).stdout
    for number in (1, 2, 3):
        assert kept(tmp_path / EAST, number) == kept(tmp_path / WEST, number) is not None


def test_compare__a_restored_home__names_what_differs(tmp_path: Path) -> None:
    fill(tmp_path / "used", row(1), row(2, state="CRITICAL"), row(3))
    fill(tmp_path / "restored", row(1), row(2), row(4))
    asked = ("table", "compare", TABLE, "--restored", tmp_path / "restored", "--home", tmp_path / "used")

    output = run(*asked, exit_code=1).stdout

    assert "1 equal, 1 only in the live table, 1 only in the restored table, 1 different" in output
    assert "differs: urn:dp:a:d2=FRESHNESS" in output
    assert said(*asked, "--ignore", "state", exit_code=1)["difference"]["differing_count"] == 0
    same = ("table", "compare", TABLE, "--restored", tmp_path / "used", "--home", tmp_path / "used")
    assert said(*same)["is_alike"] is True


def test_repair__all_or_some__puts_them_back_under_a_higher_version(tmp_path: Path) -> None:
    fill(tmp_path / "used", row(1, state="CRITICAL", version=9), row(2, state="CRITICAL"))
    fill(tmp_path / "restored", row(1), row(2), row(4))
    asked = ("table", "repair", TABLE, "--restored", tmp_path / "restored", "--home", tmp_path / "used")

    assert "would be repaired" in run(*asked, "--key", "urn:dp:a:d1=FRESHNESS", "--dry-run").stdout
    assert kept(tmp_path / "used", 1) == row(1, state="CRITICAL", version=9)
    run(*asked, "--key", '["urn:dp:a:d1", "FRESHNESS"]')
    assert kept(tmp_path / "used", 1) == row(1, version=10)
    rest = said(*asked, "--all")
    assert (len(rest["repaired"]), len(rest["alike"])) == (2, 1), "d1 is as it should be but for its version"
    assert kept(tmp_path / "used", 4) == row(4)


def test_repair__name_of_earlier_releases__works_and_is_not_listed(tmp_path: Path) -> None:
    fill(tmp_path / "used", row(1, state="CRITICAL"))
    fill(tmp_path / "restored", row(1))

    rest = said("table", "mend", TABLE, "--restored", tmp_path / "restored", "--home", tmp_path / "used", "--all")

    assert rest["mended"] == rest["repaired"] == [["urn:dp:a:d1", "FRESHNESS"]]
    assert kept(tmp_path / "used", 1) == row(1, version=4)
    help_text = run("table", "--help").stdout
    assert "repair" in help_text
    assert "mend" not in help_text


@pytest.mark.parametrize(
    ("more", "error", "match"),
    [
        ([], UserError, "either --key or --all"),
        (["--key", "a=b", "--all"], UserError, "either --key or --all"),
        (["--key", "alone"], UserError, "write the whole key"),
        (["--key", "[1,"], UserError, "invalid JSON"),
    ],
)
def test_repair__asked_wrongly__is_refused(tmp_path: Path, more: list[str], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        run("table", "repair", TABLE, "--restored", tmp_path, "--home", tmp_path / "used", *more)


def test_compare__no_store_in_the_folder__is_refused(tmp_path: Path) -> None:
    fill(tmp_path / "used", row(1))
    with pytest.raises(SettingsError, match=r"no headgate\.db"):
        run("table", "compare", TABLE, "--restored", tmp_path / "none", "--home", tmp_path / "used")


def test_swap__another_table_and_back__is_the_setting(tmp_path: Path) -> None:
    output = run("table", "swap", TABLE, "signals-restored", "--home", tmp_path).stdout
    assert output == f'[store.table_names]\n"{TABLE}" = "signals-restored"\n'
    path = tmp_path / "headgate.toml"
    path.write_text(output)

    assert said("table", "swap", TABLE, TABLE, "--config", path) == {"store.table_names": {}}


def test_costs__a_load__is_summed_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "load.toml"
    path.write_text(
        '[[loads]]\ntable = "signals"\nwrites = 3000\n'
        '[[loads]]\ntable = "evidence"\nwrites = 50_000\nsampling = {fail_share = 0.02, pass_rate = 0.01}\n'
    )

    found = said("table", "costs", path, "--a-second", "--prices", "2024-10")

    assert [line["name"] for line in found["lines"]] == ["signals, million writes", "evidence, million writes"]
    assert found["lines"][0]["dollars"] == pytest.approx(3000 * 2.592 * 1.25)
    assert found["lines"][1]["dollars"] == pytest.approx(50_000 * 2.592 * 1.25 * (0.02 + 0.98 * 0.01))
    assert found["total"] == pytest.approx(sum(line["dollars"] for line in found["lines"]))
    assert "total" in run("table", "costs", path).stdout


def test_costs__an_estimate_that_does_not_add_up__is_doubted(tmp_path: Path) -> None:
    path = tmp_path / "load.json"
    line = {"name": "signals", "quantity": 7800, "price_low": 1.25, "dollars": 9750}
    path.write_text(json.dumps({"stated": [line], "stated_total": 3000}))

    output = run("table", "costs", path, exit_code=1).stdout

    assert "doubt: total: stated 3,000.00, computed 9,750.00" in output


@pytest.mark.parametrize(
    ("content", "more", "match"), [('{"load": 1}', [], "load"), ("{}", ["--prices", "1999-01"], "2024-10 or 2024-11")]
)
def test_costs__what_cannot_be__is_refused(tmp_path: Path, content: str, more: list[str], match: str) -> None:
    path = tmp_path / "load.json"
    path.write_text(content)
    with pytest.raises(UserError, match=match):
        run("table", "costs", path, *more)
