"""Bringing testbeds up, from outside: what the caller of `up` does.

The supervisor is started detached in new namespaces. From then on one fact protects the machine: when it
ends, by whatever signal, the kernel ends every process and namespace of the testbed; see
`testbed.emulation.ending`.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from testbed import sites as site_doors
from testbed.client import SupervisorClient
from testbed.emulation import cgroups, congestion, management
from testbed.emulation.ending import END_S, alone_on_this_machine, children, clean, down, remove, undo
from testbed.emulation.environment import PYTHON, base_environment, log_tail
from testbed.emulation.listing import Listed, list_testbeds, read_info_or_none
from testbed.emulation.possible import PROGRAMS, check_possible, find_quotas, limits_of
from testbed.emulation.rundir import (
    HANDED_OVER,
    RunDir,
    SiteInfo,
    TestbedInfo,
    check_name,
    connect_unix,
    write_info,
)
from testbed.emulation.sites import host_pids
from testbed.emulation.waiting import is_ending, is_running, start_ticks, wait_for
from testbed.runner import batch
from testbed.telemetry import prometheus
from topologies.addressing import CONTROLLER_HTTP_PORT, wan_ip
from topologies.dynamics import Dynamics
from topologies.errors import CannotHonourError, StormbedError, UsageError
from topologies.model import Topology

__all__ = [
    "PROGRAMS",
    "Listed",
    "check_possible",
    "clean",
    "down",
    "limits_of",
    "list_testbeds",
    "up",
]

OnProgress = Callable[[str], None]

START_S: Final = 20.0
BOOT_SILENCE_S: Final = 120.0
REACH_S: Final = 5.0


def up(
    topology: Topology,
    name: str,
    *,
    on_progress: OnProgress | None = None,
    calibrate: bool = True,
    allow_degraded: bool = False,
    dynamics: Dynamics | None = None,
    scale: float = 1.0,
    coordinator: str | None = None,
) -> TestbedInfo:
    """Bring a testbed up and return its state.

    When it fails or is interrupted, whatever was made is removed before the exception goes on.

    Args:
        topology: the network, already scaled.
        name: unique on this machine.
        on_progress: gets a line for every step.
        calibrate: measure every link; the verdict is `info.fidelity`.
        allow_degraded: bring up even what the emulator cannot honour; `info.limits` tells what that is.
        dynamics: how links change by themselves from the end of the calibration on, until `link vary` replaces
            or stops it; the path of a trace is from the present directory.
        scale: what the topology was scaled by, for the rates of `dynamics`.
        coordinator: the site where the coordinator runs, so that its messages cross the WAN; None: out of
            band.

    Raises:
        UsageError: a testbed of this name is up, or the name cannot be one, or there is no such site.
        CannotHonourError: not root, a program is missing, no free subnet, too many sites, or a rate that
            no link here can have and `allow_degraded` is not given.
        StormbedError: a part did not start; the message quotes its log.
    """
    progress = on_progress or (lambda text: None)
    check_name(name)
    if coordinator is not None:
        topology.index(coordinator)
    check_possible(topology)
    if dynamics is not None:
        require_fitting(topology, dynamics, scale)
    quotas, padded = find_quotas(topology, allow_degraded)
    limits = (*limits_of(topology, allow_degraded), *padded)
    for limit in limits:
        progress(f"warning: {limit}")
    run_dir = RunDir.of(name)
    wanted: dict[str, Any] = {"limits": limits, "allow_degraded": allow_degraded, "coordinator_site": coordinator}
    wanted["congestion"] = congestion.choose(congestion.WANTED)
    if quotas is not None:
        wanted |= {"cpu_by": f"cgroup-v{quotas.version}", "cpu_group": str(quotas.group(run_dir))}
    elif padded:
        wanted["cpu_by"] = "padding"
    with _starting(run_dir, topology, wanted) as info:
        process: subprocess.Popen[bytes] | None = None
        try:
            with alone_on_this_machine():
                if congestion.allow(info.congestion):
                    progress(
                        f"{info.congestion} is now allowed in this machine's network namespaces, until it reboots "
                        f"(net.ipv4.{congestion.ALLOWED.name})"
                    )
            if quotas is not None:
                cgroups.make(quotas, run_dir, topology)
            progress("keys and files")
            _prepare_files(run_dir, topology, info)
            process = _start_supervisor(run_dir)
            info = _identify(run_dir, info, process)
            batch(["ip"], management.enter_lines(info.interface, process.pid))
            client = SupervisorClient(name)
            result = client.call("boot", progress, timeout=BOOT_SILENCE_S, calibrate=calibrate)
            require_reachable(info)
            if dynamics is not None and dynamics.kind != "none":
                progress(f"links change from now on: {dynamics}")
                vary(client, dynamics, scale=scale, progress=progress)
            info = _complete(run_dir, info, result, client)
            _hand_over(process)
        except BaseException as error:
            undo(run_dir, info, process)
            if isinstance(error, StormbedError) or not isinstance(error, Exception):
                raise
            raise StormbedError(f"testbed {name} could not be brought up: {error!r}") from error
    return info


def require_reachable(info: TestbedInfo) -> None:
    """Refuse to go on where this machine's firewall stands between it and the testbed.

    Raises:
        CannotHonourError: the controller of the testbed, which runs, cannot be connected to.
    """
    try:
        socket.create_connection((info.management.supervisor, CONTROLLER_HTTP_PORT), REACH_S).close()
    except OSError as error:
        raise CannotHonourError(
            f"this machine cannot connect to the testbed at {info.management.supervisor}: {error}",
            hint="have its firewall accept what passes interfaces named sb* "
            "(docs/machines.md has the commands for nftables and iptables)",
        ) from None


def require_fitting(topology: Topology, dynamics: Dynamics, scale: float) -> None:
    """Raise UsageError or InvalidFileError when dynamics do not fit the topology, or their trace is wrong."""
    dynamics.changes(topology, scale=scale, folder=Path.cwd())


def vary(
    client: SupervisorClient, dynamics: Dynamics, *, scale: float = 1.0, progress: OnProgress | None = None
) -> None:
    """Have the links of a standing testbed change by themselves, in place of what changed them so far."""
    seed = 1 if dynamics.seed is None else dynamics.seed
    how = dynamics.model_dump(mode="json")
    folder = str(Path.cwd())
    client.call(
        "dynamics_start", progress, owner="standing", dynamics=how, seed=seed, scale=scale, folder=folder
    )


@contextmanager
def _starting(run_dir: RunDir, topology: Topology, wanted: dict[str, Any]) -> Iterator[TestbedInfo]:
    """Take the name and a subnet, both at once with respect to other callers."""
    root = run_dir.path.parent
    root.mkdir(parents=True, exist_ok=True)
    with alone_on_this_machine():
        _make_way(run_dir)
        taken = management.networks_in_use()
        taken += [listed.info.subnet for listed in list_testbeds() if listed.info is not None]
        addresses = management.choose_subnet(taken)
        sites = {
            name: SiteInfo(index=k, wan_ip=wan_ip(k), mgmt_ip=addresses.site(k))
            for k, name in enumerate(topology.site_names)
        }
        info = TestbedInfo(
            name=run_dir.name,
            created_s=time.time(),
            state="starting",
            topology=topology.to_dict(),
            subnet=addresses.subnet,
            interface=management.interface_name(run_dir),
            **wanted,
            # Until the supervisor runs, this process answers for the testbed.
            pid=os.getpid(),
            started_ticks=start_ticks(os.getpid()),
            sites=sites,
        )
        run_dir.path.mkdir(mode=0o755)
        try:
            write_info(run_dir, info)
            ipv6 = Path("/proc/sys/net/ipv6").exists()
            batch(["ip"], management.reserve_lines(info.interface, addresses, ipv6=ipv6))
        except BaseException as error:
            undo(run_dir, info, None)
            raise error
    yield info


def _make_way(run_dir: RunDir) -> None:
    """Refuse a name that is up; remove what a dead testbed of this name left."""
    if not run_dir.path.exists():
        return
    info = read_info_or_none(run_dir)
    if info is not None and info.pid is not None and is_running(info.pid, info.started_ticks):
        if is_ending(info.pid):
            pid, ticks = info.pid, info.started_ticks
            wait_for(lambda: not is_running(pid, ticks), f"the killed testbed {run_dir.name} to end", END_S)
            remove(run_dir, info)
            return
        raise UsageError(
            f"a testbed {run_dir.name!r} is {'up' if info.state == 'up' else 'starting'} already",
            hint=f"`testbed down {run_dir.name}`, or choose another name",
        )
    remove(run_dir, info)


def _prepare_files(run_dir: RunDir, topology: Topology, info: TestbedInfo) -> None:
    """What the testbed's parts read when they start."""
    addresses = info.management
    run_dir.topology.write_text(json.dumps(topology.to_dict(), indent=1), encoding="utf-8")
    site_doors.prepare(run_dir.path, topology, addresses)
    prometheus.prepare(run_dir.path, addresses, prometheus.targets_of(topology, addresses, info.coordinator[0]))


