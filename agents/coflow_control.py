"""The runner's connection to a coflow coordinator, and the coordinator as a child process of the runner."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from agents.coflow.base import Loads
from agents.coflow.coordinator import CoflowTime, JobNeeds
from agents.coflow.levels import Enforcement
from agents.coflow.registry import OrderingSpec
from agents.control import ControlClient
from topologies.errors import RunFailedError

END_SECONDS = 5.0


class CoflowClient(ControlClient):
    """Sets the policy, registers stages, and collects what coflows took. Thread-safe, one call at a time."""

    name = "coflow coordinator"

    def policy(self, ordering: OrderingSpec, enforcement: Enforcement) -> None:
        """From now on this ordering. CoflowError, UsageError for one that does not exist."""
        spec = ordering if isinstance(ordering, str) else dict(ordering)
        self._call("policy", ordering=spec, enforcement=enforcement)

    def stage(
        self, name: str, jobs: Sequence[JobNeeds], ahead: Loads | None = None, ahead_alone: float = 0.0
    ) -> None:
        """A stage begins now."""
        plain = [
            {
                "name": job.name,
                "iterations": job.iterations,
                "loads": [[link, seconds] for link, seconds in job.loads.items()],
                "size": job.size,
                "sites": job.sites,
                "compute": job.compute,
            }
            for job in jobs
        ]
        later = [[link, seconds] for link, seconds in (ahead or {}).items()]
        self._call("stage", name=name, jobs=plain, ahead=later, ahead_alone=ahead_alone)

    def job_ended(self, job: str) -> None:
        """A job has done its iterations, or was killed."""
        self._call("job_ended", job=job)

    def status(self) -> dict[str, Any]:
        """{"schema", "ordering", "stages", "map", "agents"}"""
        result: dict[str, Any] = self._call("status")
        return result

    def coflows(self) -> list[CoflowTime]:
        """Those completed since the last call."""
        return [CoflowTime(*row) for row in self._call("coflows")]


class CoflowProcess:
    """A coflow coordinator of this run's own. It ends with the process that made it, however that one ends.

    Args:
        host: the address that agents reach it at.
        sites: number of sites of the testbed.
        log: where it writes.

    Raises:
        RunFailedError: it did not start; in its own words.
    """

    def __init__(self, host: str, sites: int, log: Path) -> None:
        with log.open("ab") as stderr:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "agents.coflow_service", "--listen", host, "--sites", str(sites)),
                    "--until-stdin-closes",
                ],
                # Nothing is written to it: the kernel closes it when this process is gone, killed or not.
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                encoding="utf-8",
            )
        try:
            self.address = host, self._read_port(log)
        except BaseException:  # also Ctrl-C, after which nobody would know of the process
            self.end()
            raise

    def _read_port(self, log: Path) -> int:
        assert self._process.stdout is not None
        # Ends with the process, so this waits no longer than it lives.
        line = self._process.stdout.readline().strip()
        if not line.isdigit():
            self._process.wait(END_SECONDS)
            said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
            raise RunFailedError(f"the coflow coordinator did not start: {said[0] if said else 'it said nothing'}")
        return int(line)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def client(self) -> CoflowClient:
        return CoflowClient(*self.address)

    def end(self) -> None:
        """End it; may be called again."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.end()
