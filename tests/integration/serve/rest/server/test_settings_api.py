"""Settings API: the settings in effect with their sources, for administrators, and never a secret."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from headgate.auth.roles import Role
from headgate.settings import Settings
from tests.integration.serve.health_rig import done, health_api

PASSWORD: Final = "hunter2-of-the-cache"
WEBHOOK: Final = "https://hooks.example.com/T0/B0/hook-secret"
COLLECTOR: Final = "https://ada:otlp-secret@collector.example/v1"
FILE: Final = f"""
[worker]
threads_max = 7

[notify.channels.night]
kind = "webhook"
url = "{WEBHOOK}"
secret = "file:HOOK"
"""


def loaded(folder: Path) -> Settings:
    """Settings from all sources, with a secret wherever one can be."""
    file = folder / "headgate.toml"
    hook = folder / "hook"
    hook.write_text("signing-key-of-the-webhook-channel")
    hook.chmod(0o600)
    file.write_text(FILE.replace("HOOK", str(hook)))
    environ = {
        "HEADGATE_CACHE_REDIS_URL": f"redis://:{PASSWORD}@127.0.0.1:1/0",
        "HEADGATE_TELEMETRY_OTLP_ENDPOINT": COLLECTOR,
        "HEADGATE_CACHE_ENTRIES_MAX": "12",
    }
    return Settings.load(environ, file, {"home": str(folder / "home"), "http": "127.0.0.1:0"})


def served(folder: Path) -> tuple[str, dict[str, dict[str, Any]]]:
    """Return the answer of the API as text, and its settings by name."""
    with health_api(folder / "home", settings=loaded(folder)) as api:
        answer = api.get("/settings")
        return answer.text, {each["name"]: each for each in done(answer, 200)["settings"]}


def test_settings__from_every_source__name_it(tmp_path: Path) -> None:
    _, found = served(tmp_path)

    assert (found["worker.threads_max"]["value"], found["worker.threads_max"]["origin"]) == (7, "file")
    assert found["worker.threads_max"]["source"].endswith("headgate.toml line 3")
    assert (found["cache.entries_max"]["value"], found["cache.entries_max"]["origin"]) == (12, "environment")
    assert found["cache.entries_max"]["source"] == "variable HEADGATE_CACHE_ENTRIES_MAX"
    assert (found["http"]["value"], found["http"]["source"]) == ("127.0.0.1:0", "flag --http")
    assert (found["log.level"]["value"], found["log.level"]["origin"]) == ("info", "default")


def test_settings__with_secrets__hide_them(tmp_path: Path) -> None:
    text, found = served(tmp_path)

    for secret in (PASSWORD, "hook-secret", "otlp-secret"):
        assert secret not in text
    assert found["cache.redis_url"] | {"value": "(hidden)", "is_hidden": True} == found["cache.redis_url"]
    assert found["notify"] | {"value": "(hidden)", "is_hidden": True} == found["notify"]
    assert "collector.example" in found["telemetry.otlp_endpoint"]["value"]


def test_settings__unset_secret__is_shown_as_unset(tmp_path: Path) -> None:
    with health_api(tmp_path / "home") as api:
        found = {each["name"]: each for each in done(api.get("/settings"), 200)["settings"]}

    assert (found["cache.redis_url"]["value"], found["cache.redis_url"]["is_hidden"]) == (None, False)
    assert found["notify"]["value"] == {}


@pytest.mark.parametrize("role", [each for each in Role if each is not Role.ADMIN])
def test_settings__role_other_than_admin__is_refused(role: Role, tmp_path: Path) -> None:
    with health_api(tmp_path / "home", is_required=True) as api:
        assert api.get("/settings", key=api.key("ann", role)).status_code == 403
        assert api.get("/settings").status_code == 401
        assert api.get("/settings", key=api.key("root", Role.ADMIN)).status_code == 200
