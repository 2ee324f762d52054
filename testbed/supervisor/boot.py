"""From bare namespaces to a running testbed, step by step."""

from __future__ import annotations

import importlib.util
import json
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from prometheus_client import CollectorRegistry

from testbed import sites
from testbed.emulation import congestion, management, sysctls
from testbed.emulation.calibrate import Calibration
from testbed.emulation.environment import PYTHON, log_tail
from testbed.emulation.metrics import DelayLineCollector, read_links
from testbed.emulation.network import Network
from testbed.emulation.rundir import RunDir
from testbed.emulation.vswitch import VSwitch
from testbed.emulation.waiting import wait_for
from testbed.emulation.wan import DelayLineClient, Wan
from testbed.runner import batch, run
from testbed.supervisor.processes import ProcessSpec
from testbed.supervisor.state import Supervisor
from testbed.telemetry import prometheus
from testbed.telemetry.links import LinkCollector, MetricsServer
from topologies import addressing
from topologies.errors import StormbedError

UPLINK_WAIT_S: Final = 10.0
CONTROLLER_WAIT_S: Final = 40.0
CONTROLLER_WAIT_PER_PAIR_S: Final = 0.1
"""The rules grow with the pairs of sites; a busy machine with 40 sites takes a minute."""
SIGN_OF_LIFE_S: Final = 5.0
PROCESS_WAIT_S: Final = 20.0
PROCESS_WAIT_PER_SITE_S: Final = 2.0
"""Every site's agent begins with half a second of computing, and all begin together."""
CALIBRATION_S: Final = 2.0


def boot(supervisor: Supervisor, progress: Callable[[str], None], *, calibrate: bool) -> dict[str, Any]:
    """Build the whole testbed; raises what stopped it."""
    started = time.monotonic()

    def step(text: str) -> None:
        progress(text)
        supervisor.events.write("boot", step=text, after_s=round(time.monotonic() - started, 3))

    run_dir, addresses = supervisor.run_dir, supervisor.info.management
    prepare_namespaces(supervisor)
    sending = congestion.apply(supervisor.info.congestion)
    step("management network")
    supervisor.processes.start(controller_spec(supervisor))
    supervisor.processes.start(delay_line_spec(run_dir))
    step("Open vSwitch")
    vswitch = VSwitch(run_dir.ovs)
    vswitch.start()
    sites, links = len(supervisor.topology.sites), len(supervisor.topology.links)
    step(f"{sites} sites and {links} link{'s' if links > 1 else ''}")
    network = Network(supervisor.topology, run_dir, addresses, vswitch, sending)
    network.build()
    supervisor.network = network
    supervisor.wan = Wan(
        supervisor.topology,
        connect_delay_line(supervisor),
        allow_degraded=supervisor.info.allow_degraded,
    )
    supervisor.wan.start()
    network.start_switches()
    realtime = network.realtime and supervisor.wan.delay_line.call("info")["realtime"]
    supervisor.events.write("realtime", granted=realtime)
    gaps = environment_gaps(realtime=realtime, sending=sending)
    for gap in gaps:
        step(f"warning: {gap}")
    step("controller")
    wait_for_controller(supervisor, step)
    fidelity = None
    if calibrate and supervisor.topology.links:
        fidelity = Calibration(supervisor.wan, network.site_pid, step, CALIBRATION_S).run().to_dict()
    step("processes of the sites")
    for spec in process_specs(supervisor):
        supervisor.processes.start(spec)
    serve_metrics(supervisor)
    wait_for_processes(supervisor, step)
    step(f"up after {time.monotonic() - started:.1f} s")
    return {"seconds_s": time.monotonic() - started, "fidelity": fidelity, "gaps": gaps}


def environment_gaps(
    *, realtime: bool, sending: congestion.Congestion, proc: Path = Path("/proc/sys")
) -> list[str]:
    """What this environment does not grant, and what follows for a testbed; recorded with every run.

    Args:
        realtime: whether switches and delay line got real-time scheduling.
        sending: the sites' congestion control.
        proc: where the kernel shows the settings of this network namespace.
    """
    gaps = []
    if not realtime:
        gaps.append("real-time scheduling is not permitted here: delays grow while the machine is busy")
    if (gap := sending.gap()) is not None:
        gaps.append(gap)
    lacking = [key for key in sysctls.site("", sending) if not (proc / key.replace(".", "/")).exists()]
    lacking = [key for key in lacking if not key.startswith("net.ipv6.")]  # without IPv6 nothing to quieten
    if lacking:
        gaps.append(f"this kernel has no {' nor '.join(lacking)}: sites keep its way of TCP")
    return gaps


