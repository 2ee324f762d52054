"""What a worker does with segments: the mathematics of training, its trace, its pace."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.distributed as dist

from agents.worker import reference
from agents.worker.parameters import digest, load, save
from agents.worker.segment import parse_segment
from agents.worker.train import Program, threads
from agents.worker.training import Training
from topologies.errors import InvalidFileError, RunFailedError, UsageError

from .hub import run_ranks
from .loopback import entry_point

torch.set_num_threads(1)


def segment(label="a", **fields):
    return {
        "label": label,
        "scheduler": "star-first",
        "iterations": 4,
        "model": "mlp-20k",
        "batch": 8,
        **fields,
    }


def run_program(segments, world=2, out=None):
    """Every rank's trace of these segments."""

    def body(rank, world):
        group = dist.group.WORLD
        client, records, given = group.client, [], [*segments, None]
        client.site, client.report, client.next_segment = (
            f"dc{rank + 1}",
            records.append,
            lambda: given.pop(0),
        )
        Program(client, group, out).run()
        return records

    return run_ranks(world, body)


def digests(records):
    return [r["parameters_sha256"] for r in records if "parameters_sha256" in r]


def test_training_equals_a_single_process_on_the_joint_batch(tmp_path):
    segments = [
        segment("one", iterations=20, momentum=0.9, lr=0.1, seed=4, eval_every=10, save_parameters=True),
        segment(
            "two",
            iterations=20,
            momentum=0.9,
            lr=0.1,
            seed=4,
            scheduler={"name": "netstorm"},
            bucket_cap_mb=0.02,
        ),
        segment("more", iterations=3, momentum=0.9, seed=4, lr=0.01, fresh=False, save_parameters=True),
    ]
    traces = run_program(segments, 3, tmp_path)
    # Bit for bit the same at every worker; only the number of buckets differs between the first two.
    assert digests(traces[0]) == digests(traces[1]) == digests(traces[2])
    assert len(digests(traces[0])) == 3
    for label, count in [("one", 20), ("more", 23)]:
        parameters, history, world = load(tmp_path / f"parameters-{label}.npz")
        assert world == 3 and sum(s.iterations for s in history) == count
        result = reference.compare(parameters, history, world)
        assert result.within_tolerance and result.max_abs_difference < 1e-5 < result.moved, result
        assert result.parameters == 20_005 and result.iterations == count
        assert digest(parameters) == digests(traces[0])[0 if label == "one" else 2]
    # The comparison is no formality: one step too few is out of tolerance, and so are two workers for three.
    parameters, history, _ = load(tmp_path / "parameters-one.npz")
    fewer = [history[0].model_copy(update={"iterations": 19})]
    assert not reference.compare(parameters, fewer, 3).within_tolerance
    assert not reference.compare(parameters, history, 2).within_tolerance
    with pytest.raises(RunFailedError, match="not the parameters of 2nn"):
        reference.compare(parameters, [history[0].model_copy(update={"model": "2nn"})], 3)
    # It learns.
    accuracies = [r["accuracy"] for r in traces[0] if "accuracy" in r]
    assert len(accuracies) == 2 and accuracies[1] > 0.4 and accuracies[1] > accuracies[0]
    assert not any("accuracy" in r for r in traces[1])


def test_the_reference_is_a_command(tmp_path, capsys):
    run_program([segment(save_parameters=True)], 1, tmp_path)
    path = tmp_path / "parameters-a.npz"
    assert reference.main([str(path)]) == 0
    assert '"within_tolerance": true' in capsys.readouterr().out
    parameters, history, world = load(path)
    parameters["1.bias"] = parameters["1.bias"] + np.float32(0.01)
    save(path, parameters, history, world)
    assert reference.main([str(path)]) == 5
    assert '"within_tolerance": false' in capsys.readouterr().out
    np.savez(path, a=np.zeros(3))
    assert reference.main([str(path)]) == 2
    assert "not a file of parameters" in capsys.readouterr().err
    with pytest.raises(InvalidFileError, match="there is no file"):
        load(tmp_path / "none.npz")


def test_the_trace(tmp_path):
    traces = run_program([segment("one"), segment("two", scheduler="netstorm", optimizer="adam", lr=0.001)])
    for rank, records in enumerate(traces):
        assert [(r["segment"], r["scheduler"], r["iteration"]) for r in records] == [
            *(("one", "star-first", i) for i in range(4)),
            *(("two", "netstorm", i) for i in range(4)),
        ], rank
        times = [t for r in records for t in (r["start_ns"], r["ready_ns"], r["done_ns"], r["end_ns"])]
        assert times == sorted(times) and len(set(times)) == len(times)
        assert all(0 < r["computed_ns"] == r["ready_ns"] - r["start_ns"] for r in records)
        assert all(np.isfinite(r["loss"]) for r in records)
    # No result is anywhere before the last gradient is ready everywhere.
    for one, other in zip(*traces, strict=True):
        assert max(one["ready_ns"], other["ready_ns"]) < min(one["done_ns"], other["done_ns"])


def test_equal_first_weights_for_every_scheduler():
    traces = run_program([segment("one", iterations=2), segment("two", iterations=2, scheduler="netstorm")])
    one, two = digests(traces[0])
    assert one == two


