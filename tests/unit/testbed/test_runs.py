"""Writing a run directory, its manifest, and the rows of links.csv."""

from __future__ import annotations

import errno
import json
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from testbed.events import read_events
from testbed.experiments.links import LinkCounters, LinkMeter
from testbed.experiments.machine import describe_machine, package_versions
from testbed.experiments.manifest import CHANGE_COLUMNS, FidelityRow, read_manifest, worker_directory
from testbed.experiments.rundir import RunDirectory, new_run_path, worker_table
from testbed.experiments.spec import experiment_from_text, open_experiment
from testbed.experiments.workers import last_lines
from testbed.report.measurements import LinkSample, read_run
from topologies.errors import RunFailedError, UsageError
from topologies.load import load_topology, topology_from_dict

S = 1_000_000_000


def sample(segment: str = "netstorm") -> LinkSample:
    return LinkSample(
        t_s=1.5,
        interval_s=1.0,
        segment=segment,
        src="dc1",
        dst="dc2",
        configured_bps=100_000_000,
        achieved_bps=96e6,
        carried_bytes=12_000_000,
        dropped_packets=3,
    )


def test_a_run_directory_holds_the_experiment_both_ways(tmp_path: Path) -> None:
    experiment = open_experiment("tiny-pair")
    with RunDirectory(tmp_path / "r", experiment, "emulated") as run:
        assert (run.path / "experiment.yaml").read_text() == experiment.text
        resolved = yaml.safe_load((run.path / "config.resolved.yaml").read_text())
        assert resolved["training"]["deadline_s"] == 300
        topology = json.loads((run.path / "topology.json").read_text())
        assert topology["name"] == "pair"


def test_the_manifest_says_where_it_came_from(tmp_path: Path) -> None:
    with RunDirectory(tmp_path / "r", open_experiment("tiny-pair"), "emulated"):
        manifest = read_manifest(tmp_path / "r")
    assert manifest.status == "running"
    assert manifest.versions["python"].startswith("3.")
    assert "numpy" in manifest.versions
    assert manifest.machine["cpu_count"] >= 1
    assert manifest.machine["memory_bytes"] > 0
    assert manifest.seeds == {"experiment": 1, "star-first": 1, "netstorm": 1}
    assert [(link.src, link.dst) for link in manifest.links] == [("dc1", "dc2"), ("dc2", "dc1")]
    assert manifest.experiment["name"] == "tiny-pair"
    assert [(segment.label, segment.warmup) for segment in manifest.segments] == [
        ("star-first", 1),
        ("netstorm", 0),
    ]


def test_segments_and_end_are_on_disk_at_once(tmp_path: Path) -> None:
    with RunDirectory(tmp_path / "r", open_experiment("tiny-pair"), "emulated") as run:
        run.begin_segment("star-first", 10)
        run.set_plan("star-first", {"scheduler": "star-first", "roots": []})
        assert read_manifest(run.path).segments[0].status == "running"
        run.end_segment("star-first", 20, "completed")
        run.add_links([sample("star-first")])
        run.finish(None, FidelityRow(verdict="faithful"))
        manifest = read_manifest(run.path)
    assert manifest.status == "completed"
    assert manifest.finished_s is not None
    assert manifest.fidelity.verdict == "faithful"
    first, second = manifest.segments
    assert (first.status, first.started_ns, first.finished_ns) == ("completed", 10, 20)
    assert first.plan == {"scheduler": "star-first", "roots": []}
    assert second.status == "waiting"
    assert read_run(run.path).links == (sample("star-first"),)
    assert [event["kind"] for event in read_events(run.path / "events.jsonl")] == [
        "segment-start",
        "segment-end",
        "run-end",
    ]


@pytest.mark.parametrize(
    ("failure", "status", "code"),
    [
        (RunFailedError("worker dc2-0 is gone", hint="look there"), "failed", 5),
        (KeyboardInterrupt(), "interrupted", None),
        (ValueError("odd"), "failed", 1),
    ],
)
def test_how_a_run_can_end(tmp_path: Path, failure: BaseException, status: str, code: int | None) -> None:
    with RunDirectory(tmp_path / "r", open_experiment("tiny-pair"), "emulated") as run:
        run.finish(failure)
    manifest = read_manifest(tmp_path / "r")
    assert manifest.status == status
    assert (manifest.failure.exit_code if manifest.failure else None) == code


