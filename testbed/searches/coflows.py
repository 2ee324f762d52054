"""The runner's side of a run's coflow coordinator, which may die without the run doing so."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Self

from agents.coflow.base import Loads
from agents.coflow.coordinator import CoflowTime, JobNeeds
from agents.coflow.levels import Enforcement
from agents.coflow.registry import OrderingSpec
from agents.coflow_control import CoflowClient, CoflowProcess
from topologies.errors import DeadlineError, RunFailedError, StormbedError


class Coflows:
    """Starts a coordinator for the first policy, and another one for the next policy where it has ended.

    While it is gone the agents keep its last map, so stages and jobs go on; what it measured of the turn is lost,
    which is noted. Thread-safe.

    Args:
        start: starts a coordinator.
        follow: lets the agents follow one, or none.
        note: told what qualifies the numbers.
    """

    def __init__(
        self,
        start: Callable[[], CoflowProcess],
        follow: Callable[[tuple[str, int] | None], None],
        note: Callable[[str], None],
    ) -> None:
        self._start, self._follow, self._note = start, follow, note
        self._process: CoflowProcess | None = None
        self._client: CoflowClient | None = None
        self._lock = threading.Lock()
        self._turn = ""

    def policy(self, turn: str, ordering: OrderingSpec, enforcement: Enforcement) -> None:
        """From now on this ordering."""
        self._turn = turn
        if self._process is None or self._process.ended or self._client is None:
            self.close()
            self._process = self._start()
            self._client = self._process.client()
            self._follow(self._process.address)
        self._client.policy(ordering, enforcement)

    def stage(self, name: str, jobs: Sequence[JobNeeds], ahead: Loads, ahead_alone: float) -> None:
        self._try(lambda client: client.stage(name, jobs, ahead, ahead_alone))

    def job_ended(self, job: str) -> None:
        self._try(lambda client: client.job_ended(job))

    def coflows(self) -> list[CoflowTime]:
        """Those completed since the last call, as far as known."""
        found: list[CoflowTime] = self._try(lambda client: client.coflows()) or []
        return found

    def _try(self, work: Callable[[CoflowClient], Any]) -> Any:
        client = self._client
        if client is None:
            return None
        try:
            return work(client)
        except (RunFailedError, DeadlineError):
            with self._lock:
                if self._client is client:
                    self._client = None
                    client.close()
                    self._note(f"the coflow coordinator ended during {self._turn}; its last map stayed in force")
            return None

    def close(self) -> None:
        """End the coordinator; the agents go back to no order."""
        if self._client is not None:
            self._client.close()
            self._client = None
        if self._process is not None:
            self._process.end()
            self._process = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        try:
            self._follow(None)
        except StormbedError:
            pass  # the jobs' own coordinator is gone, and with it the order
        finally:
            self.close()
