"""Workers of hyper-parameter searches: one process a site holds a worker of every trial that trains there.

A trial is a job of its own, with its own connections to the agent and its own collectives; only the process is
shared, because starting Python or torch once a trial would cost more than the trials. Each job has a thread that
trains data-parallel: its part of the gradient, one all-reduce of all of it, one step. That all-reduce is the
trial's coflow.

What trains is a `Trainer`: `agents.numpy_trainer` or `agents.worker.trials` (torch).
"""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Protocol

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from agents.compute import Compute, Pass, cpu_share
from agents.data import Batches, Dataset, load_dataset
from agents.local import LocalClient
from agents.npz import read_arrays
from topologies.errors import StormbedError, UsageError
from topologies.validation import validated

Vector = npt.NDArray[np.float32]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]

JOBS_VARIABLE: Final = "STORMBED_JOBS"
DATA_VARIABLE: Final = "STORMBED_DATA"
JOIN_SECONDS: Final = 180.0


class TrialSegment(BaseModel):
    """One trial's part of one stage.

    Attributes:
        label: names it in the trace.
        iterations: to the stage's boundary; `start` are behind it.
        layers: widths of a perceptron's layers, inputs and classes included; empty for other models.
        model, data, batch, lr, momentum, optimizer: as in an experiment file.
        seed: of the first weights, the order of the data and the compute times.
        fresh: from the first weights; else from this trial's own state, or that in the file `load`.
        save: where rank 0 keeps the state at the end.
        compute: a declared time that each iteration's own computing is padded to.
        timeout_s: the longest that one collective may take.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    label: str
    iterations: Annotated[int, Field(ge=1)]
    start: Annotated[int, Field(ge=0)] = 0
    layers: tuple[Annotated[int, Field(ge=1)], ...] = ()
    model: str
    data: str = "digits"
    batch: Annotated[int, Field(ge=1)] = 32
    lr: Positive = 0.05
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    optimizer: Literal["sgd", "adam"] = "sgd"
    seed: Annotated[int, Field(ge=0)] = 0
    fresh: bool = True
    load: str | None = None
    save: str | None = None
    compute: Literal["real"] | Compute = "real"
    timeout_s: Positive = 300.0

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> TrialSegment:
        """Raises UsageError naming the field."""
        return validated(cls, given, f"segment {given.get('label', '?')!r}")


class Trainer(Protocol):
    """A model in training, on one worker. Every worker of a trial makes the same steps."""

    @property
    def size(self) -> int:
        """Elements of its gradient."""
        ...

    def gradient(self, images: Any, labels: Any, out: Vector) -> float:
        """Write the gradient of the mean loss of a batch into `out`; the loss."""
        ...

    def step(self, gradient: Vector, segment: TrialSegment) -> None:
        """Follow the mean gradient of all workers."""
        ...

    def loss(self, images: Any, labels: Any) -> float:
        """Mean cross-entropy, for the score."""
        ...

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """All that a copy needs to go on from here."""
        ...

    def load(self, state: Mapping[str, npt.NDArray[Any]]) -> None: ...


MakeTrainer = Callable[[TrialSegment], Trainer]


class Datasets:
    """Each data set once for all trials of the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loaded: dict[tuple[str, int], Dataset] = {}

    def get(self, source: str, seed: int) -> Dataset:
        key = source, seed if source == "synthetic" else 0
        with self._lock:
            if key not in self._loaded:
                self._loaded[key] = load_dataset(source, seed)
            return self._loaded[key]


