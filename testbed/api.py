"""`Testbed`: the Python door. What the command line does, these objects do.

with Testbed.up("netstorm-9", name="mine", scale=0.5) as testbed:
    testbed.sites["dc3"].run(["ping", "-c1", testbed.sites["dc1"].wan_ip])
    testbed.link("dc1", "dc2").set(rate="50mbit")
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Self

from testbed import sites as site_files
from testbed.client import SupervisorClient
from testbed.emulation.rundir import TestbedInfo
from testbed.handles import LinkHandle, SiteHandle
from testbed.standing import find
from topologies.dynamics import Dynamics
from topologies.load import load_topology
from topologies.model import Topology

if TYPE_CHECKING:
    from testbed.telemetry.query import PrometheusClient

__all__ = ["LinkHandle", "SiteHandle", "Testbed"]

OnProgress = Callable[[str], None]


class Testbed:
    """A testbed that stands. Made by `Testbed.up` or `Testbed.attach`.

    As a context manager it is taken down at the end, also after an exception.
    """

    __test__ = False  # not a test, whatever pytest makes of the name

    def __init__(self, info: TestbedInfo) -> None:
        self._info = info
        self._client = SupervisorClient(info.name)
        self._down = False

    @classmethod
    def up(
        cls,
        topology: str | Path | Topology,
        *,
        name: str | None = None,
        scale: float = 1.0,
        calibrate: bool = True,
        allow_degraded: bool = False,
        dynamics: str | Dynamics | None = None,
        coordinator: str | None = None,
        on_progress: OnProgress | None = None,
    ) -> Self:
        """Bring a testbed up and return it.

        Args:
            topology: a name of the library, a file, or a Topology.
            name: the testbed's; the topology's own when left out.
            scale: every rate is multiplied by this.
            calibrate: load all links together for two seconds, and give a verdict on their fidelity.
            allow_degraded: bring up even what cannot be as fast as declared; `info.limits` tells it.
            dynamics: how links change by themselves from the start, `uniform?every=10s` for example.
            coordinator: the site where the coordinator runs; out of band when left out.
            on_progress: is told each step.

        Raises:
            CannotHonourError: this machine lacks something, which is named with its fix. Nothing has been
            made. UsageError: the name is taken. InvalidFileError: the topology file is wrong.
        """
        from testbed.doctor import preflight
        from testbed.emulation import launch

        network = topology if isinstance(topology, Topology) else load_topology(topology)
        if scale != 1.0:
            network = network.scaled(scale)
        moving = Dynamics.parse(dynamics) if isinstance(dynamics, str) else dynamics
        preflight()
        chosen = default_name(network) if name is None else name
        info = launch.up(
            network,
            chosen,
            on_progress=on_progress,
            calibrate=calibrate,
            allow_degraded=allow_degraded,
            dynamics=moving,
            scale=scale,
            coordinator=coordinator,
        )
        return cls(info)

    @classmethod
    def attach(cls, name: str | None = None) -> Self:
        """The testbed of this name, or the only one that stands.

        Raises:
            UsageError: there is none, or there are several and no name was given.
        """
        return cls(find(name))

    @property
    def name(self) -> str:
        return self._info.name

    @property
    def info(self) -> TestbedInfo:
        """Everything that was settled at `up`: addresses, pids, the fidelity verdict."""
        return self._info

    @property
    def run_dir(self) -> Path:
        """Where the testbed's own files are; gone after `down`."""
        return self._info.run_dir

    @property
    def ssh_config(self) -> Path:
        """The file for `ssh -F`; Fabric takes it too."""
        return site_files.ssh_config_path(self.run_dir)

    @cached_property
    def topology(self) -> Topology:
        """The network as it came up, at scale."""
        return self._info.load_topology()

    @cached_property
    def sites(self) -> Mapping[str, SiteHandle]:
        """The sites by name, in the order of the topology."""
        return MappingProxyType({name: SiteHandle(self, name) for name in self.topology.site_names})

    def site(self, name: str) -> SiteHandle:
        """One site; UsageError with the nearest name when there is none."""
        self.topology.index(name)
        return self.sites[name]

    def link(self, src: str, dst: str) -> LinkHandle:
        """The link between two sites, seen from the first.

        Raises:
            UsageError: no such site, or no link joins them.
        """
        return LinkHandle(self, src, dst)

    @cached_property
    def prometheus(self) -> PrometheusClient:
        """A client of the testbed's Prometheus."""
        from testbed.telemetry.query import PrometheusClient

        return PrometheusClient(self._info.prometheus_url)

    def call(self, verb: str, on_progress: OnProgress | None = None, **arguments: Any) -> Any:
        """Ask the testbed's supervisor for one of its verbs; see `testbed.supervisor`."""
        return self._client.call(verb, on_progress, **arguments)

    def links(self) -> list[dict[str, Any]]:
        """Every direction of every link as configured now, with its counters."""
        return list(self.call("links"))

    def calibrate(self, on_progress: OnProgress | None = None) -> dict[str, Any]:
        """Measure every link as it is configured now; the verdict, its reasons, and a row a direction.

        Takes a few seconds in which all links are loaded.
        """
        return dict(self._client.call("calibrate", on_progress))

    def run(
        self,
        experiment: str | Path,
        *,
        out: str | Path = "runs",
        on_progress: OnProgress | None = None,
        **overrides: Any,
    ) -> Path:
        """Run an experiment on this testbed and return its run directory.

        Args:
            experiment: a name of the library or a file; its network must be this testbed's.
            out: the folder that receives the run directory.
            on_progress: is told each step.
            overrides: top-level keys that replace those of the file, such as `scale=0.5` or `repeats=3`.

        Raises:
            RunFailedError: something failed on the way; the run directory tells as well.
            UsageError: the experiment is for another network.
        """
        from testbed.experiments.run import run_experiment
        from testbed.experiments.spec import open_experiment

        say = on_progress or (lambda text: None)
        return run_experiment(
            open_experiment(experiment, overrides), out=Path(out), testbed=self.name, say=say
        )

    def vary(self, dynamics: str | Dynamics | None, *, scale: float = 1.0) -> None:
        """Have links change by themselves from now on, in place of what changed them so far.

        Args:
            dynamics: `uniform?every=10s&rate=20mbit..155mbit` for example; None ends it, and the links are what
                they were before.
            scale: rates are multiplied by this.

        Raises:
            UsageError: the dynamics are wrong or do not fit the topology, or a run has the links change.
        """
        from testbed.emulation import launch

        if dynamics is None:
            self.call("dynamics_stop", owner="standing")
            return
        how = Dynamics.parse(dynamics) if isinstance(dynamics, str) else dynamics
        launch.vary(self._client, how, scale=scale)

    def down(self, on_progress: OnProgress | None = None) -> None:
        """Take the testbed away. Nothing of it remains; a second call does nothing.

        Raises:
            CleanupError: something of it could not be removed; the message names it.
        """
        from testbed.emulation import launch

        self.close()
        if self._down:
            return
        launch.down(self.name, on_progress=on_progress)
        self._down = True

    def close(self) -> None:
        """Let go of connections; the testbed goes on standing."""
        if "prometheus" in self.__dict__:
            self.prometheus.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    def __repr__(self) -> str:
        return f"Testbed({self.name!r}, {len(self.topology.sites)} sites)"


def default_name(topology: Topology) -> str:
    """What a testbed of this topology is called when no name is given: the topology's, in the letters
    allowed.
    """
    plain = re.sub(r"[^a-z0-9]+", "-", topology.name.lower()).strip("-")
    return plain[:32].rstrip("-") or "testbed"
