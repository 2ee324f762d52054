"""The protocol as a whole, under thousands of random orders of events.

A failing seed is in the assertion's note. `STORMBED_PROTOCOL_SEED=N pytest
tests/unit/agents/sync/test_protocol.py` replays that seed alone.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest

from agents.planning.registry import get_scheduler
from agents.sync.spec import allreduce

from .protocol_world import Options, World
from .random_jobs import names, random_spec, random_view

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


@pytest.mark.parametrize("overtake", [0.0, 0.5])
def test_policies_announced_ahead_are_few_however_many_plans_are_made(overtake: float) -> None:
    """At most one for each collective that is not behind all sites: those that can never be in force go at once."""
    for seed in range(6):
        specs = [allreduce(9, "float32") for _ in range(60)]
        options = Options(ghosts=True, depth=2, replan=2.0, ahead=2, overtake=overtake)
        it = World(random.Random(seed), 4, specs, 2, options)
        it.run()
        it.check_finished()
        assert it.coordinator.version > 200, "plans did change, several times a collective"
        assert it.most_installed <= 8 and it.most_retained <= 8


def test_the_same_seed_gives_the_same_run() -> None:
    runs = []
    for _ in range(2):
        it = world(7, Options(duplicate=0.2, replan=1.0), n=6, collectives=5)
        it.run()
        runs.append((it.steps, it.coordinator.version, [m.duplicates for m in it.sites]))
    assert runs[0] == runs[1]


@pytest.mark.parametrize("block", range(22, 27))
def test_transfers_decided_one_by_one(block: int) -> None:
    """Deliveries that are lost and leases that end while they are under way; messages come twice."""
    transfers = expired = 0
    stopped: list[int] = []

    def check(seed: int) -> None:
        nonlocal transfers, expired
        rng = random.Random(seed)
        n, chunk = rng.randint(1, 7), rng.randint(1, 7)
        specs = [allreduce(rng.randint(chunk + 1, 5 * chunk + 2)) for _ in range(rng.randint(1, 4))]
        options = Options(
            ghosts=seed % 2 == 0,
            duplicate=rng.choice((0.0, 0.2)),
            leases_end=rng.choice((0.0, 0.05)),
            lose_transfers=rng.choice((0.0, 0.1)),
            late_contributions=0.3,
            replan=0.0,
        )
        it = World(rng, n, specs, chunk, options)
        rule = {"name": "tsengine", "options": {"server": f"dc{rng.randint(1, n)}", "seed": seed}}
        plan = get_scheduler(rule, names(n)).plan(random_view(rng, n))
        it.announce(it.coordinator.set_plan(plan, chunk, {(u, v): 0 for u in range(n) for v in range(n)}))
        it.run()
        if it.coordinator.aborted is not None:
            # Bad luck four times in a row ends a job as it should; it must stay rare.
            assert "transfers in a row did not arrive" in it.coordinator.aborted
            stopped.append(seed)
            return
        it.check_finished()
        transfers += it.transfers
        assert it.coordinator.transfers is not None
        expired += it.coordinator.transfers.expired

    for_each_seed(block, check)
    assert transfers
    assert expired
    assert len(stopped) <= 3


@pytest.mark.parametrize("seed", range(20))
def test_deliveries_that_never_arrive_end_everything_with_a_name(seed: int) -> None:
    """Nothing hangs: after the tries of a lease every site stops with the same cause."""
    rng = random.Random(seed)
    n = rng.randint(2, 6)
    it = World(rng, n, [allreduce(20)], 3, Options(ghosts=True, lose_transfers=1.0, replan=0.0))
    plan = get_scheduler("tsengine", names(n)).plan(random_view(rng, n))
    it.announce(it.coordinator.set_plan(plan, 3, {(u, v): 0 for u in range(n) for v in range(n)}))
    it.run()
    (cause,) = {cause for failed in it.failed for cause in failed.values()}
    assert "4 transfers in a row did not arrive" in cause
    assert all(0 in failed for failed in it.failed)
    assert it.time <= 30 * (1 + 2 + 4 + 8) + 4 * 30


@pytest.mark.parametrize("block", range(27, 29))
def test_plans_change_inside_a_collective(block: int) -> None:
    """What nobody has begun goes on under another plan, while everything else may happen too."""
    switched = 0

    def check(seed: int) -> None:
        nonlocal switched
        rng = random.Random(seed)
        n, chunk = rng.randint(1, 7), rng.randint(1, 5)
        sizes = [rng.choice((3, 12, 25)) * chunk + rng.randint(0, 2) for _ in range(rng.randint(1, 3))]
        specs = [allreduce(size, rng.choice(("float32", "float64"))) for size in sizes]
        options = Options(
            ghosts=seed % 2 == 0,
            duplicate=rng.choice((0.0, 0.2)),
            late_contributions=0.3,
            replan=rng.choice((0.0, 0.5)),
            switch=0.3,
        )
        it = World(rng, n, specs, chunk, options)
        it.run()
        it.check_finished()
        switched += it.switched

    for_each_seed(block, check)
    assert switched > 50


@pytest.mark.parametrize("block", range(27, 29))
def test_policies_announced_ahead_without_a_barrier(block: int) -> None:
    """Sites begin on their own; a plan changes at any time; announcements overtake each other and repeat."""
    early = policies = 0

    def check(seed: int) -> None:
        nonlocal early, policies
        rough = Options(
            ahead=1 + seed % 3,
            replan=1.0,
            depth=1 + seed % 4,
            overtake=0.5 * (seed % 2),
            duplicate=0.2 * (seed % 3 == 0),
            ghosts=seed % 5 != 0,
            late_contributions=0.2,
        )
        it = world(seed, rough, collectives=8)
        it.run()
        it.check_finished()
        early += it.early
        policies += it.coordinator.version

    for_each_seed(block, check)
    assert early > SEEDS_PER_BLOCK, "sites did begin before all others were ready"
    assert policies > 2 * SEEDS_PER_BLOCK, "plans did change"


@pytest.mark.parametrize("block", range(29, 30))
def test_the_barrier_comes_and_goes_in_the_middle_of_a_job(block: int) -> None:
    def check(seed: int) -> None:
        rough = Options(replan=1.0, change_ahead=0.1, depth=3, ghosts=True, switch=0.05 * (seed % 2))
        it = world(seed, rough, collectives=10)
        it.run()
        it.check_finished()

    for_each_seed(block, check)


def test_no_site_is_further_ahead_than_was_announced() -> None:
    apart = 0
    for seed in range(40):
        it = world(seed, Options(ghosts=True, ahead=3, depth=8, replan=1.0), n=4, collectives=14)
        begin = it._begin

        def watched(site: int, it: World = it, begin: Callable[[int], None] = begin) -> None:
            nonlocal apart
            begin(site)
            running = [max((s for s in m.in_flight if m.started(s)), default=-1) for m in it.sites]
            slowest = min(m.next_seq for m in it.sites)
            assert max(running) < slowest + 3
            apart = max(apart, max(running) - slowest)

        it._begin = watched  # type: ignore[method-assign]
        it.run()
        it.check_finished()
    assert apart >= 1
