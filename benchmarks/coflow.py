"""Stages of many jobs under every ordering: stage completion times relative to Beamer, and to a lower bound.

    python benchmarks/coflow.py                 # 10 seeds, all tables into docs/coflows.md: some 15 minutes of a core
    python benchmarks/coflow.py --seeds 3 --print searches
    python benchmarks/coflow.py trace FB2010-1Hr-150-0.txt     # the reference policies on the public trace

`searches`: six tuners by successive halving on eight hosts of 1 Gbit/s; means over seeds with a 95 % interval
(Student's t over paired seeds). `resumed`: the same where survivors go on from their state. `bound`: first rungs
present at once, sum of stage completion times over what no schedule can beat, beside the factors that are proven (4
without computing, 5 with) and the published 20/3. All is simulated: the figures do not depend on the machine.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from scipy import stats
from tables import write_table

from agents.coflow.base import Allocation
from testbed.coflow.bounds import stage_bound
from testbed.coflow.madd import Backfill
from testbed.coflow.result import run_trace
from testbed.coflow.searches import SearchResult, SearchSpec, make_workload, run_searches
from testbed.coflow.trace import read_trace

POLICIES: tuple[tuple[str, Any, Allocation | None], ...] = (
    ("fair", "fair", None),
    ("fifo_lm", "fifo_lm", None),
    ("varys, greedy", "varys", "greedy"),
    ("sincronia", "sincronia", None),
    ("stage_srpt", "stage_srpt", None),
    ("horizon", "horizon", None),
    ("beamer", "beamer", None),
)
DOCUMENT = Path(__file__).parents[1] / "docs" / "coflows.md"
Setting = tuple[str, float]
# Pattern, compute ratio -> what another simulator measured, 4 seeds, relative to its Beamer.
REFERENCE: dict[Setting, dict[str, float]] = {
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
# Policy, rates, cadence, backfill, all at once, mean completion time on the public trace in s; None: not measured.
TRACE: tuple[tuple[Any, Allocation, float | None, Backfill, bool, float | None], ...] = (
    ("sincronia", "greedy", None, "none", False, 21.84),
    ("varys", "greedy", None, "none", False, 21.44),
    ({"name": "varys", "options": {"static": True}}, "greedy", None, "none", False, 21.84),
    ("varys", "madd", 0.125, "ranked", False, 22.65),
    ("varys", "madd", 0.5, "ranked", False, 26.16),
    ("varys", "madd", math.inf, "ranked", False, 48.3),
    ("varys", "madd", 0.5, "coflowsim", False, None),
    ("varys", "madd", math.inf, "coflowsim", False, None),
    ("varys", "madd", 0.5, "in_turn", False, None),
    ("varys", "madd", math.inf, "in_turn", False, None),
    ("varys", "madd", math.inf, "none", False, 54.2),
    ("fair", "fair", None, "none", False, 56.2),
    ("fifo", "madd", 0.5, "ranked", False, 123.4),
    ("fifo", "greedy", None, "none", False, 343.0),
    ("sincronia", "greedy", None, "none", True, 43.74),
    ("varys", "greedy", None, "none", True, 45.26),
    ("fair", "fair", None, "none", True, 290.0),
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


def one(task: tuple[SearchSpec, int, int]) -> SearchResult:
    spec, policy, seed = task
    _, ordering, allocation = POLICIES[policy]
    # Without what nobody prints, so that little travels between processes.
    return replace(run_searches(spec, seed, ordering, allocation), stages=(), jobs=())


def searches(seeds: int, base: SearchSpec) -> dict[str, str]:
    settings = list(REFERENCE)
    specs = [replace(base, pattern=pattern, compute_ratio=ratio) for pattern, ratio in settings]  # type: ignore[arg-type]
    tasks = [(spec, k, seed) for spec in specs for k in range(len(POLICIES)) for seed in range(1, seeds + 1)]
    with ProcessPoolExecutor() as pool:
        results = iter(list(pool.map(one, tasks)))
    runs = {
        (setting, title): [next(results) for _ in range(seeds)] for setting in settings for title, _, _ in POLICIES
    }
    heads = [f"{pattern} {ratio:g}" for pattern, ratio in settings]
    lines = [f"| Policy | {' | '.join(f'{head} | reference' for head in heads)} |", "|---" * 9 + "|"]
    for title, _, _ in POLICIES:
        cells = []
        for setting in settings:
            pairs = zip(runs[setting, title], runs[setting, "beamer"], strict=True)
            mean, low, high = interval([run.mean_sct_s / beamer.mean_sct_s for run, beamer in pairs])
            reference = REFERENCE[setting].get(title)
            cells.append("1" if title == "beamer" else f"**{mean:.2f}** {low:.2f}-{high:.2f}")
            cells.append("" if reference is None else f"{reference:.2f}")
        lines.append(f"| {title} | {' | '.join(cells)} |")
    table = "\n".join(lines) + "\n"
    say(table)
    detail = [
        "| Policy | SCT s | p95 s | job s | coflow s | of it waiting s | makespan s | busiest link | x alone |",
        "|---" * 9 + "|",
    ]
    for title, _, _ in POLICIES:
        own = runs[settings[0], title]
        cells = [
            f"{statistics.fmean(getattr(run, name) for run in own):.{digits}f}"
            for name, digits in (
                ("mean_sct_s", 1),
                ("p95_sct_s", 1),
                ("mean_jct_s", 1),
                ("mean_cct_s", 2),
                ("mean_wait_s", 2),
                ("makespan_s", 0),
                ("busiest_link_ratio", 2),
                ("bound_ratio", 2),
            )
        ]
        detail.append(f"| {title} | {' | '.join(cells)} |")
    say("\n".join(detail))
    return {"searches": table, "detail": "\n".join(detail) + "\n"}


def resumed(seeds: int, base: SearchSpec) -> dict[str, str]:
    found = searches(seeds, replace(base, options={**base.options, "resume": True}))
    # The reference trained every rung from scratch or did not say: no reference here.
    rows = []
    for row in found["searches"].splitlines():
        cells = row.strip("|").split("|")
        rows.append("|" + "|".join([cells[0], *cells[1::2]]) + "|")
    return {"resumed": "\n".join(rows) + "\n"}


def bound(seeds: int, base: SearchSpec) -> dict[str, str]:
    lines = ["| Pattern, ratio | mean | greatest | proven | published |", "|---|---|---|---|---|"]
    for pattern in ("ring", "ps"):
        for ratio in (0.0, 0.2, 1.0):
            options = {**base.options, "rungs": 1}
            spec = replace(base, pattern=pattern, compute_ratio=ratio, options=options)  # type: ignore[arg-type]
            values = []
            for seed in range(1, seeds + 1):
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
            lines.append(
                f"| {pattern} {ratio:g} | {statistics.fmean(values):.3f} | {max(values):.3f} "
                f"| {4 if ratio == 0 else 5} | {20 / 3:.2f} |"
            )
    say("\n".join(lines))
    return {"bound": "\n".join(lines) + "\n"}


def trace(path: Path) -> None:
    published = read_trace(path)
    say(f"{path.name}: mean coflow completion time, ports of 128 MB/s")
    say("| Policy | Rates | Renewed | Left over to | Arrivals | Mean s | Reference | p95 s | x bound | CPU s |")
    say("|---" * 10 + "|")
    for policy, allocation, refresh_s, backfill, at_once, reference in TRACE:
        started = time.process_time()
        result, _ = run_trace(
            published,
            policy,
            128 * (1 << 20),
            allocation=allocation,
            refresh_s=refresh_s,
            at_once=at_once,
            backfill=backfill,
        )
        cadence = {None: "coflows", 0.0: "flows"}.get(result.cadence_s, f"{result.cadence_s} s")
        title = policy if isinstance(policy, str) else f"{policy['name']}, static"
        say(
            f"| {title} | {allocation} | {cadence} | {backfill if allocation == 'madd' else ''} "
            f"| {'at once' if at_once else 'kept'} | {result.mean_cct_s:.2f} "
            f"| {'' if reference is None else reference} | {result.p95_cct_s:.1f} | {result.bound_ratio:.2f} "
            f"| {time.process_time() - started:.0f} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--iterations", type=int, default=3, help="of the first rung")
    parser.add_argument("--one-model", action="store_true", help="all trials of a tuner train the same model")
    parser.add_argument("--print", action="store_true", help="do not write the tables into docs/coflows.md")
    parser.add_argument("table", nargs="?", choices=("searches", "resumed", "bound", "trace"))
    parser.add_argument("path", nargs="?", type=Path, help="the trace, for `trace`")
    given = parser.parse_args()
    base = SearchSpec(options={"iterations": given.iterations, "resume": False}, one_model=given.one_model)
    if given.table == "trace":
        if given.path is None:
            parser.error("trace needs the path of a coflow trace")
        trace(given.path)
        return
    makers = {"searches": searches, "resumed": resumed, "bound": bound}
    for name in (given.table,) if given.table else makers:
        for table, text in makers[name](given.seeds, base).items():
            if not given.print:
                write_table(DOCUMENT, table, text)


if __name__ == "__main__":
    main()
