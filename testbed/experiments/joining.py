"""Waiting for the workers of a run to join their jobs, which takes as long as they load what they need."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection

from agents.control import CoordinatorClient
from topologies.errors import DeadlineError, RunFailedError

JOIN_POLL_S = 0.25
# Loading torch costs each worker a few seconds of a core that it shares with all others.
JOIN_DEADLINE_S = 180.0


def await_joined(
    coordinator: CoordinatorClient,
    jobs: Collection[str],
    wanted: int,
    *,
    check: Callable[[], None],
    say: Callable[[str], None],
    of: str = "",
    deadline_s: float = JOIN_DEADLINE_S,
) -> None:
    """Wait until all workers have joined: no segment counts that time.

    Args:
        jobs: that they join, by name.
        wanted: how many workers these have together.
        check: raises when there is no use in waiting any longer.
        say: told how many have joined, whenever that changes.
        of: what the workers are of, as said after "workers".

    Raises:
        RunFailedError: a job has stopped or is gone; named, with its cause.
        DeadlineError: they did not all come.
    """
    deadline, pause = time.monotonic() + deadline_s, threading.Event()
    told = -1
    while True:
        check()
        found = {job["job"]: job for job in coordinator.status()["jobs"]}
        for name in jobs:
            failure = found[name]["failure"] if name in found else "the coordinator has it no more"
            if failure is not None:
                raise RunFailedError(f"job {name} stopped before it began: {failure}")
        joined = sum(int(found[name]["joined"]) for name in jobs)
        if joined != told:
            told = joined
            say(f"{joined} of {wanted} workers{of} have joined")
        if joined == wanted:
            return
        if time.monotonic() > deadline:
            raise DeadlineError(f"{wanted - joined} of {wanted} workers to join", deadline_s)
        pause.wait(JOIN_POLL_S)
