"""The least time on links whose rates change: hand-computed, against constant rates, and never above a schedule."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.planning.registry import scheduler_names
from agents.sync.spec import allreduce
from testbed.cli import build
from testbed.cli.errors import exit_code_of
from testbed.simulation.bounds import bound
from testbed.simulation.changing import PRECISION, RateHistory
from testbed.simulation.world import SECOND, World
from topologies.dynamics import NETSTORM_ORDER, Dynamics, netstorm_rates
from topologies.errors import UsageError
from topologies.load import load_topology

PAIR = {(0, 1): 100.0, (1, 0): 100.0}


def both(rate: float) -> dict[tuple[int, int], float]:
    return {(0, 1): rate, (1, 0): rate}


def test_constant_rates_have_their_own_bound_at_any_time() -> None:
    for rates in (PAIR, {(0, 1): 3e6, (1, 0): 5e6, (1, 2): 7e6, (2, 1): 2e6, (2, 0): 4e6, (0, 2): 4e6}):
        history = RateHistory(rates)
        assert history.constant
        for start in (0.0, 17.3):
            assert history.least_seconds(1000, start) == pytest.approx(bound(rates, 1000).seconds, rel=1e-9)


def test_a_change_counts_from_its_moment_on() -> None:
    history = RateHistory(PAIR, [(10.0, both(50.0)), (20.0, both(400.0))])
    seconds = lambda start: history.least_seconds(125, start)  # noqa: E731  1000 bits
    assert seconds(-5.0) == pytest.approx(10.0)
    assert seconds(5.0) == pytest.approx(5 + 10.0, rel=1e-5)  # 500 bits at 100, 500 at 50
    assert seconds(12.0) == pytest.approx(8 + 600 / 400, rel=1e-5)  # 400 bits at 50, 600 at 400
    assert seconds(20.0) == pytest.approx(2.5)
    # All three rates, exactly: 100 bits at 100, 500 at 50, 400 at 400.
    assert seconds(9.0) == pytest.approx(1 + 10 + 1, rel=1e-5)


def test_no_single_moment_s_limit_need_hold_over_the_whole_time() -> None:
    """Each half second one way is slow: what waits at the far side is sent on when its turn comes."""
    slow, fast = {(0, 1): 10.0, (1, 0): 100.0}, {(0, 1): 100.0, (1, 0): 10.0}
    changes = [(k * 0.5, fast if k % 2 else slow) for k in range(1, 400)]
    seconds = RateHistory(slow, changes).least_seconds(125, 0.0)
    assert bound(slow, 125).seconds == bound(fast, 125).seconds == 100.0
    assert seconds == pytest.approx(1000 / 55, rel=0.03)


def test_nothing_counts_while_the_links_do_not_join_all_sites() -> None:
    history = RateHistory(PAIR, [(1.0, both(0.0)), (3.0, both(50.0))])
    assert history.least_seconds(125, 0.0) == pytest.approx(3 + 900 / 50, rel=1e-5)
    assert history.least_seconds(125, 2.0) == pytest.approx(1 + 20, rel=1e-5)
    assert RateHistory(PAIR, [(1.0, both(0.0))]).least_seconds(125, 0.0) is None
    assert RateHistory(PAIR, [(1.0, both(0.0))]).least_seconds(10, 0.0) == pytest.approx(0.8)
    # One way each, in turn, joins them in the end all the same.
    turns = RateHistory({(0, 1): 100.0, (1, 0): 0.0}, [(5.0, {(0, 1): 0.0, (1, 0): 100.0})])
    assert turns.least_seconds(25, 0.0) == pytest.approx(5 + 2.0, rel=1e-5)


def test_links_that_nobody_knows_and_times_out_of_order_are_refused() -> None:
    with pytest.raises(UsageError, match="no such link"):
        RateHistory(PAIR, [(1.0, {(0, 2): 1.0})])
    with pytest.raises(UsageError, match="in order of time"):
        RateHistory(PAIR, [(2.0, both(1.0)), (1.0, both(2.0))])


def test_the_command_follows_the_published_process(capsys: pytest.CaptureFixture[str]) -> None:
    """The first epoch alone far from its end; across the end the mean of two epochs' rates, by their shares."""
    wan, nbytes = load_topology("netstorm-9"), 228_117_288
    alone = bound(wan, nbytes).seconds
    assert alone is not None

    def asked(*words: str) -> dict[str, Any]:
        code = exit_code_of(
            lambda: build()(["bound", "netstorm-9", "--format", "json", *words], prog_name="testbed")
        )
        said = capsys.readouterr()
        return json.loads(said.out) if code == 0 else {"code": code, "said": said.err}

    sure = ("--bytes", str(nbytes), "--dynamics", "netstorm?every=180s")
    assert asked(*sure)["seconds"] == pytest.approx(alone)
    assert asked(*sure, "--at", str(180 - 1.01 * alone))["seconds"] == pytest.approx(alone)
    across = asked(*sure, "--at", "175")["seconds"]
    epochs = [netstorm_rates(k) for k in (0, 1)]
    arcs = [(u - 1, v - 1) for u, v in NETSTORM_ORDER]
    bits = {a: 5e6 * x + (across - 5) * 1e6 * y for a, x, y in zip(arcs, *epochs, strict=True)}
    assert bound(bits).rate_bps == pytest.approx(8 * nbytes, rel=1e-5)
    for words, says in (
        (("--at", "5"), "add --dynamics"),
        ((*sure, "--at", "inf"), "change too often until inf s"),
        ((*sure, "--at", "1e9"), "begin earlier"),
        (("--bytes", str(10**17), "--dynamics", "netstorm?every=1s"), "more than 500 times before"),
    ):
        refused = asked(*words)
        assert refused["code"] == 2 and says in refused["said"], refused
    refused = asked("--dynamics", "netstorm")
    assert refused["code"] == 2 and "say how much: --bytes N" in refused["said"]


