"""Gradients that travel while a simulated backward pass still runs: by hand, and under every scheduler."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agents.planning.registry import library_names, scheduler_names
from agents.sync.spec import CollectiveSpec
from testbed.experiments.models import gradient_sizes, parameter_count
from testbed.experiments.spec import LoadedExperiment, experiment_from_text
from testbed.report.bounds import bounds_of
from testbed.report.measurements import read_run
from testbed.report.summary import summarise_run
from testbed.simulation.run import run_experiment
from testbed.simulation.world import IDEAL, REALISTIC, SECOND, World

# The model 2nn has 199,210 parameters: two buckets, of 42,210 and of 157,000, with buckets of 160,000 bytes.
ALL, FIRST, LAST = 199_210, 42_210, 157_000
BITS = 32
COMPUTE_S = 0.6
# A third is the forward pass; the backward pass takes its 0.4 s in proportion to the parameters.
FIRST_READY_S = 0.2 + 0.4 * FIRST / ALL

PAIR = """
name: by-hand
topology: {topology}
world: simulated
training:
  model: 2nn
  iterations: 4
  chunk_elements: {chunk}
  compute: {compute}
  overlap: {overlap}
  bucket_bytes: 160000
schedulers: [{{name: star, options: {{server: first}}}}]
"""


def pair(tmp_path: Path, mbps: int, *, overlap: bool, chunk: int = 1_000_000, compute: str = "{mean: 600ms}") -> Any:
    topology = tmp_path / f"pair-{mbps}.yaml"
    topology.write_text(
        f"name: two\nsites: {{a: {{}}, b: {{}}}}\nlinks: [{{endpoints: [a, b], rate: {mbps}mbit, delay: 0ms}}]\n"
    )
    fields = {"topology": topology, "chunk": chunk, "compute": compute, "overlap": str(overlap).lower()}
    return experiment_from_text(PAIR.format(**fields))


class Seen:
    """What the workers hand over and when it is done, in seconds since an iteration of theirs began."""

    def __init__(self, experiment: LoadedExperiment, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world: World | None = None
        self.begun: list[tuple[int, int, CollectiveSpec]] = []
        begin = World.begin

        def noted(world: World, site: int, spec: CollectiveSpec) -> int:
            self.world = world
            self.begun.append((site, world.clock.now_ns, spec))
            return begin(world, site, spec)

        with monkeypatch.context() as patch:
            patch.setattr(World, "begin", noted)
            run_experiment(experiment, path, options=IDEAL)
        trace = (path / "workers" / "b-0" / "trace.jsonl").read_text()
        self.iterations = [json.loads(line) for line in trace.splitlines()]

    @property
    def seconds(self) -> list[float]:
        return [(it["end_ns"] - it["start_ns"]) / SECOND for it in self.iterations]


def test_a_bucket_that_is_through_before_the_next_one_is_ready_saves_all_of_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """8 Mbit/s, a chunk a bucket, the sum at site a: up, and down again.

    The first bucket (1.35 Mbit) is ready at 0.285 s and through at 0.622 s; the last one (5.02 Mbit) has the way up
    to itself from 0.6 s to 1.228 s, and the way down until 1.856 s. All at once: 0.6 s and twice 6.37 Mbit.
    """
    seen = Seen(pair(tmp_path, 8, overlap=True), tmp_path / "with", monkeypatch)
    at_once = COMPUTE_S + 2 * ALL * BITS / 8e6
    overlapped = COMPUTE_S + 2 * LAST * BITS / 8e6
    # In a turn's first iteration DDP does not know the order of the gradients, and has one bucket.
    assert seen.seconds == [pytest.approx(s, abs=1e-6) for s in (at_once, overlapped, overlapped, overlapped)]
    assert overlapped == pytest.approx(1.856)
    without = Seen(pair(tmp_path, 8, overlap=False), tmp_path / "without", monkeypatch)
    assert without.seconds == [pytest.approx(at_once, abs=1e-6)] * 4
    handed = [(ns, spec) for site, ns, spec in seen.begun if site == 1]
    assert [spec.parts[0].elements for _, spec in handed] == [ALL, FIRST, LAST, FIRST, LAST, FIRST, LAST]
    assert [spec.cls for _, spec in handed] == [0, 0, 1, 0, 1, 0, 1]
    start_ns = seen.iterations[1]["start_ns"]
    assert [(ns - start_ns) / SECOND for ns, _ in handed[1:3]] == [
        pytest.approx(FIRST_READY_S, abs=1e-9),
        pytest.approx(COMPUTE_S, abs=1e-9),
    ]
    assert all(it["ready_ns"] - it["start_ns"] == round(COMPUTE_S * SECOND) for it in seen.iterations)
    assert seen.world is not None
    for record in seen.world.records:
        assert record.delivered == [record.spec.parts[0].elements] * 2


def test_the_last_bucket_overtakes_what_is_left_of_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """4 Mbit/s: at 0.6 s the first bucket has 0.09 Mbit left, which waits for the last bucket, each way.

    Up: the last one until 1.856 s, the rest of the first until 1.878 s. Down: the last one until 3.112 s, and then
    all of the first.
    """
    seen = Seen(pair(tmp_path, 4, overlap=True), tmp_path / "with", monkeypatch)
    up = COMPUTE_S + LAST * BITS / 4e6
    last_done = up + LAST * BITS / 4e6
    assert (FIRST_READY_S + FIRST * BITS / 4e6) > COMPUTE_S, "it is still under way"
    first_done = last_done + FIRST * BITS / 4e6
    assert seen.seconds[1:] == [pytest.approx(first_done, abs=1e-6)] * 3
    assert first_done == pytest.approx(3.44968)
    assert seen.world is not None
    start_ns = seen.iterations[1]["start_ns"]
    first, last = seen.world.records[1:3]
    assert [(record.done_ns[1] - start_ns) / SECOND for record in (first, last)] == [
        pytest.approx(first_done, abs=1e-6),
        pytest.approx(last_done, abs=1e-6),
    ]


@pytest.mark.parametrize("chunk", [1000, 10_000])
def test_without_computing_the_buckets_take_what_all_gradients_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    """The links are never idle, so all that counts are the bits, and the way down of one chunk."""
    found = [
        Seen(pair(tmp_path, 8, overlap=overlap, chunk=chunk, compute="real"), tmp_path / str(overlap), monkeypatch)
        for overlap in (True, False)
    ]
    wanted = (ALL + chunk) * BITS / 8e6
    for seen in found:
        assert seen.seconds == [pytest.approx(wanted, abs=1e-6)] * 4
    handed = {ns for site, ns, _ in found[0].begun if site == 1}
    assert len(handed) == 4, "both buckets of an iteration are there at once"


EVERY = """
name: every
topology: triangle
world: simulated
scale: 0.1
training:
  model: mlp-500k
  iterations: 4
  chunk_elements: 20000
  compute: {{mean: 1s, cv: 0.2, sites: {{dc2: 1200ms}}}}
  overlap: {overlap}
  bucket_bytes: 8000
