"""Bringing testbeds up and taking them away, from outside: what the caller of `up` does.

The supervisor is started detached in new namespaces. From then on one fact protects the machine: when it
ends, by whatever signal, the kernel ends every process and namespace of the testbed. All that remains to be
removed is a directory, and, until the kernel has collected it, the veth that led in.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from testbed import sites as site_doors
from testbed.client import SupervisorClient
from testbed.emulation import capacity, management
from testbed.emulation.environment import (
    PYTHON,
    base_environment,
    capability_hint,
    log_tail,
    missing_capabilities,
)
from testbed.emulation.rundir import (
    RunDir,
    SiteInfo,
    TestbedInfo,
    check_name,
    read_info,
    run_root,
    write_info,
)
from testbed.emulation.shaping import gso_max_bytes
from testbed.emulation.sites import host_pids
from testbed.emulation.waiting import is_ending, is_running, reap, start_ticks, wait_for
from testbed.runner import batch
from testbed.telemetry import prometheus
from topologies.addressing import MAX_SITES, Management, wan_ip
from topologies.errors import (
    CannotHonourError,
    CleanupError,
    DeadlineError,
    InvalidFileError,
    StormbedError,
    UsageError,
)
from topologies.model import Topology

OnProgress = Callable[[str], None]

PROGRAMS: Final = {
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "mount": "mount",
    "ip": "iproute2",
    "tc": "iproute2",
    "sysctl": "procps",
    "ethtool": "ethtool",
    "tini": "tini",
    "mnexec": "mininet",
    "ovs-vsctl": "openvswitch-switch",
    "ovs-vswitchd": "openvswitch-switch",
    "ovsdb-server": "openvswitch-switch",
    "ovsdb-tool": "openvswitch-switch",
    "ssh-keygen": "openssh-client",
    "sshd": "openssh-server",
    "prometheus": "prometheus",
}
"""What `up` needs, and the Debian package that brings it."""

START_S: Final = 20.0
BOOT_SILENCE_S: Final = 120.0
END_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Listed:
    """A testbed as found on this machine. `alive`: its supervisor runs; otherwise it is only leftovers."""

    name: str
    alive: bool
    info: TestbedInfo | None


def up(
    topology: Topology,
    name: str,
    *,
    on_progress: OnProgress | None = None,
    calibrate: bool = True,
    allow_degraded: bool = False,
) -> TestbedInfo:
    """Bring a testbed up and return its state.

    When it fails or is interrupted, whatever was made is removed before the exception goes on.

    Args:
        topology: the network, already scaled.
        name: unique on this machine.
        on_progress: gets a line for every step.
        calibrate: measure every link; the verdict is `info.fidelity`.
        allow_degraded: bring up even what the emulator cannot honour; `info.limits` tells what that is.

    Raises:
        UsageError: a testbed of this name is up, or the name cannot be one.
        CannotHonourError: not root, a program is missing, no free subnet, too many sites, or a rate that
            no link here can have and `allow_degraded` is not given.
        StormbedError: a part did not start; the message quotes its log.
    """
    progress = on_progress or (lambda text: None)
    check_name(name)
    check_possible(topology)
    limits = limits_of(topology, allow_degraded)
    for limit in limits:
        progress(f"warning: {limit}")
    run_dir = RunDir.of(name)
    with _starting(run_dir, topology, limits) as info:
        process: subprocess.Popen[bytes] | None = None
        try:
            progress("keys and files")
            _prepare_files(run_dir, topology, info.management)
            process = _start_supervisor(run_dir)
            info = _identify(run_dir, info, process)
            batch(["ip"], management.enter_lines(info.interface, process.pid))
            client = SupervisorClient(name)
            result = client.call("boot", progress, timeout=BOOT_SILENCE_S, calibrate=calibrate)
            info = _complete(run_dir, info, result["fidelity"], client)
        except BaseException as error:
            _undo(run_dir, info, process)
            if isinstance(error, StormbedError) or not isinstance(error, Exception):
                raise
            raise StormbedError(f"testbed {name} could not be brought up: {error!r}") from error
    return info


def down(name: str, *, on_progress: OnProgress | None = None) -> None:
    """Take a testbed away, with everything that belongs to it. Once begun, Ctrl-C does not stop it half-way.

    Raises:
        UsageError: there is none of this name.
        CleanupError: something of it could not be removed; the message names it.
    """
    run_dir = RunDir.of(name)
    progress = on_progress or (lambda text: None)
    if not run_dir.path.exists():
        raise UsageError(f"there is no testbed {name!r}", hint="`testbed status` lists those that are up")
    info = _read_info_or_none(run_dir)
    if info is not None and info.init_pid is None and is_running(info.pid, info.started_ticks):
        raise UsageError(f"testbed {name} is just being brought up", hint=f"interrupt process {info.pid}")
    with _uninterrupted():
        if info is not None and is_running(info.pid, info.started_ticks):
            progress("asking its processes to end")
            try:
                SupervisorClient(name).call("shutdown", timeout=END_S)
            except StormbedError:
                pass  # it may have ended on the way, or not answer; it is ended below either way
        _remove(run_dir, info)
        progress("down")


def clean(name: str | None = None) -> list[str]:
    """Remove what dead testbeds left; returns their names. Those that are alive are not touched.

    Args:
        name: only this one; UsageError when it is alive.
    """
    cleaned = []
    for listed in list_testbeds():
        if name is not None and listed.name != name:
            continue
        if listed.alive:
            if name is not None:
                raise UsageError(f"testbed {name} is up", hint=f"`testbed down {name}` takes it away")
            continue
        _remove(RunDir.of(listed.name), listed.info)
        cleaned.append(listed.name)
    return cleaned


def list_testbeds() -> list[Listed]:
    """Every testbed on this machine, alive or not, by name."""
    root = run_root()
    found = []
    for entry in sorted(root.iterdir()) if root.is_dir() else []:
        if entry.is_dir():
            info = _read_info_or_none(RunDir(entry))
            alive = info is not None and is_running(info.pid, info.started_ticks)
            found.append(Listed(entry.name, alive, info))
    return found


def check_possible(topology: Topology) -> None:
    """Refuse what this machine cannot bring up; nothing is made.

    Raises:
        UsageError: a link is slower than any that can be emulated.
        CannotHonourError: not root, a capability or a program is missing, or too many sites.
    """
    require_emulated_rates(topology)
    if os.geteuid() != 0:
        raise CannotHonourError(
            "an emulated testbed needs root for its namespaces", hint="use sudo, or simulate without root"
        )
    absent = missing_capabilities()
    if absent:
        raise CannotHonourError(
            f"an emulated testbed needs {' and '.join(absent)}, and this process is root without it",
            hint=capability_hint(absent),
        )
    if len(topology.sites) > MAX_SITES:
        raise CannotHonourError(
            f"{topology.name} has {len(topology.sites)} sites and the emulator holds {MAX_SITES}",
            hint="the simulated world takes them: `testbed run EXPERIMENT --world simulated`",
        )
    for program, package in PROGRAMS.items():
        if shutil.which(program, path=site_doors.SITE_PATH) is None:
            raise CannotHonourError(f"the program {program} is missing", hint=f"apt-get install {package}")
    gso_max_bytes(topology.directed)


def require_emulated_rates(topology: Topology) -> None:
    """Raise UsageError if a link is slower than any that can be emulated."""
    for link in topology.directed:
        link.rate.require_emulated(f"link {link.src_name} > {link.dst_name}")


def limits_of(topology: Topology, allow_degraded: bool) -> tuple[str, ...]:
    """In what the network cannot be as declared here.

    Raises:
        CannotHonourError: a link cannot be as fast as declared, and that is not allowed.
    """
    beyond = capacity.beyond(topology.directed)
    if beyond and not allow_degraded:
        more = f", and {len(beyond) - 1} more" if len(beyond) > 1 else ""
        raise CannotHonourError(
            f"{beyond[0]}{more}",
            hint=f"--scale {capacity.fitting_scale(topology.directed):g} would fit, "
            "--allow-degraded goes on and records it",
        )
    short = capacity.shortage(topology.directed, len(os.sched_getaffinity(0)))
    return (*beyond, *([short] if short else ()))


@contextmanager
def _starting(run_dir: RunDir, topology: Topology, limits: tuple[str, ...]) -> Iterator[TestbedInfo]:
    """Take the name and a subnet, both at once with respect to other callers."""
    root = run_dir.path.parent
    root.mkdir(parents=True, exist_ok=True)
    with _alone_on_this_machine():
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
            limits=limits,
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
            _undo(run_dir, info, None)
            raise error
    yield info


@contextmanager
def _alone_on_this_machine() -> Iterator[None]:
    """One caller at a time, also where callers use different run roots: subnets belong to the machine.

    The lock is on a directory that every Linux has, so that no file is left behind.
    """
    directory = os.open("/run", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


def _make_way(run_dir: RunDir) -> None:
    """Refuse a name that is up; remove what a dead testbed of this name left."""
    if not run_dir.path.exists():
        return
    info = _read_info_or_none(run_dir)
    if info is not None and info.pid is not None and is_running(info.pid, info.started_ticks):
        if is_ending(info.pid):
            pid, ticks = info.pid, info.started_ticks
            wait_for(lambda: not is_running(pid, ticks), f"the killed testbed {run_dir.name} to end", END_S)
            _remove(run_dir, info)
            return
        raise UsageError(
            f"a testbed {run_dir.name!r} is {'up' if info.state == 'up' else 'starting'} already",
            hint=f"`testbed down {run_dir.name}`, or choose another name",
        )
    _remove(run_dir, info)


def _prepare_files(run_dir: RunDir, topology: Topology, addresses: Management) -> None:
    """What the testbed's parts read when they start."""
    run_dir.topology.write_text(json.dumps(topology.to_dict(), indent=1))
    site_doors.prepare(run_dir.path, topology, addresses)
    prometheus.prepare(run_dir.path, addresses, prometheus.targets_of(topology, addresses))