@given(seed=st.integers(0, 2**32))
def test_the_time_is_the_least_whose_integrals_suffice(seed: int) -> None:
    """Random rates of four sites: just before it the integrals do not allow the bytes, at it they do."""
    draw = random.Random(seed)
    arcs = [(u, v) for u in range(4) for v in range(4) if u != v and abs(u - v) != 2]
    rates = [{arc: float(draw.randint(1, 20) * 10**6) for arc in arcs} for _ in range(5)]
    moments = sorted(draw.uniform(0.0, 2.0) for _ in rates[1:])
    nbytes, start = draw.randint(10**5, 4 * 10**6), draw.uniform(-0.5, 1.5)
    history = RateHistory(rates[0], list(zip(moments, rates[1:], strict=True)))
    seconds = history.least_seconds(nbytes, start)
    assert seconds is not None

    def allowed(duration: float) -> float:
        bits = dict.fromkeys(arcs, 0.0)
        for begins, ends, now in zip([-math.inf, *moments], [*moments, math.inf], rates, strict=True):
            overlap = max(0.0, min(ends, start + duration) - max(begins, start))
            bits = {arc: bits[arc] + now[arc] * overlap for arc in arcs}
        return bound(bits).rate_bps

    assert allowed(seconds * (1 - 1e-4)) < 8 * nbytes < allowed(seconds * (1 + 5 * PRECISION + 1e-5)) * (1 + 1e-6)


@pytest.mark.parametrize("scheduler", scheduler_names())
def test_no_scheduler_beats_it_while_rates_change(scheduler: str) -> None:
    """Four synchronisations, one after the other, over rates that change a few times within each."""
    wan = load_topology("netstorm-9")
    dynamics = Dynamics.model_validate({"kind": "netstorm", "every": "400ms", "seed": 3})
    world = World(wan)
    world.use(scheduler, 100_000)
    world.follow(dynamics.changes(wan, until_s=40.0))
    arcs = {link.index: (link.src, link.dst) for link in wan.directed}
    changes = [
        (at, {arcs[k]: float(change.rate.bps) for k, change in links.items() if change.rate is not None})
        for at, links in dynamics.changes(wan, until_s=40.0)
    ]
    history = RateHistory(dict(wan.rates()), changes)
    for _ in range(4):
        began_s = world.clock.now_ns / SECOND
        for site in range(world.n):
            seq = world.begin(site, allreduce(2_000_000))
        seconds = world.run_until_complete(seq).synchronisation_s
        least = history.least_seconds(8_000_000, began_s)
        assert least is not None
        assert 0 < least <= seconds
        assert least > 0.4, "it does meet changes"
