"""What a supervisor can be asked. Every verb runs in a thread of its own and may block.

Arguments are the request's keys. Quantities come as text with units ("50mbit", "10ms", "0.1%"); results are
in the units of their names. Those of links and of processes are in files of their own, and registered with these.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

from testbed.emulation.calibrate import Calibration
from testbed.emulation.packet_sockets import end_and_close
from testbed.supervisor import boot as booting
from testbed.supervisor import link_verbs, process_verbs
from testbed.supervisor.registry import VERBS, Progress, Verb, bind, verb
from testbed.supervisor.state import Supervisor
from topologies.errors import DeadlineError, UsageError

__all__ = ["VERBS", "Progress", "Verb", "bind", "link_verbs", "process_verbs"]


@verb()
def ping(supervisor: Supervisor, progress: Progress) -> dict[str, Any]:
    """Whether anybody is there."""
    name, phase = supervisor.info.name, supervisor.phase
    return {"name": name, "phase": phase, "pid": os.getpid(), "monotonic_ns": time.monotonic_ns()}


@verb(seconds=1800, changes=True)
def boot(supervisor: Supervisor, progress: Progress, calibrate: bool = True) -> dict[str, Any]:
    """Build everything; once, by `up`. When it fails, the supervisor and all that is there ends."""
    if supervisor.phase != "waiting":
        raise UsageError(f"testbed {supervisor.info.name} is {supervisor.phase} already")
    supervisor.phase = "booting"
    try:
        result = booting.boot(supervisor, progress, calibrate=calibrate)
    except BaseException:
        supervisor.phase = "stopping"
        raise
    supervisor.phase = "up"
    return result


@verb()
def status(supervisor: Supervisor, progress: Progress) -> dict[str, Any]:
    """The testbed in one look: phase, processes, and whether any of them has ended."""
    processes = [process.to_dict() for process in supervisor.processes.all()]
    return {
        "name": supervisor.info.name,
        "phase": supervisor.phase,
        "healthy": supervisor.phase == "up" and all(p["status"] is None for p in processes),
        "created_s": supervisor.info.created_s,
        "subnet": supervisor.info.subnet,
        "dynamics": _dynamics(supervisor),
        "processes": processes,
    }


def _dynamics(supervisor: Supervisor) -> dict[str, Any] | None:
    """How the links change by themselves, how often they have, and why they no longer do, if they do not."""
    player, playing = supervisor.player, supervisor.dynamics
    if player is None or playing is None:
        return None
    return {**playing, "steps": player.count, "failure": player.failure}


@verb(seconds=120, changes=True)
def calibrate(supervisor: Supervisor, progress: Progress, seconds: float = 2.0) -> dict[str, Any]:
    """Measure every direction as it is configured now; see `testbed.emulation.fidelity.Report`."""
    if supervisor.player is not None and supervisor.player.playing:
        raise UsageError("links that change cannot be calibrated", hint="`testbed link vary --stop` ends it")
    report = Calibration(supervisor.wan, supervisor.network.site_pid, progress, seconds).run().to_dict()
    supervisor.events.write("calibrated", verdict=report["verdict"], reasons=report["reasons"])
    return report


@verb()
def sites(supervisor: Supervisor, progress: Progress) -> dict[str, Any]:
    """Every site's addresses and the pid (inside the testbed) that holds its namespaces."""
    result = {}
    for name, site in supervisor.info.sites.items():
        result[name] = {
            "index": site.index,
            "wan_ip": site.wan_ip,
            "mgmt_ip": site.mgmt_ip,
            "pid": supervisor.site_pid(name),
        }
    return result


@verb()  # it does not wait for what is being changed: that ends too
def shutdown(supervisor: Supervisor, progress: Progress, grace_s: float = 3.0) -> None:
    """End: processes get a moment to finish, then the supervisor exits and the kernel ends all the rest."""
    supervisor.phase = "stopping"
    supervisor.events.write("shutdown")
    with contextlib.suppress(DeadlineError):  # whoever stays is killed with the namespace
        supervisor.processes.terminate_all(grace_s, but=("delay-line",))
    line = supervisor.processes.find("delay-line")
    holders = [line.pid] if line is not None and line.status is None else []
    with contextlib.suppress(OSError, ValueError):  # no Open vSwitch yet
        holders.append(int((supervisor.run_dir.ovs / "ovs-vswitchd.pid").read_text(encoding="utf-8")))
    end_and_close(holders)
