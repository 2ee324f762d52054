"""A network of plain Mininet, for comparison: TCLink without delay, userspace Open vSwitch, offloads off.

This is what Mininet's own documentation gives where the kernel has neither netem nor the Open vSwitch module.
Run by benchmarks/network.py in namespaces of its own, which end with it; its only trace is the folder it is
given. Prints JSON.

    plain_mininet.py FOLDER TOPOLOGY.json SECONDS
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from mininet.link import TCLink
from mininet.net import Mininet
from mininet.node import Host, OVSSwitch
from traffic import PROGRAM, answer, start

from testbed.emulation.congestion import WANTED
from testbed.emulation.vswitch import VSwitch
from testbed.runner import batch, run
from topologies.load import topology_from_dict
from topologies.model import Topology

OFFLOADS = ("tx", "rx", "tso", "gso", "gro", "sg")
HITLESS_S = 4.5
CHANGES = 8
LOW_MBIT, HIGH_MBIT = 20, 50


def build(topology: Topology) -> tuple[Mininet, list[Host], dict[tuple[int, int], Any]]:
    """The network, and the interface that shapes each direction."""
    Mininet.inited = True  # its init raises limits of the whole machine
    net = Mininet(topo=None, build=False, controller=None, switch=OVSSwitch, link=TCLink)
    hosts, switches = [], []
    for k, _ in enumerate(topology.site_names):
        hosts.append(net.addHost(f"h{k + 1}", ip=f"10.0.0.{k + 1}/24", mac=f"02:00:00:00:00:{k + 1:02x}"))
        switches.append(
            net.addSwitch(f"s{k + 1}", datapath="user", failMode="secure", protocols="OpenFlow13")
        )
        net.addLink(hosts[k], switches[k])
    shaped: dict[tuple[int, int], Any] = {}
    for link in topology.links:
        u, v = (topology.index(end) for end in link.endpoints)
        rates = [topology.between(*ends).rate.mbps for ends in ((u, v), (v, u))]
        made = net.addLink(switches[u], switches[v], params1={"bw": rates[0]}, params2={"bw": rates[1]})
        shaped[u, v], shaped[v, u] = made.intf1, made.intf2
    net.build()
    net.staticArp()
    net.start()
    for k, switch in enumerate(switches):
        flows = [f"dl_dst={hosts[k].MAC()},actions=output:{switch.ports[switch.intfs[1]]}"]
        for (u, v), intf in shaped.items():
            if u == k:
                flows.append(f"dl_dst={hosts[v].MAC()},actions=output:{switch.ports[intf]}")
        for flow in flows:
            run(["ovs-ofctl", "-O", "OpenFlow13", "add-flow", switch.name, flow], timeout=10)
    for node in (*hosts, *switches):
        for intf in node.intfList():
            if intf.name != "lo":
                node.cmd("ethtool", "-K", intf.name, *(f"{name} off" for name in OFFLOADS))
    for host in hosts:
        host.cmd(f"ip route replace 10.0.0.0/24 dev {host.defaultIntf()} congctl {WANTED}")
    return net, hosts, shaped


def traffic(hosts: list[Host], request: dict[str, Any]) -> subprocess.Popen[str]:
    return start(PROGRAM, [{"pid": host.pid, "ip": host.IP()} for host in hosts], request)


def main() -> None:
    folder, seconds = Path(sys.argv[1]), float(sys.argv[3])
    topology = topology_from_dict(json.loads(Path(sys.argv[2]).read_text(encoding="utf-8")))
    run(["mount", "-t", "sysfs", "sysfs", "/sys"], timeout=10)
    batch(["ip"], ["link set dev lo up"])
    vswitch = VSwitch(folder / "ovs", segments=False)
    vswitch.start()
    _, hosts, shaped = build(topology)
    # As ours has it, so that a busy machine does not decide the comparison.
    vswitch.be_punctual()
    plain = {"tos": 0, "back_tos": 0}
    flows = [{"src": d.src, "dst": d.dst, "rate_bps": d.rate.bps, **plain} for d in topology.directed]
    load = {"kind": "load", "flows": flows, "warm_s": 1.5, "seconds_s": seconds}
    loaded = answer(traffic(hosts, load), 60 + seconds)
    # Its own way of changing a rate while traffic flows.
    intf = shaped[0, 1]
    intf.config(bw=LOW_MBIT)
    paced = {"src": 0, "dst": 1, "send_bps": int(0.8 * LOW_MBIT * 1e6), **plain}
    flood = {"kind": "flood", "flows": [paced], "seconds_s": HITLESS_S, "wait_s": 1.0}
    process = traffic(hosts, flood)
    pause = threading.Event()
    pause.wait(0.4)
    for number in range(CHANGES):
        pause.wait(0.45)
        intf.config(bw=(HIGH_MBIT, LOW_MBIT)[number % 2])
    json.dump({"load": loaded, "hitless": answer(process, 60)}, sys.stdout)


if __name__ == "__main__":
    main()
