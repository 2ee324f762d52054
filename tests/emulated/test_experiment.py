"""Whole runs as a user makes them: `testbed run`, its directory, its failures, and what is left behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed.client import SupervisorClient
from testbed.emulation import launch
from testbed.experiments.manifest import read_manifest
from testbed.experiments.run import run_experiment
from testbed.experiments.spec import experiment_from_text, open_experiment
from testbed.report.measurements import read_run
from testbed.report.summary import summarise_run
from tests.emulated.conftest import Bring
from topologies.errors import StormbedError
from topologies.load import load_topology

pytestmark = pytest.mark.emulated

LONG = """
name: long
topology: pair
training: {model: tensor-500k, iterations: 100000, chunk_elements: 50000}
schedulers: [netstorm]
"""


def start_cli(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "testbed", *arguments],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str], timeout: float = 90.0) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        pytest.fail(f"still running after {timeout} s:\n{out}\n{err}")
    return process.returncode, out, err


def cli(*arguments: str, cwd: Path, timeout: float = 120.0) -> tuple[int, str, str]:
    return finish(start_cli(*arguments, cwd=cwd), timeout)


def eventually(condition: Callable[[], Any], what: str, seconds: float = 40.0) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.05)
    pytest.fail(f"waited {seconds} s for {what}")


def iterations_at(folder: Path, worker: str) -> int:
    """How many the worker of the only run has finished; with two, all workers have finished the first."""
    return sum(trace.read_bytes().count(b"\n") for trace in folder.glob(f"runs/*/workers/{worker}/trace.jsonl"))


def only_run(folder: Path) -> Path:
    (run,) = (folder / "runs").iterdir()
    return run


def is_up(name: str) -> bool:
    return any(listed.name == name for listed in launch.list_testbeds())


@pytest.fixture
def name(unique_name: Callable[[], str]) -> Iterator[str]:
    """A name for a testbed, which is down afterwards whatever happened."""
    chosen = unique_name()
    yield chosen
    if is_up(chosen):
        launch.down(chosen)


@pytest.fixture(scope="module")
def pair(bring: Bring) -> str:
    """The name of a pair that stands for all tests which leave it standing."""
    return bring("pair").name


def test_a_run_from_nothing_to_a_report_of_a_copy(tmp_path: Path, name: str) -> None:
    code, out, err = cli("run", "tiny-pair", "--name", name, cwd=tmp_path)
    assert code == 0, err
    assert f"bringing up testbed {name}" in err
    assert "star-first" in out
    assert "2 + 1 warm-up" in out
    assert not is_up(name), "a testbed brought up for a run is taken down after it"

    run = only_run(tmp_path)
    copy = shutil.copytree(run, tmp_path / "copy")
    shutil.rmtree(run)
    code, out, err = cli("report", str(copy), "--format", "json", cwd=tmp_path)
    assert code == 0, err
    report = json.loads(out)
    assert report["schema"] == 1
    assert report["run"]["status"] == "completed"
    assert report["fidelity"]["verdict"] in ("faithful", "degraded", "saturated")
    assert report["problems"] == []
    star, netstorm = report["schedulers"]
    assert [star["scheduler"], netstorm["scheduler"]] == ["star-first", "netstorm"]
    assert (star["measured_iterations"], star["warmup_iterations"]) == (2, 1)
    assert (netstorm["measured_iterations"], netstorm["warmup_iterations"]) == (3, 0)
    for scheduler in (star, netstorm):
        # 400 kB each way at 100 Mbit/s: never faster than 32 ms, and the bytes of every iteration are there.
        assert scheduler["bound_s"] == pytest.approx(0.032)
        assert scheduler["synchronisation_s"]["min"] > 0.032
        assert scheduler["carried_bytes_per_iteration"] > 2 * 400_000
    manifest = read_manifest(copy)
    assert manifest.experiment["training"]["model"] == "tensor-100k"
    assert manifest.segments[1].plan is not None
    assert manifest.segments[1].plan["roots"]
    assert (copy / "experiment.yaml").read_text() == open_experiment("tiny-pair").text
    for file in ("workers/dc1-0/trace.jsonl", "workers/dc2-0/stderr", "logs/controller.log", "metrics.csv.gz"):
        assert (copy / file).exists(), file


def test_a_standing_testbed_with_the_same_network_is_used_and_kept(tmp_path: Path, name: str) -> None:
    # A rate that no other testbed on this machine has.
    rate = f"{90_000_000 + os.getpid()}bit"
    (tmp_path / "own.yaml").write_text(
        f"name: own\nsites: {{a: {{}}, b: {{}}}}\nlinks: [{{endpoints: [a, b], rate: {rate}}}]\n"
    )
    (tmp_path / "e.yaml").write_text(
        "name: e\ntopology: own.yaml\ntraining: {model: tensor-10k, iterations: 2}\nschedulers: [netstorm]\n"
    )
    launch.up(load_topology(tmp_path / "own.yaml"), name, calibrate=False)
    code, _, err = cli("run", "e.yaml", cwd=tmp_path)
    assert code == 0, err
    assert f"using testbed {name}" in err
    assert is_up(name)
    code, out, _ = cli("runs", cwd=tmp_path)
    assert code == 0
    assert only_run(tmp_path).name in out


def test_a_standing_testbed_with_another_network_is_refused(tmp_path: Path, pair: str) -> None:
    code, _, err = cli("run", "tiny-pair", "--name", pair, "--scale", "0.5", cwd=tmp_path)
    assert code == 2
    assert "stands with another network than pair with rates x 0.5" in err
    assert "the rate of dc1 > dc2 is 100mbit there and 50mbit here" in err
    assert not (tmp_path / "runs").exists()


def worker_pid(testbed: str, site: str) -> int:
    """The worker itself, not the shell that notes its exit code."""
    found = SupervisorClient(testbed).call("processes", site=site)
    return next(p["pid"] for p in found if p["argv"][1:] == ["-u", "-m", "agents.numpy_worker"])


def test_a_killed_worker_fails_the_run_and_is_named(tmp_path: Path, pair: str) -> None:
    (tmp_path / "long.yaml").write_text(LONG)
    process = start_cli("run", "long.yaml", "--name", pair, cwd=tmp_path)
    try:
        eventually(lambda: iterations_at(tmp_path, "dc2-0") >= 2, "the first iteration")
        killed_ns = time.monotonic_ns()
        SupervisorClient(pair).call("kill", site="dc2", pid=worker_pid(pair, "dc2"), signal_name="SIGKILL")
        code, _, err = finish(process)
    finally:
        process.kill()
    assert code == 5
    assert "worker dc2-0 was ended by signal 9" in err
    manifest = read_manifest(only_run(tmp_path))
    assert manifest.status == "failed"
    assert manifest.failure is not None
    assert manifest.failure.exit_code == 5
    assert "dc2-0" in manifest.failure.message
    assert manifest.segments[0].status == "failed"
    # By the run's own clock, which is that of this machine; it takes about a second where there is time to spare.
    finished_ns = manifest.segments[0].finished_ns
    assert finished_ns is not None and (finished_ns - killed_ns) / 1e9 < 15

    def workers_left() -> list[str]:
        found = (SupervisorClient(pair).call("processes", site=site) for site in ("dc1", "dc2"))
        return [str(p["argv"]) for rows in found for p in rows if "numpy_worker" in " ".join(p["argv"])]

    # The shell around a worker writes down its exit code, and may need a moment more.
    eventually(lambda: not workers_left(), "the workers' shells to end")
    # What was measured until then is reported.
    assert summarise_run(read_run(only_run(tmp_path))).schedulers[0].measured >= 1
    # The testbed is as good as before.
    code, _, err = cli("run", "tiny-pair", "--name", pair, cwd=tmp_path)
    assert code == 0, err


def test_an_interrupt_ends_the_workers_and_keeps_what_there_is(tmp_path: Path, name: str) -> None:
    (tmp_path / "long.yaml").write_text(LONG)
    process = start_cli("run", "long.yaml", "--name", name, cwd=tmp_path)
    try:
        eventually(lambda: iterations_at(tmp_path, "dc2-0") >= 2, "the first iteration", 90)
        os.kill(process.pid, signal.SIGINT)
        code, _, err = finish(process)
    finally:
        process.kill()
    assert code == 130, err
    assert not is_up(name)
    assert read_manifest(only_run(tmp_path)).status == "interrupted"
    code, out, _ = cli("report", "last", cwd=tmp_path)
    assert code == 0
    assert "interrupted" in out


def test_a_run_whose_testbed_is_taken_down_says_so(tmp_path: Path, name: str) -> None:
    """One that the run brought up itself, and so would take down at its end."""
    (tmp_path / "long.yaml").write_text(LONG)
    process = start_cli("run", "long.yaml", "--name", name, cwd=tmp_path)
    try:
        eventually(lambda: iterations_at(tmp_path, "dc2-0") >= 2, "the first iteration", 90)
        launch.down(name)
        code, _, err = finish(process)
    finally:
        process.kill()
    assert code == 5, err
    assert f"the testbed {name} ended during the run" in err
    assert not is_up(name)
    failure = read_manifest(only_run(tmp_path)).failure
    assert failure is not None and (failure.exit_code, name in failure.message) == (5, True)


def test_a_worker_that_cannot_start_is_named_with_its_last_words(tmp_path: Path, pair: str) -> None:
    text = "name: x\ntopology: pair\ntraining: {model: mlp-1000, data: nowhere.npz}\nschedulers: [netstorm]\n"
    (tmp_path / "x.yaml").write_text(text)
    code, _, err = cli("run", "x.yaml", "--name", pair, cwd=tmp_path)
    assert code == 5
    assert "dc1" in err or "dc2" in err
    assert "nowhere.npz" in err


def test_sums_are_exact_to_the_bit(tmp_path: Path, name: str) -> None:
    """Every worker compares every element of every sum with the closed form; one wrong bit fails the run."""
    path = run_experiment(open_experiment("exactness"), out=tmp_path, testbed=name)
    run = read_run(path)
    assert run.manifest.topology == "netstorm-9"
    assert run.manifest.status == "completed"
    assert len(run.manifest.workers) == 9
    labels = [f"{shown}/{size}" for shown in ("star-first", "netstorm") for size in (1, 1_234_567, 2_000_000)]
    assert [segment.label for segment in run.manifest.segments] == labels
    for segment in run.manifest.segments:
        iterations = run.iterations[segment.label]
        assert len(iterations) == segment.iterations
        assert all(iteration.complete for iteration in iterations)


def test_workers_of_a_site_are_summed_before_the_wan(tmp_path: Path, name: str) -> None:
    (tmp_path / "two.yaml").write_text(
        "name: two\nsites: {a: {workers: 3}, b: {}}\nlinks: [{endpoints: [a, b], rate: 50mbit}]\n"
    )
    text = (
        f"name: many\ntopology: {tmp_path}/two.yaml\n"
        "training: {model: tensor-200k, iterations: 2, chunk_elements: 20000}\nschedulers: [netstorm]\n"
    )
    path = run_experiment(experiment_from_text(text), out=tmp_path / "runs", testbed=name)
    result = summarise_run(read_run(path))
    assert len(result.manifest.workers) == 4
    carried = result.schedulers[0].carried_bytes_per_iteration
    assert carried is not None
    # One copy of 800 kB each way, whatever the number of workers; three copies would be 2.4 MB one way alone.
    assert 1.6e6 < carried < 2.2e6


def test_a_run_needs_a_reachable_testbed(tmp_path: Path, name: str) -> None:
    """A supervisor that dies under a run fails it with exit code 5, and nothing hangs."""
    launch.up(load_topology("pair"), name, calibrate=False)
    (tmp_path / "long.yaml").write_text(LONG)
    process = start_cli("run", "long.yaml", "--name", name, cwd=tmp_path)
    try:
        eventually(lambda: iterations_at(tmp_path, "dc2-0") >= 2, "the first iteration")
        info = next(listed.info for listed in launch.list_testbeds() if listed.name == name)
        assert info is not None
        assert info.pid is not None
        os.kill(info.pid, signal.SIGKILL)
        code, _, err = finish(process)
    finally:
        process.kill()
    assert code == 5, err
    assert read_manifest(only_run(tmp_path)).status == "failed"
    try:
        launch.clean(name)
    except StormbedError as error:
        pytest.fail(str(error))
