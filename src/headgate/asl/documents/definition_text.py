"""Definition text: from the JSON or YAML of a definition, with its variables filled in, to a document."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from headgate.asl.compile.parser import check_size, load
from headgate.asl.documents.cloudformation import evaluated_definition
from headgate.asl.expressions.scope import Json
from headgate.asl.model.substitution import Substitution
from headgate.errors import DefinitionError

_SHOWN_MAX: Final = 10
# Names by which a text may have functions of CloudFormation as objects.
_FUNCTIONS: Final = ("Fn::", "Ref")


def read_definition(text: str, variables: Mapping[str, str]) -> Json:
    """Parse a definition with its variables filled in.

    Raises `DefinitionError`, also for a variable that the definition does not have: it would change nothing.
    """
    substitution = Substitution(variables)
    definition = read_filled(text, substitution)
    if substitution.unused:
        raise unknown_variable(substitution.unused[0], substitution.used | substitution.missing)
    return definition


def unknown_variable(name: str, known: Iterable[str]) -> DefinitionError:
    """Return the error for a variable that is nowhere in the text."""
    listed = _listed(known)
    remedy = f"it has {listed}" if listed else "it has no variables; leave it out"
    return DefinitionError(f"variable {name!r}: there is no ${{{name}}} in the definition; {remedy}")


def _listed(names: Iterable[str]) -> str:
    ordered = sorted(names)
    return ", ".join(f"${{{name}}}" for name in ordered[:_SHOWN_MAX]) + (", …" if len(ordered) > _SHOWN_MAX else "")


def read_filled(text: str, substitution: Substitution) -> Json:
    """Parse a definition and fill in its variables. Raises `DefinitionError`."""
    filled = substitution.fill(text.removeprefix("\ufeff"))
    try:
        document = load(filled) if is_json(filled) else _load_yaml(filled, substitution)
        if any(function in filled for function in _FUNCTIONS):
            document = evaluated_definition(document, substitution.fill)
        # It is stored as JSON: lone surrogates and non-finite numbers are refused here.
        msgspec.json.encode(document)
    except DefinitionError as error:
        if not substitution.missing:
            raise
        # A placeholder outside of a string is neither JSON nor, within braces, YAML.
        raise DefinitionError(f"{error.message}; no value is given for {_listed(substitution.missing)}") from error
    except (ValueError, OverflowError, RecursionError) as error:
        raise DefinitionError(f"the definition cannot be stored as JSON: {error}; correct it there") from error
    return document


def is_json(text: str) -> bool:
    """Whether a text is JSON rather than YAML: it begins with a brace."""
    return text.lstrip()[:1] == "{"


def _load_yaml(text: str, substitution: Substitution) -> Json:
    # Imported on use: most definitions are JSON.
    from headgate.asl.documents.yaml_text import load_yaml

    check_size(text)
    document = load_yaml(text, substitution.fill)
    if isinstance(document, str) or not text.strip():
        # Almost any text is a scalar of YAML.
        raise DefinitionError("the definition is neither JSON nor YAML; write an object with StartAt and States")
    return document
