"""What this machine can bring up, found out before anything is made."""

from __future__ import annotations

import os
import shutil
from typing import Final

from testbed import sites as site_doors
from testbed.emulation import capacity, cgroups
from testbed.emulation.environment import capability_hint, missing_capabilities
from testbed.emulation.shaping import gso_max_bytes
from topologies.addressing import MAX_SITES
from topologies.errors import CannotHonourError
from topologies.model import Topology

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


def check_possible(topology: Topology) -> None:
    """Refuse what this machine cannot bring up; nothing is made.

    Raises:
        CannotHonourError: not root, a capability or a program is missing, or too many sites.
    """
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


def find_quotas(topology: Topology, allow_degraded: bool) -> tuple[cgroups.Hierarchy | None, tuple[str, ...]]:
    """What holds the sites to their declared cores, and in what they cannot be held.

    Raises:
        CannotHonourError: a site declares cores, this environment takes no quotas, and padding is not allowed.
    """
    limited = cgroups.quotas(topology)
    if not limited:
        return None, ()
    try:
        return cgroups.find(), ()
    except CannotHonourError as error:
        if not allow_degraded:
            raise CannotHonourError(
                f"{topology.name} gives {', '.join(limited)} a cpu, and {error.message}", hint=error.hint
            ) from None
        return None, (f"{error.message}; the workers' passes at {', '.join(limited)} are padded instead",)


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
