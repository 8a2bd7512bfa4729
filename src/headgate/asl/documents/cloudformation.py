"""CloudFormation: evaluates intrinsic functions to text with placeholders, and finds the machines of a template.

What only a deployment knows, such as the ARN of a function, becomes a placeholder: `!GetAtt Check.Arn` is
`${Check.Arn}`, which a variable of that name fills in.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from msgspec import Struct

from headgate.asl.expressions.scope import Json

_MACHINE_TYPES: Final = ("AWS::Serverless::StateMachine", "AWS::StepFunctions::StateMachine")
_PREFIX: Final = "Fn::"
# `${!name}` is CloudFormation's escape for a literal `${name}`.
_ESCAPED: Final = re.compile(r"\$\{!([^}]*)\}")


class TemplateMachine(Struct, frozen=True):
    """A machine of a template: its definition as text, as an object, or in a file beside the template."""

    logical_id: str
    text: str | None = None
    definition: Json = None
    # Relative to the template's folder.
    file: str | None = None
    # The DefinitionSubstitutions.
    variables: dict[str, str] = {}


def is_template(document: Json) -> bool:
    """Whether a document is a template that declares a state machine."""
    return any(True for _ in _declared(document))


def machines_of(template: Json) -> Iterator[TemplateMachine]:
    """Yield the machines of a template. A definition in S3 is left out: it cannot be read."""
    for logical_id, properties in _declared(template):
        given = properties.get("DefinitionSubstitutions")
        variables = {
            name: _text(evaluated(value)) for name, value in (given.items() if isinstance(given, dict) else ())
        }
        text, uri = properties.get("DefinitionString"), properties.get("DefinitionUri")
        if text is not None:
            yield TemplateMachine(logical_id, text=_text(evaluated(text)), variables=variables)
        elif "Definition" in properties:
            yield TemplateMachine(logical_id, definition=evaluated(properties["Definition"]), variables=variables)
        elif isinstance(uri, str) and not uri.startswith("s3:"):
            yield TemplateMachine(logical_id, file=uri, variables=variables)


def _declared(template: Json) -> Iterator[tuple[str, dict[str, Json]]]:
    resources = template.get("Resources") if isinstance(template, dict) else None
    for logical_id, resource in resources.items() if isinstance(resources, dict) else ():
        if isinstance(resource, dict) and resource.get("Type") in _MACHINE_TYPES:
            properties = resource.get("Properties")
            yield logical_id, properties if isinstance(properties, dict) else {}


def evaluated(value: Json) -> Json:
    """Return a value of a template with each function in it, such as `{"Fn::GetAtt": …}`, evaluated."""
    return _evaluated(value, lambda text: text, has_references=True)


def evaluated_definition(definition: Json, fill: Callable[[str], str]) -> Json:
    """Return a definition with the functions in it evaluated; `fill` replaces the placeholders that they produce.

    A member called Ref is data, except in the place of a Resource.
    """
    return _evaluated(definition, fill, has_references=False)


def _evaluated(value: Json, fill: Callable[[str], str], *, has_references: bool) -> Json:
    if isinstance(value, list):
        return [_evaluated(entry, fill, has_references=has_references) for entry in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        name, argument = next(iter(value.items()))
        if name.startswith(_PREFIX) or (name == "Ref" and has_references):
            result = call(name, _evaluated(argument, fill, has_references=True))
            return fill(result) if isinstance(result, str) else result
    return {
        key: _evaluated(member, fill, has_references=has_references or key == "Resource")
        for key, member in value.items()
    }


def call(name: str, argument: Json) -> Json:
    """Return the result of a function, named as a tag (`GetAtt`) or as a member (`Fn::GetAtt`)."""
    match name.removeprefix(_PREFIX), argument:
        case "Sub", [str() as text, dict() as names]:
            return _substituted(text, names)
        case "Sub", str():
            return _substituted(argument, {})
        case "Join", [str() as separator, list() as parts]:
            return separator.join(_text(part) for part in parts)
        case "If", [_, chosen, _]:
            return chosen
        case (("Ref" | "ImportValue" | "GetAtt" | "Condition"), str()):
            return _placeholder(argument)
        case (("GetAtt" | "FindInMap"), list()):
            return _placeholder(".".join(_text(part) for part in argument))
        case plain, _:
            return _placeholder(f"{_PREFIX}{plain}")


def _substituted(text: str, names: Mapping[str, Json]) -> str:
    for name, value in names.items():
        text = text.replace(f"${{{name}}}", _text(value))
    return _ESCAPED.sub(r"${\1}", text)


def _placeholder(name: str) -> str:
    # An import is named by a text that may have placeholders itself.
    return f"${{{re.sub(r'[^A-Za-z0-9_.:-]', '-', name)}}}"


def _text(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(value)
