"""What the kernel has counted on the WAN, and how busy the machine is. Parsers are pure.

Bytes are whole Ethernet frames as they would be on the wire, headers of every 1500-byte packet included:
the very measure by which links are shaped. Packet counts are not reported, since one segment may be 45
packets.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from testbed.emulation import shaping
from testbed.runner import run
from topologies.dscp import CLASSES
from topologies.model import DirectedLink

_TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class LinkCounters:
    """Since the network was made, for one direction. `drops` are of its queues, in segments."""

    bytes: int = 0
    drops: int = 0
    backlog_bytes: int = 0
    ack_bytes: int = 0
    class_bytes: tuple[int, ...] = (0,) * CLASSES

    def to_dict(self) -> dict[str, Any]:
        return {
            "bytes": self.bytes,
            "drops": self.drops,
            "backlog_bytes": self.backlog_bytes,
            "ack_bytes": self.ack_bytes,
            "class_bytes": list(self.class_bytes),
        }


def parse_qdiscs(text: str, links: Sequence[DirectedLink]) -> tuple[LinkCounters, ...]:
    """The counters of every direction from the output of `tc -s -j qdisc show`."""
    by_device: dict[str, dict[str, Mapping[str, Any]]] = {}
    for qdisc in json.loads(text or "[]"):
        by_device.setdefault(qdisc["dev"], {})[qdisc["handle"]] = qdisc
    return tuple(_of_device(by_device.get(shaping.egress_device(link), {})) for link in links)


def _of_device(qdiscs: Mapping[str, Mapping[str, Any]]) -> LinkCounters:
    root = qdiscs.get("1:")
    if root is None:
        return LinkCounters()
    classes = [0] * CLASSES
    for handle, qdisc in qdiscs.items():
        cls = shaping.class_of_handle(handle)
        if cls is not None:
            classes[cls] = qdisc["bytes"]
    acks = qdiscs.get(f"{shaping.ACK_LEAF}:", {}).get("bytes", 0)
    return LinkCounters(root["bytes"], root["drops"], root["backlog"], acks, tuple(classes))


def read_links(links: Sequence[DirectedLink]) -> tuple[LinkCounters, ...]:
    """The counters of every direction now."""
    return parse_qdiscs(run(["tc", "-s", "-j", "qdisc", "show"], timeout=10, quiet=True).stdout, links)


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """CPU seconds since the machine started, over all cores. `busy_s` includes `softirq_s`, not `steal_s`."""

    busy_s: float
    softirq_s: float
    steal_s: float
    idle_s: float
    cores: int

    def to_dict(self) -> dict[str, Any]:
        return {
            "busy_s": self.busy_s,
            "softirq_s": self.softirq_s,
            "steal_s": self.steal_s,
            "idle_s": self.idle_s,
            "cores": self.cores,
        }


def parse_stat(text: str) -> CpuTimes:
    """The CPU times from the text of /proc/stat."""
    lines = text.splitlines()
    user, nice, system, idle, iowait, irq, softirq, steal = (int(f) / _TICKS for f in lines[0].split()[1:9])
    cores = sum(line.startswith("cpu") for line in lines) - 1
    busy = user + nice + system + irq + softirq
    return CpuTimes(busy, softirq, steal, idle + iowait, cores)


def parse_process_stat(text: str) -> float:
    """CPU seconds of a process from the text of /proc/PID/stat; what it waited for ended children is not in it."""
    user, system = text.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / _TICKS


def read_process_cpu(pid: int) -> float | None:
    """CPU seconds of a process so far; None when there is none."""
    try:
        return parse_process_stat(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace"))
    except (OSError, ValueError):
        return None


def read_cpu() -> CpuTimes:
    return parse_stat(Path("/proc/stat").read_text(encoding="utf-8"))
