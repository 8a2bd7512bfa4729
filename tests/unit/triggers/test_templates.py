"""Templates: what `${date}` and the like become, and what is refused when a definition is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headgate.errors import DefinitionError
from headgate.triggers import templates
from headgate.triggers.contract import FailureCategory, TriggerFailedError
from headgate.triggers.secret_sources import SecretSources
from tests.unit.triggers.rigs import RUN_ID, kinds, order

NO_SECRETS = SecretSources({})


def rendered(text: str, date: str = "2026-03-03T07") -> Any:
    values = templates.order_values(order("http", {}, date=date))
    return templates.render({"x": text}, values, NO_SECRETS.read)[0]["x"]


@pytest.mark.parametrize(
    ("date", "text", "expected"),
    [
        ("2026-03-03", "${date} ${date_compact} ${day_compact}", "2026-03-03 20260303 20260303"),
        ("2026-03-03T07", "${date}/${hour}", "2026-03-03T07/07"),
        ("2026-03-03T07", "${date_compact} ${day_compact}", "20260303T07 20260303"),
        ("2026-03-03T07:15", "${hour}:${minute} ${date_compact}", "07:15 20260303T0715"),
        ("2026-W10", "${year} ${week} ${date_compact}", "2026 10 2026W10"),
        ("2026-03", "y=${year}/m=${month}", "y=2026/m=03"),
        ("2026-03-03", "${pipeline}.${schedule}.${run_id}.${attempt}", f"orders.hourly.{RUN_ID}.1"),
        ("2026-03-03", "$${date} $5 ${day}", "${date} $5 03"),
    ],
)
def test_render__date_of_a_period__gives_its_parts(date: str, text: str, expected: str) -> None:
    assert rendered(text, date) == expected


def test_render__nested_values__fills_every_text_and_leaves_the_config_alone() -> None:
    # bug 57: what is cached is not to be changed by filling it in.
    config = {"a": ["${date}", {"b": "${hour}"}], "n": 3, "t": True}

    filled, _ = templates.render(config, templates.order_values(order("http", {})), NO_SECRETS.read)

    assert filled == {"a": ["2026-03-03T07", {"b": "07"}], "n": 3, "t": True}
    assert config == {"a": ["${date}", {"b": "${hour}"}], "n": 3, "t": True}


def test_render__value_that_looks_like_a_template__is_not_filled_in_again() -> None:
    values = {**templates.order_values(order("http", {})), "schedule": "${run_id}"}

    assert templates.render({"x": "${schedule}"}, values, NO_SECRETS.read)[0] == {"x": "${run_id}"}


def test_render__part_that_the_date_lacks__is_refused_and_not_left_empty() -> None:
    with pytest.raises(TriggerFailedError, match=r"\$\{hour\}: this run has none \(its date is 2026-03-03\)") as caught:
        rendered("s3://bucket/${hour}", "2026-03-03")

    assert caught.value.category is FailureCategory.PERMANENT


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("${dat}", r"body\.a\[0\]: there is no \$\{dat\}; did you mean '\$\{date\}'\? use one of \$\{date\}, "),
        ("${DATE}", "there is no"),
        ("${}", "there is no"),
        ("${date", "is not closed"),
        ("${env:AWS_SECRET_ACCESS_KEY}", "begin with HG_SECRET_"),
        ("${file:../../etc/passwd}", "without '..'"),
        ("${file:/etc/passwd}", "not beginning with '/'"),
    ],
)
def test_check__template_that_can_never_be_filled_in__is_refused_with_its_field(
    tmp_path: Path, text: str, said: str
) -> None:
    with pytest.raises(DefinitionError, match=said):
        kinds(tmp_path).check("http", {"url": "https://example.com", "body": {"a": [text]}})


def test_check__part_that_the_period_lacks__is_refused_when_loaded(tmp_path: Path) -> None:
    config = {"url": "https://example.com/${hour}"}

    kinds(tmp_path).check("http", config, date_example="2026-01-01T00")
    with pytest.raises(DefinitionError, match="trigger http: url: dates of this pipeline's period have no hour"):
        kinds(tmp_path).check("http", config, date_example="2026-01-01")


def test_check__secret_in_a_field_that_is_shown__is_refused(tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match=r"url: no secrets here; .* body, headers"):
        kinds(tmp_path).check("http", {"url": "https://example.com/${env:HG_SECRET_X}"})
