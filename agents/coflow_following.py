"""Which coflow coordinator the agents follow: a runner names one, for as long as the runner lives."""

from __future__ import annotations

from collections.abc import Mapping

from agents.streams import FrameStream
from topologies.errors import UsageError

Address = tuple[str, int]


class CoflowFollowing:
    """Kept by the jobs' coordinator, which all agents are connected to.

    Args:
        agents: the connected agents, by site; kept up to date by the caller.
    """

    def __init__(self, agents: Mapping[int, FrameStream]) -> None:
        self._agents = agents
        self._owner: FrameStream | None = None
        self._address: Address | None = None

    def follow(self, runner: FrameStream, address: list[object] | None) -> None:
        """A runner's word: host and port, or None for no more. UsageError while another runner's is followed."""
        if address is None:
            if self._owner is runner:
                self._tell(None, None)
            return
        if self._owner is not None and self._owner is not runner:
            raise UsageError("another runner's coflow coordinator is followed already", hint="wait for its end")
        host, port = address
        self._tell(runner, (str(host), int(str(port))))

    def greet(self, agent: FrameStream) -> None:
        """An agent has connected."""
        if self._address is not None:
            agent.send("coflow", {"address": self._address})

    def runner_ended(self, runner: FrameStream) -> None:
        if self._owner is runner:
            self._tell(None, None)

    def _tell(self, owner: FrameStream | None, address: Address | None) -> None:
        self._owner, self._address = owner, address
        for agent in self._agents.values():
            agent.send("coflow", {"address": address})
