"""State fields: the fields of each state type in each query language, with their checks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from headgate.asl.compile.field_checks import (
    Check,
    an_object,
    anything,
    assignment,
    boolean,
    integer,
    jsonata,
    number,
    one_of,
    or_expression,
    or_null,
    path,
    path_or_intrinsic,
    reference,
    single_path,
    template,
    text,
    timestamp,
)
from headgate.asl.model.definition import Language, StateType

_SECONDS: Final = integer(1)
_TEXT_OR_EXPRESSION: Final = or_expression(text)
# A null path means an empty object.
_FILTER: Final = or_null(path)
# Retry, Catch, Branches, processors etc. are checked by other modules.
_SEPARATE: Final = anything

_ALWAYS: Final[Mapping[str, Check]] = {
    "Type": one_of(*StateType),
    "QueryLanguage": one_of(*Language),
}
_TRANSITION: Final[Mapping[str, Check]] = {"Next": text, "End": boolean}
_RECOVERY: Final[Mapping[str, Check]] = {"Retry": _SEPARATE, "Catch": _SEPARATE}
_FILTERS: Final[Mapping[str, Check]] = {"InputPath": _FILTER, "OutputPath": _FILTER}
_RESULTS: Final[Mapping[str, Check]] = {
    "Parameters": template,
    "ResultSelector": template,
    "ResultPath": or_null(reference),
}
_PATH_ASSIGN: Final[Mapping[str, Check]] = {"Assign": assignment(template)}
_JSONATA_ASSIGN: Final[Mapping[str, Check]] = {"Assign": assignment(jsonata)}
_OUTPUT: Final[Mapping[str, Check]] = {"Output": jsonata}
_MAP: Final[Mapping[str, Check]] = {
    "ItemProcessor": _SEPARATE,
    "Iterator": _SEPARATE,
    "ItemReader": _SEPARATE,
    "ItemBatcher": _SEPARATE,
    "ResultWriter": _SEPARATE,
    "Label": _SEPARATE,
}
_PERCENTAGE: Final = number(0, 100)

_JSONPATH: Final[Mapping[StateType, Mapping[str, Check]]] = {
    StateType.TASK: {
        **_TRANSITION, **_RECOVERY, **_FILTERS, **_RESULTS, **_PATH_ASSIGN, "Resource": text,
        "Credentials": an_object, "TimeoutSeconds": _SECONDS, "TimeoutSecondsPath": single_path,
        "HeartbeatSeconds": _SECONDS, "HeartbeatSecondsPath": single_path,
    },
    StateType.PASS: {
        **_TRANSITION, **_FILTERS, **_PATH_ASSIGN, "Parameters": template, "ResultPath": or_null(reference),
        "Result": anything,
    },
    StateType.CHOICE: {**_FILTERS, **_PATH_ASSIGN, "Choices": _SEPARATE, "Default": text},
    StateType.WAIT: {
        **_TRANSITION, **_FILTERS, **_PATH_ASSIGN, "Seconds": integer(0), "SecondsPath": single_path,
        "Timestamp": timestamp, "TimestampPath": single_path,
    },
    StateType.SUCCEED: {**_FILTERS},
    StateType.FAIL: {"Error": text, "ErrorPath": path_or_intrinsic, "Cause": text, "CausePath": path_or_intrinsic},
    StateType.PARALLEL: {**_TRANSITION, **_RECOVERY, **_FILTERS, **_RESULTS, **_PATH_ASSIGN, "Branches": _SEPARATE},
    StateType.MAP: {
        **_TRANSITION, **_RECOVERY, **_FILTERS, **_RESULTS, **_PATH_ASSIGN, **_MAP, "ItemsPath": single_path,
        "ItemSelector": template, "MaxConcurrency": integer(0), "MaxConcurrencyPath": single_path,
        "ToleratedFailureCount": integer(0), "ToleratedFailureCountPath": single_path,
        "ToleratedFailurePercentage": _PERCENTAGE, "ToleratedFailurePercentagePath": single_path,
    },
}  # fmt: skip
_JSONATA: Final[Mapping[StateType, Mapping[str, Check]]] = {
    StateType.TASK: {
        **_TRANSITION, **_RECOVERY, **_JSONATA_ASSIGN, **_OUTPUT, "Arguments": jsonata, "Resource": text,
        "Credentials": an_object, "TimeoutSeconds": or_expression(_SECONDS),
        "HeartbeatSeconds": or_expression(_SECONDS),
    },
    StateType.PASS: {**_TRANSITION, **_JSONATA_ASSIGN, **_OUTPUT},
    StateType.CHOICE: {**_JSONATA_ASSIGN, **_OUTPUT, "Choices": _SEPARATE, "Default": text},
    StateType.WAIT: {
        **_TRANSITION, **_JSONATA_ASSIGN, **_OUTPUT, "Seconds": or_expression(integer(0)),
        "Timestamp": or_expression(timestamp),
    },
    StateType.SUCCEED: {**_OUTPUT},
    StateType.FAIL: {"Error": _TEXT_OR_EXPRESSION, "Cause": _TEXT_OR_EXPRESSION},
    StateType.PARALLEL: {
        **_TRANSITION, **_RECOVERY, **_JSONATA_ASSIGN, **_OUTPUT, "Arguments": jsonata, "Branches": _SEPARATE,
    },
    StateType.MAP: {
        **_TRANSITION, **_RECOVERY, **_JSONATA_ASSIGN, **_OUTPUT, **_MAP, "Items": _SEPARATE, "ItemSelector": jsonata,
        "MaxConcurrency": or_expression(integer(0)), "ToleratedFailureCount": or_expression(integer(0)),
        "ToleratedFailurePercentage": or_expression(_PERCENTAGE),
    },
}  # fmt: skip

STATE_FIELDS: Final[Mapping[Language, Mapping[StateType, Mapping[str, Check]]]] = {
    language: {kind: {**_ALWAYS, **known} for kind, known in kinds.items()}
    for language, kinds in ((Language.JSONPATH, _JSONPATH), (Language.JSONATA, _JSONATA))
}

REQUIRED_FIELDS: Final[Mapping[StateType, tuple[str, ...]]] = {
    StateType.TASK: ("Resource",),
    StateType.CHOICE: ("Choices",),
    StateType.PARALLEL: ("Branches",),
}

# Mutually exclusive fields: a value, and the path to it.
EXCLUSIVE_FIELDS: Final[Mapping[StateType, tuple[tuple[str, str], ...]]] = {
    StateType.TASK: (("TimeoutSeconds", "TimeoutSecondsPath"), ("HeartbeatSeconds", "HeartbeatSecondsPath")),
    StateType.FAIL: (("Error", "ErrorPath"), ("Cause", "CausePath")),
    StateType.MAP: (
        ("MaxConcurrency", "MaxConcurrencyPath"),
        ("ToleratedFailureCount", "ToleratedFailureCountPath"),
        ("ToleratedFailurePercentage", "ToleratedFailurePercentagePath"),
        ("ItemProcessor", "Iterator"),
        ("ItemSelector", "Parameters"),
    ),
}
WAIT_FIELDS: Final = ("Seconds", "SecondsPath", "Timestamp", "TimestampPath")


def languages_with(kind: StateType, field: str) -> list[Language]:
    """Return the languages in which a state type has the field."""
    return [language for language, kinds in STATE_FIELDS.items() if field in kinds[kind]]


def kinds_with(language: Language, field: str) -> list[StateType]:
    """Return the state types that have the field in a language."""
    return [kind for kind, known in STATE_FIELDS[language].items() if field in known]
