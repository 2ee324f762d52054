"""What a `Testbed` hands out: its sites, where commands run, and its links, which change while it stands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from testbed import sites as site_files
from testbed.emulation.rundir import TestbedInfo
from testbed.emulation.sites import enter_argv
from testbed.emulation.waiting import wait_for
from testbed.runner import Completed, run
from testbed.standing import require_root
from topologies.errors import DeadlineError, UsageError
from topologies.model import Topology
from topologies.units import Delay, Loss, Rate


class Held(Protocol):
    """The testbed that sites and links are of: `testbed.api.Testbed`."""

    @property
    def name(self) -> str: ...

    @property
    def info(self) -> TestbedInfo: ...

    @property
    def run_dir(self) -> Path: ...

    @property
    def topology(self) -> Topology: ...

    def call(self, verb: str, **arguments: Any) -> Any: ...


class SiteHandle:
    """A site of a testbed: a place to run commands."""

    def __init__(self, testbed: Held, name: str) -> None:
        self._testbed = testbed
        self.name = name

    @property
    def index(self) -> int:
        """Its rank in the topology."""
        return self._testbed.info.sites[self.name].index

    @property
    def wan_ip(self) -> str:
        """Its address on the shaped WAN, where training traffic goes."""
        return self._testbed.info.sites[self.name].wan_ip

    @property
    def mgmt_ip(self) -> str:
        """Its address on the management network, which is never shaped."""
        return self._testbed.info.sites[self.name].mgmt_ip

    def argv(self, command: Sequence[str]) -> list[str]:
        """The command line that runs a command inside this site's namespaces, from the machine itself."""
        home = site_files.SiteFiles(self._testbed.run_dir, self.name).home
        return enter_argv(self._testbed.name, self.name, ["env", f"--chdir={home}", *command])

    def environment(self) -> dict[str, str]:
        """What every process at the site finds in its environment."""
        return site_files.site_environment(self._testbed.run_dir, self.name)

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout: float = 60.0,
        check: bool = True,
        env: Mapping[str, str] | None = None,
        input: str | None = None,
    ) -> Completed:
        """Run a command at the site to its end, in the site's home.

        Args:
            argv: the program and its arguments.
            timeout: seconds after which it is killed.
            check: raise when its status is not zero.
            env: variables added to the site's own.
            input: text for its standard input.

        Raises:
            CommandError: its status was not zero and `check` holds.
            DeadlineError: it did not end in time.
        """
        require_root("a command at a site")
        environment = self.environment() | dict(env or {})
        return run(self.argv(argv), timeout=timeout, check=check, env=environment, input=input)

    def start(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, log: str | Path | None = None
    ) -> int:
        """Start a command that goes on by itself; returns its pid inside the testbed, for `kill`.

        Args:
            log: a file for its output; one in the site's directory when left out.
        """
        result = self._testbed.call(
            "spawn", site=self.name, argv=list(argv), env=dict(env or {}), log=log and str(log)
        )
        return int(result["pid"])

    def processes(self) -> list[dict[str, Any]]:
        """What runs at the site."""
        return list(self._testbed.call("processes", site=self.name))

    def kill(self, pid: int, *, grace: float = 5.0) -> None:
        """End a process of the site: SIGTERM, and SIGKILL when it is still there after `grace` seconds.

        Raises:
            UsageError: the site has no such process.
            DeadlineError: it is there even after SIGKILL.
        """
        if pid == self._testbed.call("sites")[self.name]["pid"]:
            raise UsageError(
                f"process {pid} holds the namespaces of {self.name}; with it the whole site would go",
                hint=f"testbed down {self._testbed.name} takes everything away",
            )

        def gone() -> bool:
            return all(process["pid"] != pid or process["status"] is not None for process in self.processes())

        self._testbed.call("kill", site=self.name, pid=pid)
        try:
            wait_for(gone, f"process {pid} at {self.name} to end", grace, step=0.1)
        except DeadlineError:
            with suppress(UsageError):  # it has ended in this very moment
                self._testbed.call("kill", site=self.name, pid=pid, signal_name="SIGKILL")
            wait_for(gone, f"process {pid} at {self.name} to end after SIGKILL", 5.0, step=0.1)


class LinkHandle:
    """A link of a testbed, seen from `src`. Changes take effect at once and lose no packet."""

    def __init__(self, testbed: Held, src: str, dst: str) -> None:
        topology = testbed.topology
        topology.between(topology.index(src), topology.index(dst))
        self._testbed = testbed
        self.src = src
        self.dst = dst

    def set(
        self,
        *,
        rate: str | Rate | None = None,
        delay: str | Delay | None = None,
        jitter: str | Delay | None = None,
        loss: str | Loss | None = None,
        one_way: bool = False,
    ) -> None:
        """Change the link's shape; what is left out stays.

        Args:
            rate, delay, jitter, loss: with their units, "50mbit", "20ms", "0.1%".
            one_way: change only the direction from `src` to `dst`.
        """
        asked = {
            "rate": (Rate, rate),
            "delay": (Delay, delay),
            "jitter": (Delay, jitter),
            "loss": (Loss, loss),
        }
        changes: dict[str, Any] = {
            key: str(kind.parse(value) if isinstance(value, str) else value)
            for key, (kind, value) in asked.items()
            if value is not None
        }
        if not changes:
            raise UsageError(
                f"nothing to change on the link {self.src} - {self.dst}", hint="give a rate, for example"
            )
        self._testbed.call("link_set", src=self.src, dst=self.dst, both=not one_way, **changes)

    def down(self) -> None:
        """Cut the link, both directions; its two switches see their ports go down."""
        self._testbed.call("link_down", src=self.src, dst=self.dst)

    def up(self) -> None:
        """Mend it again."""
        self._testbed.call("link_up", src=self.src, dst=self.dst)

    def reset(self) -> None:
        """Back to what the topology declares, both directions, and up."""
        self._testbed.call("link_reset", src=self.src, dst=self.dst)

    def show(self) -> list[dict[str, Any]]:
        """Both directions as configured now, with their counters; the one from `src` first."""
        ends = [(self.src, self.dst), (self.dst, self.src)]
        rows = {(row["src"], row["dst"]): row for row in self._testbed.call("links")}
        return [rows[end] for end in ends]
