"""Callbacks need no key, so their token is attacked: forged, altered, of another run, replayed, guessed, looked for."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator

import httpx
import pytest

from tests.acceptance.job_site import CallbackSite, callback_site, report
from tests.acceptance.program import until

PIPELINES = "---\n".join(
    f"id: {name}\ntrigger: {{type: http, callback: true, config: {{url: JOBS/{name}}}}}\n"
    for name in ("one", "two", "replayed", "hidden", "guessed")
)
GUESSES_MAX = 12


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CallbackSite]:
    limits = {"HEADGATE_LIMITS_FAILED_LOGINS_PER_MINUTE": str(GUESSES_MAX), "HEADGATE_LOG_FORMAT": "json"}
    with callback_site(tmp_path_factory.mktemp("tokens"), PIPELINES, lambda _: (200, {}), **limits) as made:
        yield made


def altered(token: str, **changes: object) -> str:
    """Return a token with another content under the same signature."""
    key, signature, payload = token.split(".")
    kind, run_id, attempt, expires_at = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    content = [
        changes.get("kind", kind),
        changes.get("run_id", run_id),
        changes.get("attempt", attempt),
        changes.get("expires_at", expires_at),
    ]
    made = base64.urlsafe_b64encode(json.dumps(content, separators=(",", ":")).encode()).rstrip(b"=").decode()
    return f"{key}.{signature}.{made}"


def test_token__forged_altered_or_of_another_run__is_refused_and_the_run_goes_on(site: CallbackSite) -> None:
    one, two = site.running_job("one"), site.running_job("two")
    own, foreign = one.headers["headgate-callback-token"], two.headers["headgate-callback-token"]

    attacks = [
        "",
        "x",
        foreign,
        own[:-1] + ("A" if own[-1] != "A" else "B"),
        altered(own, expires_at=2**40),
        altered(foreign, run_id=one.headers["headgate-run-id"]),
        altered(own, kind="asl"),
    ]
    for token in attacks:
        answer = report(one, "success", token=token)
        assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated"), token
    assert site.run_of("one")["status"] == "RUNNING"
    # A callback's token is no credential elsewhere.
    refused = httpx.get(f"{site.server.url}/api/v1/pipelines", headers={"authorization": f"Bearer {own}"})
    assert refused.status_code == 401

    assert report(two, "failed", reason="over").status_code == 200
    assert report(one, "success").status_code == 200
    site.until_status("one", "COMPLETED")


def test_token__replayed_after_the_end__changes_nothing(site: CallbackSite) -> None:
    job = site.running_job("replayed")
    assert report(job, "success").status_code == 200
    before = site.until_status("replayed", "COMPLETED")

    assert report(job, "success").status_code == 200
    assert report(job, "failed").status_code == 409
    assert report(job, "running").status_code == 409

    assert site.run_of("replayed")["version"] == before["version"]
    entries = [each for each in site.server.get("/audit")["items"] if each["entity"] == f"run/{before['run_id']}"]
    assert {each["action"] for each in entries} == {"run.callback"}


def test_token__anywhere_but_in_the_request__is_not_to_be_found(site: CallbackSite) -> None:
    job = site.running_job("hidden")
    signature = job.headers["headgate-callback-token"].split(".")[1]
    assert report(job, "success").status_code == 200
    site.until_status("hidden", "COMPLETED")

    path = f"/callbacks/{job.headers['headgate-run-id']}"
    until(lambda: path in site.server.stderr, "the access log")
    for text in (site.server.stderr, json.dumps(site.run_of("hidden"))):
        assert signature not in text
    for file in site.server.home.rglob("*"):
        if file.is_file():
            assert signature.encode() not in file.read_bytes(), file


def test_token__guessed__is_answered_with_429_after_a_while(site: CallbackSite) -> None:
    job = site.running_job("guessed")

    statuses = [report(job, "success", token=f"k.{number}.x").status_code for number in range(GUESSES_MAX + 3)]

    assert set(statuses) == {401, 429}
    assert statuses[-1] == 429
    # The holder of the token is not locked out.
    assert report(job, "success").status_code == 200
