"""The real controller against a real Open vSwitch in a network namespace of its own.

Every test runs on both engines: os-ken, which the testbed uses, and Ryu 4.34 itself, whose environment
testbed/setup/ryu.sh makes.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from controller.rules import COOKIE_MARK, plan_rules
from topologies.addressing import dpid, switch_host_intf, switch_name, wan_mac, wan_port
from topologies.load import load_topology
from topologies.paths import path_sets

pytestmark = [
    pytest.mark.emulated,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: the controller on real switches is UNVERIFIED here"),
    pytest.mark.skipif(
        shutil.which("ovs-vswitchd", path="/usr/sbin:/sbin:" + os.environ.get("PATH", "")) is None,
        reason="needs Open vSwitch (Debian: openvswitch-switch)",
    ),
]

ENVIRONMENT = {**os.environ, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin:" + os.environ.get("PATH", "")}
SCHEMA = "/usr/share/openvswitch/vswitch.ovsschema"
DEADLINE_S = 20.0
ROOT = Path(__file__).parents[2]
RYU_PYTHON = ROOT / ".venv-ryu" / "bin" / "python"
PYTHON = {"os-ken": sys.executable, "ryu": str(RYU_PYTHON)}
OPENFLOW = "127.0.0.1:6653"
HTTP = "127.0.0.1:8080"


def wait_until(what: str, condition: Callable[[], Any], seconds: float = DEADLINE_S) -> Any:
    """Poll until the condition holds; the test fails with what was waited for."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            pytest.fail(f"waited {seconds:g} s for {what} in vain; last seen: {value!r}")
        time.sleep(0.05)  # between two looks at the condition


def same_network(one: int | str, other: int | str) -> bool:
    return Path(f"/proc/{one}/ns/net").readlink() == Path(f"/proc/{other}/ns/net").readlink()