def test_compute_padded_to_a_declared_time():
    compute = {"mean_s": 0.03, "sites": {"dc2": {"mean_s": 0.08}}}
    fast, slow = run_program([segment(iterations=3, compute=compute), segment("real", iterations=3)])
    for records, seconds in [(fast, 0.03), (slow, 0.08)]:
        for record in records[:3]:
            waited = (record["ready_ns"] - record["start_ns"]) / 1e9
            assert seconds <= waited < seconds + 0.5, record  # a busy machine may wake it late, never early
            assert 0 < record["computed_ns"] <= record["ready_ns"] - record["start_ns"]
    assert min(r["computed_ns"] for r in fast[:3]) < 0.03e9  # the padding is no part of it
    # The site that computes longer decides when results arrive.
    assert all(one["done_ns"] > other["ready_ns"] for one, other in zip(fast[:3], slow[:3], strict=True))
    # Padding changes when gradients travel, not what they are.
    assert digests(fast)[0] == digests(fast)[1] == digests(slow)[0]


def test_a_segment_that_cannot_go_on():
    def body(rank, world):
        group = dist.group.WORLD
        program = Program(
            type("Client", (), {"site": "dc1", "report": staticmethod(lambda record: None)}), group, None
        )
        with pytest.raises(UsageError, match=r"segment 'b' has nothing to go on from \(set fresh: true\)"):
            program.run_segment(parse_segment(segment("b", fresh=False)))
        program.run_segment(parse_segment(segment("a")))
        with pytest.raises(UsageError, match="goes on with model '2nn' from 'mlp-20k'"):
            program.run_segment(parse_segment(segment("b", fresh=False, model="2nn")))
        with pytest.raises(UsageError, match="save_parameters needs STORMBED_OUT"):
            program.run_segment(parse_segment(segment("c", save_parameters=True)))
        with pytest.raises(UsageError, match="no model 'mlp'"):
            Training(group, "dc1", parse_segment(segment(model="mlp")))

    run_ranks(1, body)


def test_threads():
    assert threads({}) == 1 and threads({"OMP_NUM_THREADS": "2"}) == 2
    with pytest.raises(UsageError, match="OMP_NUM_THREADS is 'two'"):
        threads({"OMP_NUM_THREADS": "two"})


def test_a_script_needs_no_import_of_ours(tmp_path):
    """torch loads the entry point that the installed project has."""
    script = """if True:
        import torch.distributed as dist
        assert dist.is_backend_available("stormbed")
        try:
            dist.init_process_group("stormbed", init_method="stormbed://")
        except RuntimeError as error:
            print(error)
    """
    environment = {"PYTHONPATH": entry_point(tmp_path), "RANK": "0", "WORLD_SIZE": "1", "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.startswith("stormbed: the environment has no STORMBED_RUN_DIR (start workers"), done


def test_a_split_batch_trains_as_a_single_process_does_on_the_joint_one(tmp_path):
    compute = {"mean_s": 0.1, "sites": {"dc2": {"mean_s": 0.4}}}
    common = {"batch": 16, "momentum": 0.9, "lr": 0.1, "compute": compute, "save_parameters": True}
    segments = [
        segment("equal", iterations=2, **common),
        segment("split", iterations=8, batches="split", **common),
    ]
    traces = run_program(segments, 2, tmp_path)
    for label in ("equal", "split"):
        result = reference.compare(*load(tmp_path / f"parameters-{label}.npz"))
        assert result.within_tolerance and result.max_abs_difference < 1e-5 < result.moved, (label, result)
    one, two = ([r["batch"] for r in records] for records in traces)
    assert one[:3] == two[:3] == [16] * 3
    assert all(a + b == 32 for a, b in zip(one, two, strict=True)), "every sample counts, and once"
    # On an idle machine 16, 12, 9, 7, then about 32/5; a busy one takes longer to see who is slow.
    assert two[3:] == sorted(two[3:], reverse=True) or min(two) <= 9
    assert two[-1] <= 12


def test_buckets_under_way_during_the_backward_pass(tmp_path):
    """The same parameters as a single process; earlier layers in a higher class, each at its share of the time."""
    compute = {"mean_s": 0.3}
    given = segment(
        iterations=5, lr=0.1, momentum=0.9, overlap=True, bucket_cap_mb=0.0005, compute=compute, save_parameters=True
    )

    def body(rank, world):
        group = dist.group.WORLD
        client, records = group.client, []
        client.site, client.report = f"dc{rank + 1}", records.append
        program = Program(client, group, tmp_path)
        training = program._training_for(parse_segment(given))
        taken, take = [], group.take_records
        group.take_records = lambda: taken.append(take()) or taken[-1]
        program._training_for = lambda given: training
        program.run_segment(parse_segment(given))
        return client.classes, [[r.submitted_ns for r in t if r.dtype == "float32"] for t in taken[1:]], records

    for classes, submitted, records in run_ranks(2, body):
        last = len(submitted[-1])
        assert last > 1, "several buckets"
        # Full first is the end of the model, in class 0.
        assert classes[-last:] == list(range(last))
        for times, record in zip(submitted[1:], records[1:], strict=True):
            assert times == sorted(times)
            # The forward pass takes a third of the time; the first bucket is ready soon after, the last one last.
            assert times[0] - record["start_ns"] > 0.1e9
            assert times[-1] - record["start_ns"] > 0.3e9
            assert record["ready_ns"] == times[-1]
    result = reference.compare(*load(tmp_path / "parameters-a.npz"))
    assert result.within_tolerance and result.max_abs_difference < 1e-5 < result.moved, result