def _start_supervisor(run_dir: RunDir) -> subprocess.Popen[bytes]:
    """Start the supervisor in new namespaces, detached from the terminal and from this process's fate.

    `--kill-child` ends tini, the first process inside, when unshare is killed; tini ends when the supervisor
    does; and with tini the kernel ends everything in its process namespace.
    """
    argv = [
        *("unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "--uts", "--"),
        *("tini", "--", PYTHON, "-m", "testbed.supervisor", "--run-dir", str(run_dir.path)),
    ]
    with run_dir.log.open("ab") as log:
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
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
        return run_dir.socket.exists()

    wait_for(listening, "the supervisor to listen", START_S)
    info = info.model_copy(
        update={
            "pid": process.pid,
            "started_ticks": start_ticks(process.pid),
            "init_pid": _children(process.pid)[0],
        }
    )
    write_info(run_dir, info)
    return info


def _complete(
    run_dir: RunDir, info: TestbedInfo, fidelity: dict[str, Any] | None, client: SupervisorClient
) -> TestbedInfo:
    """Record the pids of the sites, so that they can be entered from outside, and that the testbed is up."""
    assert info.init_pid is not None
    outside = host_pids(info.init_pid)
    inside = client.call("sites")
    sites = {
        name: site.model_copy(update={"pid": outside[inside[name]["pid"]]})
        for name, site in info.sites.items()
    }
    supervisor_pid = outside[client.call("ping")["pid"]]
    update = {"state": "up", "supervisor_pid": supervisor_pid, "sites": sites, "fidelity": fidelity}
    info = info.model_copy(update=update)
    write_info(run_dir, info)
    return info


def _undo(run_dir: RunDir, info: TestbedInfo, process: subprocess.Popen[bytes] | None) -> None:
    """Remove what a failed or interrupted `up` has made. A second interrupt does not stop this."""
    with _uninterrupted():
        if process is not None:
            _end(process.pid, start_ticks(process.pid), patience_s=0)
            process.wait()
        _remove(run_dir, info.model_copy(update={"pid": None}))


def _remove(run_dir: RunDir, info: TestbedInfo | None) -> None:
    """End a testbed, if it still runs, and remove its files and its veth."""
    if info is not None and info.init_pid is not None and is_running(info.pid, info.started_ticks):
        assert info.pid is not None
        _end(info.pid, info.started_ticks)
    if info is not None:
        _remove_interface(info.interface)
    left = _remove_tree(run_dir.path)
    if left:
        raise CleanupError(f"{left} could not be removed")


def _remove_interface(name: str) -> None:
    """Remove the veth that led in. While the kernel is collecting it with a namespace, it cannot be removed
    and is still there."""

    def removed() -> bool:
        if management.link_exists(name):
            management.remove_link(name)
        return not management.link_exists(name)

    try:
        wait_for(removed, f"the interface {name} to go away", END_S)
    except DeadlineError:
        raise CleanupError(f"the interface {name} could not be removed") from None


def _end(pid: int, ticks: int | None, patience_s: float = 1.0) -> None:
    """End the process that keeps a testbed's namespaces, and wait until everything inside has ended.

    The first process inside ends last: the kernel lets it go only when all others of its namespace are gone.
    """
    keepers = {child: start_ticks(child) for child in _children(pid)}
    if is_running(pid, ticks):
        keepers[pid] = ticks

    def ended() -> bool:
        reap(pid)
        return not any(is_running(keeper, since) for keeper, since in keepers.items())

    try:
        wait_for(ended, "the supervisor to end by itself", patience_s)
        return
    except DeadlineError:
        pass
    # The first process inside before its parent, so that the parent collects it and then ends by itself.
    for keeper, since in keepers.items():
        if is_running(keeper, since):
            try:
                os.kill(keeper, signal.SIGKILL)
            except ProcessLookupError:
                pass
    try:
        wait_for(ended, f"process {pid} to end", END_S)
    except DeadlineError as error:
        raise CleanupError(f"the supervisor (process {pid}) does not end: {error.message}") from None


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def _remove_tree(path: Path) -> Path | None:
    """Remove a directory; returns what resisted. Processes that are just ending may still write into it."""

    def removed() -> bool:
        shutil.rmtree(path, ignore_errors=True)
        return not path.exists()

    try:
        wait_for(removed, f"{path} to go away", 3.0)
    except DeadlineError:
        return path
    return None


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ctrl-C and SIGTERM wait until the block is done. Only the main thread can, and need, hold them off."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in held.items():
            signal.signal(number, handler)


def _read_info_or_none(run_dir: RunDir) -> TestbedInfo | None:
    """The state of a testbed; None also when the file cannot be understood, as after a crash."""
    try:
        return read_info(run_dir)
    except InvalidFileError:
        return None
