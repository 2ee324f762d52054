"""Shared memory: regions never overlap, and the agent maps only what it can rely on."""

from __future__ import annotations

import os
import socket
import tempfile
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents import shared_memory
from agents.shared_memory import Arena, MappedArena, Region
from agents.wire import ProtocolError


class Twin:
    """A worker's arena and the agent's view of it."""

    def __init__(self) -> None:
        self.mapped = MappedArena()
        self.sizes: list[int] = []
        self.arena = Arena(self._announce)

    def _announce(self, number: int, size: int, descriptor: int) -> None:
        self.sizes.append(size)
        self.mapped.add(number, size, os.dup(descriptor))


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3_000_000)), max_size=60))
@settings(max_examples=40, deadline=None)
def test_regions_are_disjoint_and_freed_room_is_used_again(steps: list[tuple[bool, int]]) -> None:
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr(shared_memory, "FIRST_SEGMENT", 1 << 20)
    twin = Twin()
    monkeypatch.undo()
    live: list[Region] = []
    for take, number in steps:
        if take or not live:
            region = twin.arena.allocate(number)
            assert region.nbytes >= max(1, number) and region.offset % shared_memory.ALIGNMENT == 0
            assert region.offset + region.nbytes <= twin.sizes[region.segment]
            for other in live:
                apart = (
                    other.offset + other.nbytes <= region.offset
                    or region.offset + region.nbytes <= other.offset
                )
                assert other.segment != region.segment or apart
            live.append(region)
        else:
            twin.arena.free(live.pop(number % len(live)))
    for region in live:
        twin.arena.free(region)
    for number, size in enumerate(twin.sizes):
        assert twin.arena._segments[number].free == [(0, size)]


def test_both_sides_see_the_same_bytes_over_several_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "FIRST_SEGMENT", 1 << 16)
    twin = Twin()
    regions = [twin.arena.allocate(200_000) for _ in range(4)]
    assert len({region.segment for region in regions}) > 1
    for number, region in enumerate(regions):
        twin.arena.view(region, np.float64, 25_000)[:] = number
    for number, region in enumerate(regions):
        seen = twin.mapped.view([region.segment, region.offset], np.float64, 25_000)
        assert np.all(seen == number)
        seen[0] = -1
        assert twin.arena.view(region, np.float64, 1)[0] == -1


def test_arrays_within_the_memory_are_found() -> None:
    twin = Twin()
    region = twin.arena.allocate(4000)
    inside = twin.arena.view(region, np.float32, 1000)
    assert twin.arena.find(inside[10:20]) == Region(region.segment, region.offset + 40, 40)
    assert twin.arena.find(np.zeros(10, np.float32)) is None


@pytest.mark.parametrize("place", [[0, -64], [-1, 0], [5, 0], [0, 1 << 40], None, "ab", [0]])
def test_a_region_outside_its_segment_is_refused(place: Any) -> None:
    twin = Twin()
    twin.arena.allocate(100)
    with pytest.raises(ProtocolError, match="region"):
        twin.mapped.view(place, np.uint8, 100)


def test_memory_that_could_shrink_or_has_another_size_is_refused() -> None:
    mapped = MappedArena()
    unsealed = os.memfd_create("x")
    os.ftruncate(unsealed, 4096)
    with pytest.raises(ProtocolError, match="may still change its length"):
        mapped.add(0, 4096, os.dup(unsealed))
    with pytest.raises(ProtocolError, match="has not the announced 8192 bytes"):
        mapped.add(0, 8192, os.dup(unsealed))
    with pytest.raises(ProtocolError, match="segment 3 was announced where 0 was due"):
        mapped.add(3, 4096, os.dup(unsealed))
    os.close(unsealed)
    with tempfile.TemporaryFile() as file:  # has no seals at all
        file.truncate(4096)
        with pytest.raises(ProtocolError, match="cannot be mapped"):
            mapped.add(0, 4096, os.dup(file.fileno()))


def test_descriptors_cross_a_socket_with_their_bytes() -> None:
    near, far = socket.socketpair()
    with near, far, open("/etc/hostname", "rb") as file:
        shared_memory.send_with_descriptor(near, b"take this", file.fileno())
        data, descriptors = shared_memory.receive_with_descriptors(far, 100)
        assert data == b"take this" and len(descriptors) == 1
        assert os.fstat(descriptors[0]).st_ino == os.fstat(file.fileno()).st_ino
        os.close(descriptors[0])
