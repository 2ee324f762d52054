"""Real testbeds for tests: unique names, brought down whatever happens, and nothing of them left behind."""

from __future__ import annotations

import http.client
import itertools
import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from testbed.client import SupervisorClient
from testbed.emulation import launch, management
from testbed.emulation.rundir import RunDir, TestbedInfo
from testbed.emulation.sites import enter_argv, host_pids
from testbed.emulation.waiting import start_ticks, wait_for
from topologies.addressing import CONTROLLER_HTTP_PORT
from topologies.errors import DeadlineError
from topologies.load import load_topology, topology_from_dict
from topologies.model import Topology

GONE_S = 10.0
"""Within three seconds a killed testbed has left nothing, on a machine with time to spare; here others may be at
work, and the kernel takes network namespaces away one after the other."""

_numbers = itertools.count(1)
made_names: list[str] = []
"""Every name that this test session has given to a testbed."""
_started: list[subprocess.Popen[str]] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip loudly where testbeds cannot stand: every claim tested here is then unverified."""
    reason = None
    if os.geteuid() != 0:
        reason = "needs root: what this test claims is UNVERIFIED on this machine"
    else:
        missing = [program for program in launch.PROGRAMS if shutil.which(program) is None]
        if missing:
            reason = f"needs {', '.join(missing)}: what this test claims is UNVERIFIED on this machine"
    if reason:
        for item in items:
            if item.get_closest_marker("emulated"):
                item.add_marker(pytest.mark.skip(reason=reason))


class Leftovers:
    """What of a testbed is still on this machine, by the marks that only its own objects carry.

    A zombie is not left over: it holds nothing, and collecting it is up to the machine's first process.
    """

    def __init__(self, info: TestbedInfo) -> None:
        assert info.init_pid is not None and info.pid is not None
        self._info = info
        self._pids = {info.pid, *host_pids(info.init_pid).values()}
        self._starts = {pid: start_ticks(pid) for pid in self._pids}
        of = Path(f"/proc/{info.init_pid}/ns")
        self._namespaces = {name: (of / name).stat().st_ino for name in ("net", "pid", "uts", "mnt")}

    def find(self) -> list[str]:
        """Processes, namespaces, interfaces and files that are still there."""
        found = [f"process {pid}" for pid in self._pids if start_ticks(pid) == self._starts[pid] is not None]
        init = self._info.init_pid
        if init is not None and start_ticks(init) == self._starts.get(init):
            found += self._in_its_namespaces()
        # Its process namespace dies with its first process, and all inside with it. Their numbers then belong
        # to whoever gets them next: another testbed may have all of ours.
        if management.link_exists(self._info.interface):
            found.append(f"interface {self._info.interface}")
        return found

    def _in_its_namespaces(self) -> list[str]:
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or start_ticks(int(entry.name)) is None:
                continue
            for name, number in self._namespaces.items():
                try:
                    if (entry / "ns" / name).stat().st_ino == number:
                        found.append(f"{name} namespace of process {entry.name}")
                except OSError:
                    continue
        return found

    def gone_within(self, seconds: float) -> None:
        """Fail, naming what is left, unless all of it goes in time."""
        try:
            wait_for(lambda: not self.find(), "it to leave nothing", seconds)
        except DeadlineError:
            left = self.find()
            assert not left, f"after {seconds} s {self._info.name} has left {left}"


class Site:
    """Runs commands at a site."""

    def __init__(self, testbed: str, name: str | None) -> None:
        self._testbed, self.name = testbed, name

    def run(self, *argv: str, timeout: float = 30, check: bool = True) -> str:
        done = subprocess.run(
            enter_argv(self._testbed, self.name, argv),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert not check or done.returncode == 0, f"{argv} at {self.name}: {done.stdout}{done.stderr}"
        return done.stdout

    def python(self, program: str, *arguments: str, timeout: float = 30) -> str:
        return self.run(sys.executable, "-c", program, *arguments, timeout=timeout)

    def start_python(self, program: str, *arguments: str) -> subprocess.Popen[str]:
        """Start a program, which may take the end of its input as the word to end.

        What of it still runs when the test is over is killed: it would hold its port against the next one.
        """
        # nsenter itself stays outside, and the program is its child, which is to go with it.
        argv = ["setpriv", "--pdeathsig", "KILL", sys.executable, "-c", program, *arguments]
        process = subprocess.Popen(
            enter_argv(self._testbed, self.name, argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        _started.append(process)
        return process


class Standing:
    """A testbed of a test."""

    def __init__(self, info: TestbedInfo) -> None:
        self.info = info
        self.name = info.name
        self.client = SupervisorClient(info.name)
        self.leftovers = Leftovers(info)

    def site(self, name: str) -> Site:
        return Site(self.name, name)

    def supervisor(self) -> Site:
        """The supervisor's own namespaces, where the switches are."""
        return Site(self.name, None)

    def controller(self, path: str) -> Any:
        """The controller's answer over HTTP; None while it does not answer."""
        url = f"http://{self.info.management.supervisor}:{CONTROLLER_HTTP_PORT}{path}"
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(url, timeout=5) as answer:
                return json.load(answer)
        except (OSError, http.client.HTTPException, ValueError):  # it may end in the middle of its answer
            return None

    def rerouted(self, *down: list[str]) -> bool:
        """Whether the switches hold what they have to while these links are down, and no others are."""
        health = self.controller("/health")
        return bool(
            health and health["ready"] and not health["rerouting"] and health["links_down"] == list(down)
        )

    def wan_ip(self, name: str) -> str:
        return self.info.sites[name].wan_ip


@pytest.fixture(scope="session")
def unique_name() -> Callable[[], str]:
    """Names that no other test session on this machine uses: they hold this process's pid."""


    def name() -> str:
        made_names.append(f"test-{os.getpid()}-{next(_numbers)}")
        return made_names[-1]

    return name


@pytest.fixture(autouse=True)
def _nothing_runs_on() -> Iterator[None]:
    """What a test has started at sites ends with it, also when the test has failed."""
    yield
    for process in _started:
        process.kill()
        process.communicate()
    _started.clear()


Bring = Callable[..., Standing]


def _take_down(testbed: Standing) -> None:
    if RunDir.of(testbed.name).path.exists():
        launch.down(testbed.name)
    assert not RunDir.of(testbed.name).path.exists()
    testbed.leftovers.gone_within(GONE_S)


@pytest.fixture(scope="module")
def bring(unique_name: Callable[[], str]) -> Iterator[Bring]:
    """Brings testbeds up for one test module; afterwards all are down and nothing of them is left."""
    ending = ExitStack()  # goes on with the next one where one cannot be taken down

    def up(topology: str | Topology | dict[str, object], **options: object) -> Standing:
        if isinstance(topology, dict):
            topology = topology_from_dict(topology)
        elif isinstance(topology, str):
            topology = load_topology(topology)
        options.setdefault("calibrate", False)
        info = launch.up(topology, unique_name(), **options)  # type: ignore[arg-type]
        testbed = Standing(info)
        ending.callback(_take_down, testbed)
        return testbed

    with ending:
        yield up
