"""Check for schemathesis: the API refuses a request that fits its OpenAPI document only by a rule listed here."""

from __future__ import annotations

import re
from typing import Any, Final

import schemathesis
from schemathesis import Case, CheckContext, Response

# Codes of languages that JSON Schema does not describe, and of values that only the server makes.
CODES: Final = frozenset({"bad_cursor", "bad_definition", "bad_schedule"})
# Details of rules that JSON Schema cannot state.
RULES: Final = (
    # Values of an earlier response.
    r"cursor|checkpoint '|token is malformed|event id '.*': it is not as in",
    # Fields that depend on each other.
    r"set one of|send one of them|nothing to change|name (one|at least one|a pipeline)|not both|it is empty",
    r"retry first is .* more than retry most",
    r"the path has|needs group|send the token of the activity or task|to another build|a reset needs the turn",
    r"give (one of them|signal_types)|it applies to",
    r"overlap .*: a (backfill|start by hand) has|producer_id is missing|apply to deliveries only",
    r"is after (to|until)|ends before it begins|is in the future|more than 120 months",
    # Limits of a duration, which may be text.
    r"is not a duration|at most [26]0s|at most 6h|give [01] to [0-9,]+ seconds|give a time of up to|within 90 days",
    r"grant at most 7 days",
    # Printable text, which has no regular expression: letters of all scripts, and not only spaces.
    r"printable characters|reason is missing|name the user of the key|use capital letters|such as fleet.enabled",
    # Limits in bytes, and of ids that are joined.
    r"at most 512 bytes|^execution id '.*/trigger-",
    # Vocabularies with several spellings, and calendar dates.
    r"not one of|not a timestamp|is none; write|unknown event; see|there is no such calendar|^scope '|^calendar '",
    # JSON Schema takes 1.0 for an integer, and 1e300 for a number.
    r"Expected `int.*got `float`|is outside the storable range",
    # Names and files that belong to the server.
    r"reserved for Headgate itself|files\.roots|outside the project|its handler",
    # Documents with a schema of their own.
    r"JSON is malformed|^event (type )?'|^batch of events|CloudEvent|OpenLineage event|dbt manifest",
    r"must be an absolute path|must be a file path|write REASON_CODE|input of workflow",
)
# Bodies that are rows of the health store, whose ids have formats that the document does not describe.
ROWS: Final = ("/api/v1/datasets", "/api/v1/evidence", "/resolution-rules", "/api/v1/lineage/specs/{spec_id}")
ROW_RULES: Final = (
    r"Invalid dataset URN|write evd-|write urn:col|write lspec:|^rule '|condition",
    r"^dataset\S*: (Object|no field)|is not a field of a rule",
)


@schemathesis.check
def rejects_only_by_rule(_ctx: CheckContext, response: Response, case: Case[Any]) -> bool | None:
    """Fail if a request that fits the document gets a 400 for a reason that no rule states."""
    if response.status_code != 400 or case.meta is None or not case.meta.generation.mode.is_positive:
        return None
    problem = response.json()
    is_row = any(part in case.operation.path for part in ROWS)
    rules = "|".join((*RULES, *ROW_RULES) if is_row else RULES)
    if problem["code"] not in CODES and not re.search(rules, problem["detail"]):
        raise AssertionError(f"the document allows it, and it is refused: {problem['code']}: {problem['detail']}")
    return None