def prepare_namespaces(supervisor: Supervisor) -> None:
    """Make the fresh namespaces usable: /sys that shows them, settings, loopback, the management bridge."""
    if supervisor.info.cpu_group is not None:  # out of sight as soon as /sys is another
        supervisor.run_dir.cgroup.mkdir()
        run(["mount", "--bind", supervisor.info.cpu_group, str(supervisor.run_dir.cgroup)], timeout=10)
    # The inherited /sys still shows the machine's own network.
    run(["mount", "-t", "sysfs", "sysfs", "/sys"], timeout=10)
    settings = sysctls.common() | {"kernel.hostname": f"stormbed-{supervisor.info.name}"}
    run(["sysctl", "-q", "-e", "-w", *sysctls.arguments(settings)], timeout=10)
    batch(["ip"], ["link set dev lo up"])
    wait_for(
        lambda: Path(f"/sys/class/net/{management.UPLINK}").exists(),
        f"the management interface {management.UPLINK} from the caller",
        UPLINK_WAIT_S,
    )
    batch(["ip"], management.bridge_lines(supervisor.info.management))


def controller_spec(supervisor: Supervisor) -> ProcessSpec:
    run_dir, address = supervisor.run_dir, supervisor.info.management.supervisor
    argv = (
        *(PYTHON, "-m", "controller", "--topology", str(run_dir.topology)),
        *("--openflow", f"127.0.0.1:{addressing.OPENFLOW_PORT}"),
        *("--http", f"{address}:{addressing.CONTROLLER_HTTP_PORT}"),
        *("--log", str(run_dir.path / "controller.log")),
    )
    return ProcessSpec("controller", argv, None, run_dir.path / "controller.out")


def delay_line_spec(run_dir: RunDir) -> ProcessSpec:
    argv = (PYTHON, "-m", "testbed.emulation.delay_line", "--control", str(run_dir.delay_line_socket))
    return ProcessSpec("delay-line", argv, None, run_dir.path / "delay_line.log")


def process_specs(supervisor: Supervisor) -> list[ProcessSpec]:
    """What runs once the network stands: a door and an agent at every site, the coordinator, Prometheus."""
    run_dir = supervisor.run_dir
    specs = []
    for name in supervisor.topology.site_names:
        argv = tuple(sites.sshd_argv(run_dir.path, name))
        specs.append(ProcessSpec("sshd", argv, name, run_dir.site(name) / "sshd.out"))
    if importlib.util.find_spec("agents.__main__") is not None:
        for k, name in enumerate(supervisor.topology.site_names):
            argv = (PYTHON, "-m", "agents", "--site", str(k), "--run-dir", str(run_dir.path))
            # It stands for the site's network side; a throttled agent would be a slower network.
            specs.append(ProcessSpec("agent", argv, name, run_dir.site(name) / "agent.log", limited=False))
    if importlib.util.find_spec("agents.coordinator") is not None:
        argv = (PYTHON, "-m", "agents.coordinator", "--run-dir", str(run_dir.path))
        at = supervisor.info.coordinator_site
        specs.append(ProcessSpec("coordinator", argv, at, run_dir.path / "coordinator.log"))
    argv = tuple(prometheus.argv(run_dir.path, supervisor.info.management))
    specs.append(ProcessSpec("prometheus", argv, None, run_dir.path / "prometheus.log"))
    return specs


def connect_delay_line(supervisor: Supervisor) -> DelayLineClient:
    run_dir = supervisor.run_dir

    def connect() -> DelayLineClient | None:
        require_running(supervisor, "delay-line", run_dir.path / "delay_line.log")
        try:
            return DelayLineClient(run_dir.delay_line_socket)
        except (FileNotFoundError, ConnectionRefusedError):
            return None

    return wait_for(connect, "the delay line to listen", PROCESS_WAIT_S)


