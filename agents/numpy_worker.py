"""A worker without a training framework: `python -m agents.numpy_worker`.

It serves segments whose fields are {"label", "scheduler", "iterations", "elements", "dtype", "seed",
"compute_s", "check"}. Each iteration all-reduces an array whose values follow from rank, iteration and seed,
and compares the result with what must come out, bit by bit. Values are small integers, so that sums are exact
in every element type.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from agents.local import LocalClient
from topologies.errors import RunFailedError, StormbedError

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


def run_segment(client: LocalClient, fields: Mapping[str, Any]) -> None:
    """One segment, with a record an iteration."""
    elements, seed = int(fields["elements"]), int(fields.get("seed", 0))
    dtype = np.dtype(fields.get("dtype", "float32"))
    compute_s = float(fields.get("compute_s", 0.0))
    gradient = client.empty(elements, dtype)
    wanted = np.empty(elements, dtype)
    computing = threading.Event()
    for iteration in range(int(fields["iterations"])):
        start_ns = time.monotonic_ns()
        contribution(client.rank, iteration, seed, gradient)
        if compute_s:
            computing.wait(compute_s)  # stands for the time that a model would compute
        ready_ns = time.monotonic_ns()
        client.allreduce(gradient).wait()
        done_ns = time.monotonic_ns()
        if fields.get("check", True):
            expected(client.world_size, iteration, seed, wanted)
            check(gradient, wanted, iteration)
        client.report(
            {
                "segment": fields.get("label"),
                "scheduler": fields.get("scheduler_name", fields.get("scheduler")),
                "iteration": iteration,
                "start_ns": start_ns,
                "ready_ns": ready_ns,
                "done_ns": done_ns,
                "end_ns": time.monotonic_ns(),
                "loss": None,
            }
        )


def main() -> int:
    """Serve segments until there are no more; the exit status tells how it went."""
    try:
        client = LocalClient.from_env()
    except StormbedError as error:
        sys.stderr.write(f"numpy worker: {error}\n")
        return error.exit_code
    try:
        while (fields := client.next_segment()) is not None:
            run_segment(client, fields)
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
    raise SystemExit(main())