class TrialWorker:
    """One worker of one trial: segments in, records out.

    Args:
        client: joined to the trial's job.
        make_trainer: makes a fresh one.
        datasets: shared by the process.
    """

    def __init__(self, client: LocalClient, make_trainer: MakeTrainer, datasets: Datasets) -> None:
        self._client = client
        self._make_trainer = make_trainer
        self._datasets = datasets
        self._trainer: Trainer | None = None
        self._buffer: Vector = np.empty(0, np.float32)
        self._pause = threading.Event()

    def run(self) -> None:
        """Until the job is over."""
        while (fields := self._client.next_segment()) is not None:
            self.run_segment(TrialSegment.parse(fields))

    def run_segment(self, segment: TrialSegment) -> None:
        trainer = self._trainer_for(segment)
        dataset = self._datasets.get(segment.data, segment.seed)
        batches = Batches(dataset, segment.batch, self._client.world_size, segment.seed)
        if len(self._buffer) != trainer.size:
            self._buffer = self._client.empty(trainer.size, np.float32)
        for number in range(segment.start, segment.start + segment.iterations):
            record = self._iterate(segment, trainer, batches, number)
            if number == segment.start + segment.iterations - 1 and self._client.rank == 0:
                self._finish(segment, trainer, dataset, record)
            self._client.report(record)

    def _trainer_for(self, segment: TrialSegment) -> Trainer:
        if segment.fresh or self._trainer is None or segment.load is not None:
            if not segment.fresh and segment.load is None:
                raise UsageError(f"segment {segment.label!r} has no state to go on from")
            self._trainer = self._make_trainer(segment)
            if segment.load is not None:
                self._trainer.load(read_arrays(Path(segment.load)))
        return self._trainer

    def _iterate(
        self, segment: TrialSegment, trainer: Trainer, batches: Batches, number: int
    ) -> dict[str, Any]:
        client, start_ns = self._client, time.monotonic_ns()
        one_pass = Pass(segment.compute, client.site, cpu_share())
        one_pass.begin(segment.seed, client.rank, number)
        loss = trainer.gradient(*batches.of(number, client.rank), self._buffer)
        computed_ns = time.monotonic_ns()
        self._pause.wait(one_pass.left_s())
        ready_ns = time.monotonic_ns()
        client.allreduce(self._buffer).wait()
        done_ns = time.monotonic_ns()
        self._buffer /= client.world_size
        trainer.step(self._buffer, segment)
        return {
            "segment": segment.label,
            "iteration": number,
            "start_ns": start_ns,
            "computed_ns": computed_ns - start_ns,
            "ready_ns": ready_ns,
            "done_ns": done_ns,
            "end_ns": time.monotonic_ns(),
            "loss": loss if math.isfinite(loss) else None,
        }

    def _finish(
        self, segment: TrialSegment, trainer: Trainer, dataset: Dataset, record: dict[str, Any]
    ) -> None:
        """The trial's score: the loss on the test data. None where training has diverged."""
        score = trainer.loss(dataset.test_x, dataset.test_y)
        record["score"] = score if math.isfinite(score) else None
        if segment.save is not None:
            partial = Path(f"{segment.save}.partial")
            with partial.open("wb") as file:
                np.savez(file, **trainer.state())  # type: ignore[arg-type]
            partial.replace(segment.save)


def serve(make_trainer: MakeTrainer, name: str) -> int:
    """Serve every job of the environment, each in a thread, until all are over; the exit status.

    STORMBED_JOBS is a list of [job, worker's index, directory of its trace] in JSON. The data set that
    STORMBED_DATA names is loaded before any of them is joined, so that no stage counts that time.
    """
    try:
        run_dir, site = os.environ["STORMBED_RUN_DIR"], os.environ["STORMBED_SITE"]
        jobs = [(str(job), int(index), Path(out)) for job, index, out in json.loads(os.environ[JOBS_VARIABLE])]
    except (KeyError, ValueError, TypeError) as error:
        sys.stderr.write(f"{name}: not started through the testbed: {error!r}\n")
        return UsageError.exit_code
    datasets, failures = Datasets(), []
    over = threading.Event()
    if source := os.environ.get(DATA_VARIABLE):
        try:
            datasets.get(source, 0)
        except StormbedError as error:
            sys.stderr.write(f"{name}: {error}\n")
            return error.exit_code

    def work(job: str, index: int, out: Path) -> None:
        try:
            out.mkdir(parents=True, exist_ok=True)
            with LocalClient.connect(run_dir, site, job, index, JOIN_SECONDS, out=out) as client:
                TrialWorker(client, make_trainer, datasets).run()
        except StormbedError as error:
            failures.append((error.exit_code, f"{job} at {site}: {error}"))
            over.set()
        except Exception as error:
            failures.append((1, f"{job} at {site}: {type(error).__name__}: {error}"))
            over.set()

    threads = [threading.Thread(target=work, args=job, daemon=True, name=job[0]) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive() and not over.is_set():
            thread.join(0.2)
    for _, said in failures:
        sys.stderr.write(f"{name}: {said}\n")
    return failures[0][0] if failures else 0
