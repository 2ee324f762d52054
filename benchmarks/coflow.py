"""Stages of many jobs under every ordering: stage completion times relative to Beamer, and to a lower bound.

    python benchmarks/coflow.py                     # 10 seeds, all tables: some minutes of one core
    python benchmarks/coflow.py --seeds 3 searches
    python benchmarks/coflow.py trace FB2010-1Hr-150-0.txt     # the reference policies on the public trace

`searches`: six tuners by successive halving on eight hosts of 1 Gbit/s; means over seeds with a 95 % interval
(Student's t over paired seeds). `bound`: first rungs present at once, sum of stage completion times over what
no schedule can beat, beside the factors that are proven (4 without computing, 5 with) and the published 20/3.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from scipy import stats

from agents.coflow.base import Allocation
from testbed.coflow.bounds import stage_bound
from testbed.coflow.result import run_trace
from testbed.coflow.searches import SearchSpec, make_workload, run_searches
from testbed.coflow.trace import read_trace

POLICIES: tuple[tuple[str, Any, Allocation | None], ...] = (
    ("fair", "fair", None),
    ("fifo_lm", "fifo_lm", None),
    ("varys, greedy", "varys", "greedy"),
    ("sincronia", "sincronia", None),
    ("stage_srpt", "stage_srpt", None),
    ("beamer", "beamer", None),
)
# Pattern, compute ratio -> what another simulator measured, 4 seeds, relative to its Beamer.
REFERENCE: dict[tuple[str, float], dict[str, float]] = {
    ("ring", 0.2): {
        "fair": 1.39,
        "fifo_lm": 1.74,
        "varys, greedy": 1.09,
        "sincronia": 1.11,
        "stage_srpt": 1.01,
    },
    ("ring", 1.0): {
        "fair": 1.27,
        "fifo_lm": 1.50,
        "varys, greedy": 1.10,
        "sincronia": 1.09,
        "stage_srpt": 1.06,
    },
    ("ps", 0.2): {
        "fair": 1.15,
        "fifo_lm": 1.33,
        "varys, greedy": 0.98,
        "sincronia": 1.00,
        "stage_srpt": 1.02,
    },
    ("ps", 1.0): {
        "fair": 1.11,
        "fifo_lm": 1.19,
        "varys, greedy": 1.02,
        "sincronia": 1.02,
        "stage_srpt": 1.03,
    },
}
# Policy, rates, cadence -> mean completion time on the public trace, seconds.
TRACE: tuple[tuple[Any, Allocation, float | None, bool, float], ...] = (
    ("sincronia", "greedy", None, False, 21.84),
    ("varys", "greedy", None, False, 21.44),
    ({"name": "varys", "options": {"static": True}}, "greedy", None, False, 21.84),
    ("varys", "madd", 0.125, False, 22.65),
    ("varys", "madd", 0.5, False, 26.16),
    ("varys", "madd", math.inf, False, 48.3),
    ("fair", "fair", None, False, 56.2),
    ("fifo", "madd", 0.5, False, 123.4),
    ("fifo", "greedy", None, False, 343.0),
    ("sincronia", "greedy", None, True, 43.74),
    ("varys", "greedy", None, True, 45.26),
    ("fair", "fair", None, True, 290.0),
)
Row = tuple[float, float, float]


def interval(values: Sequence[float]) -> Row:
    """Mean, and the ends of its 95 % interval."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, math.nan, math.nan
    half = stats.t.ppf(0.975, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return mean, mean - half, mean + half


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def configurations() -> Iterator[tuple[str, float]]:
    yield from REFERENCE


def searches(seeds: int, base: SearchSpec) -> None:
    for pattern, ratio in configurations():
        spec = replace(base, pattern=pattern, compute_ratio=ratio)  # type: ignore[arg-type]
        say(f"\n{pattern}, compute ratio {ratio:g}: mean SCT relative to Beamer, {seeds} seeds")
        say(
            f"{'policy':22} {'ratio':>7} {'95 % interval':>18} {'reference':>10} "
            f"{'SCT s':>8} {'makespan s':>11}"
        )
        results = {
            title: [run_searches(spec, seed, policy, allocation) for seed in range(1, seeds + 1)]
            for title, policy, allocation in POLICIES
        }
        beamer = [result.mean_sct_s for result in results["beamer"]]
        for title, runs in results.items():
            mean, low, high = interval(
                [run.mean_sct_s / ours for run, ours in zip(runs, beamer, strict=True)]
            )
            reference = REFERENCE[pattern, ratio].get(title)
            say(
                f"{title:22} {mean:7.3f} {f'[{low:.3f}, {high:.3f}]':>18} "
                f"{'' if reference is None else f'{reference:.2f}':>10} "
                f"{statistics.fmean(run.mean_sct_s for run in runs):8.1f} "
                f"{statistics.fmean(run.makespan_s for run in runs):11.1f}"
            )


def bound(seeds: int, base: SearchSpec) -> None:
    say("\nFirst rungs at once: sum of SCT over the lower bound (no schedule reaches 1 in general)")
    say(f"{'pattern, ratio':22} {'mean':>7} {'greatest':>9}   proven   published")
    for pattern in ("ring", "ps"):
        for ratio in (0.0, 0.2, 1.0):
            spec = replace(base, pattern=pattern, compute_ratio=ratio, options={"rungs": 1})  # type: ignore[arg-type]
            values = []
            for seed in range(1, 2 * seeds + 1):
                found = make_workload(spec, seed)
                loads: list[dict[int, float]] = []
                computes = []
                for own in found.first_jobs():
                    total: dict[int, float] = {}
                    alone = []
                    for run, work in own:
                        needs = work.demand.loads(found.fabric)
                        for link, load in needs.items():
                            total[link] = total.get(link, 0.0) + run.iterations * load
                        alone.append(run.iterations * (work.compute + max(needs.values())))
                    loads.append(total)
                    computes.append(max(alone))
                took = sum(stage.sct for stage in run_searches(spec, seed, "beamer").stages)
                values.append(took / stage_bound(computes, loads))
            say(
                f"{f'{pattern}, {ratio:g}':22} {statistics.fmean(values):7.3f} {max(values):9.3f}   "
                f"{4 if ratio == 0 else 5:6}   {20 / 3:9.3f}"
            )


def trace(path: Path) -> None:
    published = read_trace(path)
    say(f"\n{path.name}: mean coflow completion time, ports of 128 MB/s")
    say(
        f"{'policy':26} {'rates':8} {'cadence':>8} {'arrivals':9} "
        f"{'mean s':>8} {'reference':>10} {'p95 s':>8} {'took s':>7}"
    )
    for policy, allocation, refresh_s, at_once, reference in TRACE:
        started = time.perf_counter()
        result, _ = run_trace(
            published, policy, 128 * (1 << 20), allocation=allocation, refresh_s=refresh_s, at_once=at_once
        )
        cadence = (
            "coflows"
            if result.cadence_s is None
            else f"{result.cadence_s:g}"
            if result.cadence_s
            else "flows"
        )
        title = policy if isinstance(policy, str) else f"{policy['name']}, static"
        say(
            f"{title:26} {allocation:8} {cadence:>8} {'at once' if at_once else 'kept':9} "
            f"{result.mean_cct_s:8.2f} {reference:10.2f} {result.p95_cct_s:8.1f} "
            f"{time.perf_counter() - started:7.0f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--iterations", type=int, default=10, help="of the first rung")
    parser.add_argument("--one-model", action="store_true", help="all trials of a tuner train the same model")
    parser.add_argument("--resume", action="store_true", help="survivors go on, instead of from scratch")
    parser.add_argument("table", nargs="?", choices=("searches", "bound", "trace"))
    parser.add_argument("path", nargs="?", type=Path, help="the trace, for `trace`")
    given = parser.parse_args()
    options = {"iterations": given.iterations, "resume": given.resume}
    base = SearchSpec(options=options, one_model=given.one_model)
    if given.table == "trace":
        if given.path is None:
            parser.error("trace needs the path of a coflow trace")
        trace(given.path)
        return
    tables: dict[str, Callable[[int, SearchSpec], None]] = {"searches": searches, "bound": bound}
    for name in (given.table,) if given.table else tables:
        tables[name](given.seeds, base)


if __name__ == "__main__":
    main()