def wait_for_controller(supervisor: Supervisor, step: Callable[[str], None]) -> dict[str, Any]:
    """Until the controller has given every switch its rules; tells how far it is from time to time."""
    count = len(supervisor.topology.sites)
    run_dir = supervisor.run_dir
    address = supervisor.info.management.supervisor
    url = f"http://{address}:{addressing.CONTROLLER_HTTP_PORT}/health"
    # Whatever proxies the machine uses are not for this network.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    last: dict[str, Any] = {}
    told = time.monotonic()

    def ready() -> bool:
        nonlocal told
        if time.monotonic() - told > SIGN_OF_LIFE_S:
            told = time.monotonic()
            done = sum(bool(switch.get("in_sync")) for switch in last.get("switches", ()))
            step(f"controller: {done} of {count} switches have their rules")
        require_running(supervisor, "controller", run_dir.path / "controller.out")
        try:
            with opener.open(url, timeout=5) as answer:
                last.update(json.load(answer))
        except urllib.error.HTTPError as error:
            try:
                last.update(json.load(error))
            except ValueError:
                return False
        except (OSError, ValueError):
            return False
        return bool(last.get("ready"))

    limit_s = CONTROLLER_WAIT_S + CONTROLLER_WAIT_PER_PAIR_S * count**2
    try:
        wait_for(ready, "the controller to give every switch its rules", limit_s)
    except StormbedError as error:
        missing = [f"s{dpid}" for dpid in last.get("missing", [])]
        said = log_tail(run_dir.path / "controller.out") or log_tail(run_dir.path / "controller.log")
        raise StormbedError(
            f"{error.message}; switches without: {', '.join(missing) or 'not known'}", hint=f"it said: {said}"
        ) from None
    return last


def serve_metrics(supervisor: Supervisor) -> None:
    """Offer the delay line's and the links' metrics on the management network, until this process ends."""
    address = supervisor.info.management.supervisor
    delay_line, links = CollectorRegistry(), CollectorRegistry()
    delay_line.register(DelayLineCollector(supervisor.wan))
    links.register(LinkCollector(partial(read_links, supervisor.wan)))
    MetricsServer(delay_line, address, addressing.DELAY_LINE_METRICS_PORT)
    MetricsServer(links, address, addressing.SUPERVISOR_METRICS_PORT)


def wait_for_processes(supervisor: Supervisor, step: Callable[[str], None]) -> None:
    """Until everything that was started answers where it should; tells how far that is from time to time."""
    told = time.monotonic()
    started = [(process.spec, _answers(supervisor, process.spec)) for process in supervisor.processes.all()]
    waited = [(spec, answers) for spec, answers in started if answers is not None]
    seconds = PROCESS_WAIT_S + PROCESS_WAIT_PER_SITE_S * len(supervisor.topology.sites)
    deadline = time.monotonic() + seconds

    def ready(number: int, spec: ProcessSpec, answers: Callable[[], bool]) -> bool:
        nonlocal told
        if time.monotonic() - told > SIGN_OF_LIFE_S:
            told = time.monotonic()
            step(f"processes of the sites: {number} of {len(waited)} answer")
        return _ready(supervisor, spec, answers)

    for number, (spec, answers) in enumerate(waited):
        where = f" of site {spec.site}" if spec.site else ""
        wait_for(
            partial(ready, number, spec, answers),
            f"the {spec.name}{where} to answer",
            max(0.0, deadline - time.monotonic()),
        )


def _answers(supervisor: Supervisor, spec: ProcessSpec) -> Callable[[], bool] | None:
    """How to find out that a process is ready; None for the network's own parts, which have answered before."""
    own = supervisor.info.management.supervisor
    if spec.name == "sshd" and spec.site:
        return partial(_listens, supervisor.info.sites[spec.site].mgmt_ip, addressing.SSHD_PORT)
    if spec.name == "agent" and spec.site:
        return (supervisor.run_dir.site(spec.site) / "agent.sock").exists
    if spec.name == "coordinator":
        return partial(_listens, *supervisor.info.coordinator)
    if spec.name == "prometheus":
        return partial(_listens, own, addressing.PROMETHEUS_PORT)
    return None


def _ready(supervisor: Supervisor, spec: ProcessSpec, answers: Callable[[], bool]) -> bool:
    log = spec.log
    if spec.name == "sshd" and spec.site:
        log = sites.SiteFiles(supervisor.run_dir.path, spec.site).log
    require_running(supervisor, spec.name, log, spec.site)
    return answers()


def _listens(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), timeout=1).close()
    except OSError:
        return False
    return True


def require_running(supervisor: Supervisor, name: str, log: Path, site: str | None = None) -> None:
    """Raise with the last words of a process that has ended."""
    process = supervisor.processes.find(name, site)
    if process is not None and process.status is not None:
        where = f" of site {site}" if site else ""
        raise StormbedError(
            f"the {name}{where} ended with status {process.status}: {log_tail(log) or 'it said nothing'}",
            hint=f"its log was {log}",
        )
