"""Measures how long testbeds take to come and go, what they hold and what they leave; tables of docs/bench.md.

    python benchmarks/lifecycle.py [--only times|cycles] [--sites 9,32,64] [--print]

Needs root. See benchmarks/network.py for how tables are written. What the machine holds before and after leaves
out what other standing testbeds hold; on a machine that does other work too, it is that work's as well.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tables import measured, table

from testbed.emulation import launch
from testbed.emulation.rundir import TestbedInfo
from testbed.emulation.sites import host_pids
from topologies.load import load_topology
from topologies.model import Topology

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "bench.md"
SIZES = (9, 32, 64)
CYCLES = 20
STAGES = {"controller": "rules", "probing": "calibration", "processes of the sites": "site processes"}
"""With which words each later part of `up` begins, as its progress tells."""
TOO_MANY = 2_000


def times(sizes: list[int]) -> str:
    rows = []
    for size in sizes:
        topology = load_topology("netstorm-9" if size == 9 else f"waxman-{size}-1")
        marks: list[tuple[float, str]] = []
        load = os.getloadavg()[0]
        started = time.monotonic()
        with standing(topology, marks, started) as info:
            up_s = time.monotonic() - started
            assert info.init_pid is not None
            pids = host_pids(info.init_pid).values()
            memory = sum(pss_bytes(pid) for pid in pids)
            began = time.monotonic()
        down_s = time.monotonic() - began
        stages = stages_of(marks, up_s)
        seconds = [load, up_s, *stages.values(), down_s]
        rows.append([str(size), str(len(topology.links)), *(f"{value:.1f}" for value in seconds)])
        rows[-1] += [str(len(pids)), f"{memory / 2**20 / size:.0f}"]
        sys.stderr.write(f"| {' | '.join(rows[-1])} |\n")
    began = time.monotonic()
    refused = refusal()
    words = (
        "NetStorm-9, and random networks of 1.5 links a site (`waxman-N-1`); `up` with its calibration, and the "
        f"parts that it spends its time in. `up` of {TOO_MANY:,} sites is refused after "
        f"{time.monotonic() - began:.1f} s: {refused}.\n\n"
    )
    columns = ("sites", "links", "load before", "up s", "network s", *(f"{name} s" for name in STAGES.values()))
    return words + table((*columns, "down s", "processes", "memory MiB per site"), rows)


@contextmanager
def standing(topology: Topology, marks: list[tuple[float, str]], started: float) -> Iterator[TestbedInfo]:
    """A testbed that is up, with when each step began; down afterwards whatever happened."""
    info = launch.up(
        topology,
        f"bench-{os.getpid()}",
        on_progress=lambda text: marks.append((time.monotonic() - started, text)),
    )
    try:
        yield info
    finally:
        launch.down(info.name)


def stages_of(marks: list[tuple[float, str]], up_s: float) -> dict[str, float]:
    """How long each part of `up` took, from its lines of progress: the network itself first."""
    begins = {"network": 0.0}
    for at_s, text in marks:
        for start, name in STAGES.items():
            if text.startswith(start):
                begins.setdefault(name, at_s)
    ends = [*list(begins.values())[1:], up_s]
    return {name: end - begin for (name, begin), end in zip(begins.items(), ends, strict=True)}


def refusal() -> str:
    """What `up` says to a network that is too large for it."""
    try:
        launch.up(load_topology(f"waxman-{TOO_MANY}-1"), f"bench-{os.getpid()}")
    except Exception as error:
        return str(error)
    raise SystemExit(f"up of {TOO_MANY} sites was not refused")


def pss_bytes(pid: int) -> int:
    """A process's memory, with what it shares counted in parts."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def cycles() -> str:
    """Up and down again: what the machine and this process hold before and after."""
    name = f"bench-{os.getpid()}"
    cycle(name)  # whatever Python loads, it has loaded now
    before = held()
    began = time.monotonic()
    for _ in range(CYCLES):
        cycle(name)
    spent = time.monotonic() - began
    after = held()
    rows = [[what, f"{before[what]:,}", f"{after[what]:,}"] for what in before]
    return f"{CYCLES} cycles of two sites in {spent:.0f} s.\n\n" + table(("", "before", "after"), rows)


def cycle(name: str) -> None:
    launch.up(load_topology("pair"), name, calibrate=False)
    launch.down(name)


def held() -> dict[str, int]:
    """What exists on this machine, and what this process has; without what other testbeds that stand have."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    memory = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    fields = [line.split() for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()]
    available = {words[0]: int(words[1]) for words in fields}
    others = [listed.info for listed in launch.list_testbeds() if listed.alive and listed.info is not None]
    theirs = {namespace(Path(f"/proc/{info.init_pid}"), "pid") for info in others}
    pids = [entry for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    pids = [pid for pid in pids if namespace(pid, "pid") not in theirs]
    interfaces = {path.name for path in Path("/sys/class/net").iterdir()} - {info.interface for info in others}
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="utf-8")
    return {
        "processes": len(pids),
        "network namespaces": len({found for pid in pids if (found := namespace(pid, "net")) is not None}),
        "interfaces": len(interfaces),
        "mounts": len(Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()),
        "open files of the whole machine": int(Path("/proc/sys/fs/file-nr").read_text(encoding="utf-8").split()[0]),
        "kernel memory (slab) of the whole machine in MiB": available["Slab:"] // 1024,
        "memory available on the whole machine in MiB": available["MemAvailable:"] // 1024,
        "run directories": len(list(Path("/run/stormbed").glob("*/"))) - len(others),
        "descriptors of the caller": len(list(Path("/proc/self/fd").iterdir())),
        "memory of the caller in KiB": int(memory.split()[1]),
        "children of the caller": len(children.split()),
    }


def namespace(pid: Path, kind: str) -> int | None:
    """The number of a process's namespace; None for one that has ended."""
    try:
        return (pid / "ns" / kind).stat().st_ino
    except OSError:
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", choices=("times", "cycles"), action="append", help="one table; may be given again")
    parser.add_argument("--sites", default=",".join(map(str, SIZES)), help="for the table of times")
    parser.add_argument("--print", action="store_true", help="do not change the document")
    given = parser.parse_args()
    if os.geteuid() != 0:
        raise SystemExit("benchmarks/lifecycle.py needs root: it makes namespaces")
    # A polite kill takes the testbed down too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sizes = [int(word) for word in given.sites.split(",")]
    document = None if given.print else DOCUMENT
    for name in given.only or ("times", "cycles"):
        measured(document, name, (lambda: times(sizes)) if name == "times" else cycles)


if __name__ == "__main__":
    main()