schedulers: [{{name: {scheduler}, warmup: 1}}]
"""


@pytest.mark.parametrize("scheduler", dict.fromkeys([*scheduler_names(), *library_names()]))
def test_it_shortens_iterations_under_every_scheduler_and_sums_stay_whole(
    tmp_path: Path, scheduler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the links are the bottleneck: every result is checked to hold each site once, and all of it arrives."""
    means = {}
    for overlap in ("true", "false"):
        worlds: list[World] = []
        init = World.__init__

        def keep(world: World, *given: Any, init: Any = init, worlds: list[World] = worlds, **more: Any) -> None:
            init(world, *given, **more)
            worlds.append(world)

        with monkeypatch.context() as patch:
            patch.setattr(World, "__init__", keep)
            text = EVERY.format(overlap=overlap, scheduler=scheduler)
            run_experiment(experiment_from_text(text), tmp_path / overlap)
        (world,) = worlds
        sizes = [record.spec.parts[0].elements for record in world.records]
        assert sum(sizes) == 4 * parameter_count("mlp-500k")
        assert len(sizes) == (1 + 3 * 3 if overlap == "true" else 4)
        for record in world.records:
            assert record.delivered == [record.spec.parts[0].elements] * 3
        classes = {record.spec.cls for record in world.records}
        assert classes == ({0, 1, 2} if overlap == "true" and scheduler not in library_names() else {0})
        run = read_run(tmp_path / overlap)
        result = summarise_run(run, bounds_of).schedulers[0]
        assert result.iteration is not None
        # What is left after the backward pass is no synchronisation that a bound could be held to.
        assert (result.bound_s is None) == (overlap == "true")
        means[overlap] = result.iteration.mean
    assert means["true"] < 0.95 * means["false"], means


def test_runs_with_overlap_repeat_to_the_last_digit_and_several_workers_a_site_wait_for_the_slowest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topology = tmp_path / "two.yaml"
    topology.write_text(
        "name: two\nsites: {a: {workers: 2}, b: {}}\nlinks: [{endpoints: [a, b], rate: 20mbit, delay: 5ms}]\n"
    )
    text = PAIR.format(topology=topology, chunk=10_000, compute="{mean: 600ms, cv: 0.4}", overlap="true")
    traces = []
    for name in ("one", "two"):
        run_experiment(experiment_from_text(text), tmp_path / name, options=REALISTIC)
        traces.append(
            [(tmp_path / name / "workers" / worker / "trace.jsonl").read_text() for worker in ("a-0", "a-1", "b-0")]
        )
    assert traces[0] == traces[1]
    seen = Seen(experiment_from_text(text), tmp_path / "seen", monkeypatch)
    rows = [
        [json.loads(line) for line in (tmp_path / "seen" / "workers" / w / "trace.jsonl").read_text().splitlines()]
        for w in ("a-0", "a-1")
    ]
    at_a = [ns for site, ns, _ in seen.begun if site == 0]
    for number in range(1, 4):
        start_ns = rows[0][number]["start_ns"]
        slowest = max(row[number]["ready_ns"] - start_ns for row in rows)
        first, last = at_a[2 * number - 1 : 2 * number + 1]
        assert last - start_ns == slowest
        assert first - start_ns == pytest.approx(slowest * FIRST_READY_S / COMPUTE_S, abs=2)


@pytest.mark.parametrize("model", ["2nn", "cnn", "textcnn", "mlp-500k", "mlp-1000"])
def test_a_models_gradients_are_all_of_its_parameters(model: str) -> None:
    assert sum(gradient_sizes(model)) == parameter_count(model)


def test_a_model_without_layers_has_no_order() -> None:
    with pytest.raises(ValueError, match="'tensor-1k' is no model with layers"):
        gradient_sizes("tensor-1k")
