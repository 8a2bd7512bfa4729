"""Archetypes: those that come with Headgate, those of a folder, and the traits that they give a pipeline."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.durable.model.duration import Seconds
from headgate.errors import DefinitionError
from headgate.pipelines.authoring.archetypes import (
    Archetype,
    TraitTemplate,
    load_archetypes,
    read_archetypes,
    resolve,
    shipped_archetypes,
)
from headgate.pipelines.authoring.loader import Known, load_pipeline
from headgate.pipelines.definition.model import Pipeline, Readiness, Trait
from headgate.pipelines.definition.problems import InvalidPipelineError
from tests.unit.pipelines.loading_rig import SOURCE, errors

LOAD = Archetype(
    name="load",
    required_traits=(
        TraitTemplate(type="fresh", evaluator="builtin:sensor-freshness", config={"maxAge": "1h", "deep": {"a": [1]}}),
        TraitTemplate(type="room", ttl=Seconds(60), timeout=Seconds(5)),
    ),
    optional_traits=(TraitTemplate(type="schema", ttl=Seconds(900), config={"strict": True}),),
)
KNOWN = {"load": LOAD}


def _pipeline(**traits: Trait) -> Pipeline:
    return Pipeline(id="orders", archetype="load", readiness=Readiness(traits=traits))


# What there is.


def test_shipped__three_kinds__with_their_required_and_optional_traits() -> None:
    found = {
        name: (
            [template.type for template in archetype.required_traits],
            [template.type for template in archetype.optional_traits],
        )
        for name, archetype in shipped_archetypes().items()
    }
    usual = ["source-freshness", "upstream-dependency", "resource-availability"]
    assert found == {
        "batch-ingestion": (usual, ["schema-contract", "data-quality-sample"]),
        "streaming-enrichment": ([*usual, "enrichment-source"], ["schema-contract"]),
        "ml-feature-pipeline": ([*usual, "model-registry"], ["data-drift-check", "feature-store-health"]),
    }
    batch = shipped_archetypes()["batch-ingestion"].required_traits
    assert [(float(each.ttl), float(each.timeout)) for each in batch] == [(300, 30), (600, 60), (120, 10)]
    assert batch[0].config == {"maxLagSeconds": 300}


def test_load_archetypes__a_folder__adds_to_those_that_come_and_replaces_by_name(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("name: mine\nrequired_traits: [{type: a, evaluator: push}]\n")
    (tmp_path / "batch.yaml").write_text("name: batch-ingestion\nrequired_traits: [{type: b}]\n")
    found = load_archetypes(tmp_path)
    assert sorted(found) == ["batch-ingestion", "mine", "ml-feature-pipeline", "streaming-enrichment"]
    assert [template.type for template in found["batch-ingestion"].required_traits] == ["b"]
    # What comes with Headgate stays what it is for others.
    assert len(shipped_archetypes()["batch-ingestion"].required_traits) == 3


def test_load_archetypes__bad_files__are_all_reported(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("name: a\nrequired_traits: []\n")
    (tmp_path / "b.yaml").write_text("name: [\n")
    (tmp_path / "c.yaml").write_text("name: same\nrequired_traits: [{type: x}]\n")
    (tmp_path / "d.yaml").write_text("name: same\nrequired_traits: [{type: x}]\n")
    with pytest.raises(InvalidPipelineError) as caught:
        load_archetypes(tmp_path)
    assert [Path(problem.source).name for problem in caught.value.problems] == ["a.yaml", "b.yaml", "d.yaml"]


def test_read_archetypes__words_of_the_first_generation__are_understood() -> None:
    text = """\
name: theirs
requiredTraits:
  - {type: a, description: d, defaultConfig: {x: 1}, defaultTtl: 60, defaultTimeout: 5}
  - {type: b}