def test_an_existing_directory_is_not_written_into(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot make the run directory"):
        RunDirectory(tmp_path, open_experiment("tiny-pair"), "emulated")


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """As on a full disk: the kernel refuses to let files grow beyond this."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_directory_that_takes_no_more_fails_the_run_and_is_named(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "r", open_experiment("tiny-pair"), "emulated")
    failures: list[RunFailedError] = []

    def fill_events() -> None:
        for _ in range(3):
            run.events.write("y" * 150)

    writes: tuple[Callable[[], object], ...] = (
        lambda: run.add_links([sample()] * 50),
        lambda: run.note("x" * 200),
        fill_events,
        lambda: run.add_changes(1.0, "s" * 250, [dict.fromkeys(CHANGE_COLUMNS[2:], 1)]),
    )
    with files_of_at_most(200):
        for write in writes:
            with pytest.raises(RunFailedError, match=f"cannot write in the run directory {run.path}: ") as e:
                write()
            failures.append(e.value)
    assert {failure.exit_code for failure in failures} == {5}
    # The manifest of before is whole, no half of a new one lies there, and there is room to tell the end.
    assert read_manifest(run.path).status == "running"
    assert not list(run.path.glob("*.partial"))
    run.finish(failures[0])
    run.close()
    manifest = read_manifest(run.path)
    assert (manifest.status, manifest.failure and manifest.failure.exit_code) == ("failed", 5)
    assert not (run.path / ".reserve").exists()


def test_a_run_that_cannot_even_tell_its_failure_keeps_the_first_cause(tmp_path: Path) -> None:
    with RunDirectory(tmp_path / "r", open_experiment("tiny-pair"), "emulated") as run, files_of_at_most(10):
        run.finish(RunFailedError("worker dc2-0 is gone"))
        with pytest.raises(RunFailedError, match="cannot write"):
            run.finish(None)


def test_a_full_disk_that_shows_elsewhere_is_a_failed_run_too(tmp_path: Path) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    with (
        pytest.raises(RunFailedError, match="No space left on device") as caught,
        RunDirectory(tmp_path / "r", open_experiment("tiny-pair"), "simulated") as run,
    ):
        run.finish(full)
        raise full
    assert "make room" in caught.value.hint
    failure = read_manifest(tmp_path / "r").failure
    assert failure is not None and (failure.exit_code, failure.message) == (5, caught.value.message)


def test_a_run_that_cannot_begin_is_a_failed_run(tmp_path: Path) -> None:
    with files_of_at_most(10), pytest.raises(RunFailedError, match="cannot write in the run directory"):
        RunDirectory(tmp_path / "r", open_experiment("tiny-pair"), "emulated")


ENDS_UNFINISHED = """
import os, signal, sys
from pathlib import Path
from testbed.experiments.rundir import RunDirectory
from testbed.experiments.spec import open_experiment
RunDirectory(Path(sys.argv[1]), open_experiment("tiny-pair"), "emulated")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_run_whose_process_is_gone_is_abandoned(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", ENDS_UNFINISHED, str(tmp_path / "r")], timeout=60)
    assert done.returncode == -signal.SIGKILL
    manifest = read_manifest(tmp_path / "r")
    assert json.loads((tmp_path / "r" / "manifest.json").read_text())["status"] == "running"
    assert manifest.status == "abandoned"
    assert manifest.runner is not None and not manifest.runner.model_copy(update={"host": "other"}).is_gone()


def test_a_run_that_goes_on_is_running_and_one_of_an_earlier_boot_is_not(tmp_path: Path) -> None:
    with RunDirectory(tmp_path / "r", open_experiment("tiny-pair"), "emulated") as run:
        manifest = read_manifest(run.path)
        assert manifest.status == "running" and manifest.runner is not None
        assert manifest.runner.model_copy(update={"boot": "earlier"}).is_gone()
        assert manifest.runner.model_copy(update={"started_ticks": 1}).is_gone()
        run.finish(KeyboardInterrupt())
    assert read_manifest(run.path).status == "interrupted"


def test_paths_of_runs_sort_by_time_and_differ(tmp_path: Path) -> None:
    first, second = new_run_path(tmp_path, "x"), new_run_path(tmp_path, "x")
    assert first != second
    stamp, name, short = first.name.split("-")
    assert (len(stamp), name, len(short)) == (16, "x", 6)


def test_ranks_go_by_site_then_worker() -> None:
    plain = load_topology("pair").to_dict()
    plain["sites"]["dc1"]["workers"] = 2
    topology = topology_from_dict(plain)
    assert [(row.site, row.worker, row.rank) for row in worker_table(topology)] == [
        ("dc1", 0, 0),
        ("dc1", 1, 1),
        ("dc2", 0, 2),
    ]
    assert worker_directory("dc1", 1) == "workers/dc1-1"


def counters(carried: int, dropped: int = 0, rate: int = 100) -> list[LinkCounters]:
    return [LinkCounters("dc1", "dc2", rate, carried, dropped)]


def test_the_first_reading_only_sets_the_start() -> None:
    assert LinkMeter(0).advance(S, "star", counters(1_000_000)) == []


def test_a_sample_is_the_gain_over_its_own_interval() -> None:
    meter = LinkMeter(0)
    meter.advance(S, "star", counters(1000, 1))
    (found,) = meter.advance(3 * S, "star", counters(3000, 4, rate=50))
    assert (found.t_s, found.interval_s, found.carried_bytes, found.dropped_packets) == (3.0, 2.0, 2000, 3)
    assert found.achieved_bps == pytest.approx(8000.0)
    assert found.configured_bps == 50


def test_bytes_of_all_samples_sum_to_the_counter() -> None:
    meter = LinkMeter(0)
    readings = [0, 10, 10, 500, 501, 9000]
    rows = [
        row for k, value in enumerate(readings) for row in meter.advance((k + 1) * S, "x", counters(value))
    ]
    assert sum(row.carried_bytes for row in rows) == 9000


def test_a_counter_that_starts_anew() -> None:
    meter = LinkMeter(0)
    meter.advance(S, "x", counters(1000))
    (found,) = meter.advance(2 * S, "x", counters(40))
    assert found.carried_bytes == 40


def test_machine_and_versions_are_found() -> None:
    machine = describe_machine()
    assert machine["kernel"]
    assert machine["memory_bytes"] > 2**20
    assert "python" in package_versions()


def test_last_lines(tmp_path: Path) -> None:
    path = tmp_path / "stderr"
    assert last_lines(path) == []
    path.write_text("\n".join(f"line {k}" for k in range(5000)) + "\n\n  \n")
    assert last_lines(path, 2) == ["line 4998", "line 4999"]


def test_the_scaled_rates_are_in_the_link_table(tmp_path: Path) -> None:
    text = "name: x\ntopology: pair\nscale: 0.5\ntraining: {model: mlp-2m}\nschedulers: [netstorm]\n"
    experiment = experiment_from_text(text)
    with RunDirectory(tmp_path / "r", experiment, "simulated") as run:
        rates = [link.rate_bps for link in run.manifest.links]
    assert rates == [link.rate.bps // 2 for link in load_topology("pair").directed]


def test_changes_by_hand_stand_among_the_runs_own_by_time(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "r", open_experiment("tiny-pair"), "emulated")
    link = dict.fromkeys(CHANGE_COLUMNS[2:], 0) | {"src": "dc1", "dst": "dc2", "state": "up"}
    run.merge_changes([])
    assert not (run.path / "changes.csv").exists()
    run.add_changes(1.0, "star", [link])
    run.add_changes(12.0, "star", [link, link])
    run.merge_changes([(9.5, "star", [link | {"state": "down"}]), (30.0, "", [link])])
    head, *rows = (run.path / "changes.csv").read_text().splitlines()
    assert tuple(head.split(",")) == CHANGE_COLUMNS
    assert [row.split(",")[0] for row in rows] == ["1.000", "9.500", "12.000", "12.000", "30.000"]
    assert ",down," in rows[1]
