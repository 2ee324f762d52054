"""The protocol as a whole, under thousands of random orders of events.

A failing seed is in the assertion's note. `STORMBED_PROTOCOL_SEED=N pytest
tests/unit/agents/sync/test_protocol.py` replays that seed alone.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest

from agents.sync.spec import allreduce

from .protocol_world import Options, World, random_spec

SEEDS_PER_BLOCK = 150


def world(seed: int, options: Options, *, n: int | None = None, collectives: int | None = None) -> World:
    rng = random.Random(seed)
    n = rng.randint(1, 9) if n is None else n
    chunk_elements = rng.randint(1, 7)
    count = rng.randint(1, 6) if collectives is None else collectives
    specs = [random_spec(rng, n, chunk_elements) for _ in range(count)]
    return World(rng, n, specs, chunk_elements, options)


def for_each_seed(block: int, check: Callable[[int], None]) -> None:
    replay = os.environ.get("STORMBED_PROTOCOL_SEED")
    first = block * SEEDS_PER_BLOCK
    for seed in [int(replay)] if replay else range(first, first + SEEDS_PER_BLOCK):
        try:
            check(seed)
        except BaseException as error:
            error.add_note(f"seed {seed}: replay it with STORMBED_PROTOCOL_SEED={seed}")
            raise


@pytest.mark.parametrize("block", range(6))
def test_every_site_counts_once_in_every_result(block: int) -> None:
    """Ghosts: all kinds of collectives, plans switched at any time, several collectives in flight."""

    def check(seed: int) -> None:
        it = world(seed, Options(ghosts=True, replan=1.0))
        it.run()
        it.check_finished()

    for_each_seed(block, check)


@pytest.mark.parametrize("block", range(6, 12))
def test_sums_are_exact_to_the_bit(block: int) -> None:
    """Arrays: whole numbers in every element type, contributions early and late, buffers owned and not."""

    def check(seed: int) -> None:
        it = world(seed, Options(replan=1.0, late_contributions=0.3))
        it.run()
        it.check_finished()

    for_each_seed(block, check)


@pytest.mark.parametrize("block", range(12, 18))
def test_repeated_messages_change_nothing(block: int) -> None:
    def check(seed: int) -> None:
        it = world(seed, Options(duplicate=0.3, ghosts=seed % 2 == 0, replan=0.7))
        it.run()
        it.check_finished()

    for_each_seed(block, check)


@pytest.mark.parametrize("block", range(18, 22))
def test_a_lost_site_ends_everything_with_its_name(block: int) -> None:
    def check(seed: int) -> None:
        rng = random.Random(seed)
        it = world(seed, Options(ghosts=True, lose_site_after=rng.randint(1, 60)))
        it.run()
        if not it.lost:
            it.check_finished()  # over before the loss
            return
        (lost,) = it.lost
        for site, machine in enumerate(it.sites):
            if site == lost:
                continue
            assert set(it.failed[site]) | it.completed[site] == set(range(machine.next_seq))
            assert all(f"site dc{lost + 1} was lost" in cause for cause in it.failed[site].values())
            assert machine.aborted is not None
            assert (machine.in_flight, machine.held) == ((), 0)

    for_each_seed(block, check)


def test_sites_race_ahead_of_each_other() -> None:
    """Deep pipelines: sites are several collectives apart, the newest policy is several versions ahead."""
    apart = 0
    for seed in range(40):
        it = world(seed, Options(ghosts=True, depth=6, replan=1.0), n=4, collectives=14)
        gaps: list[int] = []
        begin = it._begin

        def watched(
            site: int, it: World = it, gaps: list[int] = gaps, begin: Callable[[int], None] = begin
        ) -> None:
            begin(site)
            gaps.append(max(m.next_seq for m in it.sites) - min(m.next_seq for m in it.sites))

        it._begin = watched  # type: ignore[method-assign]
        it.run()
        it.check_finished()
        apart = max(apart, *gaps)
    assert apart >= 3


def test_old_policies_are_dropped_while_plans_keep_changing() -> None:
    for seed in range(20):
        rng = random.Random(seed)
        specs = [allreduce(9, "float32") for _ in range(60)]
        it = World(rng, 4, specs, 2, Options(ghosts=True, depth=2, replan=2.0))
        it.run()
        it.check_finished()
        assert it.coordinator.version > 15, "plans did change"
        assert it.most_installed <= 8
        assert len(it.coordinator.retained) <= 8


def test_the_same_seed_gives_the_same_run() -> None:
    runs = []
    for _ in range(2):
        it = world(7, Options(duplicate=0.2, replan=1.0), n=6, collectives=5)
        it.run()
        runs.append((it.steps, it.coordinator.version, [m.duplicates for m in it.sites]))
    assert runs[0] == runs[1]
