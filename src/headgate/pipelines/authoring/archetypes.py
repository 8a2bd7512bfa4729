"""Archetypes: kinds of pipelines with their required and optional traits.

The pipeline's own configuration of a trait takes precedence. Required traits are always present; optional ones only if
the pipeline configures them.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from headgate.durable.model.duration import Seconds
from headgate.errors import DefinitionError
from headgate.pipelines.definition.model import Json, Pipeline, Trait
from headgate.pipelines.definition.node_edits import mapping_at, renamed, set_default
from headgate.pipelines.definition.problems import InvalidPipelineError, Problem, nearest, one_of, shown
from headgate.pipelines.definition.source_map import Node, Unreadable, child_path, documents
from headgate.pipelines.definition.typed_decoder import DecodeReport, read_struct

SUFFIXES: Final = (".yaml", ".yml", ".json")
RULES: Final = ("all-required-pass", "majority-pass")
_SHIPPED: Final = "archetypes.yaml"
# The field names of the first-generation format.
_OLDER_NAMES: Final = {"requiredTraits": "required_traits", "optionalTraits": "optional_traits"}
_OLDER_TRAIT_NAMES: Final = {"defaultConfig": "config", "defaultTtl": "ttl", "defaultTimeout": "timeout"}


class TraitTemplate(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A trait of an archetype. Without an evaluator, every pipeline must name one."""

    type: str
    description: str = ""
    evaluator: str | None = None
    config: dict[str, Json] = {}
    ttl: Seconds = Seconds(300)
    timeout: Seconds = Seconds(30)

    def trait(self, evaluator: str, *, required: bool) -> Trait:
        """Return a trait of this template."""
        config = copy.deepcopy(self.config)
        return Trait(evaluator=evaluator, config=config, ttl=self.ttl, timeout=self.timeout, required=required)


