"""A worker without a training framework: `python -m agents.numpy_worker`.

It serves segments as `Segment` describes them. Each iteration all-reduces arrays whose values follow from
rank, iteration and seed, and compares the results with what must come out, bit by bit. Values are small
integers, so that sums are exact in every element type.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, Final, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from agents.compute import Compute, Pass, cpu_share
from agents.local import LocalClient
from agents.planning.registry import library_of
from topologies.errors import RunFailedError, StormbedError, UsageError
from topologies.validation import validated

PERIOD: Final = 251  # prime, so that a shifted or swapped chunk does not look right
SPREAD: Final = 7


def contribution(rank: int, iteration: int, seed: int, out: npt.NDArray[Any]) -> None:
    """Fill `out`: element i becomes (p + rank) mod 7 with p = (i + iteration + seed) mod 251.

    Everything is below 7, so even 8-bit sums of 21 ranks are exact.
    """
    _repeat((np.arange(PERIOD) + rank) % SPREAD, iteration + seed, out)


def expected(world: int, iteration: int, seed: int, out: npt.NDArray[Any]) -> None:
    """Fill `out` with the sum of all ranks' contributions."""
    row = sum((np.arange(PERIOD) + rank) % SPREAD for rank in range(world))
    _repeat(np.asarray(row), iteration + seed, out)


def _repeat(row: npt.NDArray[Any], start: int, out: npt.NDArray[Any]) -> None:
    """Element i of `out` becomes row[(i + start) mod its length]."""
    row = np.roll(row, -start).astype(out.dtype)
    whole = len(out) // len(row) * len(row)
    out[:whole].reshape(-1, len(row))[...] = row
    out[whole:] = row[: len(out) - whole]


class Mismatch(RunFailedError):
    """A result is not the sum of all contributions."""


def check(result: npt.NDArray[Any], wanted: npt.NDArray[Any], iteration: int) -> None:
    """Mismatch naming the first wrong element."""
    wrong = np.flatnonzero(result != wanted)
    if len(wrong):
        first = int(wrong[0])
        raise Mismatch(
            f"iteration {iteration}: {len(wrong)} of {len(result)} elements are wrong, the first at {first}: "
            f"{result[first]} instead of {wanted[first]}"
        )


class Segment(BaseModel):
    """What a worker is told. Fields that concern others are ignored.

    Attributes:
        elements: of the array, or of each of several that are all-reduced at once.
        compute: a declared time between start and ready of an iteration; `real` takes none.
        check: compare every result with what must come out.
        timeout_s: the longest that one collective of a library of torch's may take; the agents have the job's.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    label: str
    iterations: Annotated[int, Field(ge=1)]
    elements: Annotated[int, Field(ge=0)] | list[Annotated[int, Field(ge=0)]]
    dtype: str = "float32"
    scheduler: str | dict[str, Any] = ""
    seed: Annotated[int, Field(ge=0)] = 0
    compute: Literal["real"] | Compute = "real"
    check: bool = True
    timeout_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1800.0

    @property
    def scheduler_name(self) -> str:
        return self.scheduler if isinstance(self.scheduler, str) else str(self.scheduler.get("name", ""))


def parse_segment(fields: dict[str, Any]) -> Segment:
    """Checks what a worker was told. Raises UsageError naming the field."""
    segment = validated(Segment, fields, f"segment {fields.get('label', '?')!r}")
    try:
        np.dtype(segment.dtype)
    except TypeError:
        raise UsageError(f"segment {segment.label!r}: there is no element type {segment.dtype!r}") from None
    return segment


def over_agents(client: LocalClient, gradients: Sequence[npt.NDArray[Any]]) -> None:
    """Each array becomes its sum over all ranks."""
    for handle in [client.allreduce(gradient) for gradient in gradients]:
        handle.wait()


Reduce = Callable[[Sequence[npt.NDArray[Any]]], None]
"""Replaces each array by its sum over all ranks."""


def run_segment(client: LocalClient, segment: Segment, reduce: Reduce | None = None) -> None:
    """One segment, with a record an iteration; `reduce` sums instead of the agents."""
    summed = partial(over_agents, client) if reduce is None else reduce
    sizes = segment.elements if isinstance(segment.elements, list) else [segment.elements]
    gradients = [client.empty(size, segment.dtype) for size in sizes]
    wanted = [np.empty(size, segment.dtype) for size in sizes] if segment.check else []
    computing = threading.Event()
    one_pass = Pass(segment.compute, client.site, cpu_share())
    for iteration in range(segment.iterations):
        start_ns = time.monotonic_ns()
        one_pass.begin(segment.seed, client.rank, iteration)
        for number, gradient in enumerate(gradients):
            contribution(client.rank, iteration, segment.seed + number, gradient)
        # Waits out what is left of the time that a model would compute.
        computing.wait(one_pass.left_s())
        ready_ns = time.monotonic_ns()
        summed(gradients)
        done_ns = time.monotonic_ns()
        for number, (gradient, right) in enumerate(zip(gradients, wanted, strict=False)):
            expected(client.world_size, iteration, segment.seed + number, right)
            check(gradient, right, iteration)
        client.report(
            {
                "segment": segment.label,
                "scheduler": segment.scheduler_name,
                "iteration": iteration,
                "start_ns": start_ns,
                "ready_ns": ready_ns,
                "done_ns": done_ns,
                "end_ns": time.monotonic_ns(),
                "loss": None,
            }
        )


def agents_only(client: LocalClient, segment: Segment) -> Reduce | None:
    """The agents sum every segment; one that names a library of torch's is refused."""
    if library := library_of(segment.scheduler) if segment.scheduler else "":
        raise UsageError(f"segment {segment.label!r}: {library} needs workers that have torch")
    return None


def serve(choose: Callable[[LocalClient, Segment], Reduce | None] = agents_only) -> int:
    """Serve segments until there are no more; the exit status tells how it went.

    `choose` is asked for each segment what sums its arrays, None for the agents.
    """
    try:
        client = LocalClient.from_env()
    except StormbedError as error:
        sys.stderr.write(f"numpy worker: {error}\n")
        return error.exit_code
    try:
        while (fields := client.next_segment()) is not None:
            segment = parse_segment(fields)
            run_segment(client, segment, choose(client, segment))
    except StormbedError as error:
        client.abort(str(error))
        sys.stderr.write(f"numpy worker {client.rank} (pid {os.getpid()}): {error}\n")
        return error.exit_code
    except Exception as error:
        client.abort(f"{type(error).__name__}: {error}")
        raise
    client.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(serve())
