"""dbt profiles: where profiles.yml is found, and that only what the namespace needs is read of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.cli.health.dbt_profile import profile_namespace
from headgate.errors import InvalidPayloadError, UserError

PROFILES = """
shop:
  target: dev
  outputs:
    dev:
      type: postgres
      host: "{{ env_var('SHOP_HOST', 'localhost') }}"
      port: 5432
      password: "{{ env_var('SHOP_PASSWORD') }}"
    prod: {type: postgres, host: "{{ env_var('SHOP_PROD') }}"}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "shop"
    (folder / "target").mkdir(parents=True)
    (folder / "dbt_project.yml").write_text("name: shop\nprofile: shop\n")
    (folder / "profiles.yml").write_text(PROFILES)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for name in ("DBT_PROFILES_DIR", "DBT_PROFILE", "DBT_TARGET"):
        monkeypatch.delenv(name, raising=False)
    return folder


def test_profile_namespace__the_profile_of_the_project__names_the_tables_without_its_secrets(project: Path) -> None:
    assert profile_namespace(project / "target") == "postgres://localhost:5432"


def test_profile_namespace__environment_variables__are_read(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_PROD", "db.example")

    assert profile_namespace(project / "target", target="prod") == "postgres://db.example:5432"


def test_profile_namespace__a_variable_that_is_not_set__is_named(project: Path) -> None:
    with pytest.raises(InvalidPayloadError, match="SHOP_PROD is not set"):
        profile_namespace(project / "target", target="prod")


def test_profile_namespace__no_profiles_file__is_none(project: Path) -> None:
    (project / "profiles.yml").unlink()

    assert profile_namespace(project / "target") is None


def test_profile_namespace__a_folder_without_the_file__is_refused(project: Path) -> None:
    with pytest.raises(UserError, match="profiles-dir"):
        profile_namespace(project / "target", profiles_dir=project / "target")


@pytest.mark.parametrize("options", [{"profile": "other"}, {"target": "other"}])
def test_profile_namespace__a_name_that_the_file_lacks__is_refused(project: Path, options: dict[str, str]) -> None:
    with pytest.raises(InvalidPayloadError, match="other"):
        profile_namespace(project / "target", **options)  # type: ignore[arg-type]
