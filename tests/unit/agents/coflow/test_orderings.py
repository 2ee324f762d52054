"""The orderings on hand-computed vectors, exact rationals throughout."""

from __future__ import annotations

from fractions import Fraction as F
from typing import Any

import pytest

from agents.coflow.base import Coflow, CoflowError, Job, Ordering, Stage, View, ascending, levels
from agents.coflow.beamer import Beamer, StageSrpt
from agents.coflow.bssi import bssi, placements, prefix_loads
from agents.coflow.fabric import Fabric, Flow, merged
from agents.coflow.fair import Fair
from agents.coflow.fifo import Fifo, FifoLm
from agents.coflow.horizon import Horizon, least_sum
from agents.coflow.rates import Backlog, greedy, madd, max_min
from agents.coflow.registry import get_ordering, ordering_names
from agents.coflow.sincronia import Sincronia, admit
from agents.coflow.varys import Varys
from testbed.coflow.bounds import open_shop_optimum
from testbed.coflow.reference import Arrival, completion_times
from topologies.errors import UsageError
from topologies.load import topology_from_dict

Flows = dict[tuple[int, int], int]


def switch(ports: int) -> Fabric:
    return Fabric.switch(ports, F(1))


def flows(sizes: Flows) -> tuple[Flow, ...]:
    """Ports as the vectors count them, from 1."""
    return tuple(Flow(s - 1, r - 1, F(size)) for (s, r), size in sizes.items())


def times(ports: int, coflows: list[Flows], ordering: Ordering, stages: list[int] | None = None) -> list[int]:
    arrivals = [
        Arrival(flows(sizes), stage=None if stages is None else stages[k]) for k, sizes in enumerate(coflows)
    ]
    done = completion_times(switch(ports), arrivals, ordering)
    return [done[k] for k in range(len(coflows))]


A, B, C = {(1, 1): 4, (2, 2): 1}, {(1, 2): 3, (2, 2): 2}, {(2, 1): 2}


def test_bssi_goes_from_the_last_to_the_first() -> None:
    fabric = switch(2)
    loads = [fabric.loads(flows(sizes)) for sizes in (A, B, C)]
    first, second, third = placements(loads)
    assert (first.chosen, first.link, first.theta) == (0, 0, F(1, 4))
    assert (second.chosen, second.link, second.weight, second.theta) == (1, 3, F(1, 4), F(1, 20))
    assert (third.chosen, third.weight) == (2, 1)
    assert bssi(loads) == [2, 1, 0]
    assert prefix_loads([2, 1, 0], loads) == {0: 7, 1: 5, 2: 2}


def test_completion_times_under_four_orderings() -> None:
    assert times(2, [A, B, C], Sincronia()) == [7, 5, 2]
    assert times(2, [A, B, C], get_ordering("sincronia")) == [7, 5, 2]
    assert times(2, [A, B, C], Fair()) == [7, 7, 5]
    done = completion_times(switch(2), [Arrival(flows(s)) for s in (A, B, C)], Varys(static=True), "greedy")
    assert done == {0: 6, 1: 7, 2: 2}


def test_a_wide_coflow_among_narrow_ones() -> None:
    wide = {(k, k): 2 for k in (1, 2, 3)}
    coflows = [wide, *({(k, k): 3} for k in (1, 2, 3))]
    fabric = switch(3)
    assert bssi([fabric.loads(flows(sizes)) for sizes in coflows]) == [3, 2, 0, 1]
    assert times(3, coflows, Sincronia()) == [5, 5, 3, 3]
    done = completion_times(fabric, [Arrival(flows(s)) for s in coflows], Varys(static=True), "greedy")
    assert done == {0: 2, 1: 5, 2: 5, 3: 5}
    # Not the best: where each coflow has links of its own, the bound is reached.
    assert open_shop_optimum([fabric.loads(flows(sizes)) for sizes in coflows]) == 14


@pytest.mark.parametrize(
    ("ports", "by_bssi", "by_sebf", "best"),
    [(2, 48, 47, 39), (3, 58, 66, 49), (4, 68, 85, 59), (5, 78, 104, 69)],
)
def test_wide_and_narrow_at_scale(ports: int, by_bssi: int, by_sebf: int, best: int) -> None:
    coflows = [{(k, k): 9 for k in range(1, ports + 1)}, *({(k, k): 10} for k in range(1, ports + 1))]
    assert sum(times(ports, coflows, Sincronia())) == by_bssi
    done = completion_times(switch(ports), [Arrival(flows(s)) for s in coflows], Varys(static=True), "greedy")
    assert sum(done.values()) == by_sebf
    assert open_shop_optimum([switch(ports).loads(flows(sizes)) for sizes in coflows]) == best


