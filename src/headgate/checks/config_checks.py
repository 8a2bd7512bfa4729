"""Config checks: what the config of a dataset promises, as checks. Pure functions.

- `config.min-events`: the last window that was reported for VOLUME has `min_events_per_window` events.
- `config.deviation`: the last whole hour of the stored volumes is within `max_deviation_percent` of the median of the
  same hour of the last `baseline_window_days`.
- `config.required.FIELD` and `config.constraint.FIELD`: the rows of the table that lack the field or violate its
  constraints, if the check file has a table.
- `config.contract`: without a table, of the records of the last hour the share whose evidence names a required field or
  a field with constraints is within the compliance SLO.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from headgate.checks.model import (
    Check,
    CheckFile,
    ConfigCheck,
    ContractCheck,
    DeviationCheck,
    EventsCheck,
    NullShareCheck,
    SqlCheck,
)
from headgate.checks.queries import COLUMN
from headgate.health.evidence.rows import Evidence
from headgate.health.model.datasets import Dataset
from headgate.health.model.enums import SignalState
from headgate.health.model.expected_bands import shown

PREFIX: Final = "config."
_NOT_ID: Final = re.compile(r"[^a-z0-9._-]+")
_COMPARISONS: Final = {
    "min": "<", "minimum": "<", "max": ">", "maximum": ">", "exclusiveMinimum": "<=", "exclusiveMaximum": ">=",
}  # fmt: skip
_LENGTHS: Final = {"minLength": "<", "maxLength": ">"}
# How databases say that a text does not match a regular expression, by the backend of the URL.
_NO_MATCH: Final = {
    "postgresql": "{field} !~ {pattern}",
    "redshift": "{field} !~ {pattern}",
    "duckdb": "NOT regexp_matches({field}, {pattern})",
    "mysql": "{field} NOT REGEXP {pattern}",
    "mariadb": "{field} NOT REGEXP {pattern}",
}
_NAMED_MAX: Final = 5
_DAYS_MIN: Final = 3


def derived_checks(file: CheckFile, dataset: Dataset | None) -> tuple[Check, ...]:
    """Return the checks that follow from the config of a dataset."""
    if dataset is None or not file.from_config:
        return ()
    return tuple(_derived(file, dataset))


def _derived(file: CheckFile, dataset: Dataset) -> Iterator[Check]:
    slos, contract = dataset.slos, dataset.contract_binding
    if slos is not None and slos.volume is not None and slos.volume.min_events_per_window is not None:
        least = slos.volume.min_events_per_window
        yield ConfigCheck(
            id=f"{PREFIX}min-events", description="slos.volume.min_events_per_window", events=EventsCheck(min=least)
        )
    if slos is not None and slos.volume is not None and slos.volume.max_deviation_percent is not None:
        yield ConfigCheck(
            id=f"{PREFIX}deviation",
            description="slos.volume.max_deviation_percent",
            deviation=DeviationCheck(
                max_percent=slos.volume.max_deviation_percent, days=slos.volume.baseline_window_days
            ),
        )
    if contract is None:
        return
    fields = tuple(dict.fromkeys((*contract.required_fields, *contract.field_constraints)))
    table = None if file.source is None or file.source.sql is None else file.source.sql.table
    if fields and table is None:
        rates = None if slos is None else slos.contract_compliance
        yield ConfigCheck(
            id=f"{PREFIX}contract",
            description="contract_binding, on evidence",
            contract=ContractCheck(
                fields=fields,
                min_rate=1.0 if rates is None else rates.min_compliance_rate,
                warn_rate=None if rates is None else rates.warning_compliance_rate,
            ),
        )
    if table is None:
        return
    for field in contract.required_fields:
        if COLUMN.fullmatch(field):
            yield ConfigCheck(
                id=f"{PREFIX}required.{_slug(field)}",
                description="contract_binding.required_fields",
                null_share=NullShareCheck(column=field),
            )
    for field, constraints in contract.field_constraints.items():
        conditions, left_out = violations(field, constraints, _backend(file))
        if COLUMN.fullmatch(field) and conditions:
            unread = f"; not evaluated: {', '.join(left_out)}" if left_out else ""
            query = f"SELECT count(*) FROM {table} WHERE {field} IS NOT NULL AND ({' OR '.join(conditions)})"
            yield ConfigCheck(
                id=f"{PREFIX}constraint.{_slug(field)}",
                description=f"contract_binding.field_constraints{unread}",
                sql=SqlCheck(query=query, check="equals", value=0),
            )


def not_evaluated(file: CheckFile, dataset: Dataset | None) -> list[str]:
    """Return what the config of a dataset promises of fields and no check of its table evaluates: FIELD.KEYWORD."""
    if dataset is None or dataset.contract_binding is None or not file.from_config:
        return []
    if file.source is None or file.source.sql is None or file.source.sql.table is None:
        return []
    contract = dataset.contract_binding
    found = [f"{field}: required" for field in contract.required_fields if not COLUMN.fullmatch(field)]
    for field, constraints in contract.field_constraints.items():
        left_out = violations(field, constraints, _backend(file))[1] if COLUMN.fullmatch(field) else list(constraints)
        found += [f"{field}: {name}" for name in left_out]
    return found


def _backend(file: CheckFile) -> str:
    """Return the database of a check file, as in the URL: postgresql."""
    url = "" if file.source is None or file.source.sql is None else file.source.sql.url
    return url.partition(":")[0].partition("+")[0]


def violations(field: str, constraints: Mapping[str, Any], backend: str = "") -> tuple[list[str], list[str]]:
    """Return SQL conditions of rows that violate constraints, and the keywords that have none in this database."""
    conditions, left_out = [], []
    for name, value in constraints.items():
        if name in _COMPARISONS and isinstance(value, int | float) and not isinstance(value, bool):
            conditions.append(f"{field} {_COMPARISONS[name]} {value}")
        elif name in _LENGTHS and isinstance(value, int) and not isinstance(value, bool):
            conditions.append(f"length({field}) {_LENGTHS[name]} {value}")
        elif name == "enum" and isinstance(value, list) and value:
            conditions.append(f"{field} NOT IN ({', '.join(map(_literal, value))})")
        elif name == "pattern" and isinstance(value, str) and backend in _NO_MATCH and _is_plain(value):
            conditions.append(_NO_MATCH[backend].format(field=field, pattern=_literal(value)))
        else:
            left_out.append(name)
    return conditions, left_out


def judge_events(check: EventsCheck, failed: SignalState, count: int | None, window: str) -> tuple[SignalState, str]:
    """Judge the events of the last window that was reported."""
    if count is None:
        return SignalState.UNKNOWN, "no window of VOLUME with a count was reported"
    text = f"{shown(count)} events in the window {window}, at least {shown(check.min)} expected"
    return (SignalState.OK if count >= check.min else failed), text


def judge_deviation(
    check: DeviationCheck, failed: SignalState, volumes: Mapping[int, float], hour: int
) -> tuple[SignalState, str]:
    """Judge the volume of an hour by the median of the same hour of the days before."""
    value = volumes.get(hour)
    if value is None:
        return SignalState.UNKNOWN, "the last whole hour has no volume"
    usual = [volumes[before] for day in range(1, check.days + 1) if (before := hour - 24 * day) in volumes]
    if len(usual) < min(_DAYS_MIN, check.days):
        return SignalState.UNKNOWN, (
            f"{shown(value)} rows; {len(usual)} of the last {check.days} days have a volume for this hour, "
            f"at least {min(_DAYS_MIN, check.days)} are needed"
        )
    expected = statistics.median(usual)
    reach = expected * check.max_percent / 100
    text = (
        f"{shown(value)} rows, expected {shown(expected)} within {check.max_percent:g} % "
        f"by the median of {len(usual)} days"
    )
    return (SignalState.OK if abs(value - expected) <= reach else failed), text


def judge_contract(
    check: ContractCheck, failed: SignalState, evidence: Sequence[Evidence], counted: float | None
) -> tuple[SignalState, str]:
    """Judge the records of the last hour. `counted` is their number by the stored volume, if it is known.

    Evidence of passes is sampled, so its number alone would understate the records that comply.
    """
    failing = {each.evidence_id: found for each in evidence if (found := _fields_of(each, check.fields))}
    total = max(len(evidence), counted or 0)
    if not total:
        return SignalState.UNKNOWN, "no evidence and no volume in the last hour"
    rate = 1 - len(failing) / total
    named = sorted({field for fields in failing.values() for field in fields})
    where = f" ({', '.join(named[:_NAMED_MAX])}{' …' if len(named) > _NAMED_MAX else ''})" if named else ""
    text = (
        f"{shown(len(failing))} of {shown(total)} records of the last hour violate the contract{where}: "
        f"{rate:.2%} comply, at least {check.min_rate:.2%} expected"
    )
    if rate < check.min_rate:
        return failed, text
    if check.warn_rate is not None and rate < check.warn_rate:
        return SignalState.WARNING, text
    return SignalState.OK, text


def _fields_of(evidence: Evidence, fields: Iterable[str]) -> set[str]:
    """Return which of some fields the reasons of evidence name, as in MISSING_FIELD:customer_id."""
    named = {code.partition(":")[2] for code in evidence.validation.reason_codes}
    return named & set(fields)


def _is_plain(pattern: str) -> bool:
    """Whether a pattern can be part of a query: backslashes and binds are read differently by databases."""
    return not set(pattern) & set("\\:%")


def _literal(value: object) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    return "'" + str(value).replace("'", "''") + "'"


def _slug(field: str) -> str:
    return _NOT_ID.sub("-", field.lower()).strip("-._") or "x"
