"""CPU quotas of sites: one control group a site, in whichever version of them the kernel has the cpu controller.

What a site is limited to is what is started there for users: its sshd with everything that comes through it
(workers, shells), and `testbed exec`. The site's agent stands for the network's side and is not limited.
The groups are made and removed by the caller of `up` and `down`, below the hierarchy's root as it sees it; the
testbed's own namespaces see them at `cgroup/` of its run directory.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from testbed.emulation.rundir import RunDir
from testbed.emulation.waiting import wait_for
from testbed.runner import run
from topologies.errors import CannotHonourError, CleanupError, DeadlineError, StormbedError
from topologies.model import Topology

Version = Literal[1, 2]

PERIOD_US: Final = 20_000
"""How often a quota begins anew. A process that has used its share stands still until then."""
MOUNTS: Final = Path("/proc/self/mounts")
REMOVAL_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """Where control groups with a cpu controller are made."""

    version: Version
    root: Path

    def group(self, run_dir: RunDir) -> Path:
        """The group of a testbed, which holds those of its sites."""
        digest = hashlib.sha256(str(run_dir.path).encode()).hexdigest()[:8]
        return self.root / f"stormbed-{run_dir.name}-{digest}"


def hierarchies(mounts: str) -> list[Hierarchy]:
    """Those that may have the cpu controller, from the text of /proc/self/mounts; at most one has it."""
    found: list[Hierarchy] = []
    for line in mounts.splitlines():
        _, place, kind, options = line.split()[:4]
        if kind == "cgroup" and "cpu" in options.split(","):
            found.insert(0, Hierarchy(1, Path(place)))
        elif kind == "cgroup2":
            found.append(Hierarchy(2, Path(place)))
    return found


def settings(version: Version, cores: float) -> tuple[tuple[str, str], ...]:
    """What limits a group to so many cores: names of its files, and what to write into them, in order."""
    quota = round(cores * PERIOD_US)
    if version == 1:
        return ("cpu.cfs_period_us", str(PERIOD_US)), ("cpu.cfs_quota_us", str(quota))
    return (("cpu.max", f"{quota} {PERIOD_US}"),)


def weight(version: Version, workers: int) -> tuple[str, str]:
    """What gives a group the weight that so many processes have by themselves: a file, and what to write.

    A group competes with every process outside as if it were one; unweighted, nine sites together would get what
    one agent gets.
    """
    if version == 1:
        return "cpu.shares", str(min(262_144, 1024 * workers))
    return "cpu.weight", str(min(10_000, 100 * workers))


def joining(group: Path, argv: Sequence[str]) -> list[str]:
    """A command that enters a group and then becomes another."""
    return ["sh", "-c", 'echo 0 > "$0" && exec "$@"', str(group / "cgroup.procs"), *argv]


@dataclass(frozen=True, slots=True)
class Quota:
    """What a site may use: so many cores, for so many workers."""

    cores: float
    workers: int


def quotas(topology: Topology) -> dict[str, Quota]:
    """Those of every site that declares its cores."""
    return {name: Quota(site.cpu, site.workers) for name, site in topology.sites.items() if site.cpu is not None}


def find() -> Hierarchy:
    """The hierarchy to use, tried out.

    Raises:
        CannotHonourError: there is none that takes quotas here; the message says what was refused.
    """
    reasons = []
    for hierarchy in hierarchies(MOUNTS.read_text(encoding="utf-8")):
        reason = refusal(hierarchy)
        if not reason:
            return hierarchy
        reasons.append(f"cgroup v{hierarchy.version}: {reason}")
    raise CannotHonourError(
        "this environment takes no CPU quotas: " + ("; ".join(reasons) or "no control groups are mounted"),
        hint="run it where control groups may be made, or pad the workers' passes with --allow-degraded",
    )


def refusal(hierarchy: Hierarchy) -> str:
    """Why quotas cannot be set in a hierarchy, found by setting one; empty when they can."""
    scratch = hierarchy.root / f"stormbed-probe-{os.getpid()}"
    try:
        _make_group(hierarchy, scratch, {"site": Quota(0.5, 1)})
        run(joining(scratch / "site", ["true"]), timeout=10)
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    except StormbedError as error:
        return " ".join(error.message.split())
    finally:
        _remove_group(scratch)
    return ""


def make(hierarchy: Hierarchy, run_dir: RunDir, topology: Topology) -> None:
    """Make the groups of a testbed's sites with their quotas.

    Raises:
        CannotHonourError: the kernel refuses one; what was made stays for `remove`.
    """
    try:
        _make_group(hierarchy, hierarchy.group(run_dir), quotas(topology))
    except OSError as error:
        raise CannotHonourError(f"no CPU quota could be set: {error.filename}: {error.strerror}") from None


def remove(run_dir: RunDir) -> None:
    """Remove the groups of a testbed whose processes have ended, if there are any.

    Raises:
        CleanupError: the kernel keeps one.
    """
    for hierarchy in hierarchies(MOUNTS.read_text(encoding="utf-8")):
        _remove_group(hierarchy.group(run_dir))


def _make_group(hierarchy: Hierarchy, group: Path, limits: Mapping[str, Quota]) -> None:
    version = hierarchy.version
    if version == 2:
        _enable(hierarchy.root)
    group.mkdir(exist_ok=True)
    if version == 2:
        _enable(group)
    _write(group, weight(version, sum(quota.workers for quota in limits.values())))
    for site, quota in limits.items():
        inner = group / site
        inner.mkdir(exist_ok=True)
        _write(inner, *settings(version, quota.cores), weight(version, quota.workers))


def _write(group: Path, *lines: tuple[str, str]) -> None:
    for name, text in lines:
        group.joinpath(name).write_text(text, encoding="utf-8")


def _enable(group: Path) -> None:
    """Have the groups below have a cpu controller (version 2)."""
    control = group / "cgroup.subtree_control"
    if "cpu" not in control.read_text(encoding="utf-8").split():
        control.write_text("+cpu", encoding="utf-8")


def _remove_group(group: Path) -> None:
    def removed() -> bool:
        try:
            for inner in (entry for entry in group.iterdir() if entry.is_dir()):
                inner.rmdir()
            group.rmdir()
        except FileNotFoundError:
            return True
        except OSError:  # a process that is just ending is still in it
            return False
        return True

    try:
        wait_for(removed, f"the control group {group} to be empty", REMOVAL_S)
    except DeadlineError:
        raise CleanupError(f"the control group {group} could not be removed") from None