@pytest.mark.parametrize(
    ("free", "seconds", "rates"),
    [(F(1), 6, (F(2, 3), F(1, 3), F(1, 3))), (F(1, 2), 12, (F(1, 3), F(1, 6), F(1, 6)))],
)
def test_madd_lets_all_flows_end_together(free: F, seconds: int, rates: tuple[F, ...]) -> None:
    backlog = [
        Backlog((s, r), F(size), (s, 10 + r)) for (s, r), size in {(1, 1): 4, (1, 2): 2, (2, 1): 2}.items()
    ]
    left = {1: free, 2: F(1), 11: F(1), 12: F(1)}
    given, when = madd(backlog, left)
    assert when == seconds
    assert tuple(given.values()) == rates
    assert left[1] == 0
    assert madd(backlog, left) == ({}, None)


def test_one_link_under_fair_fifo_and_limited_multiplexing() -> None:
    coflows = [{(1, 1): 8}, {(1, 1): 1}, {(1, 1): 2}]
    assert times(1, coflows, Fair()) == [11, 3, 5]
    assert times(1, coflows, Fifo()) == [8, 9, 11]
    assert times(1, coflows, FifoLm(threshold=2, heavy_by="size")) == [11, 2, 6]


def test_a_head_becomes_heavy_by_what_it_has_sent() -> None:
    # Alone until it has sent 3; then it shares with the next (1 byte: ends at 5), then with the last.
    coflows = [{(1, 1): 8}, {(1, 1): 1}, {(1, 1): 2}]
    assert times(1, coflows, FifoLm(threshold=F(3))) == [11, 5, 9]


def test_percentile_of_sizes_as_the_threshold() -> None:
    assert FifoLm().with_sizes([5, 1, 4, 2, 3]).threshold == 4
    assert FifoLm(percentile=100).with_sizes([5, 1, 4, 2, 3]).threshold == 5
    assert FifoLm(threshold=7).with_sizes([1]).threshold == 7
    with pytest.raises(CoflowError, match="no threshold"):
        FifoLm().order(View(0, (Coflow(0, {}),)))


def test_whole_stages_before_small_coflows() -> None:
    # Stage A: jobs of 1 and 3, stage B: of 2 and 4.5; here doubled.
    coflows = [{(1, 1): 2}, {(1, 1): 6}, {(1, 1): 4}, {(1, 1): 9}]
    stages = [0, 0, 1, 1]

    def ends(ordering: Ordering) -> tuple[Any, Any]:
        done = times(1, coflows, ordering, stages)
        return F(max(done[:2]), 2), F(max(done[2:]), 2)

    assert ends(Beamer()) == (4, F(21, 2))
    assert ends(StageSrpt()) == (4, F(21, 2))
    assert ends(Sincronia()) == (6, F(21, 2))
    assert ends(Fair()) == (9, F(21, 2))


def stage(number: int, *jobs: tuple[int, int, int], release: int = 0) -> Stage:
    """Jobs as (id, iterations, load on link 0 of each)."""
    return Stage(number, tuple(Job(k, n, loads={0: F(load)}) for k, n, load in jobs), release)


def ranked(ordering: Beamer, *stages: Stage, now: int = 0) -> list[int]:
    return [one.id for one in ordering.rank_stages(View(now, (), stages))]


def test_remaining_iterations_decide() -> None:
    x = stage(0, (0, 10, 1), (1, 4, 1))
    assert ranked(Beamer(), x, stage(1, (2, 6, 3))) == [0, 1]
    assert ranked(Beamer(), x, stage(1, (2, 4, 3))) == [1, 0]


def test_what_is_left_of_the_iteration_under_way_counts() -> None:
    first = Stage(0, (Job(0, 2, loads={0: F(3)}, unsent={0: F(2)}),))
    assert first.loads == {0: 8}
    assert ranked(Beamer(), first, stage(1, (1, 7, 1))) == [1, 0]
    assert ranked(Beamer(), first, stage(1, (1, 9, 1))) == [0, 1]


@pytest.mark.parametrize(("last", "order"), [(8, [1, 2, 0]), (20, [1, 0, 2])])
def test_announced_stages_by_their_release(last: int, order: list[int]) -> None:
    assert bssi([{0: F(10)}, {0: F(4)}, {0: F(3)}], releases=[0, 0, last]) == order
    stages = [stage(0, (0, 10, 1)), stage(1, (1, 4, 1)), stage(2, (2, 3, 1), release=last)]
    assert ranked(Beamer(release=True), *stages) == order
    assert ranked(Beamer(release=True), *stages, now=last) == [2, 1, 0]


