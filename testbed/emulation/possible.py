"""What this machine can bring up, found out before anything is made."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

from testbed import sites as site_doors
from testbed.emulation import capacity, cgroups
from testbed.emulation.environment import capability_hint, missing_capabilities
from testbed.emulation.rundir import run_root
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

LEAST_FREE_BYTES: Final = 200 * 2**20
"""Prometheus alone sets 128 MiB aside after two minutes."""
OTHER_ROOT: Final = "set STORMBED_RUN_ROOT to a directory that can be written and has room"


def check_possible(topology: Topology) -> None:
    """Refuse what this machine cannot bring up; nothing is made.

    Raises:
        CannotHonourError: not root, a capability or a program is missing, too many sites, or no room.
        UsageError: see `run_root`.
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
    directory, free = free_space()
    if free < LEAST_FREE_BYTES:
        raise CannotHonourError(
            f"{free / 2**20:.0f} MiB are free under {directory}, and a testbed needs {LEAST_FREE_BYTES / 2**20:.0f}",
            hint=OTHER_ROOT,
        )
    gso_max_bytes(topology.directed)


def free_space() -> tuple[Path, int]:
    """Where testbeds keep their files, or the nearest directory above that exists, and the bytes free there.

    Raises:
        CannotHonourError: it is not a directory, or its file system is read-only.
    """
    directory = run_root()
    while not os.path.lexists(directory):
        directory = directory.parent
    # Not os.access: somebody who runs the doctor without being root would be told of a fault that is none.
    if not directory.is_dir() or os.statvfs(directory).f_flag & os.ST_RDONLY:
        raise CannotHonourError(f"{directory} is not a directory that can be written", hint=OTHER_ROOT)
    return directory, shutil.disk_usage(directory).free


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
