"""The emulated WAN as a Mininet: one host and one Open vSwitch bridge a site, a delay line in every WAN link.

Mininet owns the nodes (its shells hold the namespaces) and describes them to Open vSwitch. Devices are made
in one `ip -batch` instead of one shell command each, and every command's status is checked. Of Mininet's
global effects none is used: it changes no machine-wide limit (`fixLimits`), and its `mn -c`, which deletes
every bridge of a machine, is never called.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any, Final

from mininet.link import Intf, Link
from mininet.net import Mininet
from mininet.node import Host, OVSSwitch, RemoteController

from testbed.emulation import management, shaping, sysctls
from testbed.emulation.congestion import Congestion
from testbed.emulation.rundir import RunDir
from testbed.emulation.vswitch import VSwitch
from testbed.runner import batch, run
from topologies import addressing
from topologies.addressing import Management
from topologies.model import DirectedLink, Topology
from topologies.paths import path_sets

MTU: Final = 1500
_BATCH_CHARACTERS: Final = 100_000
"""How long one ovs-vsctl command line may get; the kernel allows 128 KB an argument list entry."""


class Wire(Intf):
    """An interface that exists already and is configured by batch; Mininet only needs to know it."""

    def config(self, **_params: Any) -> dict[str, Any]:
        return {}


class WanLink(Link):
    """A link between two switches: two veth pairs whose inner ends the delay line joins.

    Switch u has `w<i>a`, whose peer is `d<i>a`; switch v has `w<i>b` and `d<i>b`.
    """

    @staticmethod
    def device_lines(link: int) -> list[str]:
        """Lines for `ip -batch` that make the link's devices."""
        lines = []
        for side in (0, 1):
            switch_end, delay_end = addressing.wan_intf(link, side), addressing.delay_intf(link, side)
            lines += [
                f"link add name {switch_end} mtu {MTU} type veth peer name {delay_end} mtu {MTU}",
                f"link set dev {switch_end} arp off up",
                f"link set dev {delay_end} arp off up",
            ]
        return lines

    @classmethod
    def makeIntfPair(cls, *_arguments: Any, **_options: Any) -> None:
        """Nothing to do: `device_lines` has made them."""


class SiteLink(Link):
    """The cable from a site's host to its switch; never shaped."""

    @staticmethod
    def device_lines(k: int, pid: int) -> list[str]:
        """Lines for `ip -batch`; `pid` is a process of the site."""
        port, inner = addressing.switch_host_intf(k), addressing.host_intf(k)
        return [
            f"link add name {port} mtu {MTU} type veth "
            f"peer name {inner} mtu {MTU} address {addressing.wan_mac(k)} netns {pid}",
            f"link set dev {port} arp off up",
        ]

    @classmethod
    def makeIntfPair(cls, *_arguments: Any, **_options: Any) -> None:
        """Nothing to do: `device_lines` has made them."""


class SiteHost(Host):
    """A site's namespaces: network and mounts as with every Mininet host, and a host name of its own."""

    def _popen(self, cmd: Sequence[str], **params: Any) -> Any:
        if self.shell is None:  # the shell that holds the namespaces; all else enters them
            cmd = ["unshare", "--uts", "--", *cmd]
        return super()._popen(cmd, **params)

    def config(self, **_params: Any) -> dict[str, Any]:
        return {}  # `_configure_site` has done it


class Switch(OVSSwitch):
    """A bridge of the private Open vSwitch, described to it together with all others."""

    vswitch: VSwitch

    @classmethod
    def setup(cls) -> None:
        cls.OVSVersion = cls.vswitch.vsctl("--version").split("\n")[0].split()[-1]

    @classmethod
    def batchStartup(cls, switches: Sequence[Switch], run: Any = None) -> Sequence[Switch]:
        """Make the bridges of all switches, in as few transactions as a command line can hold."""
        arguments: list[str] = []
        for switch in switches:
            for command in switch.commands:
                if len(shlex.join(arguments)) + len(command) > _BATCH_CHARACTERS:
                    cls.vswitch.vsctl(*arguments)
                    arguments = []
                arguments += shlex.split(command)
        cls.vswitch.vsctl(*arguments, timeout=60)
        return switches


class Controller(RemoteController):
    """The OpenFlow controller, a process of its own whose readiness is asked for over HTTP."""

    def checkListening(self) -> None:
        """Nothing to do: switches keep trying until it listens."""