class Archetype(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A kind of pipeline."""

    name: str
    description: str = ""
    required_traits: tuple[TraitTemplate, ...]
    optional_traits: tuple[TraitTemplate, ...] = ()
    trait_rule: str = RULES[0]
    threshold: int | None = None


Archetypes = Mapping[str, Archetype]


@cache
def _shipped() -> tuple[Archetype, ...]:
    text = files("headgate.pipelines.authoring").joinpath(_SHIPPED).read_text("utf-8")
    archetypes, problems = read_archetypes(text, _SHIPPED)
    assert not problems, problems
    return tuple(archetypes)


def shipped_archetypes() -> dict[str, Archetype]:
    """Return the built-in archetypes by name."""
    return {archetype.name: archetype for archetype in _shipped()}


def load_archetypes(folder: Path) -> dict[str, Archetype]:
    """Return the built-in archetypes and those of a folder, which take precedence.

    Raises `InvalidPipelineError` with every problem of every file.
    """
    archetypes = shipped_archetypes()
    problems: list[Problem] = []
    own: dict[str, str] = {}
    for path in sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES and path.is_file()):
        loaded, bad = read_archetypes(path.read_text("utf-8", errors="surrogateescape"), str(path))
        problems += bad
        for archetype in loaded:
            if archetype.name in own:
                fact = f"archetype {archetype.name!r} is in {own[archetype.name]} too"
                problems.append(
                    Problem(source=str(path), field="name", fact=fact, allowed="give each a name of its own")
                )
            own[archetype.name] = str(path)
            archetypes[archetype.name] = archetype
    if problems:
        raise InvalidPipelineError(problems)
    return archetypes


def read_archetypes(text: str, source: str) -> tuple[list[Archetype], list[Problem]]:
    """Return the valid archetypes of a YAML or JSON text, and the problems of the others."""
    try:
        nodes = documents(text, source)
    except Unreadable as exc:
        return [], [exc.problem]
    archetypes: list[Archetype] = []
    problems: list[Problem] = []
    for node in nodes:
        reading = DecodeReport(source, node)
        archetype = read_struct(_normalised(node), Archetype, reading)
        _check(archetype, reading)
        problems += reading.problems
        if not reading.problems:
            archetypes.append(archetype)
    return archetypes, problems


def resolve(pipeline: Pipeline, archetypes: Archetypes) -> Pipeline:
    """Return the pipeline with the traits of its archetype. Idempotent.

    The result shares nothing with the archetype. Raises `DefinitionError` for an unknown archetype, and for a required
    trait without an evaluator.
    """
    if pipeline.archetype is None:
        return pipeline
    archetype = archetypes.get(pipeline.archetype)
    if archetype is None:
        hint = nearest(pipeline.archetype, archetypes)
        raise DefinitionError(
            f"pipeline {pipeline.id}: there is no archetype {pipeline.archetype!r}"
            f"{f'; did you mean {hint}?' if hint else ''}; {one_of(sorted(archetypes))}"
        )
    traits = dict(pipeline.readiness.traits)
    for template in archetype.optional_traits:
        if template.type in traits:
            traits[template.type] = _configured(traits[template.type], template)
    for template in archetype.required_traits:
        given = traits.get(template.type)
        if given is None and template.evaluator is None:
            raise DefinitionError(f"pipeline {pipeline.id}: {_unevaluated(archetype, template)}")
        made = (
            _configured(given, template)
            if given is not None
            else template.trait(template.evaluator or "", required=True)
        )
        traits[template.type] = replace(made, required=True)
    return replace(pipeline, readiness=replace(pipeline.readiness, traits=traits))


def fill_in(document: Node, archetypes: Archetypes, problems: DecodeReport) -> None:
    """Add the values of its archetype to the traits of a document, before defaults are applied."""
    name = document.at("archetype")
    archetype = archetypes.get(name.value) if name is not None and isinstance(name.value, str) else None
    if name is None or archetype is None:
        return
    readiness = mapping_at(document, "readiness")
    traits = None if readiness is None else mapping_at(readiness, "traits")
    if readiness is None or traits is None:
        return
    if archetype.trait_rule != RULES[0]:
        set_default(readiness, "trait_rule", archetype.trait_rule)
    if archetype.threshold is not None:
        set_default(readiness, "threshold", archetype.threshold)
    required = {template.type for template in archetype.required_traits}
    for template in (*archetype.required_traits, *archetype.optional_traits):
        is_required = template.type in required
        if template.type not in traits.mapping():
            if is_required and template.evaluator is None:
                path = ("readiness", "traits", template.type)
                problems.refuse_missing(traits, path, template.type, fact=_unevaluated(archetype, template))
            if not is_required or template.evaluator is None:
                continue
            traits.mapping()[template.type] = Node({}, name.line, name.column, child_path(traits.path, template.type))
        _fill_trait(traits.mapping()[template.type], template, is_required=is_required)


def _fill_trait(trait: Node, template: TraitTemplate, *, is_required: bool) -> None:
    if trait.value is None:
        trait.value = {}
    if template.evaluator is not None:
        set_default(trait, "evaluator", template.evaluator)
    set_default(trait, "ttl", float(template.ttl))
    set_default(trait, "timeout", float(template.timeout))
    if not is_required:
        set_default(trait, "required", is_required)
    config = mapping_at(trait, "config")
    for key, value in template.config.items():
        if config is not None:
            set_default(config, key, copy.deepcopy(value))


def _configured(trait: Trait, template: TraitTemplate) -> Trait:
    return replace(trait, config={**copy.deepcopy(template.config), **trait.config})


def _unevaluated(archetype: Archetype, template: TraitTemplate) -> str:
    return f"archetype {archetype.name} requires trait {template.type}; give it an evaluator"


def _normalised(node: Node) -> Node:
    """Return an archetype of either format in ours. Unknown fields stay, and are refused by name."""
    node = renamed(node, _OLDER_NAMES)
    fields = node.mapping()
    rule = fields.pop("readinessRule", None)
    if rule is not None:
        rule_fields = {"trait_rule": rule.at("type"), "threshold": rule.at("parameters", "threshold")}
        fields.update({name: field for name, field in rule_fields.items() if field is not None})
    for name in ("required_traits", "optional_traits"):
        traits = fields.get(name)
        if traits is not None and isinstance(traits.value, list):
            fields[name] = Node(
                [renamed(each, _OLDER_TRAIT_NAMES) for each in traits.value], traits.line, traits.column, traits.path
            )
    return node


def _check(archetype: Archetype, reading: DecodeReport) -> None:
    if not archetype.name.strip():
        reading.report(("name",), "it is empty", allowed="give a name")
    if not archetype.required_traits:
        reading.report(("required_traits",), "there are none", allowed="give at least one")
    if archetype.trait_rule not in RULES:
        hint = nearest(archetype.trait_rule, RULES)
        fact = f"{shown(archetype.trait_rule)} is not known"
        reading.report(("trait_rule",), fact, suggestion=hint, allowed=one_of(RULES))
    if archetype.threshold is not None and not 1 <= archetype.threshold <= len(archetype.required_traits):
        fact = f"{archetype.threshold} of {len(archetype.required_traits)} required traits can never be"
        reading.report(("threshold",), fact)
    seen: set[str] = set()
    for name, traits in (
        ("required_traits", archetype.required_traits),
        ("optional_traits", archetype.optional_traits),
    ):
        for index, template in enumerate(traits):
            if template.type in seen:
                fact = f"trait {shown(template.type)} is given twice"
                reading.report((name, index, "type"), fact, allowed="leave one out")
            seen.add(template.type)
