"""Short names of workers: the process number and the host."""

from __future__ import annotations

import pytest

from headgate.fanout.core.maintenance import worker_name
from headgate.fanout.model.worker_names import short_worker_name


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("vm pid:[4026531836]|4711|01JABC", "4711@vm"),
        ("laptop|12|ab12cd34", "12@laptop"),
        ("lambda-7", "lambda-7"),
        ("a|b|c", "a|b|c"),
        ("host|12", "host|12"),
        ("", ""),
        (None, None),
    ],
)
def test_short_name__names_of_headgate__are_shortened_and_others_kept(name: str | None, short: str | None) -> None:
    assert short_worker_name(name) == short


def test_short_name__of_this_process__has_neither_namespace_nor_unique_part() -> None:
    short = short_worker_name(worker_name(4711, "01JABC"))

    assert short.startswith("4711@")
    assert not {"|", "[", " "} & set(short)