def test_the_critical_job_of_a_stage_goes_first() -> None:
    jobs = (
        Job(0, 2, compute=F(0), loads={0: F(3)}),
        Job(1, 2, compute=F(9), loads={0: F(1)}),
        Job(2, 1, compute=F(0), loads={0: F(6)}),
    )
    coflows = tuple(Coflow(10 + k, {0: F(1)}, job=k) for k in (2, 0, 1, 7))
    order = Beamer().order(View(0, coflows, (Stage(0, jobs),))).order
    # Alone: 20 s, then two of 6 s by their numbers; a job nobody knows comes last.
    assert order == (11, 10, 12, 17)


def test_an_old_stage_rises() -> None:
    old, young = stage(0, (0, 5, 1)), stage(1, (1, 3, 1), release=90)
    assert ranked(Beamer(), old, young, now=90) == [1, 0]
    assert ranked(Beamer(ageing_s=10), old, young, now=90) == [0, 1]


def test_stages_on_different_links_do_not_delay_each_other() -> None:
    one = Stage(0, (Job(0, 1, loads={0: F(5)}),))
    two = Stage(1, (Job(1, 1, loads={1: F(3)}),))
    both = Stage(2, (Job(2, 1, loads={0: F(4), 1: F(4)}),))
    # By size alone `two` then `both` would be first and delay both others.
    assert [s.id for s in StageSrpt().rank_stages(View(0, (), (one, two, both)))] == [1, 2, 0]
    assert ranked(Beamer(), one, two, both) == [1, 2, 0]


def test_what_follows_a_stage_counts_too() -> None:
    # Stage 0 is the smaller, its search the larger: 14 s on link 0 against 5.
    first = Stage(0, (Job(0, 1, loads={0: F(4)}),), ahead={0: F(10)})
    second = Stage(1, (Job(1, 1, loads={0: F(5)}),))
    assert ranked(Beamer(), first, second) == [0, 1]
    for exact in (0, 8):
        assert [s.id for s in Horizon(exact).rank_stages(View(0, (), (first, second)))] == [1, 0]


def test_a_search_that_ends_late_in_any_case_waits() -> None:
    # On link 0: 3 and 4. The first computes for 20 s more in its later stages, so 4 s more do not delay it.
    long = Stage(0, (Job(0, 1, loads={0: F(3)}),), ahead_alone=F(20))
    short = Stage(1, (Job(1, 1, loads={0: F(4)}),))
    assert [s.id for s in Horizon().rank_stages(View(0, (), (long, short)))] == [1, 0]
    assert [s.id for s in Horizon(0).rank_stages(View(0, (), (long, short)))] == [0, 1]
    assert least_sum([{0: 3}, {0: 4}], [23, 4], [1, 1]) == [1, 0]
    # Weights: 5 x 3 + 7 against 4 + 5 x 7.
    assert least_sum([{0: 3}, {0: 4}], [0, 0], [5, 1]) == [0, 1]
    # Links of its own delay nobody.
    assert least_sum([{0: 3, 1: 9}, {0: 4}], [0, 0], [1, 1]) == [1, 0]
    assert least_sum([], [], []) == []


def test_levels() -> None:
    assert list(levels(range(10)).values()) == [7, 6, 5, 4, 3, 2, 1, 0, 0, 0]
    assert list(levels("abc", 2).values()) == [1, 0, 0]


def test_equal_but_for_rounding_means_lowest_index_first() -> None:
    items = [(0.1 + 0.2, 1), (0.3, 2), (0.3, 0)]
    assert [index for _, index in ascending(items, lambda item: item[0], lambda item: item[1])] == [0, 1, 2]
    assert bssi([{0: 0.1 + 0.2}, {0: 0.3}, {0: 0.3}]) == [0, 1, 2]


def test_nothing_left_goes_first() -> None:
    assert bssi([{0: 3}, {}, {0: 1}]) == [1, 2, 0]
    assert bssi([]) == []


def test_epochs_admit_what_fits_and_hold_their_order() -> None:
    ordering = Sincronia(online="epochs", unit_s=1.0)
    old = Coflow(0, {0: 1.0}, arrival=0.0, isolation=1.0)
    ranking = ordering.order(View(0.0, (old,)))
    assert (ranking.order, ranking.until) == ((0,), 2.0)
    # Arrived within the epoch: after the admitted one, although smaller.
    late = Coflow(1, {0: 0.25}, arrival=1.0, isolation=0.25)
    assert ordering.order(View(1.0, (old, late))).order == (0, 1)
    # [2, 4) takes those released by 1 that fit into 1: a half or more of each.
    ranking = ordering.order(View(2.0, (old, late)))
    assert (ranking.order, ranking.until) == ((1, 0), 4.0)
    # Idle for long: the phase begins anew every 256 units.
    ranking = ordering.order(View(1025.0, (late,)))
    assert ranking.until == 1026.0


