"""Map fields: checks the items, batcher, processor config, reader and writer of a Map."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from headgate.asl.compile.field_checks import (
    Check,
    action_of,
    anything,
    exclusive,
    expression,
    fields,
    integer,
    jsonata,
    one_of,
    or_expression,
    single_path,
    template,
    text,
    wrong_type,
)
from headgate.asl.compile.problems import ProblemCode, SourceLocation
from headgate.asl.expressions.jsonata import is_expression
from headgate.asl.expressions.scope import Json
from headgate.asl.model.definition import ExecutionType, Language, MapMode
from headgate.asl.model.transitions import is_distributed, processor_of

# The largest batch on AWS: the size limit of an execution's input.
_BATCH_BYTES_MAX: Final = 262_144
_ITEMS_MAX: Final = 100_000_000
_LABEL_LENGTH_MAX: Final = 40
_LABEL_FORBIDDEN: Final = re.compile(r"""[\s?*<>{}\[\]:;,\\|^~$#%&`"\x00-\x1f\x7f-\x9f]""")

_PROCESSOR_CONFIG: Final[Mapping[str, Check]] = {
    "Mode": one_of(*MapMode),
    "ExecutionType": one_of(*ExecutionType),
}
DISTRIBUTED_FIELDS: Final = (
    "ItemReader",
    "ItemBatcher",
    "ResultWriter",
    "Label",
    "ToleratedFailureCount",
    "ToleratedFailureCountPath",
    "ToleratedFailurePercentage",
    "ToleratedFailurePercentagePath",
)
_CALL_FIELDS: Final[Mapping[Language, Mapping[str, Check]]] = {
    Language.JSONPATH: {"Parameters": template},
    Language.JSONATA: {"Arguments": jsonata},
}
_PARQUET: Final = "PARQUET"
_READ_ACTIONS: Final = ("s3:getObject", "s3:listObjectsV2")
_WRITE_ACTIONS: Final = ("s3:putObject",)


def _text_list(location: SourceLocation, value: Json) -> None:
    if not isinstance(value, list):
        wrong_type(location, value, "an array of strings")
        return
    for index, entry in enumerate(value):
        text(location.at(index), entry)


_INPUT_TYPE: Final = one_of("CSV", "JSON", "JSONL", _PARQUET, "MANIFEST")


def _input_type(location: SourceLocation, value: Json) -> None:
    _INPUT_TYPE(location, value)
    if value == _PARQUET:
        location.report_only_aws(
            ProblemCode.ONLY_ON_AWS, "no Parquet file can be read here", "write CSV, JSON or JSONL"
        )


_READER_CONFIG: Final[Mapping[str, Check]] = {
    "InputType": _input_type,
    "Transformation": one_of("NONE", "LOAD_AND_FLATTEN"),
    "ManifestType": one_of("ATHENA_DATA", "S3_INVENTORY"),
    "CSVHeaderLocation": one_of("FIRST_ROW", "GIVEN"),
    "CSVHeaders": _text_list,
    "CSVDelimiter": one_of("COMMA", "PIPE", "SEMICOLON", "SPACE", "TAB"),
    "ItemsPointer": text,
}
_READER_LIMITS: Final[Mapping[Language, Mapping[str, Check]]] = {
    Language.JSONPATH: {"MaxItems": integer(1, _ITEMS_MAX), "MaxItemsPath": single_path},
    Language.JSONATA: {"MaxItems": or_expression(integer(1, _ITEMS_MAX))},
}
_WRITER_CONFIG: Final[Mapping[str, Check]] = {
    "Transformation": one_of("NONE", "COMPACT", "FLATTEN"),
    "OutputType": one_of("JSON", "JSONL"),
}
_BATCHERS: Final[Mapping[Language, Mapping[str, Check]]] = {
    Language.JSONPATH: {
        "MaxItemsPerBatch": integer(1),
        "MaxItemsPerBatchPath": single_path,
        "MaxInputBytesPerBatch": integer(1, _BATCH_BYTES_MAX),
        "MaxInputBytesPerBatchPath": single_path,
        "BatchInput": template,
    },
    Language.JSONATA: {
        "MaxItemsPerBatch": or_expression(integer(1)),
        "MaxInputBytesPerBatch": or_expression(integer(1, _BATCH_BYTES_MAX)),
        "BatchInput": jsonata,
    },
}


def check_map(location: SourceLocation, state: Mapping[str, Json], language: Language) -> None:
    """Report the problems of a Map, except those of its processor's machine."""
    field, processor = processor_of(state)
    if processor is None and field not in state:
        location.report(
            ProblemCode.MISSING_FIELD, "ItemProcessor is missing", "write ItemProcessor, or the older Iterator"
        )
    if isinstance(processor, dict) and "ProcessorConfig" in processor:
        _check_config(location.at(field, "ProcessorConfig"), processor["ProcessorConfig"])
    if not is_distributed(state):
        for name in DISTRIBUTED_FIELDS:
            if name in state:
                allowed = f'leave it out, or set "Mode": "DISTRIBUTED" in {field}.ProcessorConfig'
                location.at(name).report(ProblemCode.FIELD_NOT_IN_INLINE_MAP, f"an inline Map has no {name}", allowed)
    parts = {
        "Items": _check_items, "Label": _check_label, "ItemReader": _check_reader, "ItemBatcher": _check_batcher,
        "ResultWriter": _check_writer,
    }  # fmt: skip
    for name, check in parts.items():
        if name in state:
            check(location.at(name), state[name], language)


def _check_config(location: SourceLocation, config: Json) -> None:
    fields(location, config, _PROCESSOR_CONFIG)
    if isinstance(config, dict) and config.get("Mode") == MapMode.DISTRIBUTED and "ExecutionType" not in config:
        location.report(
            ProblemCode.MISSING_FIELD, "a distributed Map has no ExecutionType", "write STANDARD or EXPRESS"
        )


def _check_items(location: SourceLocation, items: Json, language: Language) -> None:
    if language is not Language.JSONATA:
        return  # Reported as an unknown field of JSONPath.
    # A distributed Map also accepts an object, and iterates over its members.
    if isinstance(items, list | dict):
        jsonata(location, items)
    elif is_expression(items):
        expression(location, items)
    else:
        wrong_type(location, items, "an array, an object or a JSONata string")


def _check_label(location: SourceLocation, label: Json, _: Language) -> None:
    allowed = f"write 1 to {_LABEL_LENGTH_MAX} characters with no white space, wildcards, brackets or special signs"
    if not isinstance(label, str):
        wrong_type(location, label, "a string")
    elif not 1 <= len(label) <= _LABEL_LENGTH_MAX or _LABEL_FORBIDDEN.search(label):
        location.report(ProblemCode.BAD_LABEL, f"{label!r} cannot be a label", allowed)


def _check_reader(location: SourceLocation, reader: Json, language: Language) -> None:
    known = {**_CALL_FIELDS[language], "Resource": action_of(*_READ_ACTIONS), "ReaderConfig": anything}
    fields(location, reader, known, ("Resource",))
    if not isinstance(reader, dict) or "ReaderConfig" not in reader:
        return
    place, config = location.at("ReaderConfig"), reader["ReaderConfig"]
    fields(place, config, {**_READER_CONFIG, **_READER_LIMITS[language]})
    if isinstance(config, dict):
        exclusive(place, config, "MaxItems", "MaxItemsPath")
        if config.get("CSVHeaderLocation") == "GIVEN" and "CSVHeaders" not in config:
            place.report(
                ProblemCode.MISSING_FIELD, "the header is GIVEN, and CSVHeaders is missing", "write CSVHeaders"
            )


def _check_batcher(location: SourceLocation, batcher: Json, language: Language) -> None:
    fields(location, batcher, _BATCHERS[language])
    if not isinstance(batcher, dict):
        return
    limits = [name for name in _BATCHERS[Language.JSONPATH] if name != "BatchInput"]
    if not any(name in batcher for name in limits):
        allowed = "write MaxItemsPerBatch, MaxInputBytesPerBatch or both"
        location.report(ProblemCode.MISSING_FIELD, "it has no limit for the size of a batch", allowed)
    exclusive(location, batcher, "MaxItemsPerBatch", "MaxItemsPerBatchPath")
    exclusive(location, batcher, "MaxInputBytesPerBatch", "MaxInputBytesPerBatchPath")


def _check_writer(location: SourceLocation, writer: Json, language: Language) -> None:
    known = {**_CALL_FIELDS[language], "Resource": action_of(*_WRITE_ACTIONS), "WriterConfig": anything}
    fields(location, writer, known)
    if not isinstance(writer, dict):
        return
    if "WriterConfig" in writer:
        fields(location.at("WriterConfig"), writer["WriterConfig"], _WRITER_CONFIG)
    arguments = "Arguments" if language is Language.JSONATA else "Parameters"
    present = {name for name in ("Resource", arguments) if name in writer}
    if len(present) == 1 or not writer:
        allowed = f"write Resource with {arguments}, WriterConfig, or all three"
        location.report(ProblemCode.MISSING_FIELD, "it has no complete destination for the results", allowed)
