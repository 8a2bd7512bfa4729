"""Provider info: what Airflow lists of this package, and its connection type."""

from __future__ import annotations

from headgate_airflow import __version__


def provider_info() -> dict[str, object]:
    """Return the provider info that Airflow reads."""
    return {
        "package-name": "headgate-airflow",
        "name": "Headgate",
        "description": "Gate decisions on datasets, and reports of runs.",
        "versions": [__version__],
        "connection-types": [{"connection-type": "headgate", "hook-class-name": "headgate_airflow.hook.HeadgateHook"}],
    }
