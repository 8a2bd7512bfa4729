"""Definitions of a folder: finds them in files of their own and in CloudFormation and SAM templates."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct

from headgate.asl.compile.parser import load
from headgate.asl.documents.cloudformation import TemplateMachine, is_template, machines_of
from headgate.asl.documents.definition_text import is_json, read_filled
from headgate.asl.documents.yaml_text import load_yaml
from headgate.asl.expressions.scope import Json
from headgate.asl.model.substitution import Substitution
from headgate.errors import DefinitionError

_SUFFIXES: Final = (".json", ".yaml", ".yml", ".template")
# A file with this in its name holds a definition, even if it cannot be parsed.
_DEFINITION_MARK: Final = ".asl."
_DEFINITION_WORDS: Final = ("StartAt", "States")
_TEMPLATE_WORD: Final = "::StateMachine"
_SKIPPED_FOLDERS: Final = ("node_modules",)


class FoundDefinition(Struct, frozen=True):
    """A definition of a folder, or the error by which it cannot be read."""

    # Relative to the folder; followed by `#` and the logical id for a machine inside of a template.
    name: str
    definition: Json = None
    error: DefinitionError | None = None


class FoundDefinitions(Struct, frozen=True):
    """The definitions of a folder, by name, and the names of the variables that any of them has."""

    definitions: list[FoundDefinition]
    variables: set[str]
    used: set[str]


def find_definitions(folder: Path, variables: Mapping[str, str]) -> FoundDefinitions:
    """Read every definition below a folder, in the order of their names.

    Hidden folders are left out. A file that a template names as DefinitionUri is read once, with the template's
    DefinitionSubstitutions; `variables` come after them and fill in what they leave open.
    """
    return _Search(folder, variables).run()


class _Search:
    def __init__(self, folder: Path, variables: Mapping[str, str]) -> None:
        self._folder = folder
        self._variables = variables
        self._found: list[FoundDefinition] = []
        self._names: set[str] = set()
        self._used: set[str] = set()

    def run(self) -> FoundDefinitions:
        plain: dict[Path, str] = {}
        templates: list[tuple[Path, Json]] = []
        for path in _files(self._folder):
            try:
                text = path.read_text(encoding="utf-8-sig")
            except (OSError, UnicodeDecodeError) as error:
                self._refuse(path, error)
                continue
            template = self._template(path, text) if _TEMPLATE_WORD in text else None
            if template is not None:
                templates.append((path, template))
            elif _DEFINITION_MARK in path.name or all(word in text for word in _DEFINITION_WORDS):
                plain[path] = text
        substitutions: dict[Path, dict[str, str]] = {}
        for path, template in templates:
            for machine in machines_of(template):
                self._take_machine(path, machine, plain, substitutions)
        for path, text in plain.items():
            self._add(self._name(path), text, substitutions.get(path, {}), is_marked=_DEFINITION_MARK in path.name)
        self._found.sort(key=lambda each: each.name)
        return FoundDefinitions(self._found, self._names, self._used)

    def _refuse(self, path: Path, error: OSError | UnicodeDecodeError) -> None:
        # Other files may be anything.
        if _DEFINITION_MARK in path.name:
            fact = "is not UTF-8 text; fix its encoding" if isinstance(error, ValueError) else "cannot be read"
            self._found.append(FoundDefinition(self._name(path), error=DefinitionError(f"the file {fact}")))

    def _template(self, path: Path, text: str) -> Json:
        try:
            # Its placeholders belong to its functions: they are filled in later.
            document = load(text) if is_json(text) else load_yaml(text, lambda filled: filled, allow_duplicates=True)
        except DefinitionError as error:
            if _DEFINITION_MARK not in path.name:
                self._found.append(FoundDefinition(self._name(path), error=error))
            return None
        return document if is_template(document) else None

    def _take_machine(
        self,
        template: Path,
        machine: TemplateMachine,
        plain: Mapping[Path, str],
        substitutions: dict[Path, dict[str, str]],
    ) -> None:
        name = f"{self._name(template)}#{machine.logical_id}"
        if machine.text is not None:
            self._add(name, machine.text, machine.variables, is_marked=True)
        elif machine.file is None:
            self._add_document(name, machine.definition, machine.variables)
        else:
            # Without following links: the file is found by its own name, or not at all.
            file = Path(os.path.normpath(template.parent / machine.file.strip()))
            if file in plain:
                # The first template decides: a file is one machine.
                substitutions.setdefault(file, machine.variables)
            else:
                error = DefinitionError(f"DefinitionUri {machine.file}: there is no such definition in the folder")
                self._found.append(FoundDefinition(name, error=error))

    def _add(self, name: str, text: str, substitutions: Mapping[str, str], *, is_marked: bool) -> None:
        try:
            first, second = Substitution(substitutions), Substitution(self._variables)
            definition = read_filled(second.fill(first.fill(text)), second)
        except DefinitionError as error:
            self._found.append(FoundDefinition(name, error=error))
            return
        self._count(second)
        if is_marked or (isinstance(definition, dict) and set(_DEFINITION_WORDS) <= definition.keys()):
            self._found.append(FoundDefinition(name, definition))

    def _add_document(self, name: str, document: Json, substitutions: Mapping[str, str]) -> None:
        first, second = Substitution(substitutions), Substitution(self._variables)
        definition = _filled(_filled(document, first), second)
        self._count(second)
        self._found.append(FoundDefinition(name, definition))

    def _count(self, substitution: Substitution) -> None:
        self._used |= substitution.used
        self._names |= substitution.used | substitution.missing

    def _name(self, path: Path) -> str:
        return path.relative_to(self._folder).as_posix()


def _files(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(each for each in folders if not each.startswith(".") and each not in _SKIPPED_FOLDERS)
        for name in sorted(names):
            if name.lower().endswith(_SUFFIXES):
                yield Path(place, name)


def _filled(value: Json, substitution: Substitution) -> Json:
    if isinstance(value, str):
        return substitution.fill(value)
    if isinstance(value, list):
        return [_filled(entry, substitution) for entry in value]
    if isinstance(value, dict):
        return {substitution.fill(key): _filled(member, substitution) for key, member in value.items()}
    return value
