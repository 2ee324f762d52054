"""Rows about the machine itself: rights, processors, memory, disk, what other testbeds have taken or left."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from testbed.doctor.rows import Check, degraded, missing, ok
from testbed.doctor.software import absent_of
from testbed.emulation.environment import capability_hint, missing_capabilities
from topologies.errors import CannotHonourError, StormbedError

MIN_MEMORY_BYTES = 3 * 2**30
MIN_DISK_BYTES = 500 * 2**20
MAX_STEAL_RATIO = 0.05
DASHBOARD_PORT = 8800
"""The default of `testbed dashboard`."""


def check_root() -> Check:
    if os.geteuid() != 0:
        return missing(
            "root", f"running as user {os.geteuid()}, and namespaces need root", "run it with sudo"
        )
    absent = missing_capabilities()
    if absent:
        return missing("root", f"running as root without {' and '.join(absent)}", capability_hint(absent))
    return ok("root", "running as root")


def check_cpu() -> Check:
    cores = len(os.sched_getaffinity(0))
    ratio = steal_ratio(Path("/proc/stat").read_text(encoding="utf-8"))
    cgroup = "2" if Path("/sys/fs/cgroup/cgroup.controllers").exists() else "1"
    found = f"{cores} cores, {ratio:.1%} stolen by the hypervisor since boot, cgroup v{cgroup}"
    if cores < 2:
        return degraded(
            "cpu", found, "rates that one core can carry; scale a topology down with `up --scale`"
        )
    if ratio > MAX_STEAL_RATIO:
        return degraded("cpu", found, "what is left; read every run's fidelity verdict before its numbers")
    return ok("cpu", found)


def check_cpu_quota() -> Check:
    """Whether sites can be held to the `cpu` that a topology gives them."""
    if os.geteuid() != 0:
        return degraded("cpu quota", "not tried, because control groups need root", "all cores", "run it with sudo")
    from testbed.emulation import cgroups

    try:
        hierarchy = cgroups.find()
    except CannotHonourError as error:
        return degraded("cpu quota", error.message, "passes padded to a site's `cpu`, with `--allow-degraded`")
    return ok("cpu quota", f"cgroup v{hierarchy.version} at {hierarchy.root}")


def steal_ratio(stat: str) -> float:
    """The share of CPU time taken by other guests, from the text of /proc/stat."""
    fields = [int(field) for field in stat.splitlines()[0].split()[1:9]]
    total = sum(fields)
    return fields[7] / total if total and len(fields) > 7 else 0.0


def check_memory() -> Check:
    lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    found = {line.split(":")[0]: line.split()[1] for line in lines}
    available = int(found["MemAvailable"]) * 1024
    text = f"{available / 2**30:.1f} GiB available"
    if available < MIN_MEMORY_BYTES:
        return degraded("memory", text, "fewer workers: each torch worker takes about 0.25 GiB")
    return ok("memory", text)


def check_disk() -> Check:
    from testbed.emulation.possible import LEAST_FREE_BYTES, OTHER_ROOT, free_space

    directory, free = free_space()
    text = f"{free / 2**30:.1f} GiB free under {directory}"
    if free < LEAST_FREE_BYTES:
        return missing("disk", text, OTHER_ROOT)
    if free < MIN_DISK_BYTES:
        return degraded("disk", text, "what is left", OTHER_ROOT)
    return ok("disk", text)


def check_ports() -> Check:
    """The one port that is the machine's own: all others of a testbed are in namespaces of its own."""
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("127.0.0.1", DASHBOARD_PORT))
        except OSError as error:
            return degraded(
                "ports",
                f"{DASHBOARD_PORT} of the live page: {error.strerror}",
                "`testbed dashboard --port 0`, which takes any that is free",
            )
    return ok("ports", f"{DASHBOARD_PORT} of the live page is free; all others are a testbed's own")


def check_testbeds() -> list[Check]:
    """Whether a management subnet is free, and what an earlier testbed has left."""
    if os.geteuid() != 0 or absent_of(["ip"]):
        return []
    from testbed.emulation.management import choose_subnet, networks_in_use

    try:
        row = ok("management subnet", f"{choose_subnet(networks_in_use()).subnet} is free")
    except StormbedError as error:
        row = missing("management subnet", error.message, error.hint)
    return [row, check_leftovers()]


def check_leftovers() -> Check:
    """What stands is fine; what is left of a testbed whose supervisor is gone is in nobody's use."""
    from testbed.emulation.launch import list_testbeds

    found = list_testbeds()
    up = [listed.name for listed in found if listed.alive]
    dead = [listed.name for listed in found if not listed.alive]
    if dead:
        return degraded("leftovers", f"of {', '.join(dead)}", "nothing of it", "testbed clean")
    return ok("leftovers", f"none; up: {', '.join(up) or 'none'}")
