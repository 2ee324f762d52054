"""What the runner tells of every shipped experiment is understood by whoever it is told to."""

from __future__ import annotations

from pathlib import Path

import pytest

from agents.job_spec import JobSpec, segment_options
from agents.numpy_worker import parse_segment as numpy_segment
from agents.options import AuxiliaryOptions, AwarenessOptions, PolicyOptions
from agents.worker.segment import parse_segment as torch_segment
from testbed.experiments.spec import open_experiment
from testbed.experiments.told import compute_message, job_message, segment_message, worker_module

LIBRARY = Path(__file__).parents[3] / "testbed/experiments/library"
DEFAULT = (AwarenessOptions(), AuxiliaryOptions(), PolicyOptions())


@pytest.mark.parametrize("name", sorted(file.stem for file in LIBRARY.glob("*.yaml")))
def test_jobs_and_segments_are_understood(name: str) -> None:
    experiment = open_experiment(name)
    training = experiment.spec.training
    sites = {name: site.workers for name, site in experiment.topology.sites.items()}
    job = JobSpec.read(job_message("job", sites, training))
    assert (job.sites, job.chunk_elements, job.deadline_s) == (sites, training.chunk_elements, training.deadline_s)
    for segment in experiment.segments:
        message = segment_message(experiment, segment)
        assert segment_options(message, DEFAULT) == (segment.awareness, segment.auxiliary, segment.policy)
        if worker_module(experiment) == "agents.worker.train":
            told = torch_segment(message)
            assert (told.model, told.batch, told.lr, told.overlap) == (
                *(training.model, training.batch, training.lr),
                segment.overlap,
            )
        else:
            told = numpy_segment(message)  # type: ignore[assignment]
            assert told.elements == segment.elements  # type: ignore[attr-defined]
        assert (told.label, told.iterations, told.seed) == (segment.label, segment.iterations, segment.seed)
        assert (told.compute == "real") == training.compute.real


def test_a_declared_time_is_told_in_seconds_and_real_as_real() -> None:
    compute = {"mean": "20ms", "cv": 0.5, "sites": {"dc2": "1s"}}
    training = open_experiment("quickstart", {"training": {"compute": compute, "model": "tensor-1000"}}).spec.training
    assert compute_message(training.compute) == {
        "mean_s": 0.02,
        "cv": 0.5,
        "sites": {"dc2": {"mean_s": 1.0, "cv": 0.5}},
    }
