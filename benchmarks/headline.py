"""Every scheduler on NetStorm's network over thirty draws of its rates, simulated, beside published ratios.

    python benchmarks/headline.py [--only static|order|dynamic|routes] [--draws N] [--print]

Writes the tables of docs/results.md between `<!-- NAME -->` and `<!-- /NAME -->`.

- `static`: each draw is one epoch of the published process (seed 1, epochs 0 to 29; epoch 0 is the library's
  netstorm-9), which does not change; one synchronisation of AlexNet. Others repeat to the digit, but
  `tsengine` learns and draws: of it, the mean of four.
- `order`: the same draws in chunks of 100,000, every scheduler that plans ahead with its links first in, first out
  and by slack, so that what the order is worth can be told from what the trees are. `packing` is shown
  without its run-ahead window as well, which by itself keeps most of what another order would lose.
- `dynamic`: each draw is the published process with a seed of its own (1 to 30), all rates drawn anew every
  180 s; synchronisations follow each other until 720 s are over. Planned schedulers are shown twice: with
  the plan for the first epoch's rates, kept, and with a new plan for the rates of the moment each time; two of
  them also with a new plan inside the synchronisation that is under way when the rates change.
- `routes`: the second epoch of each of these seeds, planned for its rates: once over the routes between sites
  that are fastest in it, and once over those of the first epoch, as in `dynamic`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean, stdev

from tables import table, write_table

from agents.planning.base import NetworkView, Plan
from agents.planning.registry import SchedulerSpec, get_scheduler, scheduler_names
from agents.sync.spec import allreduce
from testbed.simulation.bounds import bound
from testbed.simulation.changing import RateHistory
from testbed.simulation.comparison import ALEXNET, BYTES_PER_ELEMENT
from testbed.simulation.world import REALISTIC, SECOND, World
from topologies.dynamics import NETSTORM_ORDER, Dynamics, netstorm_rates
from topologies.load import load_topology, topology_from_dict
from topologies.model import Topology

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "results.md"
EPOCH_S = 180.0
WINDOW_S = 720.0
ROUNDS_OF_TSENGINE = 4
FINE, COARSE = 100_000, 1_000_000
# Time to the same accuracy over NetStorm's, read off the figure in the README of its repository.
PUBLISHED_STATIC = {"star-first": "7.9 to 9.9", "mlnet": "2.6 to 2.9", "tsengine": "2.5 to 2.8"}
PUBLISHED_DYNAMIC = {"star-first": "5.9 to 6.7", "mlnet": "1.8 to 2.2", "tsengine": "1.8 to 2.2"}
REVERSED: SchedulerSpec = {"name": "netstorm", "options": {"pull": "reversed"}}
BASE = "netstorm"


@dataclass(frozen=True)
class Case:
    """A row: a scheduler, planned once, anew at each synchronisation, or within it too as soon as rates change."""

    shown: str
    scheduler: SchedulerSpec
    anew: bool = False
    within: bool = False
    chunk: int = COARSE


def drawn(epoch: int, seed: int) -> Topology:
    """NetStorm-9 at the rates of one epoch of the published process."""
    rates = rates_of(epoch, seed)
    links = []
    for link in load_topology("netstorm-9").links:
        a, b = link.endpoints
        there, back = rates[int(a[2:]) - 1, int(b[2:]) - 1], rates[int(b[2:]) - 1, int(a[2:]) - 1]
        directions = {"forward": {"rate": f"{there}mbit"}, "backward": {"rate": f"{back}mbit"}}
        links.append({"endpoints": [a, b], "delay": "0ms", **directions})
    sites: dict[str, object] = {f"dc{k}": {} for k in range(1, 10)}
    return topology_from_dict({"name": f"netstorm-9-{seed}-{epoch}", "sites": sites, "links": links})


def rates_of(epoch: int, seed: int) -> dict[tuple[int, int], int]:
    """Mbit/s by (from, to), counted from 0."""
    values = zip(NETSTORM_ORDER, netstorm_rates(epoch, seed=seed), strict=True)
    return {(u - 1, v - 1): mbps for (u, v), mbps in values}


def synchronise(world: World) -> float:
    """One more all-reduce of AlexNet; seconds of virtual time."""
    seq = -1
    for site in range(world.n):
        seq = world.begin(site, allreduce(ALEXNET))
    return world.run_until_complete(seq).synchronisation_s


def static_seconds(topology: Topology, scheduler: SchedulerSpec, chunk: int, routes: Topology | None = None) -> float:
    world = World(topology, options=REALISTIC, routes=routes)
    world.use(scheduler, chunk)
    rounds = ROUNDS_OF_TSENGINE if scheduler == "tsengine" else 1
    return fmean(synchronise(world) for _ in range(rounds))


def dynamic_seconds(case: Case, seed: int, history: RateHistory) -> tuple[float, float]:
    """Means over the synchronisations that begin within the window: seconds, and the least that was possible."""
    topology = drawn(0, seed)
    world = World(topology, options=REALISTIC)
    world.use(case.scheduler, case.chunk)
    dynamics = Dynamics.model_validate({"kind": "netstorm", "every": f"{EPOCH_S:g}s", "seed": seed})
    world.follow(dynamics.changes(topology, until_s=2 * WINDOW_S))
    pairs = [(u, v) for u in range(world.n) for v in range(world.n) if u != v]
    primary = {pair: world.underlay.path(*pair, 0) for pair in pairs}
    def plan(epoch: int) -> Plan:
        rates = {arc: mbps * 1e6 for arc, mbps in rates_of(epoch, seed).items()}
        view = NetworkView(world.n, rates, topology.site_names, primary=primary)
        return get_scheduler(case.scheduler, topology.site_names).plan(view)

    def plan_within(epoch: int) -> None:
        world.replan_within(world.coordinator.next_seq - 1, plan(epoch), case.chunk)

    if case.within:
        for epoch in range(1, int(2 * WINDOW_S / EPOCH_S)):
            world.clock.at(round(epoch * EPOCH_S * SECOND), partial(plan_within, epoch))
    times: list[float] = []
    least: list[float] = []
    while (now_s := world.clock.now_ns / SECOND) < WINDOW_S:
        if case.anew and times:
            world.use_plan(plan(int(now_s // EPOCH_S)), case.chunk)
        times.append(synchronise(world))
        least.append(history.least_seconds(BYTES_PER_ELEMENT * ALEXNET, now_s) or 0.0)
    return fmean(times), fmean(least)


def history_of(seed: int) -> RateHistory:
    """The rates of one process, without the headers that payload leaves room for."""
    epochs = [
        {arc: mbps * 1e6 for arc, mbps in rates_of(epoch, seed).items()}
        for epoch in range(int(2 * WINDOW_S / EPOCH_S))
    ]
    return RateHistory(epochs[0], [(k * EPOCH_S, rates) for k, rates in enumerate(epochs) if k])


def static(draws: int) -> str:
    topologies = [drawn(epoch, 1) for epoch in range(draws)]
    limits = [bound(topology, BYTES_PER_ELEMENT * ALEXNET).seconds or 0.0 for topology in topologies]
    cases = [Case(name, name) for name in scheduler_names()]
    cases.append(Case("netstorm, pull reversed", REVERSED))
    found: dict[int, dict[str, list[float]]] = {FINE: {}, COARSE: {}}
    for chunk, by_case in found.items():
        for case in cases:
            say(f"static, chunks of {chunk:,}: {case.shown}")
            by_case[case.shown] = [static_seconds(t, case.scheduler, chunk) for t in topologies]
    rows = []
    for case in cases:
        seconds = found[FINE][case.shown]
        over = [s / least for s, least in zip(seconds, limits, strict=True)]
        rows.append(
            [
                case.shown,
                spread(seconds, 1),
                f"{fmean(over):.2f}",
                ratio(found[FINE], case.shown),
                ratio(found[COARSE], case.shown),
                f"{found[FINE][case.shown][0] / found[FINE][BASE][0]:.2f}",
                PUBLISHED_STATIC.get(case.shown, ""),
            ]
        )
    rows.append(["bound", spread(limits, 1), "1.00", "", "", "", ""])
    columns = (
        *("scheduler", "seconds", "x bound", "time over netstorm's, chunks of 100,000"),
        *("chunks of 1,000,000", "epoch 0 alone, 100,000", "published"),
    )
    return table(columns, rows)


ORDERED: tuple[tuple[str, str, dict[str, object]], ...] = (
    ("star-first", "star-first", {}),
    ("star-best", "star-best", {}),
    ("star-all", "star-all", {}),
    ("mlnet", "mlnet", {}),
    ("ring", "ring", {}),
    ("greedw", "greedw", {}),
    ("netstorm", "netstorm", {}),
    ("packing", "packing", {}),
    ("packing, no run-ahead window", "packing", {"run_ahead": 0}),
)


def order(draws: int) -> str:
    topologies = [drawn(epoch, 1) for epoch in range(draws)]
    limits = [bound(topology, BYTES_PER_ELEMENT * ALEXNET).seconds or 0.0 for topology in topologies]
    rows = []
    for shown, name, options in ORDERED:
        say(f"order: {shown}")
        by_order: dict[str, list[float]] = {}
        for kind in ("fifo", "slack"):
            spec: SchedulerSpec = {"name": name, "options": {**options, "link_order": kind}}
            by_order[kind] = [static_seconds(topology, spec, FINE) for topology in topologies]
        over = [
            f"{fmean(s / least for s, least in zip(by_order[kind], limits, strict=True)):.2f}"
            for kind in ("fifo", "slack")
        ]
        rows.append(
            [
                shown,
                spread(by_order["fifo"], 1),
                spread(by_order["slack"], 1),
                ratio({"slack": by_order["slack"], "fifo": by_order["fifo"]}, "slack", "fifo"),
                *over,
            ]
        )
    columns = (
        *("scheduler", "first in, first out, seconds", "by slack, seconds", "slack over first in, first out"),
        *("first in, first out, x bound", "by slack, x bound"),
    )
    return table(columns, rows)


def dynamic(draws: int) -> str:
    seeds = range(1, draws + 1)
    cases = []
    for name in scheduler_names():
        cases.append(Case(name, name))
        # These two take no notice of rates, and that one notices by itself.
        if name not in ("star-first", "star-all", "mlnet", "ring", "tsengine"):
            cases.append(Case(f"{name}, planned anew", name, anew=True))
    for name in (BASE, "packing"):
        cases.append(Case(f"{name}, within too", name, anew=True, within=True))
        cases.append(Case(f"{name}, within too, chunks of {FINE:,}", name, anew=True, within=True, chunk=FINE))
    histories = {seed: history_of(seed) for seed in seeds}
    found: dict[str, list[float]] = {}
    over: dict[str, float] = {}
    for case in cases:
        say(f"dynamic: {case.shown}")
        pairs = [dynamic_seconds(case, seed, histories[seed]) for seed in seeds]
        found[case.shown] = [seconds for seconds, _ in pairs]
        over[case.shown] = fmean(seconds / least for seconds, least in pairs)
    rows = [
        [
            case.shown,
            spread(found[case.shown], 1),
            f"{over[case.shown]:.2f}",
            ratio(found, case.shown, f"{BASE}, planned anew"),
            ratio(found, case.shown, BASE),
            PUBLISHED_DYNAMIC.get(case.shown, ""),
        ]
        for case in cases
    ]
    columns = (
        "scheduler",
        "seconds",
        "x bound",
        "over netstorm planned anew",
        "over netstorm's first plan",
        "published",
    )
    return table(columns, rows)


def routes(draws: int) -> str:
    pairs = [(drawn(0, seed), drawn(1, seed)) for seed in range(1, draws + 1)]
    own: dict[str, list[float]] = {}
    old: dict[str, list[float]] = {}
    for name in scheduler_names():
        say(f"routes: {name}")
        own[name] = [static_seconds(now, name, COARSE) for _, now in pairs]
        old[name] = [static_seconds(now, name, COARSE, before) for before, now in pairs]
    rows = [[name, spread(own[name], 1), ratio(own, name), spread(old[name], 1), ratio(old, name)] for name in own]
    columns = ("scheduler", "own routes, seconds", "over netstorm", "routes before, seconds", "over netstorm")
    return table(columns, rows)


def spread(values: Sequence[float], digits: int) -> str:
    deviation = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{fmean(values):.{digits}f}{deviation}"


def ratio(found: Mapping[str, Sequence[float]], shown: str, base: str = BASE) -> str:
    """Mean, standard deviation and range of the ratios draw by draw."""
    ratios = [own / other for own, other in zip(found[shown], found[base], strict=True)]
    return f"{spread(ratios, 2)} [{min(ratios):.2f}, {max(ratios):.2f}]"


def say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


TABLES: dict[str, Callable[[int], str]] = {
    "static": static,
    "order": order,
    "dynamic": dynamic,
    "routes": routes,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", choices=TABLES, help="one table")
    parser.add_argument("--draws", type=int, default=30)
    parser.add_argument("--print", action="store_true", help="do not change the document")
    given = parser.parse_args()
    for name in [given.only] if given.only else TABLES:
        text = TABLES[name](given.draws)
        sys.stdout.write(f"{name}\n\n{text}\n")
        if not given.print:
            write_table(DOCUMENT, name, text)


if __name__ == "__main__":
    main()