class Network:
    """The Mininet of one testbed.

    Args:
        topology: what to build.
        run_dir: the testbed's files.
        addresses: its management network, whose bridge is there.
        vswitch: running.
        congestion: how sites are to send.
    """

    def __init__(
        self,
        topology: Topology,
        run_dir: RunDir,
        addresses: Management,
        vswitch: VSwitch,
        congestion: Congestion,
    ) -> None:
        self.topology = topology
        self.run_dir = run_dir
        self.addresses = addresses
        self.vswitch = vswitch
        self.congestion = congestion
        Switch.vswitch = vswitch
        # What Mininet.init would do is raise machine-wide limits that a testbed does not need.
        Mininet.inited = True
        self.net = Mininet(topo=None, build=False, controller=None, switch=Switch, host=SiteHost, intf=Wire)
        self.hosts: list[SiteHost] = []
        self.switches: list[Switch] = []
        self.paths = [path for paths in path_sets(topology, limit=1).values() for path in paths]
        self._fitted = (0, 0)
        self.realtime = False

    def build(self) -> None:
        """Nodes, devices, addresses: everything but the bridges."""
        for k, _ in enumerate(self.topology.site_names):
            self.hosts.append(self.net.addHost(addressing.host_name(k)))
            switch = self.net.addSwitch(
                addressing.switch_name(k),
                dpid=f"{addressing.dpid(k):016x}",
                datapath="user",
                failMode="secure",
                protocols="OpenFlow13",
                batch=True,
            )
            self.switches.append(switch)
        self._make_devices()
        self._tell_mininet()
        for k, host in enumerate(self.hosts):
            self._configure_site(k, host.pid)
        self.fit_links(self.topology.directed)

    def start_switches(self) -> None:
        """Make the bridges; they begin to call the controller."""
        self.net.addController(
            "c0", controller=Controller, ip="127.0.0.1", port=addressing.OPENFLOW_PORT, protocol="tcp"
        )
        self.net.start()
        self.realtime = self.vswitch.be_punctual()
        self.vswitch.enlarge_buffers(addressing.switch_name(0), addressing.HOST_PORT)

    def site_pid(self, k: int) -> int:
        """The pid (inside the testbed) of the shell that holds site k's namespaces."""
        return int(self.hosts[k].pid)

    def fit_links(self, links: Sequence[DirectedLink]) -> None:
        """Fit the sites' segment size and TCP buffers to the links as they are now."""
        self.fit(shaping.gso_max_bytes(links), sysctls.tcp_buffer_bytes(links, self.paths))

    def fit(self, gso_bytes: int, buffer_bytes: int) -> None:
        """Give the sites this segment size and these TCP buffers."""
        if (gso_bytes, buffer_bytes) == self._fitted:
            return
        settings = sysctls.arguments(sysctls.buffers(buffer_bytes))
        for k, host in enumerate(self.hosts):
            device = ["ip", "link", "set", "dev", addressing.host_intf(k), "gso_max_size", str(gso_bytes)]
            enter = ["nsenter", "--target", str(host.pid), "--net", "--"]
            run([*enter, *device], timeout=10)
            run([*enter, "sysctl", "-q", "-w", *settings], timeout=10)
        self._fitted = (gso_bytes, buffer_bytes)

    def _make_devices(self) -> None:
        lines = []
        for k, host in enumerate(self.hosts):
            lines += SiteLink.device_lines(k, host.pid)
            lines += management.site_lines(k, host.pid)
        for i, _ in enumerate(self.topology.links):
            lines += WanLink.device_lines(i)
        batch(["ip"], lines)

    def _tell_mininet(self) -> None:
        for k, host in enumerate(self.hosts):
            self.net.addLink(
                host,
                self.switches[k],
                cls=SiteLink,
                port1=0,
                port2=addressing.HOST_PORT,
                intfName1=addressing.host_intf(k),
                intfName2=addressing.switch_host_intf(k),
                addr1=addressing.wan_mac(k),
                addr2=None,
            )
            host.intf(addressing.host_intf(k)).ip = addressing.wan_ip(k)
        for i, link in enumerate(self.topology.links):
            u, v = (self.topology.index(end) for end in link.endpoints)
            self.net.addLink(
                self.switches[u],
                self.switches[v],
                cls=WanLink,
                port1=addressing.wan_port(self.topology, u, v),
                port2=addressing.wan_port(self.topology, v, u),
                intfName1=addressing.wan_intf(i, 0),
                intfName2=addressing.wan_intf(i, 1),
                addr1=None,
                addr2=None,
            )

    def _configure_site(self, k: int, pid: int) -> None:
        name = self.topology.site_names[k]
        directory = self.run_dir.site(name)
        directory.mkdir(parents=True, exist_ok=True)
        hosts = directory / "hosts"
        hosts.write_text(hosts_file(self.topology, self.addresses), encoding="utf-8")
        enter = ["nsenter", "--target", str(pid), "--net", "--mount", "--uts", "--"]
        settings = sysctls.site(name, self.congestion)
        run([*enter, "sysctl", "-q", "-e", "-w", *sysctls.arguments(settings)], timeout=10)
        batch([*enter, "ip"], site_lines(self.topology, self.addresses, k, self.congestion))
        run([*enter, "mount", "--bind", str(hosts), "/etc/hosts"], timeout=10)


def site_lines(topology: Topology, addresses: Management, k: int, congestion: Congestion) -> list[str]:
    """Lines for `ip -batch` inside site k: its addresses, and every other site's MAC so that nobody asks."""
    wan, inner = addressing.host_intf(k), management.SITE_INTERFACE
    lines = [
        "link set dev lo up",
        f"addr add {addressing.wan_ip(k)}/{addressing.WAN_PREFIX} dev {wan}",
        f"link set dev {wan} up",
        f"addr add {addresses.site(k)}/{addresses.prefixlen} dev {inner}",
        f"link set dev {inner} up",
    ]
    if congestion.way == "route":  # the one that came with the address, and what it says besides
        lines.append(
            f"route replace {addressing.WAN_SUBNET} dev {wan} proto kernel scope link "
            f"src {addressing.wan_ip(k)} congctl {congestion.name}"
        )
    for other, _ in enumerate(topology.site_names):
        if other != k:
            lines.append(
                f"neigh replace {addressing.wan_ip(other)} lladdr {addressing.wan_mac(other)} "
                f"dev {wan} nud permanent"
            )
    return lines


def hosts_file(topology: Topology, addresses: Management) -> str:
    """The /etc/hosts of every site: a site's name is its WAN address, NAME-mgmt its unshaped one."""
    lines = ["127.0.0.1 localhost"]
    for k, name in enumerate(topology.site_names):
        lines += [f"{addressing.wan_ip(k)} {name}", f"{addresses.site(k)} {name}-mgmt"]
    return "\n".join(lines) + "\n"
