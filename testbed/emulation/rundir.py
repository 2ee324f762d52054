"""Where a testbed keeps its state, and what that state says.

Everything of a testbed NAME lies in /run/stormbed/NAME (the environment variable STORMBED_RUN_ROOT names
another root). `testbed.json` there is written by the caller of `up` only, whole or not at all.
"""

from __future__ import annotations

import json
import os
import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from testbed.emulation.congestion import WANTED
from topologies.addressing import CONTROLLER_HTTP_PORT, COORDINATOR_PORT, PROMETHEUS_PORT, Management
from topologies.errors import InvalidFileError, UsageError
from topologies.load import topology_from_dict
from topologies.model import Topology
from topologies.unix_sockets import socket_address
from topologies.validation import Unfit, fit

DEFAULT_ROOT: Final = "/run/stormbed"
SCHEMA: Final = 1
HANDED_OVER: Final = b"up\n"
"""What the caller of `up` tells the supervisor when the testbed is written down and may outlive it."""
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,31}", re.ASCII)


def run_root() -> Path:
    """The directory that holds one directory a testbed.

    Raises:
        UsageError: it has characters that the configuration files of ssh and others cannot hold.
    """
    root = Path(os.environ.get("STORMBED_RUN_ROOT") or DEFAULT_ROOT).absolute()
    text = str(root)
    if not text.isprintable() or set(text) & set('"%\\'):
        raise UsageError(
            f"testbeds cannot be kept under {text!a}",
            hint="set STORMBED_RUN_ROOT to a directory without quotes, backslashes, percent signs and control "
            "characters; letters beyond ASCII need a UTF-8 locale, such as LC_ALL=C.UTF-8",
        )
    return root


def check_name(name: str) -> str:
    """The name, if a testbed may have it; it becomes a directory, a host name and part of messages."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name[:40]!r} cannot name a testbed",
            hint="use 1 to 32 of a-z, 0-9 and '-', beginning with a letter or digit",
        )
    return name


@dataclass(frozen=True, slots=True)
class RunDir:
    """The files of one testbed."""

    path: Path

    @classmethod
    def of(cls, name: str) -> Self:
        return cls(run_root() / check_name(name))

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def state(self) -> Path:
        return self.path / "testbed.json"

    @property
    def topology(self) -> Path:
        return self.path / "topology.json"

    @property
    def socket(self) -> Path:
        return self.path / "supervisor.sock"

    @property
    def log(self) -> Path:
        return self.path / "supervisor.log"

    @property
    def events(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def cgroup(self) -> Path:
        """Where the testbed's own namespaces see the control groups of its sites."""
        return self.path / "cgroup"

    @property
    def ovs(self) -> Path:
        return self.path / "ovs"

    @property
    def delay_line_socket(self) -> Path:
        return self.path / "delay_line.sock"

    def site(self, name: str) -> Path:
        return self.path / "sites" / name


class _State(BaseModel):
    # A newer writer may add fields; an older reader need not fail on them.
    model_config = ConfigDict(frozen=True, extra="ignore")


class SiteInfo(_State):
    """One site: its place in the topology, its addresses, and the pid that holds it (the caller's)."""

    index: int
    wan_ip: str
    mgmt_ip: str
    pid: int | None = None


class TestbedInfo(_State):
    """What `testbed.json` says. Pids are the caller's; `started_ticks` tells a reused pid from ours."""

    __test__ = False  # not a test, whatever pytest makes of the name

    schema_version: int = Field(default=SCHEMA, alias="schema")
    name: str
    created_s: float
    state: Literal["starting", "up"]
    topology: dict[str, Any]
    subnet: str
    interface: str
    pid: int | None = None
    started_ticks: int | None = None
    init_pid: int | None = None
    supervisor_pid: int | None = None
    sites: dict[str, SiteInfo]
    fidelity: dict[str, Any] | None = None
    coordinator_site: str | None = None
    """Where the coordinator runs; None: out of band, on the management network."""
    limits: tuple[str, ...] = ()
    """In what it cannot be as declared on this machine, known before it was made."""
    allow_degraded: bool = False
    """Whether it was to come up even so."""
    congestion: str = WANTED
    """The congestion control of connections across the WAN."""
    cpu_by: Literal["cgroup-v1", "cgroup-v2", "padding"] | None = None
    """What holds sites to the cores that they declare; None where none does."""
    cpu_group: str | None = None
    """The control group that holds those of the sites, as the caller sees it."""

    @property
    def run_dir(self) -> Path:
        return RunDir.of(self.name).path

    def group_of(self, site: str) -> Path | None:
        """The control group that a site's processes enter, as seen inside; None where it has no quota."""
        limited = self.cpu_group is not None and self.topology["sites"][site].get("cpu") is not None
        return RunDir.of(self.name).cgroup / site if limited else None

    @property
    def management(self) -> Management:
        return Management(self.subnet)

    @property
    def controller_url(self) -> str:
        return f"http://{self.management.supervisor}:{CONTROLLER_HTTP_PORT}"

    @property
    def prometheus_url(self) -> str:
        return f"http://{self.management.supervisor}:{PROMETHEUS_PORT}"

    @property
    def coordinator(self) -> tuple[str, int]:
        """Where runners find it, always on the management network."""
        at = self.coordinator_site
        return self.management.supervisor if at is None else self.sites[at].mgmt_ip, COORDINATOR_PORT

    def padded_share(self, site: str) -> float | None:
        """The share of a core that each worker of a site is held to by waiting; None where it need not."""
        declared = self.topology["sites"][site]
        if self.cpu_by != "padding" or declared.get("cpu") is None:
            return None
        return min(1.0, float(declared["cpu"]) / int(declared.get("workers", 1)))

    def load_topology(self) -> Topology:
        return topology_from_dict(self.topology, source=f"testbed {self.name}")

    def to_json(self) -> str:
        return json.dumps(self.model_dump(by_alias=True), indent=1)


def read_info(run: RunDir) -> TestbedInfo | None:
    """A testbed's state, or None when there is none.

    Raises:
        InvalidFileError: the file is there and is not a testbed's state.
    """
    what, hint = f"{run.state} is not the state of a testbed", f"remove it with `testbed clean {run.name}`"
    try:
        fields = json.loads(run.state.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        raise InvalidFileError(f"{what}: {error}", hint=hint) from None
    try:
        return fit(TestbedInfo, fields)
    except Unfit as unfit:
        raise InvalidFileError(f"{what}: {unfit}", hint=hint) from None


def write_info(run: RunDir, info: TestbedInfo) -> None:
    """Replace a testbed's state in one step."""
    fresh = run.state.with_suffix(".json.new")
    fresh.write_text(info.to_json(), encoding="utf-8")
    fresh.replace(run.state)


def connect_unix(path: Path, timeout: float) -> socket.socket:
    """A connection to the UNIX socket at a path."""
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(timeout)
    try:
        with socket_address(path) as address:
            connection.connect(address)
    except BaseException:
        connection.close()
        raise
    return connection