def _start_supervisor(run_dir: RunDir) -> subprocess.Popen[bytes]:
    """Start the supervisor in new namespaces, detached from the terminal and from this process's fate.

    `--kill-child` ends tini, the first process inside, when unshare is killed; tini ends when the supervisor
    does; and with tini the kernel ends everything in its process namespace. Until `_hand_over`, the supervisor
    ends when this process does, since then its standard input closes.
    """
    argv = [
        *("unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "--uts", "--"),
        *("tini", "--", PYTHON, "-m", "testbed.supervisor", "--run-dir", str(run_dir.path)),
    ]
    with run_dir.log.open("ab") as log:
        return subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env=base_environment(),
            cwd="/",
            start_new_session=True,
        )


def _identify(run_dir: RunDir, info: TestbedInfo, process: subprocess.Popen[bytes]) -> TestbedInfo:
    """Wait until the supervisor listens, and record whose pids are the testbed's."""

    def listening() -> bool:
        if process.poll() is not None:
            raise StormbedError(
                f"the supervisor ended with status {process.returncode}: "
                f"{log_tail(run_dir.log) or 'it said nothing'}"
            )
        try:
            connect_unix(run_dir.socket, START_S).close()
        except (FileNotFoundError, ConnectionRefusedError):  # not bound yet, or bound and not listening yet
            return False
        return True

    wait_for(listening, "the supervisor to listen", START_S)
    info = info.model_copy(
        update={
            "pid": process.pid,
            "started_ticks": start_ticks(process.pid),
            "init_pid": children(process.pid)[0],
        }
    )
    write_info(run_dir, info)
    return info


def _complete(
    run_dir: RunDir, info: TestbedInfo, booted: dict[str, Any], client: SupervisorClient
) -> TestbedInfo:
    """Record the pids of the sites, so that they can be entered from outside, and what `boot` came to."""
    assert info.init_pid is not None
    outside = host_pids(info.init_pid)
    inside = client.call("sites")
    sites = {
        name: site.model_copy(update={"pid": outside[inside[name]["pid"]]})
        for name, site in info.sites.items()
    }
    supervisor_pid = outside[client.call("ping")["pid"]]
    update = {"state": "up", "supervisor_pid": supervisor_pid, "sites": sites}
    update |= {"fidelity": booted["fidelity"], "limits": (*info.limits, *booted["gaps"])}
    info = info.model_copy(update=update)
    write_info(run_dir, info)
    return info


def _hand_over(process: subprocess.Popen[bytes]) -> None:
    """Leave the testbed standing by itself: from now on it outlives this process."""
    assert process.stdin is not None
    with process.stdin as owner:
        owner.write(HANDED_OVER)
