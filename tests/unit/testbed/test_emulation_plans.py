"""The emulator's smaller planners and parsers."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from testbed.emulation import counters, network, sysctls, wan
from testbed.emulation.congestion import Congestion
from testbed.emulation.rundir import (
    RunDir,
    SiteInfo,
    TestbedInfo,
    check_name,
    connect_unix,
    read_info,
    run_root,
    write_info,
)
from testbed.emulation.waiting import is_ending, is_running, start_ticks, wait_for
from topologies.addressing import Management
from topologies.errors import DeadlineError, InvalidFileError, UsageError
from topologies.load import load_topology, topology_from_dict
from topologies.paths import path_sets
from topologies.units import Delay, Loss
from topologies.unix_sockets import socket_address

PAIR, NINE = load_topology("pair"), load_topology("netstorm-9")
CUBIC = Congestion("cubic")


# --- links ------------------------------------------------------------------------------------------------


def test_the_kernel_carries_what_has_no_impairment() -> None:
    lines = wan.start_lines(NINE.directed)
    assert sum("mirred" in line for line in lines) == 26
    everything = "filter add dev d0a parent ffff: protocol all prio 1 u32 match u32 0 0"
    assert f"{everything} action mirred egress redirect dev d0b" in lines
    assert not any("mirred" in line for line in wan.start_lines(PAIR.directed)), "10 ms need the delay line"
    assert sum(line.endswith(" ingress") for line in wan.start_lines(PAIR.directed)) == 2


def test_the_carrier_of_a_direction() -> None:
    link = NINE.directed[0]
    assert wan.LinkState(link).carrier == "kernel"
    for changed in (
        replace(link, delay=Delay(1)),
        replace(link, jitter=Delay(1)),
        replace(link, loss=Loss(0.1)),
    ):
        assert wan.LinkState(changed).carrier == "delay-line"
    assert wan.LinkState(link, blackhole=True).carrier == "delay-line"


def test_the_switches_own_time_is_taken_out_of_the_delay() -> None:
    how = wan.impairment(PAIR.directed[0])
    assert wan.compensated(how, 400_000).delay_ns == 9_600_000
    assert wan.compensated(how, 20_000_000).delay_ns == 0, "never below zero"
    assert wan.compensated(how, 0) == how


def test_the_delay_line_may_hold_more_on_longer_links() -> None:
    link = NINE.directed[0]
    assert wan.hold_bytes(link) == 16 * 2**20
    assert wan.hold_bytes(replace(link, delay=Delay(100_000_000))) == 125_000_000
    assert wan.hold_bytes(replace(link, delay=Delay(60 * 10**9))) == 512 * 2**20


# --- counters ---------------------------------------------------------------------------------------------


def test_counters_are_read_by_device_and_leaf() -> None:
    forward, backward = PAIR.directed
    text = json.dumps(
        [
            {"kind": "noqueue", "handle": "0:", "dev": "lo"},
            {"kind": "htb", "handle": "1:", "dev": "d0b", "bytes": 300, "drops": 2, "backlog": 7},
            {"kind": "bfifo", "handle": "9:", "dev": "d0b", "bytes": 10, "drops": 0, "backlog": 0},
            {"kind": "bfifo", "handle": "20:", "dev": "d0b", "bytes": 90, "drops": 0, "backlog": 0},
            {"kind": "bfifo", "handle": "27:", "dev": "d0b", "bytes": 200, "drops": 2, "backlog": 7},
            {"kind": "ingress", "handle": "ffff:", "dev": "d0b", "bytes": 5},
        ]
    )
    there, back = counters.parse_qdiscs(text, (forward, backward))
    assert (there.bytes, there.drops, there.backlog_bytes, there.ack_bytes) == (300, 2, 7, 10)
    assert there.class_bytes == (200, 0, 0, 0, 0, 0, 0, 90)
    assert back == counters.LinkCounters()
    assert counters.parse_qdiscs("", (forward,)) == (counters.LinkCounters(),)


def test_cpu_times_from_proc_stat() -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    row = [ticks * n for n in (5, 1, 3, 70, 2, 1, 4, 9, 0, 0)]
    text = f"cpu  {' '.join(map(str, row))}\ncpu0 1\ncpu1 1\nintr 5\n"
    times = counters.parse_stat(text)
    assert times == counters.CpuTimes(busy_s=14, softirq_s=4, steal_s=9, idle_s=72, cores=2)
    assert counters.read_cpu().cores == os.sysconf("SC_NPROCESSORS_CONF")


# --- the sites' settings ----------------------------------------------------------------------------------


def test_tcp_gets_room_for_the_longest_path() -> None:
    paths = [path for found in path_sets(NINE).values() for path in found[:1]]
    assert sysctls.tcp_buffer_bytes(NINE.directed, paths) == sysctls.LEAST_BUFFER_BYTES
    long = topology_from_dict(
        {
            "name": "t",
            "sites": {"a": {}, "b": {}, "c": {}},
            "defaults": {"rate": "1gbit", "delay": "25ms"},
            "links": [{"endpoints": ["a", "b"]}, {"endpoints": ["b", "c"]}],
        }
    )
    paths = [path for found in path_sets(long).values() for path in found]
    assert sysctls.tcp_buffer_bytes(long.directed, paths) == 6 * 12_500_000
    far = [replace(link, delay=Delay(10**9)) for link in long.directed]
    assert sysctls.tcp_buffer_bytes(far, paths) == sysctls.MOST_BUFFER_BYTES


def test_every_site_runs_cubic_without_ipv6_or_reverse_path_filter() -> None:
    words = sysctls.arguments(sysctls.site("dc1", CUBIC))
    for word in (
        "kernel.hostname=dc1",
        "net.ipv4.tcp_congestion_control=cubic",
        "net.ipv4.conf.all.rp_filter=0",
        "net.ipv6.conf.default.disable_ipv6=1",
        "net.ipv4.tcp_tso_rtt_log=20",
    ):
        assert word in words


def test_where_the_default_cannot_be_cubic_the_route_across_the_wan_says_so() -> None:
    by_route = Congestion("cubic", "route")
    for unset in (by_route, Congestion("cubic", "inherited")):
        assert not any("congestion" in word for word in sysctls.arguments(sysctls.site("dc3", unset)))
    said = [
        [line for line in network.site_lines(NINE, Management("10.199.3.0/24"), 2, congestion) if "congctl" in line]
        for congestion in (CUBIC, by_route)
    ]
    route = "route replace 10.0.0.0/16 dev h3-wan proto kernel scope link src 10.0.0.3 congctl cubic"
    assert said == [[], [route]]


def test_a_site_knows_every_other_and_itself_by_address() -> None:
    lines = network.site_lines(NINE, Management("10.199.3.0/24"), 2, CUBIC)
    assert "addr add 10.0.0.3/16 dev h3-wan" in lines and "addr add 10.199.3.3/24 dev mgmt" in lines
    neighbours = [line for line in lines if line.startswith("neigh ")]
    assert len(neighbours) == 8 and not any(" 10.0.0.3 " in line for line in neighbours)
    assert "neigh replace 10.0.0.1 lladdr 02:53:42:00:00:01 dev h3-wan nud permanent" in neighbours


def test_site_names_resolve_to_the_wan() -> None:
    lines = network.hosts_file(PAIR, Management("10.199.3.0/24")).splitlines()
    assert "10.0.0.1 dc1" in lines and "10.199.3.1 dc1-mgmt" in lines
    assert not any(line.startswith("127.") and "dc" in line for line in lines), "gloo would bind to loopback"


def test_a_wan_link_is_two_pairs_of_devices() -> None:
    lines = network.WanLink.device_lines(4)
    assert "link add name w4a mtu 1500 type veth peer name d4a mtu 1500" in lines
    assert "link set dev d4b arp off up" in lines


# --- where the state lies ---------------------------------------------------------------------------------


def info(name: str, **changes: object) -> TestbedInfo:
    fields: dict[str, object] = {
        "name": name,
        "created_s": 1.0,
        "state": "up",
        "topology": PAIR.to_dict(),
        "subnet": "10.199.4.0/24",
        "interface": "sb0-m",
        "sites": {"dc1": SiteInfo(index=0, wan_ip="10.0.0.1", mgmt_ip="10.199.4.1", pid=5)},
    }
    return TestbedInfo.model_validate(fields | changes)


def test_state_survives_writing_and_reading(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    assert read_info(run_dir) is None
    write_info(run_dir, info("x", pid=7, fidelity={"verdict": "faithful"}))
    found = read_info(run_dir)
    assert found is not None and found.pid == 7 and found.sites["dc1"].wan_ip == "10.0.0.1"
    assert found.load_topology().to_dict() == PAIR.to_dict()
    assert json.loads(run_dir.state.read_text())["schema"] == 1
    assert found.controller_url == "http://10.199.4.253:8080" and found.coordinator == ("10.199.4.253", 7002)
    assert list(tmp_path.iterdir()) == [run_dir.state], "no half-written file stays"


def test_a_newer_state_is_read_and_a_broken_one_is_an_error(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    data = json.loads(info("x").to_json()) | {"new": 1}
    run_dir.state.write_text(json.dumps(data))
    assert read_info(run_dir) is not None
    run_dir.state.write_text("{")
    with pytest.raises(InvalidFileError, match="testbed clean"):
        read_info(run_dir)


@pytest.mark.parametrize("name", ["", "A", "-a", "a/b", "..", "a" * 33, "a b", "ä"])
def test_names_that_cannot_be(name: str) -> None:
    with pytest.raises(UsageError, match="cannot name a testbed"):
        check_name(name)


def test_the_root_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("STORMBED_RUN_ROOT", raising=False)
    assert run_root() == Path("/run/stormbed")
    monkeypatch.setenv("STORMBED_RUN_ROOT", str(tmp_path))
    assert RunDir.of("x").path == tmp_path / "x"


def test_sockets_may_lie_deep(tmp_path: Path) -> None:
    path = tmp_path / ("d" * 100) / ("e" * 100) / "s.sock"
    path.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as server:
        with socket_address(path) as address:
            server.bind(address)
        server.listen()
        with connect_unix(path, 1.0) as connection:
            assert connection.fileno() >= 0
    with pytest.raises(ConnectionRefusedError):
        connect_unix(path, 1.0)


def test_waiting_says_what_it_waited_for() -> None:
    answers = iter([None, False, "done"])
    assert wait_for(lambda: next(answers), "x", 5, step=0.001) == "done"
    with pytest.raises(DeadlineError, match=r"waited 0.01 s for the moon in vain .buy a rocket."):
        wait_for(lambda: False, "the moon", 0.01, step=0.001, hint="buy a rocket")


def test_a_process_may_have_any_bytes_as_its_name(tmp_path: Path) -> None:
    program = os.fsencode(tmp_path / "sleep-") + b"\xff"
    Path(os.fsdecode(program)).symlink_to("/usr/bin/sleep")
    process = subprocess.Popen([program, "60"])
    try:
        wait_for(lambda: b"\xff" in Path(f"/proc/{process.pid}/comm").read_bytes(), "its name", 10)
        assert is_running(process.pid, start_ticks(process.pid)) and not is_ending(process.pid)
    finally:
        process.kill()
        process.wait()


def test_a_process_is_known_by_pid_and_start() -> None:
    ticks = start_ticks(os.getpid())
    assert ticks is not None and is_running(os.getpid(), ticks)
    assert not is_running(os.getpid(), ticks + 1), "another process may have the pid by now"
    assert not is_running(None, ticks) and start_ticks(2**22 + 1) is None
