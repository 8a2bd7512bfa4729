"""Parameters of the API: each says what it is for, in the OpenAPI document and so in the reference."""

from __future__ import annotations

from docs.generator.served import served
from headgate.serve.http import parameter_descriptions


def test_parameters__of_every_operation__are_described() -> None:
    used: set[tuple[str, str] | str] = set()
    missing = []
    for path, operations in served().document["paths"].items():
        for method, operation in operations.items():
            for each in operation.get("parameters", ()):
                segment = path.removeprefix("/api/v1/").partition("/")[0]
                used |= {(segment, each["name"]), each["name"]}
                if not each.get("description"):
                    missing.append(f"{method} {path}: {each['name']}")

    assert missing == []
    described = {*parameter_descriptions._OF_SEGMENT, *parameter_descriptions._OF_NAME}
    assert sorted(map(str, described - used)) == []
