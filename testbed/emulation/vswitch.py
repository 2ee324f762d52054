"""A private Open vSwitch: its own database, sockets and logs in the testbed's directory, userspace datapath.

Userspace TSO lets whole TCP segments of up to 64 KB pass a switch at once; it has to be set before
ovs-vswitchd first starts. Nothing here touches an Open vSwitch that the machine itself may run.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Final

from testbed.emulation.delay_line import SO_RCVBUFFORCE, SO_SNDBUFFORCE
from testbed.emulation.packet_sockets import borrow_packet_sockets
from testbed.runner import run
from topologies.errors import CannotHonourError

SCHEMA_FILE: Final = Path("/usr/share/openvswitch/vswitch.ovsschema")
MALLOC: Final = ":".join(
    f"glibc.malloc.{setting}"
    for setting in (
        "tcache_count=2000",
        "top_pad=67108864",
        "trim_threshold=268435456",
        "mmap_threshold=268435456",
    )
)
"""With userspace TSO, ovs-vswitchd allocates and frees 64 buffers for each look at each port, a quarter of
its work. Larger caches make a look cheaper: with 40 sites the round trip falls from 4.2 to 3.1 ms."""
READ_BYTES: Final = 16 * 2**20
WRITE_BYTES: Final = 512 * 2**20
"""More than the queues of every link together; the kernel takes memory only for what waits."""
PRIORITY: Final = 5
"""Below the delay line's, which sleeps most of the time and has deadlines to keep."""


class VSwitch:
    """One private ovsdb-server and one ovs-vswitchd.

    Args:
        directory: for the database, sockets, pid files and logs; made here.
        segments: let whole TCP segments pass, which only a comparison does without.
    """

    def __init__(self, directory: Path, *, segments: bool = True) -> None:
        self.directory = directory
        self._segments = segments

    @property
    def environment(self) -> dict[str, str]:
        """What makes every ovs-* program of this process meet this Open vSwitch and no other."""
        keys = ("OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR")
        return dict.fromkeys(keys, str(self.directory))

    def start(self) -> None:
        """Start both daemons; they are the supervisor's own orphans and end with its namespace."""
        if not SCHEMA_FILE.exists():
            raise CannotHonourError(
                f"Open vSwitch is not installed: {SCHEMA_FILE} is missing",
                hint="apt-get install openvswitch-switch",
            )
        self.directory.mkdir()
        os.environ.update(self.environment)
        database = self.directory / "conf.db"
        run(["ovsdb-tool", "create", str(database), str(SCHEMA_FILE)], timeout=20)
        server = f"--remote=punix:{self.directory / 'db.sock'}"
        run(["ovsdb-server", str(database), server, *self._daemon("ovsdb-server")], timeout=20)
        self.vsctl("--no-wait", "init")
        if self._segments:
            self.vsctl("--no-wait", "set", "Open_vSwitch", ".", "other_config:userspace-tso-enable=true")
        run(
            ["ovs-vswitchd", f"unix:{self.directory / 'db.sock'}", *self._daemon("ovs-vswitchd")],
            timeout=30,
            env=dict(os.environ) | {"GLIBC_TUNABLES": MALLOC},
        )

    def be_punctual(self) -> bool:
        """Ask for real-time scheduling of the switches, so that a busy machine does not delay the network.

        With the cores busy computing, the round trip between two sites is 0.4 ms with it, and without it
        2.4 ms and at times 8 ms. Refused in some containers; the return value says whether it was granted.
        """
        try:
            for task in Path(f"/proc/{self.pid('ovs-vswitchd')}/task").iterdir():
                os.sched_setscheduler(int(task.name), os.SCHED_RR, os.sched_param(PRIORITY))
        except PermissionError:
            return False
        return True

    def _daemon(self, program: str) -> list[str]:
        pid_file, log = self.directory / f"{program}.pid", self.directory / f"{program}.log"
        return [f"--pidfile={pid_file}", f"--log-file={log}", "--detach", "-vconsole:off"]

    def pid(self, program: str) -> int:
        """The pid of "ovsdb-server" or "ovs-vswitchd"."""
        return int((self.directory / f"{program}.pid").read_text(encoding="utf-8"))

    def vsctl(self, *arguments: str, timeout: float = 30) -> str:
        """Run ovs-vsctl, which waits until ovs-vswitchd has done what it was told."""
        database = f"--db=unix:{self.directory / 'db.sock'}"
        return run(
            ["ovs-vsctl", database, f"--timeout={timeout:.0f}", *arguments], timeout=timeout + 5
        ).stdout

    def ofctl(self, *arguments: str) -> str:
        """Run ovs-ofctl with OpenFlow 1.3."""
        return run(["ovs-ofctl", "-O", "OpenFlow13", *arguments], timeout=20).stdout

    def enlarge_buffers(self, bridge: str, port: int) -> int:
        """Give the switches' packet sockets room for many 64 KB segments; returns how many sockets there are.

        ovs-vswitchd reads every port by a socket of its own and writes all of them by a single one, and what
        waits in a link's queue counts against that one. The kernel's default holds three segments, and the
        machine-wide default must not be changed for our sake. So the sockets themselves are borrowed from
        ovs-vswitchd (pidfd_getfd) and set one by one.

        Args:
            bridge, port: where a first frame may be sent: only then is the writing socket made.
        """
        frame = "ffffffffffff" + "025342ffffff" + "88b5" + "00" * 46  # an EtherType for local experiments
        self.ofctl("packet-out", bridge, f"in_port=controller packet={frame} actions=output:{port}")
        sockets = borrow_packet_sockets(self.pid("ovs-vswitchd"))
        for borrowed in sockets:
            borrowed.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, READ_BYTES)
            borrowed.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, WRITE_BYTES)
            borrowed.close()
        return len(sockets)
