"""What workers and the coordinator are told of an experiment, as plain values. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from testbed.emulation.rundir import TestbedInfo
from testbed.experiments.manifest import WorkerRow
from testbed.experiments.schema import Compute, Training
from testbed.experiments.spec import LoadedExperiment, Segment
from testbed.experiments.workers import cpu_padding

MIB = 1024 * 1024


def worker_module(experiment: LoadedExperiment) -> str:
    """The program of the workers: with torch where a model is trained, or where a library of torch's has a turn."""
    if not experiment.spec.training.numpy_only:
        return "agents.worker.train"
    return "agents.worker.tensors" if experiment.libraries else "agents.numpy_worker"


def worker_environment(testbed: TestbedInfo, row: WorkerRow) -> dict[str, str]:
    """What every worker finds in its environment beside what its job needs."""
    return {
        **cpu_padding(testbed, row.site),
        "STORMBED_RUN_DIR": str(testbed.run_dir),
        "STORMBED_SITE": row.site,
        # Workers of many sites share few cores: more threads only fight for them.
        "OMP_NUM_THREADS": "1",
    }


def job_message(name: str, sites: Mapping[str, int], training: Training) -> dict[str, Any]:
    """What opens a job with so many workers at each of these sites."""
    return {
        "job": name,
        "sites": dict(sites),
        "chunk_elements": training.chunk_elements,
        "deadline_s": training.deadline_s,
    }


def segment_message(experiment: LoadedExperiment, segment: Segment) -> dict[str, Any]:
    """What the coordinator and all workers are told of a segment."""
    training = experiment.spec.training
    return {
        "label": segment.label,
        "scheduler": segment.scheduler,
        "iterations": segment.iterations,
        "model": training.model,
        "elements": segment.elements,
        "data": experiment.data,
        "batch": training.batch,
        "batches": segment.batches,
        "lr": training.lr,
        "optimizer": training.optimizer,
        "momentum": training.momentum,
        "compute": compute_message(training.compute),
        "seed": segment.seed,
        "eval_every": training.eval_every,
        "save_parameters": training.save_parameters,
        "timeout_s": training.deadline_s,
        "overlap": segment.overlap,
        "bucket_cap_mb": training.bucket_bytes / MIB if segment.overlap else None,
        "awareness": segment.awareness.model_dump(),
        "auxiliary": segment.auxiliary.model_dump(),
        "policy": segment.policy.model_dump(),
    }


def compute_message(compute: Compute) -> str | dict[str, Any]:
    """A declared compute time as the workers read it: seconds, every site's own mean spelt out."""
    if compute.mean is None:
        return "real"
    sites = {site: {"mean_s": mean.seconds, "cv": compute.cv} for site, mean in compute.sites.items()}
    return {"mean_s": compute.mean.seconds, "cv": compute.cv, "sites": sites}
