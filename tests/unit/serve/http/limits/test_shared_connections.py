"""Shared connection counts: the limits hold for all serving processes together."""

from __future__ import annotations

import mmap
import os

from headgate.serve.http.limits.connection_limits import ConnectionCounter
from headgate.serve.http.limits.shared_connections import SharedConnections, memory_bytes
from headgate.settings import LimitSettings

KEY = bytes(range(32))
LIMITS = LimitSettings(connections=16, connections_per_address=3)


def processes(count: int = 2) -> list[SharedConnections]:
    descriptor = os.memfd_create("connections")
    os.ftruncate(descriptor, memory_bytes(count))
    memory = mmap.mmap(descriptor, memory_bytes(count))
    return [
        SharedConnections(
            memory, descriptor, offset=0, process=number, processes=count, key=KEY if number == 0 else None
        )
        for number in range(count)
    ]


def test_counter__address_with_connections_to_both_processes__is_limited_in_total() -> None:
    first, second = (ConnectionCounter(LIMITS, shared=each) for each in processes())
    assert first.add("10.0.0.1") is None
    assert second.add("10.0.0.1") is None
    assert second.add("10.0.0.1") is None
    for each in (first, second):
        refusal = each.add("10.0.0.1")
        assert refusal is not None
        assert "10.0.0.1 has 3 connections" in refusal.detail
    second.remove("10.0.0.1")
    assert first.add("10.0.0.1") is None


def test_counter__connections_of_all_addresses__are_limited_in_total() -> None:
    first, second = (ConnectionCounter(LIMITS, shared=each) for each in processes())
    for number in range(16):
        assert (first if number % 2 else second).add(f"10.0.0.{number}") is None
    refusal = first.add("10.0.0.99")
    assert refusal is not None
    assert "no connection left" in refusal.detail


def test_connections__of_a_process_that_ended__are_cleared() -> None:
    first, second = processes()
    second.add("10.0.0.1", 1)
    first.add("10.0.0.1", 1)
    assert (first.total, first.at("10.0.0.1")) == (2, 2)
    first.clear(1)
    assert (first.total, first.at("10.0.0.1")) == (1, 1)


def test_connections__process_with_more_than_another__is_ahead() -> None:
    first, second = processes()
    assert not first.is_ahead(0)
    assert first.is_ahead(1)
    second.add("10.0.0.1", 1)
    assert not first.is_ahead(1)
    assert second.is_ahead(0)
