"""What the supervisor holds: one object that boot fills and verbs use."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field
from typing import Any, Literal

from testbed.emulation.network import Network
from testbed.emulation.rundir import RunDir, TestbedInfo
from testbed.emulation.wan import Wan
from testbed.events import EventLog
from testbed.supervisor.player import Player
from testbed.supervisor.processes import ProcessTable
from topologies.errors import UsageError
from topologies.model import Topology

Phase = Literal["waiting", "booting", "up", "stopping"]


@dataclass
class Supervisor:
    """One testbed from the inside.

    Whoever changes links holds `lock`; `player` is there until it is stopped, and `dynamics` tells what it
    plays: {"owner", "dynamics", "seed", "scale"}.
    """

    run_dir: RunDir
    info: TestbedInfo
    topology: Topology
    events: EventLog
    loop: asyncio.AbstractEventLoop
    phase: Phase = "waiting"
    processes: ProcessTable = field(init=False)
    lock: threading.RLock = field(default_factory=threading.RLock)
    player: Player | None = None
    dynamics: dict[str, Any] | None = None
    _network: Network | None = None
    _wan: Wan | None = None

    def __post_init__(self) -> None:
        self.processes = ProcessTable(
            self.run_dir, self.events, self.loop, self.site_pid, self.info.group_of
        )

    @property
    def network(self) -> Network:
        if self._network is None:
            raise UsageError(f"testbed {self.info.name} has no network yet", hint="wait for `up` to return")
        return self._network

    @network.setter
    def network(self, network: Network) -> None:
        self._network = network

    @property
    def wan(self) -> Wan:
        if self._wan is None:
            raise UsageError(f"testbed {self.info.name} has no links yet", hint="wait for `up` to return")
        return self._wan

    @wan.setter
    def wan(self, wan: Wan) -> None:
        self._wan = wan

    def site_pid(self, name: str) -> int:
        """The pid of the shell that holds a site's namespaces."""
        return self.network.site_pid(self.topology.index(name))
