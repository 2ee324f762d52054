"""Reports from small run directories written by hand."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

from testbed.experiments.manifest import (
    LINK_COLUMNS,
    FailureRow,
    FidelityRow,
    LinkRow,
    Manifest,
    SegmentRow,
    WorkerRow,
    read_manifest,
)
from testbed.report.bounds import bounds_of
from testbed.report.compare import compare_runs, comparison_to_json
from testbed.report.find import find_run, list_runs
from testbed.report.json_form import result_to_json
from testbed.report.links_over_time import LinkRates
from testbed.report.measurements import Iteration, LinkSample, read_run
from testbed.report.stats import percentile, summarise
from testbed.report.summary import RunResult, busiest_link, summarise_run
from testbed.report.text import render_comparison, render_report, render_runs, seconds
from topologies.errors import InvalidFileError

S = 1_000_000_000


def iteration(segment: str, number: int, times: tuple[float, float, float, float], **more: object) -> str:
    start, ready, done, end = (round(t * S) for t in times)
    record = {"segment": segment, "scheduler": segment, "iteration": number, "start_ns": start}
    return json.dumps(record | {"ready_ns": ready, "done_ns": done, "end_ns": end} | more)


def digest(segment: str, text: str) -> str:
    return json.dumps({"segment": segment, "parameters_sha256": text})


def write_run(directory: Path, **changes: object) -> Path:
    """Two workers; star: 2 iterations of 4 s synchronisation; netstorm: a warm-up, then 1 s and 0.5 s."""
    fields: dict[str, object] = {
        "id": directory.name,
        "name": "hand",
        "world": "emulated",
        "status": "completed",
        "started_s": 1.7e9,
        "finished_s": 1.7e9 + 30,
        "topology": "pair",
        "scale": 0.5,
        "workers": (WorkerRow(site="dc1", worker=0, rank=0), WorkerRow(site="dc2", worker=0, rank=1)),
        "segments": (
            SegmentRow(
                label="star-first",
                scheduler="star-first",
                elements=1_000_000,
                repeat=0,
                iterations=2,
                warmup=0,
                status="completed",
            ),
            SegmentRow(
                label="netstorm",
                scheduler="netstorm",
                elements=1_000_000,
                repeat=0,
                iterations=3,
                warmup=1,
                status="completed",
            ),
        ),
        "fidelity": FidelityRow(verdict="faithful"),
    }
    directory.mkdir(parents=True)
    Manifest(**(fields | changes)).write(directory)  # type: ignore[arg-type]
    traces = {
        "dc1-0": [
            # The other worker is ready last and this one done last: 6 - 2, then 11 - 7.
            iteration("star-first", 0, (0, 1, 6, 6.5), loss=2.0, accuracy=0.5),
            iteration("star-first", 1, (6.5, 7, 11, 11.5), loss=1.0, accuracy=0.6),
            digest("star-first", "aa"),
            iteration("netstorm", 0, (20, 21, 24, 24)),
            iteration("netstorm", 1, (24, 25, 26, 26)),
            iteration("netstorm", 2, (26, 27, 27.5, 27.5)),
            digest("netstorm", "bb"),
        ],
        "dc2-0": [
            iteration("star-first", 0, (0.5, 2, 5, 5.5), loss=4.0, accuracy=0.7),
            iteration("star-first", 1, (5.5, 6, 10, 10.5), loss=3.0, accuracy=0.8),
            digest("star-first", "aa"),
            iteration("netstorm", 0, (20, 21, 24, 24)),
            iteration("netstorm", 1, (24, 25, 26, 26)),
            iteration("netstorm", 2, (26, 27, 27.5, 28)),
            digest("netstorm", "bb"),
        ],
    }
    for worker, lines in traces.items():
        folder = directory / "workers" / worker
        folder.mkdir(parents=True)
        (folder / "trace.jsonl").write_text("\n".join(lines) + "\n")
    rows = [
        ",".join(LINK_COLUMNS),
        "1,1,star-first,dc1,dc2,100000000,80000000,10000000,0",
        "2,1,star-first,dc1,dc2,100000000,0,0,0",
        "2,1,star-first,dc2,dc1,50000000,48000000,6000000,2",
        "3,1,netstorm,dc2,dc1,50000000,24000000,3000000,0",
    ]
    (directory / "links.csv").write_text("\n".join(rows) + "\n")
    return directory


def result_of(directory: Path) -> RunResult:
    return summarise_run(read_run(directory))


def shown(renderable: object) -> str:
    console = Console(width=250, color_system=None)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


def test_synchronisation_is_last_result_minus_last_gradient(tmp_path: Path) -> None:
    star = result_of(write_run(tmp_path / "r")).schedulers[0]
    assert star.synchronisation is not None
    assert star.synchronisation.count == 2
    assert star.synchronisation.mean == pytest.approx(4.0)
    assert star.first_synchronisation_s == pytest.approx((4.0,))


def test_iteration_times_sum_to_the_time_the_segment_took(tmp_path: Path) -> None:
    star = result_of(write_run(tmp_path / "r")).schedulers[0]
    assert star.iteration is not None
    # From the first start, 0, to the last end, 11.5.
    assert star.iteration.mean * 2 == pytest.approx(11.5)
    assert star.iteration.maximum == pytest.approx(6.5)


def test_warmup_is_left_out_of_the_times_and_shown(tmp_path: Path) -> None:
    result = result_of(write_run(tmp_path / "r"))
    netstorm = result.schedulers[1]
    assert netstorm.synchronisation is not None
    assert (netstorm.measured, netstorm.warmup) == (2, 1)
    assert netstorm.synchronisation.mean == pytest.approx(0.75)
    assert netstorm.first_synchronisation_s == pytest.approx((3.0,))
    text = shown(render_report(result))
    assert "2 + 1 warm-up" in text
    assert "first synchronisation, with the set-up of connections: star-first 4.00 s; netstorm 3.00 s" in text


def test_speedup_is_against_the_first_scheduler(tmp_path: Path) -> None:
    star, netstorm = result_of(write_run(tmp_path / "r")).schedulers
    assert star.speedup == pytest.approx(1.0)
    assert netstorm.speedup == pytest.approx(4.0 / 0.75)


def test_carried_bytes_drops_and_busiest_link(tmp_path: Path) -> None:
    star, netstorm = result_of(write_run(tmp_path / "r")).schedulers
    assert star.carried_bytes_per_iteration == pytest.approx(16e6 / 2)
    assert star.dropped_packets == 2
    assert star.busiest is not None
    # dc1>dc2 carried 80 Mbit of the 200 that two seconds allowed; dc2>dc1 48 of 50.
    assert (star.busiest.src, star.busiest.dst) == ("dc2", "dc1")
    assert star.busiest.utilisation_ratio == pytest.approx(0.96)
    assert netstorm.carried_bytes_per_iteration == pytest.approx(1e6)


def test_loss_and_accuracy_are_the_workers_mean_at_the_last_iteration(tmp_path: Path) -> None:
    star = result_of(write_run(tmp_path / "r")).schedulers[0]
    assert star.loss == pytest.approx(2.0)
    assert star.accuracy == pytest.approx(0.7)


def test_bound_is_asked_with_the_bytes_of_the_parameters(tmp_path: Path) -> None:
    asked: list[tuple[int, int]] = []

    def bound(synchronisations: Sequence[Iteration], nbytes: int) -> float:
        asked.append((len(synchronisations), nbytes))
        return 0.5

    result = summarise_run(read_run(write_run(tmp_path / "r")), lambda run: bound)
    assert asked == [(2, 4_000_000), (2, 4_000_000)], "the warm-up is not counted"
    assert result.schedulers[0].bound_multiple == pytest.approx(8.0)
    assert "8.0x" in shown(render_report(result))


def test_parameters_that_agree_and_that_do_not(tmp_path: Path) -> None:
    run = write_run(tmp_path / "r")
    assert [scheduler.parameters_agree for scheduler in result_of(run).schedulers] == [True, True]
    trace = run / "workers" / "dc2-0" / "trace.jsonl"
    trace.write_text(trace.read_text().replace('"bb"', '"cc"'))
    result = result_of(run)
    assert [scheduler.parameters_agree for scheduler in result.schedulers] == [True, False]
    assert result.schedulers[1].disagreeing == ("netstorm: dc2-0",)
    assert "parameters differ: netstorm: dc2-0" in shown(render_report(result))


def test_a_worker_without_a_digest_is_no_agreement(tmp_path: Path) -> None:
    run = write_run(tmp_path / "r")
    trace = run / "workers" / "dc2-0" / "trace.jsonl"
    trace.write_text("\n".join(line for line in trace.read_text().splitlines() if '"bb"' not in line))
    assert result_of(run).schedulers[1].parameters_agree is False


def test_busy_processors_are_said_beside_the_verdict(tmp_path: Path) -> None:
    for ratio, said in ((0.5, False), (0.998, True)):
        fidelity = FidelityRow(verdict="unknown", reasons=("no reason",), run={"cpu_busy_ratio": ratio})
        text = shown(render_report(result_of(write_run(tmp_path / f"{ratio}", fidelity=fidelity))))
        assert "fidelity: unknown: no reason" in text
        assert ("processors 100% busy during the run" in text) is said


def test_sums_count_as_checked_only_where_there_are_any(tmp_path: Path) -> None:
    tensor = {"training": {"model": "tensor-1m"}}
    directory = write_run(tmp_path / "r", experiment=tensor)
    assert [scheduler.sums_checked for scheduler in result_of(directory).schedulers] == [True, True]
    for trace in directory.glob("workers/*/trace.jsonl"):
        lines = trace.read_text().splitlines()
        trace.write_text("\n".join(line for line in lines if "netstorm" not in line) + "\n")
    result = result_of(directory)
    assert [scheduler.sums_checked for scheduler in result.schedulers] == [True, False]
    assert shown(render_report(result)).count("every sum exact") == 1


def test_an_iteration_that_a_worker_lacks_has_no_time(tmp_path: Path) -> None:
    run = write_run(tmp_path / "r")
    trace = run / "workers" / "dc2-0" / "trace.jsonl"
    lines = trace.read_text().splitlines()
    trace.write_text("\n".join([lines[0], *lines[2:-2], lines[-2][:25]]))
    result = result_of(run)
    star = result.schedulers[0]
    assert star.synchronisation is not None
    assert star.synchronisation.count == 1
    assert "star-first: 1 iterations lack a worker's record" in result.problems
    assert any("dc2-0/trace.jsonl: line 5 is not JSON" in problem for problem in result.problems)


def test_a_failed_run_reports_what_there_is(tmp_path: Path) -> None:
    failure = FailureRow(message="the worker dc2-0 ended with status 1", exit_code=5)
    run = write_run(tmp_path / "r", status="failed", failure=failure)
    shutil.rmtree(run / "workers" / "dc2-0")
    (run / "links.csv").unlink()
    result = result_of(run)
    assert result.schedulers[0].synchronisation is None
    assert result.schedulers[0].busiest is None
    text = shown(render_report(result))
    assert "failed: the worker dc2-0 ended with status 1" in text
    assert "workers/dc2-0/trace.jsonl: No such file" in text


def test_json_form(tmp_path: Path) -> None:
    report = json.loads(json.dumps(result_to_json(result_of(write_run(tmp_path / "r")))))
    assert report["schema"] == 1
    assert report["run"]["scale_ratio"] == 0.5
    assert report["fidelity"]["verdict"] == "faithful"
    netstorm = report["schedulers"][1]
    assert netstorm["scheduler"] == "netstorm"
    assert netstorm["synchronisation_s"]["mean"] == pytest.approx(0.75)
    assert netstorm["speedup_ratio"] == pytest.approx(16 / 3)
    assert netstorm["parameters"] == {"agree": True, "sha256": ["bb"], "disagreeing": []}


def test_a_copy_gives_the_same_report(tmp_path: Path) -> None:
    run = write_run(tmp_path / "r")
    copy = shutil.copytree(run, tmp_path / "elsewhere" / "r")
    there, here = result_to_json(result_of(copy)), result_to_json(result_of(run))
    there["run"].pop("path")
    here["run"].pop("path")
    assert there == here


def test_scale_is_shown(tmp_path: Path) -> None:
    assert "pair, rates x 0.5, 2 sites, 2 workers, 1,000,000 parameters" in shown(
        render_report(result_of(write_run(tmp_path / "r")))
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "no integer 'schema'"),
        ('{"schema": 99}', "schema 99, this version reads up to 1"),
        ('{"schema": 1, "id": "x"}', "the key 'name' is missing"),
    ],
)
def test_damaged_manifest(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(InvalidFileError, match=message):
        read_manifest(tmp_path)


def test_no_manifest(tmp_path: Path) -> None:
    with pytest.raises(InvalidFileError, match="is this a run directory"):
        read_manifest(tmp_path)


def test_of_two_runs_begun_in_one_second_the_last_is_the_one_written_last(tmp_path: Path) -> None:
    first = write_run(tmp_path / "20250101t000000z-quickstart-ffffff")
    second = write_run(tmp_path / "20250101t000000z-quickstart-000000")
    os.utime(first / "manifest.json", ns=(1, 1))
    assert list_runs(tmp_path) == (first.name, second.name)
    assert find_run("last", tmp_path) == second


def test_find_run(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    first = write_run(root / "20250101t000000z-quickstart-aaaaaa")
    second = write_run(root / "20250102t000000z-quickstart-bbbbbb")
    (root / "not-a-run").mkdir()
    assert list_runs(root) == (first.name, second.name)
    assert find_run("last", root) == second
    assert find_run("aaaaaa", root) == first
    assert find_run("quickstart-bbbbbb", root) == second
    assert find_run(first.name, root) == first
    assert find_run(str(first), tmp_path) == first
    with pytest.raises(InvalidFileError, match="no run 'zzz'"):
        find_run("zzz", root)
    with pytest.raises(InvalidFileError, match="`testbed run quickstart` makes one"):
        find_run("last", tmp_path / "nothing")


def test_compare(tmp_path: Path) -> None:
    a = result_of(write_run(tmp_path / "a", experiment={"name": "x", "training": {"batch": 32}}))
    b = result_of(
        write_run(tmp_path / "b", experiment={"name": "y", "training": {"batch": 64}}, world="simulated")
    )
    comparison = compare_runs(a, b)
    assert [row.scheduler for row in comparison.rows] == ["star-first", "netstorm"]
    assert comparison.rows[0].synchronisation_ratio == pytest.approx(1.0)
    assert comparison.differences == ("training.batch: 32, 64",)
    assert comparison_to_json(comparison)["b"]["world"] == "simulated"
    text = shown(render_comparison(comparison))
    assert "A: a  emulated pair x 0.5" in text
    assert "differs: training.batch: 32, 64" in text


def test_compare_with_a_run_that_lacks_a_scheduler(tmp_path: Path) -> None:
    a = result_of(write_run(tmp_path / "a"))
    segments = (
        SegmentRow(
            label="netstorm",
            scheduler="netstorm",
            elements=1_000_000,
            repeat=0,
            iterations=3,
            warmup=1,
        ),
    )
    b = result_of(write_run(tmp_path / "b", segments=segments))
    row = compare_runs(a, b).rows[0]
    assert (row.scheduler, row.synchronisation_b_s, row.synchronisation_ratio) == ("star-first", None, None)


def test_list_of_runs(tmp_path: Path) -> None:
    text = shown(render_runs([result_of(write_run(tmp_path / "one"))], ["two: damaged"]))
    assert "netstorm 0.750, star-first 4.00" in text
    assert "2023-11-14 22:13:20" in text
    assert "note: two: damaged" in text


@pytest.mark.parametrize("width", [80, 120])
def test_the_list_of_runs_fits_the_screen_however_many_turns_a_run_has(tmp_path: Path, width: int) -> None:
    turns = [f"netstorm-with-options-{k:02d}" for k in range(24)]
    directory = write_run(
        tmp_path / "20261129T193012Z-every-scheduler-3f9a2c",
        topology="a-topology-with-a-long-name",
        segments=tuple(
            SegmentRow(label=t, scheduler=t, elements=1, repeat=0, iterations=2, warmup=0) for t in turns
        ),
    )
    records = [iteration(t, n, (0, 1, 2 + k, 3 + k)) for k, t in enumerate(turns) for n in (0, 1)]
    for trace in directory.glob("workers/*/trace.jsonl"):
        trace.write_text("\n".join(records) + "\n")
    result = result_of(directory)
    assert len(result.schedulers) == 24
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(render_runs([result]))
    lines = capture.get().splitlines()
    assert max(map(len, lines)) <= width
    told = "".join("".join(line.split()) for line in lines)
    assert "20more" in told and "completed" in told and "faithful" in told


def test_the_bound_is_that_of_the_rates_at_each_synchronisations_time(tmp_path: Path) -> None:
    rates = {"rate_bps": 100_000_000, "delay_s": 0.0, "jitter_s": 0.0, "loss_ratio": 0.0}
    links = (
        LinkRow(index=0, src="dc1", dst="dc2", **rates),
        LinkRow(index=1, src="dc2", dst="dc1", **rates),
    )
    left_alone = summarise_run(read_run(write_run(tmp_path / "a", links=links)), bounds_of)
    assert [scheduler.bound_s for scheduler in left_alone.schedulers] == [0.32, 0.32]
    assert "bound: 0.320 s" in shown(render_report(left_alone))
    directory = write_run(tmp_path / "b", links=links, changed_by_hand=2)
    # 32 Mbit are begun at 2 s and 7 s of the run, 5 Mbit of the first before the links slow down to a tenth; those
    # of netstorm, at 25 s and 27 s, meet a cut that ends at 27 s, and 4 Mbit more a second from 27.75 s on.
    (directory / "changes.csv").write_text(
        "t_s,segment,src,dst,rate_bps,delay_s,loss_ratio,state,loss_burst\n"
        + "".join(
            f"{at},,{src},{dst},{rate},0.0,0.0,{state},\n"
            for at, rate, state in (
                (2.05, 10_000_000, "up"),
                (20, 10_000_000, "down"),
                (27, 8_000_000, "up"),
                (27.75, 12_000_000, "up"),
            )
            for src, dst in (("dc1", "dc2"), ("dc2", "dc1"))
        )
    )
    result = summarise_run(read_run(directory), bounds_of)
    star = ((0.05 + 27 / 10) + 32 / 10) / 2
    trees = ((2 + 0.75 + 26 / 12) + (0.75 + 26 / 12)) / 2
    assert [scheduler.bound_s for scheduler in result.schedulers] == pytest.approx([star, trees], rel=1e-5)
    assert result.schedulers[0].bound_multiple == pytest.approx(4.0 / star, rel=1e-5)
    text = shown(render_report(result))
    assert "bound: 2.97 to 3.92 s" in text and "links were changed by others during the run (2 times" in text
    # One value of a changing network is still a mean over its synchronisations, and no limit of the links.
    alike = write_run(tmp_path / "d", links=links, experiment={"dynamics": {"kind": "uniform"}})
    assert "bound: 0.320 s, the mean over" in shown(render_report(summarise_run(read_run(alike), bounds_of)))
    cut = (links[0], links[1].model_copy(update={"state": "down"}))
    without = summarise_run(read_run(write_run(tmp_path / "c", links=cut)), bounds_of)
    assert without.schedulers[0].bound_s is None


def test_the_busiest_link_is_judged_by_the_rates_within_each_interval() -> None:
    rates = {"delay_s": 0.0, "jitter_s": 0.0, "loss_ratio": 0.0}
    manifest = Manifest(
        id="r", name="r", world="simulated", started_s=0.0, topology="pair", scale=1.0,
        links=(LinkRow(index=0, src="a", dst="b", rate_bps=80, **rates),),
    )
    changes = [{"t_s": t, "src": "a", "dst": "b", "rate_bps": r, "state": s} for t, r, s in CHANGED]
    allowed = LinkRates(manifest, changes)
    assert allowed.bits("a", "b", 0.0, 1.0) == 80 * 0.5 + 8 * 0.5
    assert allowed.bits("a", "b", 1.0, 3.0) == 8 * 0.5 + 16 * 0.5
    assert allowed.bits("a", "b", 4.0, 5.0) == 16 and allowed.bits("b", "a", 0.0, 1.0) is None
    sample = LinkSample(1.0, 1.0, "s", "a", "b", 8, 40.0, 5, 0)
    assert busiest_link([sample]).utilisation_ratio == 5.0  # type: ignore[union-attr]
    assert busiest_link([sample], allowed).utilisation_ratio == pytest.approx(40 / 44)  # type: ignore[union-attr]


CHANGED = (("0.5", "8", "up"), ("1.5", "8", "down"), ("2.5", "16", "up"))


def test_a_damaged_line_of_changes_is_a_problem_and_not_the_end(tmp_path: Path) -> None:
    rates = {"rate_bps": 100_000_000, "delay_s": 0.0, "jitter_s": 0.0, "loss_ratio": 0.0}
    links = tuple(LinkRow(index=k, src=f"dc{k + 1}", dst=f"dc{2 - k}", **rates) for k in range(2))
    directory = write_run(tmp_path / "a", links=links, experiment={"dynamics": {"kind": "uniform"}})
    head = "t_s,segment,src,dst,rate_bps,delay_s,loss_ratio,state,loss_burst"
    lines = (head, "2,,dc1,dc2,50000000,0,0,up,", "3,,dc1,dc9,1,0,0,up,", "4,,dc2,dc1,fast,0,0,up,", "5,,dc2")
    (directory / "changes.csv").write_text("\n".join(lines))
    run = read_run(directory)
    assert [row["t_s"] for row in run.changes] == ["2"]
    assert list(run.problems) == [f"changes.csv: line {number} cannot be read" for number in (3, 4, 5)]
    assert summarise_run(run, bounds_of).schedulers[0].bound_s is not None


def test_what_is_sent_before_the_time_counts_is_told_beside_the_bound(tmp_path: Path) -> None:
    rates = {"rate_bps": 100_000_000, "delay_s": 0.0, "jitter_s": 0.0, "loss_ratio": 0.0}
    links = (
        LinkRow(index=0, src="dc1", dst="dc2", **rates),
        LinkRow(index=1, src="dc2", dst="dc1", **rates),
    )
    # One worker is ready 1 s after the other in both iterations of star; those of netstorm are ready together.
    directory = write_run(tmp_path / "a", links=links)
    held = summarise_run(read_run(directory), bounds_of)
    assert [scheduler.head_start for scheduler in held.schedulers] == [0.0, 0.0]
    assert "x bound:" not in shown(render_report(held))
    manifest = read_run(directory).manifest
    ahead = tuple(s.model_copy(update={"ahead": True}) for s in manifest.segments)
    result = summarise_run(read_run(write_run(tmp_path / "c", links=links, segments=ahead)), bounds_of)
    star, netstorm = result.schedulers
    assert (star.head_start, netstorm.head_start) == (pytest.approx(1 / 0.32), 0.0)
    assert "x bound: without a barrier (star-first) sites send" in shown(render_report(result))
    overlapped = tuple(s.model_copy(update={"overlap": s.scheduler == "netstorm"}) for s in manifest.segments)
    result = summarise_run(read_run(write_run(tmp_path / "b", links=links, segments=overlapped)), bounds_of)
    assert [scheduler.bound_s for scheduler in result.schedulers] == [0.32, None]
    assert "bound: 0.320 s" in shown(render_report(result))


def test_summary_of_a_known_sample() -> None:
    summary = summarise([1.0, 2.0, 3.0, 4.0])
    assert summary is not None
    assert (summary.mean, summary.median, summary.minimum, summary.maximum) == (2.5, 2.5, 1.0, 4.0)
    assert summary.p95 == pytest.approx(3.85)
    # Student's t for 3 degrees of freedom is 3.182; the standard error is 0.6455.
    assert summary.interval == pytest.approx((2.5 - 2.0542, 2.5 + 2.0542), abs=1e-3)


def test_interval_is_that_of_the_repeats_means() -> None:
    groups = [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]
    summary = summarise([value for group in groups for value in group], groups)
    assert summary is not None
    # Of 1, 2, 3: t(2) = 4.303, standard error 0.57735.
    assert summary.interval == pytest.approx((2 - 2.4841, 2 + 2.4841), abs=1e-3)


def test_small_samples() -> None:
    assert summarise([]) is None
    single = summarise([3.0])
    assert single is not None
    assert single.interval is None
    assert single.p95 == 3.0
    with pytest.raises(ValueError, match="empty"):
        percentile([], 0.5)


@pytest.mark.parametrize(
    ("value", "text"), [(None, "-"), (0.0123, "0.012"), (1.234, "1.23"), (12.34, "12.3"), (1234.5, "1234")]
)
def test_seconds(value: float | None, text: str) -> None:
    assert seconds(value) == text


def test_time_to_the_accuracy_that_all_reached(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a")
    # The workers' mean: star has 0.6 after 6.5 s and 0.7 after 11.5 s; of netstorm's only the second is high enough.
    workers = path / "workers"
    for worker, lowest in (("dc1-0", 0.1), ("dc2-0", 0.2)):
        trace = workers / worker / "trace.jsonl"
        records = [json.loads(line) for line in trace.read_text().splitlines()]
        netstorm = [r for r in records if r["segment"] == "netstorm" and "iteration" in r]
        for record, accuracy in zip(netstorm, (lowest, 0.65, 0.62), strict=True):
            record["accuracy"] = accuracy
        trace.write_text("".join(json.dumps(record) + "\n" for record in records))
    run = read_run(path)
    result = summarise_run(run)
    # The best that both reached: star 0.7, netstorm 0.65.
    assert result.accuracy_target == pytest.approx(0.65)
    star, netstorm = result.schedulers
    assert star.time_to_accuracy is not None
    assert netstorm.time_to_accuracy is not None
    times = [i.iteration_s or 0.0 for i in run.iterations["star-first"]]
    assert star.time_to_accuracy.mean == pytest.approx(sum(times))
    # The warm-up is part of it, what comes after it is not.
    times = [i.iteration_s or 0.0 for i in run.iterations["netstorm"]]
    assert netstorm.time_to_accuracy.mean == pytest.approx(sum(times[:2]))
    assert (star.reached, netstorm.reached) == (1, 1)
    document = result_to_json(result)
    assert document["accuracy_target_ratio"] == pytest.approx(0.65)
    assert document["schedulers"][1]["time_to_accuracy_s"]["count"] == 1
    assert "s to 65.0%" in shown(render_report(result))


def test_an_accuracy_that_not_all_reach_is_said(tmp_path: Path) -> None:
    named = {"training": {"model": "mlp-1m", "target_accuracy": 0.68}}
    result = summarise_run(read_run(write_run(tmp_path / "a", experiment=named)))
    assert result.accuracy_target == 0.68
    star, netstorm = result.schedulers
    assert (star.reached, netstorm.reached) == (1, 0)
    assert "not reached" in shown(render_report(result))
    # Where somebody measured none and no target is named, there is nothing to compare.
    assert summarise_run(read_run(write_run(tmp_path / "b"))).accuracy_target is None


def test_intervals_of_repeats(tmp_path: Path) -> None:
    result = summarise_run(read_run(write_run(tmp_path / "a")), lambda run: lambda synchronisations, nbytes: 0.25)
    netstorm = result_to_json(result)["schedulers"][1]
    low, high = netstorm["bound_ratio_ci95"]
    assert low < netstorm["bound_ratio"] < high
    assert low == pytest.approx(netstorm["synchronisation_s"]["ci95"][0] / 0.25)
