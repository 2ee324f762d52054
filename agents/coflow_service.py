"""The coflow coordinator as a process: `python -m agents.coflow_service --listen HOST --sites N`.

A thin executor of `agents.coflow.coordinator`: agents and one runner connect, their frames go into the
machine, its maps go to all agents. It prints the port that it listens on as its first line.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from agents.coflow.base import CoflowError
from agents.coflow.coordinator import CoflowMachine, JobNeeds
from agents.coflow.levels import ENFORCEMENTS, LevelMap
from agents.coflow.registry import get_ordering
from agents.control_server import ControlServer, Verb
from agents.daemon import run_daemon
from agents.streams import FrameStream
from agents.wire import ProtocolError
from topologies.errors import UsageError


class CoflowService:
    """Create and use it on a running asyncio loop.

    Args:
        host, port: where to listen; port 0 takes a free one.
        sites: how many sites there are.
        announce: told the port.
    """

    def __init__(self, host: str, port: int, sites: int, announce: Callable[[int], None]) -> None:
        verbs: dict[str, Verb] = {
            "policy": self._policy,
            "stage": self._stage,
            "job_ended": self._job_ended,
            "coflows": self._coflows,
            "status": self._status,
        }
        self._door = ControlServer(self, "coflow coordinator", sites, verbs)
        self.machine = CoflowMachine(get_ordering("fair"), "both")
        self._host, self._port = host, port
        self._announce = announce
        self._timer: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        self._announce(await self._door.start([self._host], self._port))

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._door.close()

    # ---- agents (control_server.Owner)

    def refuses(self, site: int, body: Mapping[str, Any]) -> str | None:
        return None  # one that connects again may come before its last connection is known to be dead

    def agent_came(self, site: int, stream: FrameStream, body: Mapping[str, Any]) -> None:
        stream.send("map", self.machine.map.to_dict())

    def agent_gone(self, site: int, stream: FrameStream, reason: str) -> None:
        pass  # what it was to send may come from its next connection

    def runner_gone(self, stream: FrameStream, reason: str) -> None:
        pass  # this process ends with it

    def agent_said(self, site: int, kind: str, body: dict[str, Any]) -> None:
        machine = self.machine
        job, seq, now = str(body["job"]), int(body["seq"]), int(body["at_ns"]) / 1e9
        if kind == "ready":
            fresh = machine.ready(now, job, site, seq)
        elif kind == "sent":
            fresh = machine.sent(now, job, site, seq, float(body["nbytes"]))
        elif kind == "done":
            wait, chunks = float(body.get("wait_s", 0.0)), int(body.get("chunks", 0))
            fresh = machine.done(now, job, site, seq, wait, chunks)
        else:
            raise ProtocolError(f"unknown frame {kind!r}")
        self._publish(fresh)

    def _publish(self, fresh: LevelMap | None) -> None:
        if fresh is not None:
            for stream in self._door.agents.values():
                stream.send("map", fresh.to_dict())
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.machine.deadline is not None:
            wait = max(0.0, self.machine.deadline - time.monotonic())
            self._timer = asyncio.get_running_loop().call_later(wait, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._publish(self.machine.tick(time.monotonic()))

    # ---- the runner

    def _policy(self, runner: FrameStream, ordering: Any, enforcement: str) -> None:
        if enforcement not in ENFORCEMENTS:
            raise UsageError(f"enforcement {enforcement!r}", hint=f"one of {', '.join(ENFORCEMENTS)}")
        if self.machine.stages:
            raise CoflowError(f"stage {self.machine.stages[0]} is under way", hint="policies change between turns")
        version = self.machine.map.version + 1
        self.machine = CoflowMachine(get_ordering(ordering), enforcement, version)
        self._publish(self.machine.map)

    def _stage(
        self,
        runner: FrameStream,
        name: str,
        jobs: list[dict[str, Any]],
        ahead: list[Any] | None = None,
        ahead_alone: float = 0.0,
    ) -> None:
        needs = [
            JobNeeds(
                str(job["name"]),
                int(job["iterations"]),
                {int(link): float(seconds) for link, seconds in job["loads"]},
                float(job["size"]),
                int(job["sites"]),
                float(job.get("compute", 0.0)),
            )
            for job in jobs
        ]
        later = {int(link): float(seconds) for link, seconds in ahead or ()}
        self._publish(self.machine.stage(time.monotonic(), name, needs, later, float(ahead_alone)))

    def _job_ended(self, runner: FrameStream, job: str) -> None:
        self._publish(self.machine.job_ended(time.monotonic(), job))

    def _coflows(self, runner: FrameStream) -> list[list[Any]]:
        return [[c.job, c.seq, c.arrival, c.finish, c.gate_wait_s, c.chunks] for c in self.machine.take_coflows()]

    def _status(self, runner: FrameStream) -> dict[str, Any]:
        return {
            "schema": 1,
            "ordering": self.machine.ordering.name,
            "stages": list(self.machine.stages),
            "map": self.machine.map.to_dict(),
            "agents": sorted(self._door.agents),
        }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m agents.coflow_service", description=__doc__.split("\n")[0])
    parser.add_argument("--listen", required=True, help="address to listen on")
    parser.add_argument("--port", type=int, default=0, help="port to listen on; 0 takes a free one")
    parser.add_argument("--sites", type=int, required=True, help="number of sites")
    parser.add_argument("--until-stdin-closes", action="store_true", help="end with the other end of stdin")
    arguments = parser.parse_args()

    def announce(port: int) -> None:
        sys.stdout.write(f"{port}\n")
        sys.stdout.flush()

    return run_daemon(
        lambda: CoflowService(arguments.listen, arguments.port, arguments.sites, announce),
        "coflow coordinator",
        until_stdin_closes=arguments.until_stdin_closes,
    )


if __name__ == "__main__":
    raise SystemExit(main())