def test_admission_leaves_out_as_little_as_it_can() -> None:
    coflows = [Coflow(0, {0: 4.0}), Coflow(1, {0: 1.0, 1: 1.0}), Coflow(2, {1: 1.0})]
    assert [coflow.id for coflow in admit(coflows, 2.0)] == [1, 2]
    assert admit(coflows, 9.0) == coflows


def test_rates_follow_the_order_and_the_links() -> None:
    backlog = [Backlog("long", F(1), (0, 1, 2)), Backlog("a", F(1), (0,)), Backlog("b", F(1), (2,))]
    capacity = {0: F(3), 1: F(1), 2: F(2)}
    assert greedy(backlog, dict(capacity)) == {"long": 1, "a": 2, "b": 1}
    assert greedy(backlog[::-1], dict(capacity)) == {"b": 2, "a": 3}
    assert max_min(backlog, dict(capacity)) == {"long": 1, "a": 2, "b": 1}


def test_loads_follow_the_routes_of_a_topology() -> None:
    line = topology_from_dict(
        {
            "name": "line",
            "sites": {"a": {}, "b": {}, "c": {}},
            "links": [
                {"endpoints": ["a", "b"], "rate": "8mbit"},
                {"endpoints": ["b", "c"], "rate": "8mbit", "forward": {"rate": "4mbit"}},
            ],
        }
    )
    fabric = Fabric.of(line)
    # Forward directions are links 0 and 2. a to c crosses both, c to b only link 3.
    assert fabric.loads([Flow(0, 2, 1e6), Flow(0, 1, 5e5), Flow(2, 1, 2e6)]) == {0: 1.5, 2: 2.0, 3: 2.0}
    # The long flow is held by its second hop; what it leaves of the first goes to the short one.
    arrivals = [Arrival((Flow(0, 2, 1_000_000),)), Arrival((Flow(0, 1, 1_000_000),))]
    assert completion_times(fabric, arrivals, Fifo()) == {0: 2.0, 1: 2.0}


def test_repeated_pairs_add_up() -> None:
    assert merged([Flow(1, 0, 2), Flow(0, 0, 1), Flow(1, 0, 3), Flow(2, 2, 0)]) == (
        Flow(0, 0, 1),
        Flow(1, 0, 5),
    )


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Stage(4, ()), "stage 4 has no jobs"),
        (lambda: Job(3, -1), "job 3 has -1 iterations"),
        (lambda: Job(3, 1, loads={7: -2}), "job 3 has a load of -2 s on link 7"),
        (lambda: merged([Flow(1, 2, -5)]), "flow 1 -> 2 has -5 bytes"),
        (lambda: Fabric.switch(2, 0), "link 0 carries 0"),
        (lambda: switch(2).route(0, 2), "no flow 0 -> 2"),
        (lambda: Beamer().order(View(0, (Coflow(0, {0: 1}),))), "beamer ranks stages"),
        (lambda: FifoLm(threshold=-1), "threshold of -1"),
        (lambda: Sincronia(online="often"), "often"),  # type: ignore[arg-type]
        (lambda: Beamer(ageing_s=0), "ageing_s 0"),
        (lambda: Horizon(exact=13), "exact 13"),
        (lambda: Stage(4, (Job(0, 1),), ahead={2: -1}), "stage 4, ahead, has a load of -1 s on link 2"),
    ],
)
def test_what_makes_no_sense_is_named(make: Any, says: str) -> None:
    with pytest.raises(CoflowError, match=says):
        make()


def test_orderings_by_name() -> None:
    assert ordering_names() == ("fair", "fifo", "fifo_lm", "varys", "sincronia", "beamer", "stage_srpt", "horizon")
    for name in ordering_names():
        assert isinstance(get_ordering(name), Ordering)
        assert get_ordering(name).name == name
    assert get_ordering({"name": "varys", "options": {"static": True}}) == Varys(static=True)
    with pytest.raises(UsageError, match="did you mean sincronia"):
        get_ordering("sinkronia")
    with pytest.raises(UsageError, match="did you mean online"):
        get_ordering({"name": "sincronia", "options": {"onlin": "epochs"}})
    with pytest.raises(UsageError, match="give its name"):
        get_ordering({"nam": "varys"})
