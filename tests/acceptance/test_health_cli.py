"""Health with the installed program against a server with TLS: the run book of a bad night, and what is refused."""

from __future__ import annotations

import json
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.acceptance.program import OPENS_SQLITE_FILE, Server, run
from tests.integration.serve.http.connection.test_tls import make_files

SPEC: Final = {
    "spec_id": "lspec:billing:git:abc123",
    "producer_id": "billing",
    "updated_at": "2026-01-01T00:00:00Z",
    "dataset_writes": ["urn:dp:night:bills"],
}
MANIFEST: Final = {
    "metadata": {
        "dbt_schema_version": "https://schemas.getdbt.com/dbt/manifest/v12.json",
        "invocation_id": "0b9d2f44-0000-4000-8000-000000000001",
        "generated_at": "2026-01-01T00:00:00Z",
        "adapter_type": "postgres",
        "project_name": "shop",
    },
    "nodes": {},
    "sources": {},
}


class Site:
    """A server that speaks TLS alone, and the program beside it, which is given the certificates to trust."""

    def __init__(self, folder: Path, server: Server, ca: Path) -> None:
        self.folder = folder
        self.server = server
        self.ca = ca
        self._calling = {"HEADGATE_CA": str(ca)}

    def run(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        return run(*arguments, folder=self.folder, **{**self.server.store, **self._calling, **environ})

    def said(self, *arguments: str, exit_code: int = 0, **environ: str) -> str:
        ended = self.run(*arguments, **environ)
        assert ended.returncode == exit_code, ended.stdout + ended.stderr
        return ended.stdout

    def json(self, *arguments: str, exit_code: int = 0) -> Any:
        return json.loads(self.said(*arguments, "--json", exit_code=exit_code))

    def refused(self, *arguments: str, exit_code: int, code: str, said: str, **environ: str) -> None:
        ended = self.run(*arguments, **environ)
        assert (ended.returncode, f"code: {code}" in ended.stderr) == (exit_code, True), ended.stderr
        assert said in ended.stderr
        assert "Traceback" not in ended.stderr

    def write(self, name: str, content: object) -> str:
        (self.folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
        return name


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("health")
    cert, key = make_files(folder / "tls")
    with Server(folder, "--tls-cert", str(cert), "--tls-key", str(key)) as server:
        yield Site(folder, server, cert)


def test_night__from_the_first_alarm_to_the_audit__every_step_is_one_command(site: Site) -> None:
    urn = "urn:dp:night:orders"
    site.write("orders.toml", f'dataset_urn = "{urn}"\ntier = 1\nowner_team = "orders"\n')
    assert "ACTIVE, TIER_1, config version 1" in site.said(
        "dataset", "register", "-f", "orders.toml", "--reason", "new"
    )

    # Something breaks.
    output = site.said("signal", "set", urn, "freshness", "critical", "--score", "0.2", "--signature", "LATE")
    assert output.startswith(f"CRITICAL  FRESHNESS of {urn}, version 1; incident INC-")
    (incident,) = site.json("incident", "ls", "--dataset", urn)
    assert (incident["status"], incident["severity"]) == ("OPEN", "SEV_1")
    incident_id = incident["incident_id"]

    # The gate blocks it; why?
    assert f"BLOCK  {urn}" in site.said("gate", "check", urn, exit_code=20)
    story = site.said("incident", "why", incident_id)
    assert story.startswith(f"OPEN  SEV_1  {incident_id}")
    assert "FRESHNESS first -> CRITICAL" in story
    assert "assigned to ann" in site.said("incident", "ack", incident_id, "--assign", "ann")

    # The month must be closed all the same.
    override = site.json("gate", "override", urn, "--for-time", "2h", "--reason", "month's end")
    warned = site.json("gate", "check", urn, "--for", "closing", exit_code=10)
    assert (warned["decision"], warned["principal"]) == ("warn", "closing")
    site.said("gate", "revoke", urn, override["override_id"])
    assert site.json("gate", "check", urn, exit_code=20)["overridable_by"] == ["admin", "operator"]

    # How much came in?
    site.said("signal", "set", urn, "volume", "ok", "--count", "1200")
    assert "1200" in site.said("signal", "volume", urn, "--days", "1")

    # It is repaired; earlier measurements change nothing.
    assert "OK  FRESHNESS" in site.said("signal", "set", urn, "FRESHNESS", "ok")
    past = ("critical", "--signature", "LATE", "--window-end", "1h")
    site.refused("signal", "set", urn, "FRESHNESS", *past, exit_code=3, code="stale_window", said="recorded as late")
    site.said("incident", "resolve", incident_id, "--cause", "a stuck job", "--mitigation", "restarted")
    assert "ALLOW" in site.said("gate", "check", urn)
    news = site.said("incident", "watch", "--after", f"evt_{26 * '0'}", "--limit", "3").splitlines()
    assert [line.split()[2] for line in news] == ["CREATED", "UPDATED", "RESOLVED"]
    actions = [each["action"] for each in site.json("audit", "ls", "--since", "1h")]
    assert "incident.resolve" in actions
    assert site.said("audit", "verify").startswith("OK: ")


def test_dataset__changed_by_two__the_second_is_reported_and_the_past_comes_back(site: Site) -> None:
    urn = "urn:dp:two:orders"
    made = site.json("dataset", "register", urn, "--tier", "2", "--team", "orders", "--tag", "a:b")
    site.write("mine.json", made)
    assert (made["config_version"], made["tier"], made["tags"]) == (1, "TIER_2", {"a": "b"})

    changed = site.json("dataset", "update", urn, "--team", "sales", "--freshness", "1h", "--reason", "they moved")

    assert (changed["config_version"], changed["owner_team"], changed["tags"]) == (2, "sales", {"a": "b"})
    site.refused("dataset", "update", urn, "-f", "mine.json", exit_code=3, code="version_conflict", said="version 2")
    difference = site.said("dataset", "diff", urn, "1", "2").splitlines()
    assert [line.split() for line in difference if line.startswith("owner_team")] == [["owner_team", "orders", "sales"]]
    assert site.json("dataset", "rollback", urn, "1")["owner_team"] == "orders"
    assert "DELETED" in site.said("dataset", "delete", urn)
    assert "was deleted" in site.said("gate", "check", urn, exit_code=20)
    assert [each["config_version"] for each in site.json("dataset", "versions", urn)] == [4, 3, 2, 1]


def test_resolve__a_rule_was_added__names_the_dataset_and_says_why(site: Site) -> None:
    site.said("dataset", "register", "urn:dp:topics:orders")
    site.said("dataset", "rule", "add", "urn:dp:topics:orders", "shop.*")

    output = site.said("dataset", "resolve", "shop.orders", "--payload", '{"id": 1}', "--explain").splitlines()

    assert output[0] == "urn:dp:topics:orders"
    assert any(line.split()[:3] == ["MATCHED", "shop.*", "default"] for line in output)


def test_evidence_and_lineage__reported_by_files__are_found_again(site: Site) -> None:
    good = {"dataset_urn": "urn:dp:night:bills", "validation": {"result": "FAIL", "reason_codes": ["NULL_ID"]}}
    site.write("evidence.jsonl", f"{json.dumps(good)}\n{json.dumps({**good, 'dataset_urn': 'bills'})}\n")
    site.write("spec.json", SPEC)

    put = site.run("evidence", "put", "-f", "evidence.jsonl")
    assert (put.returncode, put.stdout) == (2, "1 stored, 1 refused\n")
    assert "item 2" in put.stderr
    (kept,) = site.json("evidence", "ls", "urn:dp:night:bills", "--result", "fail")
    assert site.said("evidence", "show", kept["evidence_id"]).startswith("FAIL  evd-")
    assert "APPLIED, 1 edges added" in site.said("lineage", "push", "spec.json")
    assert [each["entity_id"] for each in site.json("lineage", "writers", "urn:dp:night:bills")] == ["billing"]
    site.said("gate", "flag", "fleet.enabled", "off", "--reason", "bad deployment")
    assert site.json("gate", "flag", "fleet.enabled")["is_on"] is False
    assert "MANUAL" in site.said("dataset", "producers", "raw.bills", "--add", "billing")
    assert "lspec:billing:git:abc123" in site.said("lineage", "specs", "--commit", "abc123")


def test_dbt__folder_with_a_manifest__is_taken(site: Site) -> None:
    (site.folder / "target").mkdir()
    site.write("target/manifest.json", MANIFEST)

    taken = site.json("lineage", "dbt", "target", "--namespace", "postgres://shop")

    assert (taken["invocation_id"], taken["datasets"]) == (MANIFEST["metadata"]["invocation_id"], 0)


def test_names__given_found_and_taken_back__with_everything_exported(site: Site) -> None:
    urn = "urn:dp:named:orders"
    site.said("dataset", "register", urn)
    site.said("dataset", "alias", urn, "kafka://prod", "shop.orders")
    assert site.said("dataset", "name", "kafka://prod", "shop.orders") == f"{urn}\n"
    assert [each["name"] for each in site.json("dataset", "alias", urn)] == ["shop.orders"]
    assert "alias removed" in site.said("dataset", "unalias", "kafka://prod", "shop.orders")
    site.refused("dataset", "name", "kafka://prod", "shop.orders", exit_code=4, code="dataset_not_found", said="alias")

    exported = site.run("dataset", "export")

    assert urn in [json.loads(line)["dataset_urn"] for line in exported.stdout.splitlines()]
    checkpoint = exported.stderr.split()[-1]
    assert site.said("dataset", "export", "--after", checkpoint) == ""


def test_schema__listed_and_shown(site: Site) -> None:
    assert "signal-state-schema.json" in site.said("dataset", "schema").splitlines()
    assert site.json("dataset", "schema", "signal-state-schema.json")["$id"].endswith("signal-state-schema.json")


def test_baseline__said_and_shown(site: Site) -> None:
    urn = "urn:dp:normal:orders"
    site.said("dataset", "register", urn)
    assert "no baselines" in site.said("dataset", "baseline", urn)
    made = site.json("dataset", "baseline", urn, "event_count", "--value", "1200", "--stddev", "40", "--samples", "168")
    assert (made["version"], made["baseline_value"]) == (1, 1200)
    output = site.said("dataset", "baseline", urn).splitlines()
    assert output[1].split()[:4] == ["event_count", "1200", "40", "168"]
    site.refused("dataset", "baseline", urn, "--value", "1", exit_code=2, code="user", said="METRIC is required")


def test_quota_and_escalations__who_may_be_reported(site: Site) -> None:
    assert "1 of 1 alerts this hour" in site.said("incident", "quota", "night", "--take", "1", "--per-hour", "1")
    assert site.json("incident", "quota", "night", "--take", "1", "--per-hour", "1", exit_code=3)["is_granted"] is False
    assert "EXHAUSTED until" in site.said("incident", "quota", "night", "--per-hour", "1")
    assert isinstance(site.json("incident", "escalations"), list)


def test_contrast__first_bad_and_last_good(site: Site) -> None:
    urn = "urn:dp:contrast:orders"
    site.said("dataset", "register", urn)
    assert "first bad" in site.said("evidence", "contrast", urn)
    site.write("bad.json", {"dataset_urn": urn, "validation": {"result": "FAIL", "reason_codes": ["NULL_ID"]}})
    site.said("evidence", "put", "-f", "bad.json")
    assert "NULL_ID" in site.said("evidence", "contrast", urn)


def test_audit__heads_kept_elsewhere__are_checked_against(site: Site) -> None:
    site.said("dataset", "register", "urn:dp:anchored:orders")
    heads = site.json("audit", "heads")
    assert heads
    assert "CHAIN" in site.said("audit", "heads")
    site.write("heads.json", heads)
    assert site.said("audit", "verify", "--anchors", "heads.json").startswith("OK")
    site.write("heads.json", [{**heads[0], "sequence": 10_000, "hash": "f" * 64}])
    assert site.said("audit", "verify", "--anchors", "heads.json", exit_code=1).startswith("TAMPERED")


def test_audit__a_chain_is_opened_again__by_an_entry_that_says_why(site: Site) -> None:
    assert "reopened" in site.said("audit", "reopen", "3", "--reason", "an exercise")
    assert "an exercise" in [each["reason"] for each in site.json("audit", "ls", "--since", "1h")]
    site.refused("audit", "reopen", "99", "--reason", "x", exit_code=4, code="not_found", said="chain 99")


@pytest.mark.parametrize("command", [("workflow", "ls"), ("workers",), ("fanout", "doctor")])
def test_commands__of_work__call_with_a_key_and_trust_by_file(site: Site, command: tuple[str, ...]) -> None:
    site.json("api-key", "issue", "-".join(command), "--role", "operator", "-o", f"{command[-1]}.key")
    calling = ("--ca", str(site.ca), "--api-key-file", f"{command[-1]}.key")

    assert site.run(*command, *calling, HEADGATE_CA="").returncode == 0
    site.write("wrong.key", "hgk_wrong")
    site.refused(*command, "--api-key-file", "wrong.key", exit_code=2, code="unauthenticated", said="key")


def test_api_key__in_a_file__gives_what_it_is_for_and_no_more(site: Site) -> None:
    made = site.json("api-key", "issue", "bob", "--role", "viewer", "--scope", "urn:dp:bob:*", "-o", "bob.key")
    text = (site.folder / "bob.key").read_text().strip()
    assert "text" not in made

    assert site.said("dataset", "ls", "--api-key-file", "bob.key").startswith("no datasets")
    site.refused(
        "dataset", "register", "urn:dp:bob:x", exit_code=2, code="forbidden", said="bob", HEADGATE_API_KEY=text
    )
    site.said("api-key", "revoke", made["key"]["key_id"])
    refused = site.run("dataset", "ls", "--api-key-file", "bob.key")
    assert (refused.returncode, "code: unauthenticated" in refused.stderr) == (2, True)
    assert text not in refused.stdout + refused.stderr


@pytest.mark.parametrize(
    ("arguments", "exit_code", "code", "said"),
    [
        (("incident", "why", "INC-0"), 4, "not_found", "INC-0"),
        (("signal", "set", "urn:dp:no:body", "volume", "fail"), 2, "bad_payload", "failure_signature"),
    ],
)
def test_commands__what_the_server_refuses__exit_by_family(
    site: Site, arguments: tuple[str, ...], exit_code: int, code: str, said: str
) -> None:
    site.refused(*arguments, exit_code=exit_code, code=code, said=said)


def test_server__certificate_of_no_one_known__is_not_trusted(site: Site) -> None:
    site.refused("dataset", "ls", exit_code=2, code="bad_setting", said="--ca", HEADGATE_CA="")


@OPENS_SQLITE_FILE
def test_audit__a_row_was_altered_behind_its_back__verify_exits_with_3(site: Site) -> None:
    site.said("dataset", "register", "urn:dp:altered:orders", "--reason", "to be altered")

    with altered(site.server.home / "headgate.db", "to be altered", "nothing to see"):
        output = site.said("audit", "verify", exit_code=1)

    assert output.startswith("TAMPERED: 1 faults")
    assert "entry_altered" in output


@contextmanager
def altered(path: Path, before: str, after: str) -> Iterator[None]:
    """Alter the one entry of the audit that has this text, and put it right at the end."""
    database = sqlite3.connect(path, timeout=30, isolation_level=None)
    statement = """UPDATE "observability-audit" SET body = replace(body, ?1, ?2) WHERE instr(body, ?1)"""
    try:
        assert database.execute(statement, (before, after)).rowcount == 1
        yield
    finally:
        database.execute(statement, (after, before))
        database.close()


def test_reset__signals_that_were_measured_wrongly__are_forgotten_with_their_incident(site: Site) -> None:
    urn = "urn:dp:reset:orders"
    site.said("dataset", "register", f"{urn}:v1", "--team", "orders")
    site.said("signal", "set", urn, "volume", "critical", "--signature", "LOW:rows")

    output = site.said("signal", "reset", urn, "--reason", "measured wrongly")

    assert output.startswith(f"{urn}:v1: VOLUME deleted; resolved INC-")
    assert "no signals" in site.said("signal", "show", urn)
    assert site.json("incident", "ls", "--dataset", urn) == [], "none is open"


def test_settings__of_the_server__are_listed_with_their_sources(site: Site) -> None:
    found = site.json("settings", "ls")

    # A test may say in the environment where the state is.
    origins = {each["origin"] for each in found["settings"] if not each["name"].startswith("store.")}
    assert origins == {"command_line"}
    assert "tls.cert" in [each["name"] for each in found["settings"]]
    assert "flag --tls-cert" in site.said("settings", "ls")
    assert "Database that holds all state." in site.said("settings", "show", "store.backend")
    site.refused("settings", "show", "store.nothing", exit_code=4, code="not_found", said="settings ls --all")


def test_signal_ls__of_a_dataset__lists_all_of_its_signals(site: Site) -> None:
    urn = "urn:dp:signals:orders"
    site.said("dataset", "register", urn)
    site.said("signal", "set", urn, "FRESHNESS", "OK")
    site.said("signal", "set", urn, "VOLUME", "WARNING", "--signature", "LOW:x")

    assert {each["signal_type"] for each in site.json("signal", "ls", urn)} == {"FRESHNESS", "VOLUME"}
    assert [each["state"] for each in site.json("signal", "ls", urn, "--state", "OK")] == ["OK"]
    site.refused("signal", "ls", urn, "--tier", "1", exit_code=2, code="user", said="--tier")
    site.refused("signal", "set", urn, "FRESHNES", "OK", exit_code=2, code="bad_payload", said="FRESHNESS?")


def test_dataset_update__fields_of_a_file_or_the_whole_configuration__keeps_or_names_the_others(site: Site) -> None:
    urn = "urn:dp:patch:orders"
    site.said("dataset", "register", urn, "--tier", "1", "--team", "orders", "--freshness", "1h", "--tag", "a:b")
    site.write("part.json", {"description": "from a file", "slos": None})

    patched = site.json("dataset", "update", urn, "-f", "part.json", "--tag", "c:d")

    assert (patched["tier"], patched["owner_team"], patched["slos"]) == ("TIER_1", "orders", None)
    assert (patched["description"], patched["tags"]) == ("from a file", {"a": "b", "c": "d"})
    whole = ("dataset", "update", urn, "-f", "part.json", "--replace")
    site.refused(*whole, exit_code=2, code="bad_payload", said="leaves out tier, owner_team, tags")
    site.refused("dataset", "update", urn, "--tier", "2", "--replace", exit_code=2, code="user", said="--file")
