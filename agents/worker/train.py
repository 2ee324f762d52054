"""The training program of experiments: `python -m agents.worker.train`, started once per worker.

It joins its job through the agent of its site, and then runs one segment after the other until the job is
over: starting torch costs more than most segments. Each iteration becomes a record in trace.jsonl.

The environment says who it is (STORMBED_RUN_DIR, STORMBED_SITE, STORMBED_JOB, STORMBED_WORKER) and where its
files go (STORMBED_OUT). It computes on one thread unless OMP_NUM_THREADS says otherwise, because the workers
of all sites share one machine.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # DDP loads it when it is first made, for over a second: better before joining
import torch.distributed as dist

from agents.local import GRACE_SECONDS, LocalClient
from agents.worker.backend import Options
from agents.worker.gloo import Gloo, explain, meeting
from agents.worker.parameters import digest, save
from agents.worker.process_group import BACKEND, StormbedProcessGroup
from agents.worker.segment import Segment, parse_segment
from agents.worker.training import Iteration, Training
from topologies.errors import RunFailedError, StormbedError, UsageError


class Program:
    """One worker's life: segments in, records out.

    Args:
        client: joined to the job.
        group: all workers of the job, over that client.
        out: where saved parameters go; None refuses segments that want them saved.
        gloo: for segments that name it; None refuses them.
    """

    def __init__(
        self, client: LocalClient, group: StormbedProcessGroup, out: Path | None, gloo: Gloo | None = None
    ) -> None:
        self._gloo = gloo
        self._client = client
        self._group = group
        self._out = out
        self._training: Training | None = None

    def run(self) -> None:
        """Until the job is over."""
        while (given := self._client.next_segment()) is not None:
            self.run_segment(parse_segment(given))

    def run_segment(self, segment: Segment) -> None:
        training = self._training_for(segment)
        # The agents end a collective at its deadline and name who was missing; this is for when they cannot.
        self._group.set_timeout(timedelta(seconds=segment.timeout_s + GRACE_SECONDS))
        for iteration in training.run(segment):
            record = record_of(segment, iteration)
            if iteration.number == segment.iterations - 1:
                parameters = training.parameters()
                record["parameters_sha256"] = digest(parameters)
                if segment.save_parameters and self._group.rank() == 0:
                    save(self._file(segment), parameters, training.history, self._group.size())
            self._client.report(record)

    def _training_for(self, segment: Segment) -> Training:
        previous = self._training
        if segment.fresh or previous is None:
            if not segment.fresh:
                raise UsageError(
                    f"segment {segment.label!r} has nothing to go on from", hint="set fresh: true"
                )
            same_data = previous is not None and previous.first.data_key == segment.data_key
            dataset = previous.dataset if previous is not None and same_data else None
            self._training = Training(self._group, self._client.site, segment, dataset, self._gloo)
        assert self._training is not None
        return self._training

    def _file(self, segment: Segment) -> Path:
        if self._out is None:
            raise UsageError(f"segment {segment.label!r}: save_parameters needs STORMBED_OUT")
        safe = "".join(c if c.isalnum() or c in "-_." else "-" for c in segment.label)
        return self._out / f"parameters-{safe}.npz"


def record_of(segment: Segment, iteration: Iteration) -> dict[str, Any]:
    """An iteration as a line of trace.jsonl."""
    record: dict[str, Any] = {
        "segment": segment.label,
        "scheduler": segment.scheduler_name,
        "iteration": iteration.number,
        "start_ns": iteration.start_ns,
        "ready_ns": iteration.ready_ns,
        "done_ns": iteration.done_ns,
        "end_ns": iteration.end_ns,
        "computed_ns": iteration.computed_ns,
        "loss": iteration.loss,
        "batch": iteration.batch,
    }
    if iteration.accuracy is not None:
        record["accuracy"] = iteration.accuracy
    return record


def threads(environment: dict[str, str]) -> int:
    """How many threads to compute on. Raises UsageError."""
    given = environment.get("OMP_NUM_THREADS", "1")
    if not given.isdigit() or given == "0":
        raise UsageError(f"OMP_NUM_THREADS is {given!r}", hint="a whole number from 1")
    return int(given)


def train() -> None:
    """Joins, trains, leaves. An error stops the whole job, so that no other worker waits for this one."""
    torch.set_num_threads(threads(dict(os.environ)))
    out = os.environ.get("STORMBED_OUT")
    with LocalClient.from_env() as client:
        store = meeting(os.environ, client.rank, client.world_size)
        gloo = Gloo(client.rank, client.world_size, store)
        dist.init_process_group(
            BACKEND,
            store=store,
            rank=client.rank,
            world_size=client.world_size,
            pg_options=Options(client),
        )
        group = dist.group.WORLD
        assert isinstance(group, StormbedProcessGroup)
        try:
            Program(client, group, Path(out) if out else None, gloo).run()
        except RuntimeError as error:
            # From DDP the cause comes wrapped in the stack of a callback in C++.
            if group.failure is not None:
                raise RunFailedError(str(group.failure)) from error
            if gloo.used:
                raise explain(error) from error
            raise
        finally:
            dist.destroy_process_group()


def main() -> int:
    try:
        train()
    except StormbedError as error:
        sys.stderr.write(f"stormbed train: {error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    status = main()
    # All is written and the job left. Taking torch's libraries apart costs each worker most of a second of a
    # core, which all of them want at once.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