class Lab:
    """A network namespace with a private Open vSwitch, its bridges wired as a topology and the hosts' ends.

    The first process is the namespace's anchor and the first of a PID namespace: when it ends, all the
    rest does.
    """

    def __init__(self, folder: Path, engine: str, topology: str = "triangle") -> None:
        self.folder = folder
        self.engine = engine
        self.topology = load_topology(topology)
        (folder / "topology.json").write_text(json.dumps(self.topology.to_dict()))
        self.controller: subprocess.Popen[bytes] | None = None
        self.anchor = subprocess.Popen(
            ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "sleep", "infinity"],
            env=ENVIRONMENT,
        )
        try:
            self.pid = wait_until("the namespace", self._anchor_child)
            self._start_switches()
        except BaseException:
            self.anchor.kill()
            self.anchor.wait()
            raise

    def _anchor_child(self) -> int | None:
        children = Path(f"/proc/{self.anchor.pid}/task/{self.anchor.pid}/children").read_text().split()
        if not children or same_network(children[0], "self"):
            return None
        return int(children[0])

    def argv(self, *command: str) -> list[str]:
        return ["nsenter", "--target", str(self.pid), "--net", "--pid", "--mount", "--", *command]

    def run(self, *command: str) -> str:
        done = subprocess.run(
            self.argv(*command), env=self._ovs_environment(), capture_output=True, timeout=30
        )
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.decode()}"
        return done.stdout.decode()

    def _ovs_environment(self) -> dict[str, str]:
        folder = str(self.folder)
        return {
            **ENVIRONMENT,
            "OVS_RUNDIR": folder,
            "OVS_LOGDIR": folder,
            "OVS_DBDIR": folder,
            "OVS_SYSCONFDIR": folder,
        }

    def vsctl(self, *command: str) -> str:
        return self.run("ovs-vsctl", f"--db=unix:{self.folder}/db.sock", "--timeout=20", *command)

    def ofctl(self, *command: str) -> str:
        return self.run("ovs-ofctl", "-O", "OpenFlow13", *command)

    def _start_switches(self) -> None:
        folder = self.folder
        self.run("ip", "link", "set", "lo", "up")
        self.run("ovsdb-tool", "create", f"{folder}/conf.db", SCHEMA)
        common = ["--detach", "-vconsole:off"]
        self.run(
            "ovsdb-server",
            f"{folder}/conf.db",
            f"--remote=punix:{folder}/db.sock",
            f"--pidfile={folder}/ovsdb-server.pid",
            f"--log-file={folder}/ovsdb-server.log",
            *common,
        )
        self.vsctl("--no-wait", "init")
        self.run(
            "ovs-vswitchd",
            f"unix:{folder}/db.sock",
            f"--pidfile={folder}/ovs-vswitchd.pid",
            f"--log-file={folder}/ovs-vswitchd.log",
            *common,
        )
        for k in range(len(self.topology.site_names)):
            name = switch_name(k)
            self.vsctl(
                *("add-br", name, "--", "set", "bridge", name, "datapath_type=netdev", "fail_mode=secure"),
                *("protocols=OpenFlow13", f"other-config:datapath-id={dpid(k):016x}"),
                *("--", "set-controller", name, f"tcp:{OPENFLOW}"),
                *("--", "set", "controller", name, "max_backoff=1000"),
            )
            inside = f"h{k + 1}"
            self.run("ip", "link", "add", switch_host_intf(k), "type", "veth", "peer", "name", inside)
            self.run("ip", "link", "set", inside, "address", wan_mac(k), "up")
            self._add_port(name, switch_host_intf(k), 1)
        for i, link in enumerate(self.topology.links):
            u, v = (self.topology.index(end) for end in link.endpoints)
            self.run("ip", "link", "add", f"w{i}a", "type", "veth", "peer", "name", f"w{i}b")
            self._add_port(switch_name(u), f"w{i}a", wan_port(self.topology, u, v))
            self._add_port(switch_name(v), f"w{i}b", wan_port(self.topology, v, u))

    def _add_port(self, bridge: str, interface: str, number: int) -> None:
        self.run("ip", "link", "set", interface, "up")
        self.vsctl(
            "add-port", bridge, interface, "--", "set", "interface", interface, f"ofport_request={number}"
        )

    def start_controller(self, *options: str) -> None:
        log = (self.folder / "controller.out").open("ab")
        self.controller = subprocess.Popen(
            self.controller_argv(*options),
            env=self.controller_environment(),
            cwd=ROOT,
            stdout=log,
            stderr=log,
        )
        log.close()

    def controller_argv(self, *options: str) -> list[str]:
        """The command that starts a controller; later options win over earlier ones."""
        usual = ["--topology", f"{self.folder}/topology.json", "--openflow", OPENFLOW, "--http", HTTP]
        return self.argv(PYTHON[self.engine], "-m", "controller", *usual, *options)

    def controller_environment(self) -> dict[str, str]:
        return {**ENVIRONMENT, "STORMBED_OPENFLOW_ENGINE": self.engine}

    def stop_controller(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Signal the controller itself, not the nsenter above it, and wait for both."""
        assert self.controller is not None
        children = Path(f"/proc/{self.controller.pid}/task/{self.controller.pid}/children")
        (child,) = wait_until("the controller to begin", lambda: children.read_text().split())
        os.kill(int(child), number)
        code = self.controller.wait(timeout=DEADLINE_S)
        self.controller = None
        return code

    def get(self, path: str) -> Any:
        """Fetch from the controller's HTTP interface; None while it does not answer."""
        code = (
            "import sys, urllib.request, urllib.error\n"
            "try: sys.stdout.write(urllib.request.urlopen(sys.argv[1], timeout=5).read().decode())\n"
            "except (urllib.error.URLError, OSError): sys.exit(3)\n"
        )
        done = subprocess.run(
            self.argv(sys.executable, "-S", "-c", code, f"http://{HTTP}{path}"),
            env=ENVIRONMENT,
            capture_output=True,
            timeout=30,
        )
        if done.returncode == 3:
            return None
        assert done.returncode == 0, done.stderr.decode()
        text = done.stdout.decode()
        return text if path == "/metrics" else json.loads(text)

    def health(self) -> Any:
        return wait_until("the controller to answer", lambda: self.get("/health"))

    def ready(self) -> bool:
        health = self.get("/health")
        return bool(health and health["ready"])

    def wait_ready(self) -> None:
        wait_until("the controller to be ready", self.ready)

    def rules(self, k: int) -> list[str]:
        """What the switch of site k holds, as Open vSwitch prints it."""
        lines = self.ofctl("--no-stats", "--no-names", "dump-flows", switch_name(k)).splitlines()
        return sorted(line.strip() for line in lines if "cookie=" in line)

    def planned(self, k: int, *down: int) -> list[str]:
        planned = plan_rules(self.topology, path_sets(self.topology), frozenset(down))[dpid(k)]
        return sorted(as_printed(rule.to_ofctl()) for rule in planned)

    def durations(self, k: int) -> list[float]:
        """Ages of the rules in seconds: a rule that is written anew begins at zero."""
        text = self.ofctl("dump-flows", switch_name(k))
        return [float(age) for age in re.findall(r"duration=([0-9.]+)s", text)]

    @contextmanager
    def no_rule_is_written(self, k: int) -> Iterator[None]:
        """That all rules of a switch are older after the block by the time that it took: none began anew."""
        wait_until("the rules to be older than a second", lambda: min(self.durations(k)) > 1)
        ages, read_at = self.durations(k), time.monotonic()
        yield
        passed = time.monotonic() - read_at  # between the two readings at least; the switch's clock may lag a little
        later = self.durations(k)
        assert len(later) == len(ages) and min(later) > min(ages) + passed - 0.5

    def down(self) -> None:
        if self.controller is not None and self.controller.poll() is None:
            self.stop_controller(signal.SIGKILL)
        self.anchor.kill()  # --kill-child and the PID namespace take everything else along
        self.anchor.wait(timeout=DEADLINE_S)
        wait_until("the namespace to be gone", lambda: not Path(f"/proc/{self.pid}").exists())


def as_printed(rule: str) -> str:
    """Open vSwitch leaves out table 0."""
    return rule.replace(" table=0,", "")


@pytest.fixture(scope="module", params=["os-ken", "ryu"])
def lab(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    if request.param == "ryu" and not RYU_PYTHON.exists():
        pytest.skip(
            "unverified: the controller runs on Ryu 4.34 as well (no .venv-ryu; make test-ryu makes it)"
        )
    made = Lab(tmp_path_factory.mktemp("lab"), request.param)
    try:
        yield made
    finally:
        made.down()


@pytest.fixture
def running(lab: Lab) -> Iterator[Lab]:
    """The lab with a controller that is ready."""
    if lab.controller is None:
        lab.start_controller("--poll-seconds", "1")
    lab.wait_ready()
    yield lab


def test_the_switches_hold_exactly_the_planned_rules(running: Lab) -> None:
    for k in range(3):
        assert running.rules(k) == running.planned(k)
        assert len(set(running.rules(k))) == len(running.rules(k))


def test_the_engine_is_the_one_asked_for(running: Lab) -> None:
    assert f"triangle under {running.engine};" in (running.folder / "controller.out").read_text()
    modules = "import controller.app, sys; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run(
        [PYTHON[running.engine], "-c", modules],
        env=running.controller_environment(),
        cwd=ROOT,
        capture_output=True,
        timeout=60,
        check=True,
    )
    loaded = set(done.stdout.decode().split())
    assert loaded & {"ryu", "os_ken"} == {"ryu" if running.engine == "ryu" else "os_ken"}


def test_health_and_routes(running: Lab) -> None:
    health = running.health()
    assert health["schema"] == 1
    assert (health["connected"], health["missing"], health["unexpected"]) == ([1, 2, 3], [], [])
    assert health["rules"] == sum(len(running.planned(k)) for k in range(3))
    assert {(p["peer"], p["up"]) for p in health["switches"][0]["ports"]} == {
        ("dc1", True),
        ("dc2", True),
        ("dc3", True),
    }
    routes = running.get("/routes")["routes"]
    first = next(route for route in routes if (route["src"], route["dst"]) == ("dc1", "dc2"))
    assert first["paths"] == [
        {"path": 0, "sites": ["dc1", "dc2"], "intact": True},
        {"path": 1, "sites": ["dc1", "dc3", "dc2"], "intact": True},
    ]
    assert first["primary"] == {"path": 0, "sites": ["dc1", "dc2"], "moved": False}


def send_frames(lab: Lab, src: int, dst: int, tos: int, count: int) -> None:
    """Put IPv4 frames on the wire of a site, as its host would."""
    code = (
        "import socket, struct, sys\n"
        "src, dst, tos, count, there, back = sys.argv[1:]\n"
        "mac = lambda text: bytes.fromhex(text.replace(':', ''))\n"
        "ip = struct.pack('!BBHHHBBH4s4s', 0x45, int(tos), 120, 0, 0, 64, 253, 0, socket.inet_aton(src),\n"
        "                 socket.inet_aton(dst))\n"
        "frame = mac(there) + mac(back) + b'\\x08\\x00' + ip + bytes(100)\n"
        "out = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)\n"
        f"out.bind(('h{src + 1}', 0))\n"
        "for _ in range(int(count)): out.send(frame)\n"
    )
    arguments = [f"10.0.0.{src + 1}", f"10.0.0.{dst + 1}", str(tos), str(count), wan_mac(dst), wan_mac(src)]
    lab.run(sys.executable, "-S", "-c", code, *arguments)


def test_packets_take_the_path_they_ask_for_and_are_counted(running: Lab) -> None:
    def received(k: int) -> int:
        shown = json.loads(running.run("ip", "-json", "-statistics", "link", "show", f"h{k + 1}"))
        return int(shown[0]["stats64"]["rx"]["packets"])

    def sent(path: int | None) -> int:
        counters = running.get("/counters")
        ends = [c for c in counters["paths"] if (c["src"], c["dst"], c["path"]) == ("dc1", "dc2", path)]
        assert len(ends) == 1 and counters["schema"] == 1
        return int(ends[0]["packets"])

    def forwarded_by_dc3() -> int:
        text = running.ofctl(
            "dump-flows", switch_name(2), "table=1,ip,nw_src=10.0.0.1,nw_dst=10.0.0.2,metadata=1"
        )
        return sum(int(n) for n in re.findall(r"n_packets=(\d+)", text))

    before, arrived, over_dc3 = {p: sent(p) for p in (0, 1, None)}, received(1), forwarded_by_dc3()
    send_frames(running, 0, 1, tos=0 << 5 | 7 << 2, count=10)
    send_frames(running, 0, 1, tos=1 << 5 | 3 << 2, count=20)
    send_frames(running, 0, 1, tos=6 << 5, count=40)  # the pair has no path 6: the primary takes it
    wait_until("70 packets at dc2", lambda: received(1) - arrived >= 70)
    # Open vSwitch's own counters follow its datapath within about a second.
    for path, count in ((0, 10), (1, 20), (None, 40)):
        wait_until(f"path {path} to count {count}", lambda p=path, n=count: sent(p) - before[p] == n)
    wait_until("the switch on the way to count them too", lambda: forwarded_by_dc3() - over_dc3 == 20)
    metrics = running.get("/metrics")
    assert re.search(r'stormbed_controller_path_bytes_total\{dst="dc2",path="1",src="dc1"\} [1-9]', metrics)
    assert 'stormbed_controller_switch_in_sync{site="dc3"} 1.0' in metrics


def test_unknown_traffic_is_dropped_and_counted(running: Lab) -> None:
    def dropped() -> int:
        drops = running.get("/counters")["dropped"]
        return sum(d["packets"] for d in drops if (d["site"], d["table"]) == ("dc1", 1))

    before = dropped()
    send_frames(running, 0, 199, tos=0, count=15)
    wait_until("15 packets to be counted as dropped", lambda: dropped() - before == 15)


def test_a_restart_touches_no_rule(running: Lab) -> None:
    with running.no_rule_is_written(0):
        running.stop_controller(signal.SIGKILL)
        assert running.rules(0) == running.planned(0), "the rules stay while there is no controller"
        running.start_controller("--poll-seconds", "1")
        running.wait_ready()
        for k in range(3):
            assert running.rules(k) == running.planned(k)


def test_wrong_rules_of_ours_are_put_right_at_a_restart(running: Lab) -> None:
    running.stop_controller()
    ours, foreign = COOKIE_MARK | 0xABC, 0x1234
    running.ofctl(
        "add-flow", "s1", f"cookie={ours:#x},table=1,priority=200,ip,nw_dst=10.0.0.9,actions=output:3"
    )
    running.ofctl("add-flow", "s1", f"cookie={ours:#x},table=7,priority=1,idle_timeout=9,arp,actions=flood")
    running.ofctl("add-flow", "s1", f"cookie={foreign:#x},table=5,priority=9,ip,actions=drop")
    # A rule of the plan with another action, and one that is missing.
    running.ofctl("mod-flows", "s1", "table=1,ip,nw_src=10.0.0.1,nw_dst=10.0.0.2,actions=output:3")
    running.ofctl("--strict", "del-flows", "s1", "table=0,priority=100,ip,nw_tos=0")
    assert running.rules(0) != running.planned(0)
    running.start_controller("--poll-seconds", "1")
    running.wait_ready()
    kept = [line for line in running.rules(0) if f"cookie={foreign:#x}" in line]
    assert len(kept) == 1, "a rule that is not ours is left alone"
    assert sorted(set(running.rules(0)) - set(kept)) == running.planned(0)
    assert running.health()["switches"][0]["rules_foreign"] == 1
    running.ofctl("del-flows", "s1", f"cookie={foreign:#x}/-1")


def test_rules_somebody_deletes_come_back(running: Lab) -> None:
    running.ofctl("del-flows", "s2")
    wait_until("the rules of s2 to come back", lambda: running.rules(1) == running.planned(1))
    wait_until("the controller to say so", running.ready)
    assert running.health()["switches"][1]["repairs"] >= len(running.planned(1))


def test_a_switch_that_goes_and_comes_is_seen(running: Lab) -> None:
    running.vsctl("del-controller", "s3")
    wait_until("s3 to be missing", lambda: running.health()["missing"] == [3])
    assert not running.ready()
    running.vsctl(
        "set-controller", "s3", f"tcp:{OPENFLOW}", "--", "set", "controller", "s3", "max_backoff=1000"
    )
    running.wait_ready()


def test_a_cut_link_moves_the_rules_and_its_return_moves_them_back(running: Lab) -> None:
    def towards_dc2() -> bool:
        ports = running.health()["switches"][0]["ports"]
        return bool(next(p["up"] for p in ports if p["peer"] == "dc2"))

    def settled(*down: int) -> bool:
        return all(running.rules(k) == running.planned(k, *down) for k in range(3))

    assert settled()
    reroutes = running.health()["reroutes"]
    running.run("ip", "link", "set", "w0b", "down")  # the far end: s1 loses its carrier
    wait_until("the port to be down", lambda: not towards_dc2())
    wait_until("the rules to lead around the link", lambda: settled(0))
    wait_until("the controller to be sure", running.ready)
    health = running.health()
    assert (health["links_down"], health["moved"], health["parted"]) == ([["dc1", "dc2"]], 2, 0)
    assert health["last_reroute"]["pairs"] == 2 and health["reroutes"] == reroutes + 2
    assert "stormbed_controller_links_down 1.0" in running.get("/metrics")

    # A controller that is started while the link is down finds nothing to do.
    with running.no_rule_is_written(2):
        running.stop_controller(signal.SIGKILL)
        running.start_controller("--poll-seconds", "1")
        running.wait_ready()
        assert settled(0) and running.health()["moved"] == 2
    repairs = repairs_of(running)

    running.run("ip", "link", "set", "w0b", "up")
    wait_until("the port to be up", towards_dc2)
    wait_until("the rules to be as declared", settled)
    wait_until("the controller to be sure", running.ready)
    health = running.health()
    assert (health["links_down"], health["moved"], health["reroutes"]) == ([], 0, 2)
    assert repairs_of(running) == repairs, "every rule was changed in its turn"


def repairs_of(lab: Lab) -> list[int]:
    return [switch["repairs"] for switch in lab.health()["switches"]]


def test_a_foreign_switch_gets_nothing(running: Lab) -> None:
    running.vsctl(
        *("add-br", "sx", "--", "set", "bridge", "sx", "datapath_type=netdev", "fail_mode=secure"),
        *("protocols=OpenFlow13", "other-config:datapath-id=00000000000000ff"),
        *("--", "set-controller", "sx", f"tcp:{OPENFLOW}"),
    )
    try:
        wait_until("the switch to be noticed", lambda: running.health()["unexpected"] == [255])
        assert "cookie" not in running.ofctl("dump-flows", "sx")
        assert running.ready()
    finally:
        running.vsctl("del-br", "sx")
    wait_until("the switch to be forgotten", lambda: running.health()["unexpected"] == [])


@pytest.mark.parametrize("option", ["--openflow", "--http"])
def test_a_taken_port_is_said_clearly(running: Lab, option: str) -> None:
    taken = {"--openflow": OPENFLOW, "--http": HTTP}[option]
    other = {"--openflow": "--http", "--http": "--openflow"}[option]
    done = subprocess.run(
        running.controller_argv(other, "127.0.0.1:9999"),
        env=running.controller_environment(),
        cwd=ROOT,
        capture_output=True,
        timeout=30,
    )
    assert done.returncode == 4
    message = done.stderr.decode()
    assert taken in message and option in message and "Traceback" not in message
    running.wait_ready()  # the controller that was there goes on


def test_ending_is_quiet_and_leaves_the_rules(running: Lab) -> None:
    assert running.stop_controller(signal.SIGTERM) == 0
    assert running.rules(2) == running.planned(2)
    assert "Traceback" not in (running.folder / "controller.out").read_text()
