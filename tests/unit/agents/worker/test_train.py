"""Training through real agents on loopback: agents, coordinator and workers are processes of their own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from agents.control import CoordinatorClient
from agents.worker import reference
from agents.worker.parameters import load
from topologies.errors import RunFailedError, UsageError

from .collectives import CHECKS
from .hub import run_children
from .loopback import Loopback, entry_point, loopback

torch.set_num_threads(1)


def start_workers(
    world: Loopback, job: str, out: Path, sites: dict[str, int]
) -> list[subprocess.Popen[bytes]]:
    workers = []
    for site, count in sites.items():
        for worker in range(count):
            folder = out / f"{site}-{worker}"
            folder.mkdir(parents=True)
            with (folder / "stderr").open("wb") as stderr:
                workers.append(
                    subprocess.Popen(
                        [sys.executable, "-m", "agents.worker.train"],
                        env=world.environment(job, site, worker, folder),
                        stderr=stderr,
                    )
                )
    return workers


def trace(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "trace.jsonl").read_text().splitlines()]


def test_training_over_agents_equals_a_single_process(tmp_path):
    sites = {"dc1": 1, "dc2": 1, "dc3": 1}
    common = {"iterations": 20, "model": "2nn", "batch": 8, "momentum": 0.9, "save_parameters": True}
    with loopback(tmp_path, "triangle") as world, CoordinatorClient(*world.coordinator) as coordinator:
        coordinator.open_job({"job": "train", "sites": sites, "chunk_elements": 20_000, "deadline_s": 30})
        workers = start_workers(world, "train", tmp_path / "out", sites)
        coordinator.run_segment(
            "train",
            {"label": "star", "scheduler": {"name": "star", "options": {"server": "first"}}, **common},
        )
        ended = coordinator.run_segment("train", {"label": "trees", "scheduler": "netstorm", **common})
        # Anybody may ask for the plan that is in use.
        assert coordinator.plan("train") == {
            "job": "train", "policy_version": ended["policy_version"], "plan": ended["plan"],
        }  # fmt: skip
        with pytest.raises(UsageError, match="no job other"):
            coordinator.plan("other")
        several = {"overlap": True, "bucket_cap_mb": 0.1}  # MiB: about a bucket a layer, each in a class of its own
        coordinator.run_segment("train", {"label": "buckets", "scheduler": "netstorm", **common, **several})
        coordinator.close_job("train")
        assert [worker.wait(20) for worker in workers] == [0, 0, 0]
    traces = [trace(tmp_path / "out" / f"{site}-0") for site in sites]
    for records in traces:
        assert [(r["segment"], r["iteration"]) for r in records] == [
            (s, i) for s in ("star", "trees", "buckets") for i in range(20)
        ]
        assert all(r["start_ns"] < r["ready_ns"] < r["done_ns"] <= r["end_ns"] for r in records)
        # The last digest of each scheduler is that of the first worker.
        for last in (19, 39, 59):
            assert records[last]["parameters_sha256"] == traces[0][last]["parameters_sha256"]
    # No result before every gradient is ready: one clock for all processes.
    for same in zip(*traces, strict=True):
        assert max(r["ready_ns"] for r in same) < min(r["done_ns"] for r in same)
    for label in ("star", "trees", "buckets"):
        parameters, history, size = load(tmp_path / "out" / "dc1-0" / f"parameters-{label}.npz")
        result = reference.compare(parameters, history, size)
        assert size == 3 and result.parameters == 199_210 and result.iterations == 20
        assert result.within_tolerance and result.max_abs_difference < 1e-5 < 1e-2 < result.moved, result


def test_collectives_over_agents(tmp_path):
    """Two workers at one site and one at another: sums within the site, and across."""
    places = [("dc1", 0), ("dc1", 1), ("dc2", 0)]

    with loopback(tmp_path, "pair") as world, CoordinatorClient(*world.coordinator) as coordinator:
        coordinator.open_job(
            {
                "job": "check",
                "sites": {"dc1": 2, "dc2": 1},
                "chunk_elements": 1000,
                "deadline_s": 30,
                "scheduler": "netstorm",
            }
        )

        def body(rank: int) -> None:
            site, worker = places[rank]
            os.environ.update(world.environment("check", site, worker, RANK=str(rank), WORLD_SIZE="3"))
            # As a script does it, without a word of ours but the backend's name.
            dist.init_process_group("stormbed", init_method="stormbed://")
            assert (dist.get_rank(), dist.get_world_size()) == (rank, 3)
            for check in CHECKS:
                check(rank, 3)
            big = torch.arange(100_003, dtype=torch.float64) * (rank + 1)
            dist.all_reduce(big)
            assert torch.equal(big, torch.arange(100_003, dtype=torch.float64) * 6)
            dist.destroy_process_group()

        run_children([lambda rank=rank: body(rank) for rank in range(3)])
        coordinator.close_job("check")


def test_the_script_of_the_documentation(tmp_path):
    text = (Path(__file__).parents[4] / "docs" / "training.md").read_text()
    script = tmp_path / "own_training.py"
    script.write_text(re.search(r"```python\n(# own_training.py\n.*?)```", text, re.DOTALL)[1])
    sites, path = {"dc1": 1, "dc2": 1}, entry_point(tmp_path)
    with loopback(tmp_path, "pair") as world, CoordinatorClient(*world.coordinator) as coordinator:
        coordinator.open_job({"job": "mine", "sites": sites, "scheduler": "netstorm", "deadline_s": 30})
        workers = [
            subprocess.Popen(
                [sys.executable, str(script)],
                env=world.environment("mine", site, RANK=str(rank), WORLD_SIZE="2", PYTHONPATH=path),
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank, site in enumerate(sites)
        ]
        outputs = [worker.communicate(timeout=150)[0].splitlines() for worker in workers]
        coordinator.close_job("mine")
    assert [worker.returncode for worker in workers] == [0, 0]
    for rank, lines in enumerate(outputs):
        assert [line.rsplit(" ", 1)[0] for line in lines] == [f"rank {rank} step {i} loss" for i in range(5)]
        losses = [float(line.rsplit(" ", 1)[1]) for line in lines]
        assert losses[-1] < losses[0]


def test_a_worker_that_dies_ends_the_others_with_its_name(tmp_path):
    sites = {"dc1": 1, "dc2": 1}
    with loopback(tmp_path, "pair") as world, CoordinatorClient(*world.coordinator) as coordinator:
        coordinator.open_job({"job": "dies", "sites": sites, "deadline_s": 30})
        workers = start_workers(world, "dies", tmp_path / "out", sites)

        def end_one() -> None:
            path = tmp_path / "out" / "dc2-0" / "trace.jsonl"
            while not path.exists() or path.read_text().count("\n") < 3:
                if workers[1].poll() is not None:
                    return
                time.sleep(0.02)
            workers[1].send_signal(signal.SIGKILL)

        killer = threading.Thread(target=end_one)
        killer.start()
        with pytest.raises(RunFailedError, match="dc2"):
            coordinator.run_segment(
                "dies",
                {
                    "label": "long",
                    "scheduler": "netstorm",
                    "iterations": 100_000,
                    "model": "mlp-10k",
                    "batch": 1,
                },
            )
        killer.join()
        assert workers[0].wait(30) == 5  # a second or two on a machine with time to spare
    # One line, naming who was missing.
    (line,) = (tmp_path / "out" / "dc1-0" / "stderr").read_text().splitlines()
    assert line.startswith("stormbed train: ") and "dc2" in line


def test_a_wrong_segment_ends_the_job_with_its_cause(tmp_path):
    sites = {"dc1": 1, "dc2": 1}
    with loopback(tmp_path, "pair") as world, CoordinatorClient(*world.coordinator) as coordinator:
        coordinator.open_job({"job": "wrong", "sites": sites, "deadline_s": 30})
        workers = start_workers(world, "wrong", tmp_path / "out", sites)
        with pytest.raises(RunFailedError, match="no model 'cnm'"):
            coordinator.run_segment(
                "wrong", {"label": "a", "scheduler": "netstorm", "iterations": 1, "model": "cnm"}
            )
        codes = [worker.wait(20) for worker in workers]
        assert set(codes) <= {2, 5} and 2 in codes
    lines = [(tmp_path / "out" / f"{site}-0" / "stderr").read_text() for site in sites]
    assert any("no model 'cnm': 2nn, cnn, textcnn, mlp-2m, mlp-SIZE (did you mean cnn?)" in text for text in lines)
    assert all(text.count("\n") == 1 for text in lines), lines