optionalTraits: [{type: c}]
readinessRule: {type: majority-pass, parameters: {threshold: 1}}
"""
    (archetype,), problems = read_archetypes(text, "theirs.yaml")
    assert problems == []
    assert archetype == Archetype(
        name="theirs",
        required_traits=(
            TraitTemplate(type="a", description="d", config={"x": 1}, ttl=Seconds(60), timeout=Seconds(5)),
            TraitTemplate(type="b"),
        ),
        optional_traits=(TraitTemplate(type="c"),),
        trait_rule="majority-pass",
        threshold=1,
    )


@pytest.mark.parametrize(
    ("text", "field", "fact"),
    [
        ("name: a\n", "required_traits", "it is missing"),
        ("name: a\nrequired_traits: []\n", "required_traits", "there are none"),
        ("name: ' '\nrequired_traits: [{type: a}]\n", "name", "it is empty"),
        ("name: a\nrequired_traits: [{type: a}, {type: a}]\n", "required_traits[1].type", "given twice"),
        (
            "name: a\nrequiredTraits: [{type: a}]\noptionalTraits: [{type: a}]\n",
            "optionalTraits[0].type",
            "given twice",
        ),
        ("name: a\nrequired_traits: [{type: a, tll: 3}]\n", "required_traits[0].tll", "there is no such field"),
        ("name: a\nrequired_traits: [{type: a}]\ntrait_rule: most\n", "trait_rule", "is not known"),
        ("name: a\nrequired_traits: [{type: a}]\nthreshold: 2\n", "threshold", "can never be"),
    ],
)
def test_read_archetypes__what_is_wrong__is_reported_with_its_field(text: str, field: str, fact: str) -> None:
    found, (problem,) = read_archetypes(text, "a.yaml")
    assert found == []
    assert problem.field == field
    assert fact in problem.fact


# What it gives.


def test_resolve__required_traits__are_there_and_optional_ones_only_if_configured() -> None:
    resolved = resolve(_pipeline(room=Trait(evaluator="push")), KNOWN)
    assert sorted(resolved.readiness.traits) == ["fresh", "room"]
    assert resolved.readiness.traits["fresh"].evaluator == "builtin:sensor-freshness"
    configured = resolve(_pipeline(room=Trait(evaluator="push"), schema=Trait(evaluator="push")), KNOWN)
    assert configured.readiness.traits["schema"].config == {"strict": True}


def test_resolve__what_the_pipeline_says__goes_before_the_archetype_key_by_key() -> None:
    own = Trait(evaluator="https://x.example", config={"maxAge": "2h"}, ttl=Seconds(7))
    fresh = resolve(_pipeline(fresh=own, room=Trait(evaluator="push")), KNOWN).readiness.traits["fresh"]
    assert fresh == Trait(
        evaluator="https://x.example", config={"maxAge": "2h", "deep": {"a": [1]}}, ttl=Seconds(7), required=True
    )


def test_resolve__again__changes_nothing() -> None:
    once = resolve(_pipeline(room=Trait(evaluator="push")), KNOWN)
    assert resolve(once, KNOWN) == once
    assert resolve(Pipeline(id="plain"), KNOWN) == Pipeline(id="plain")


def test_resolve__the_result_is_changed__the_archetype_and_the_next_result_are_not() -> None:  # bug 57
    first = resolve(_pipeline(room=Trait(evaluator="push")), KNOWN)
    first.readiness.traits["fresh"].config["maxAge"] = "changed"
    first.readiness.traits["fresh"].config["deep"]["a"].append(2)
    second = resolve(_pipeline(room=Trait(evaluator="push")), KNOWN)
    assert second.readiness.traits["fresh"].config == {"maxAge": "1h", "deep": {"a": [1]}}


def test_resolve__a_required_trait_that_no_one_evaluates__is_refused() -> None:  # bug 38
    with pytest.raises(DefinitionError, match=r"orders: archetype load requires trait room; give it an evaluator"):
        resolve(_pipeline(), KNOWN)


def test_resolve__unknown_archetype__is_refused_with_the_nearest() -> None:  # bug 38
    with pytest.raises(DefinitionError, match=r"no archetype 'laod'; did you mean load\?"):
        resolve(Pipeline(id="orders", archetype="laod"), KNOWN)


# In files.

FILE = """\
id: orders
archetype: load
readiness:
  traits:
    fresh: {ttl: 5m, timeout: 30s, config: {maxAge: 2h}}
    room: {evaluator: push}
    schema: {evaluator: push}
    own: {evaluator: push}
"""


def test_load_pipeline__with_an_archetype__what_the_file_leaves_out_is_the_archetypes() -> None:
    load = Archetype(
        name="load",
        required_traits=(
            TraitTemplate(type="fresh", evaluator="push", config={"x": 1}, ttl=Seconds(900), timeout=Seconds(9)),
            TraitTemplate(type="room", ttl=Seconds(60), timeout=Seconds(5)),
            TraitTemplate(type="more", evaluator="builtin:data-quality", ttl=Seconds(44)),
        ),
        optional_traits=(TraitTemplate(type="schema", ttl=Seconds(900)), TraitTemplate(type="never")),
        trait_rule="majority-pass",
        threshold=2,
    )
    pipeline = load_pipeline(FILE, SOURCE, Known(archetypes={"load": load}))
    assert pipeline.readiness.traits == {
        # What is said counts, even if it is what would be said of any trait.
        "fresh": Trait(evaluator="push", config={"maxAge": "2h", "x": 1}, ttl=Seconds(300), timeout=Seconds(30)),
        "room": Trait(evaluator="push", ttl=Seconds(60), timeout=Seconds(5)),
        "schema": Trait(evaluator="push", ttl=Seconds(900), required=False),
        "own": Trait(evaluator="push"),
        "more": Trait(evaluator="builtin:data-quality", ttl=Seconds(44)),
    }
    assert (pipeline.readiness.trait_rule, pipeline.readiness.threshold) == ("majority-pass", 2)
    assert resolve(pipeline, {"load": load}) == pipeline


def test_load_pipeline__a_required_trait_that_no_one_evaluates__is_reported_with_its_place() -> None:
    (problem,) = errors("id: orders\narchetype: load\nreadiness:\n  traits: {}\n", Known(archetypes=KNOWN))
    assert (problem.field, problem.line) == ("readiness.traits.room", 4)
    assert "archetype load requires trait room" in problem.fact


def test_load_pipeline__a_rule_on_a_trait_of_the_archetype__is_known() -> None:
    text = "id: orders\narchetype: load\nreadiness: {rules: [{trait: fresh}], traits: {room: {evaluator: push}}}\n"
    assert load_pipeline(text, SOURCE, Known(archetypes=KNOWN)).readiness.rules[0].trait == "fresh"
