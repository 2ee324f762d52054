"""Rows about the kernel. Each feature is tried in scratch namespaces by a child of this process
(`python -m testbed.doctor` is that child); the machine's own devices are only read.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from testbed.doctor.rows import APT, Check, degraded, missing, ok
from testbed.doctor.software import absent_of
from testbed.emulation import congestion, sysctls
from testbed.emulation.congestion import Congestion
from testbed.runner import run
from topologies.errors import StormbedError

_SCRATCH = ["unshare", "--net", "--uts", "--pid", "--fork", "--mount-proc", "--kill-child"]

# feature -> what is used instead when it is absent, or None when nothing can replace it.
KERNEL_FEATURES: Mapping[str, str | None] = {
    "veth": None,
    "bridge": None,
    "tun": None,
    "htb": None,
    "bfifo": None,
    "u32": None,
    "mirred": None,
    "packet sockets": None,
    "tcp buffers": None,
    "tcp segments": "many small TCP segments: a seventh of the throughput with many links busy",
    "netem": "Stormbed's delay line: delay, jitter and loss in a process of its own",
    "realtime": "a delay line at normal priority: a few ms more lateness under load",
}


def check_kernel() -> list[Check]:
    if os.geteuid() != 0:
        return [missing("kernel", "not tried, because namespaces need root", "run it with sudo")]
    if absent_of(["unshare", "ip", "tc"]):
        return [
            missing("kernel", "not tried, because unshare, ip or tc is absent", APT + "util-linux iproute2")
        ]
    child = run([*_SCRATCH, sys.executable, "-m", "testbed.doctor", network()], timeout=20, check=False)
    if child.returncode != 0:
        return [
            missing(
                "namespaces",
                child.stderr.strip() or "unshare failed",
                "allow this container network namespaces",
            )
        ]
    probed = json.loads(child.stdout)
    return [
        ok("namespaces", "net, pid and uts"),
        *kernel_rows(probed["features"]),
        congestion_row(Congestion(**probed["congestion"]), congestion.may_allow()),
    ]


def kernel_rows(probed: Mapping[str, str]) -> list[Check]:
    """Rows from what the child found: feature to "" (works) or the reason why it does not."""
    works = [feature for feature in KERNEL_FEATURES if probed[feature] == ""]
    rows = [ok("kernel", ", ".join(works))] if works else []
    for feature, instead in KERNEL_FEATURES.items():
        reason = probed[feature]
        if reason and instead is None:
            rows.append(missing(f"kernel {feature}", reason, "use a kernel built with it"))
        elif reason and instead is not None:
            rows.append(degraded(f"kernel {feature}", reason, instead))
    return rows


def congestion_row(scratch: Congestion, may_allow: bool) -> Check:
    """What sites will use. Pure.

    Args:
        scratch: what a new network namespace came to.
        may_allow: whether `testbed up` can extend what network namespaces may choose.
    """
    row, wanted, key = "congestion control", congestion.WANTED, f"net.ipv4.{congestion.ALLOWED.name}"
    if scratch.name != wanted:
        return degraded(
            row,
            f"this kernel does not offer {wanted}",
            f"{scratch.name} between sites",
            f"on the machine itself, where its kernel has that module: modprobe tcp_{wanted}",
        )
    if scratch.way != "route":
        return ok(row, f"{wanted} at every site")
    if may_allow:
        return ok(row, f"{wanted} at every site once `testbed up` has allowed it")
    return degraded(
        row,
        f"sites cannot have {wanted} as their default here",
        f"{wanted}, set on the routes across the WAN; this overrides what a program chooses before connecting",
        # The machine's own list, which may be hidden from here, is extended and not replaced.
        f'on the machine itself: sysctl -w {key}="$(sysctl -n {key}) {wanted}"',
    )


def probe() -> dict[str, Any]:
    """Try every kernel feature, and what a new network namespace may send with.

    Runs in a child's own network, PID and UTS namespaces.
    """

    def tries(*argvs: str) -> Callable[[], None]:
        def attempt() -> None:
            for argv in argvs:
                run(argv.split(), timeout=10)

        return attempt

    attempts: dict[str, Callable[[], None]] = {
        "veth": tries("ip link add name v1 type veth peer name v2", "ip link set dev v1 up"),
        "bridge": tries("ip link add name br1 type bridge"),
        "tun": tries("ip tuntap add name t1 mode tap"),
        "htb": tries(
            "tc qdisc add dev v1 root handle 1: htb default 1",
            "tc class add dev v1 parent 1: classid 1:1 htb rate 10mbit quantum 1514",
        ),
        "bfifo": tries("tc qdisc add dev v1 parent 1:1 bfifo limit 100000"),
        "u32": tries(
            "tc filter add dev v1 parent 1: protocol ip u32"
            " match ip dsfield 0x1c 0x1c match u16 0 0xff80 at 2 flowid 1:1"
        ),
        "mirred": tries(
            "tc qdisc add dev v2 ingress",
            "tc filter add dev v2 parent ffff: protocol all prio 1"
            " u32 match u32 0 0 action mirred egress redirect dev v1",
        ),
        "packet sockets": _try_packet_socket,
        "tcp buffers": _try_tcp_buffers,
        "tcp segments": lambda: _write("/proc/sys/net/ipv4/tcp_tso_rtt_log", "20"),
        "netem": tries("tc qdisc add dev v2 root netem delay 1ms"),
        "realtime": lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)),
    }
    result = {}
    for feature, attempt in attempts.items():
        try:
            attempt()
        except (OSError, StormbedError) as error:
            result[feature] = " ".join(str(error).split())
        else:
            result[feature] = ""
    sending = congestion.apply(congestion.choose(congestion.WANTED))
    return {"features": result, "congestion": asdict(sending)}


def _try_packet_socket() -> None:
    """A raw socket that passes 64 KB segments whole, as the delay line needs."""
    sol_packet, packet_vnet_hdr, packet_ignore_outgoing = 263, 15, 23
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as raw:
        raw.setsockopt(sol_packet, packet_vnet_hdr, 1)
        raw.setsockopt(sol_packet, packet_ignore_outgoing, 1)
        raw.bind(("v1", 0))


def _try_tcp_buffers() -> None:
    """The buffers of the fastest and longest path that a testbed fits its sites to."""
    for key, value in sysctls.buffers(sysctls.MOST_BUFFER_BYTES).items():
        _write(f"/proc/sys/{key.replace('.', '/')}", value)


def _write(path: str, text: str) -> None:
    Path(path).write_text(text, encoding="utf-8")


def network() -> str:
    """Which network namespace this process is in."""
    return str(Path("/proc/self/ns/net").readlink())
