"""dbt profile: finds the output that a target folder was built with. Passwords in it never leave this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from headgate.errors import InvalidPayloadError, UserError

_environment: Final = os.environ  # noqa: TID251 - variables of dbt, not settings of Headgate


def profile_namespace(
    target_folder: Path, *, profiles_dir: Path | None = None, profile: str | None = None, target: str | None = None
) -> str | None:
    """Return the namespace of the project's tables by its profile, or None if there is no profiles.yml.

    The project is the folder above the target folder. Raises `UserError` for an unreadable file, and
    `InvalidPayloadError` for a profile without this name or target.
    """
    from headgate.health.ingest.dbt_namespace import namespace_of

    project_folder = target_folder.resolve().parent
    path = _profiles_path(project_folder, profiles_dir)
    if path is None:
        return None
    name = profile or _environment.get("DBT_PROFILE") or _project_profile(project_folder)
    if name is None:
        raise InvalidPayloadError(
            f"dbt {project_folder}: no dbt_project.yml with a profile; give --profile or --namespace"
        )
    found = _read_yaml(path).get(name)
    if not isinstance(found, dict):
        raise InvalidPayloadError(f"dbt {path}: no profile {name!r}; give --profile or --namespace")
    chosen = target or _environment.get("DBT_TARGET") or _rendered(found.get("target", "default"), path)
    output = (found.get("outputs") or {}).get(chosen)
    if not isinstance(output, dict):
        raise InvalidPayloadError(
            f"dbt {path}: profile {name!r} has no output {chosen!r}; give --target or --namespace"
        )
    return namespace_of(_Rendered(output, path))


class _Rendered(Mapping[str, object]):
    """An output whose values are rendered when they are read: secrets of other fields are never evaluated."""

    def __init__(self, output: dict[str, Any], path: Path) -> None:
        self._output = output
        self._path = path

    def __getitem__(self, name: str) -> object:
        return _rendered(self._output[name], self._path)

    def __iter__(self) -> Iterator[str]:
        return iter(self._output)

    def __len__(self) -> int:
        return len(self._output)


def _profiles_path(project_folder: Path, given: Path | None) -> Path | None:
    """Return the first profiles.yml in the places where dbt looks for it."""
    if given is not None:
        path = given / "profiles.yml"
        if not path.is_file():
            raise UserError(f"dbt {path}: not found; give the folder of profiles.yml with --profiles-dir")
        return path
    named = _environment.get("DBT_PROFILES_DIR")
    folders = [Path(named)] if named else [Path.cwd(), project_folder, Path.home() / ".dbt"]
    return next((path for folder in folders if (path := folder / "profiles.yml").is_file()), None)


def _project_profile(project_folder: Path) -> str | None:
    path = project_folder / "dbt_project.yml"
    found = _read_yaml(path).get("profile") if path.is_file() else None
    return None if found is None else str(_rendered(found, path))


def _read_yaml(path: Path) -> dict[str, Any]:
    import yaml

    try:
        found = yaml.safe_load(path.read_bytes())
    except (OSError, yaml.YAMLError) as exc:
        raise UserError(f"dbt {path}: the file cannot be read as YAML ({str(exc)[:200]})") from exc
    return found if isinstance(found, dict) else {}


def _rendered(value: Any, path: Path) -> Any:  # noqa: ANN401 - any value of YAML
    """Return a value with its Jinja expressions evaluated. As in dbt, they read environment variables."""
    if not isinstance(value, str) or "{{" not in value:
        return value
    from jinja2 import StrictUndefined, TemplateError
    from jinja2.sandbox import SandboxedEnvironment

    def env_var(name: str, default: str | None = None) -> str:
        found = _environment.get(name, default)
        if found is None:
            raise InvalidPayloadError(f"dbt {path}: environment variable {name} is not set; set it or give --namespace")
        return found

    environment = SandboxedEnvironment(undefined=StrictUndefined)
    environment.filters |= {"as_number": float, "as_text": str, "as_native": str}
    try:
        return environment.from_string(value).render(env_var=env_var)
    except TemplateError as exc:
        raise InvalidPayloadError(f"dbt {path}: {value[:80]!r} cannot be evaluated ({exc}); give --namespace") from exc
