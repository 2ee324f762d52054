"""The emulated WAN carries what was declared, and changes while it carries."""

from __future__ import annotations

import json
import re
import statistics
import time

import pytest

from testbed.emulation.waiting import wait_for
from tests.emulated.traffic import SINK, SOURCE, Stream, undisturbed
from topologies.dscp import encode
from topologies.errors import UsageError
from topologies.paths import direct_path_number, path_sets

pytestmark = pytest.mark.emulated

TRIANGLE = {
    "name": "triangle",
    "sites": {"dc1": {}, "dc2": {}, "a-site-with-a-very-long-name": {}},
    "defaults": {"rate": "50mbit"},
    "links": [
        {"endpoints": ["dc1", "dc2"]},
        {"endpoints": ["dc2", "a-site-with-a-very-long-name"]},
        {"endpoints": ["dc1", "a-site-with-a-very-long-name"], "delay": "10ms"},
    ],
}
FAR = "a-site-with-a-very-long-name"


@pytest.fixture(scope="module")
def triangle(bring):
    return bring(TRIANGLE)


@pytest.fixture
def fresh(triangle):
    """The triangle with every link as declared, and traffic led as it was at first."""
    triangle.client.call("link_reset")
    wait_for(triangle.rerouted, "the controller to lead all traffic as declared", 20)
    return triangle


class Transfer:
    """TCP from one site to another, as fast as it goes, for so long or (None) until it is asked for its rate."""

    ports = iter(range(5100, 6000))

    def __init__(self, testbed, src: str, dst: str, seconds: float | None, tos: int = 0) -> None:
        self._endless = seconds is None
        port, address = str(next(self.ports)), testbed.wan_ip(dst)
        self._sink = testbed.site(dst).start_python(SINK, address, port)
        assert self._sink.stdout.readline() == "ready\n"
        self._source = testbed.site(src).start_python(
            SOURCE, address, port, "inf" if seconds is None else str(seconds), str(tos)
        )

    def bps(self) -> float:
        """The payload rate, once it is over."""
        if self._endless:
            self._source.communicate(timeout=60)  # which closes its input
        assert self._source.wait(timeout=60) == 0
        total, spent = self._sink.communicate(timeout=60)[0].split()
        return 8 * int(total) / float(spent)


def usual_bps(testbed, src: str, dst: str) -> float:
    """The payload rate of the middle one of three transfers: a stall of the machine in one is not the link's."""
    return statistics.median(Transfer(testbed, src, dst, 0.7).bps() for _ in range(3))


def rtt_ms(testbed, src: str, dst: str, *options: str, count: int = 10) -> float:
    """The shortest round trip, by default over the primary path: a busy machine only adds to it."""
    out = testbed.site(src).run("ping", "-n", *options, "-c", str(count), "-i", "0.05", testbed.wan_ip(dst))
    times = [float(t) for t in re.findall(r"time=([\d.]+)", out)]
    assert len(times) == count
    return min(times)


def test_a_site_is_what_a_user_expects(fresh) -> None:
    site = fresh.site(FAR)
    assert site.run("hostname").strip() == FAR
    assert site.run("getent", "hosts", "dc1").split() == ["10.0.0.1", "dc1"]
    assert site.run("getent", "hosts", "dc2-mgmt").split()[0] == fresh.info.sites["dc2"].mgmt_ip
    assert site.run("cat", "/proc/sys/net/ipv4/tcp_congestion_control").strip() == "cubic"
    devices = {d["ifname"]: d for d in json.loads(site.run("ip", "-j", "addr"))}
    assert set(devices) == {"lo", "h3-wan", "mgmt"}
    assert not [a for d in devices.values() for a in d["addr_info"] if a["family"] == "inet6"]
    queues = site.run("tc", "qdisc")
    assert not any(kind in queues for kind in ("htb", "tbf", "netem")), "nothing is shaped on a worker's own egress"
    # A whole packet of 1500 bytes crosses the WAN unfragmented.
    site.run("ping", "-n", "-c", "1", "-W", "10", "-M", "do", "-s", "1472", "dc1")
    site.run("ping", "-c", "1", "-q", "localhost")


def test_every_pair_is_joined_and_a_megabyte_passes(fresh) -> None:
    for src in fresh.info.sites:
        for dst in fresh.info.sites:
            if src != dst:
                fresh.site(src).run("ping", "-n", "-c", "1", "-W", "10", fresh.wan_ip(dst))
    program = "import socket, sys; s = socket.create_connection((sys.argv[1], 5000)); "
    sink = fresh.site("dc2").start_python(
        "import socket, sys; s = socket.create_server((sys.argv[1], 5000)); print('ready', flush=True); "
        "peer, _ = s.accept(); print(sum(len(data) for data in iter(lambda: peer.recv(65536), b'')))",
        fresh.wan_ip("dc2"),
    )
    assert sink.stdout.readline() == "ready\n"
    fresh.site("dc1").python(program + "s.sendall(bytes(10**6))", fresh.wan_ip("dc2"))
    assert sink.communicate(timeout=60)[0] == f"{10**6}\n"


def test_a_link_carries_its_declared_rate(fresh) -> None:
    assert 0.88 <= usual_bps(fresh, "dc1", "dc2") / 50e6 <= 1.0


def test_the_declared_delay_is_there_and_no_more(fresh) -> None:
    direct = encode(_direct_path(fresh, "dc1", FAR), 0)
    # The answer carries the request's TOS, so it comes back by the direct path too.
    assert 19.0 <= rtt_ms(fresh, "dc1", FAR, "-Q", str(direct)) < 24.0
    assert rtt_ms(fresh, "dc1", "dc2") < 4.0


def _direct_path(testbed, src: str, dst: str) -> int:
    topology = testbed.info.load_topology()
    number = direct_path_number(path_sets(topology), topology.index(src), topology.index(dst))
    assert number is not None
    return number


def test_the_first_class_goes_before_the_last(fresh) -> None:
    since, _ = _class_bytes(fresh)
    low = Transfer(fresh, "dc1", "dc2", None, encode(0, 0))
    wait_for(lambda: _class_bytes(fresh)[0][0] - since[0] > 2e6, "class 0 to fill the link", 20)
    high = Transfer(fresh, "dc1", "dc2", None, encode(0, 7))
    wait_for(lambda: _class_bytes(fresh)[0][7] - since[7] > 2e6, "class 7 to take over", 20)
    before, began_ns = _class_bytes(fresh)
    time.sleep(1.0)  # the window that is measured, at least
    after, ended_ns = _class_bytes(fresh)
    gained = [b - a for a, b in zip(before, after, strict=True)]
    assert gained[7] > 0.9 * 50e6 / 8 * (ended_ns - began_ns) / 1e9
    assert gained[0] < 0.05 * gained[7]
    assert high.bps() > 0.8 * 50e6
    ended, _ = _class_bytes(fresh)
    wait_for(lambda: _class_bytes(fresh)[0][0] - ended[0] > 2e6, "the last class to go on when the first is done", 20)
    assert low.bps() > 0


def _class_bytes(testbed, src: str = "dc1", dst: str = "dc2") -> tuple[list[int], int]:
    """What each class of a direction has carried so far, and when that was, in nanoseconds."""
    sample = testbed.client.call("sample")
    (entry,) = [e for e in sample["links"] if (e["src"], e["dst"]) == (src, dst)]
    return list(entry["class_bytes"]), sample["monotonic_ns"]


def test_two_paths_carry_at_once(fresh) -> None:
    """dc1 -> dc2 directly and by way of the third site: each path has its own link, so the two add up."""
    direct = Transfer(fresh, "dc1", "dc2", None, encode(0, 0))
    around = Transfer(fresh, "dc1", "dc2", 3.0, encode(1, 0))  # the other one goes on as long
    rates = around.bps(), direct.bps()
    assert min(rates) > 0.8 * 50e6, rates


def test_changing_the_rate_back_and_forth_loses_nothing(fresh) -> None:
    """Paced datagrams at 0.8 of the lower rate, over eight changes: none lost, none out of order."""
    bps = 0.8 * 20e6
    stream, began = Stream(fresh, "dc1", "dc2", bps), time.monotonic()
    for n in range(8):
        time.sleep(0.4)  # the pace of the changes
        fresh.client.call("link_set", src="dc1", dst="dc2", rate=("20mbit", "50mbit")[n % 2])
    time.sleep(0.4)  # traffic after the last one
    seconds = time.monotonic() - began
    sent, seen, reordered = stream.end()
    assert (seen, reordered) == (sent, 0)
    assert 8 * 1514 * sent > 0.3 * bps * seconds, "the stream went on all the time"


def test_a_changed_rate_holds_from_then_on(fresh) -> None:
    fresh.client.call("link_set", src="dc1", dst="dc2", rate="25mbit")
    assert 0.85 <= usual_bps(fresh, "dc1", "dc2") / 25e6 <= 1.0
    (row,) = [r for r in fresh.client.call("links") if (r["src"], r["dst"]) == ("dc1", "dc2")]
    assert row["rate_bps"] == 25_000_000 and row["declared"]["rate_bps"] == 50_000_000
    fresh.client.call("link_reset")
    assert all(row["rate_bps"] == 50_000_000 for row in fresh.client.call("links"))


def test_a_slow_reverse_direction_does_not_starve_the_fast_one(fresh) -> None:
    fresh.client.call("link_set", src="dc2", dst="dc1", rate="2mbit")
    slow = Transfer(fresh, "dc2", "dc1", None)
    fast = Transfer(fresh, "dc1", "dc2", None)
    # A frame of the slow direction takes it 60 ms and more, and acknowledgements wait for the one that is on its way:
    # until the window covers that, which slow start takes a second for, the link is not full. A pause of the machine
    # only takes away, so that one full second shows what the link gives.
    ratios: list[float] = []
    while not ratios or (ratios[-1] < 0.85 and len(ratios) < 12):
        before, began_ns = _class_bytes(fresh)
        time.sleep(1.0)  # the window that is measured, at least
        after, ended_ns = _class_bytes(fresh)
        ratios.append(8 * (after[0] - before[0]) / (50e6 * (ended_ns - began_ns) / 1e9))
    assert ratios[-1] >= 0.85, ratios
    assert fast.bps() > 0
    assert slow.bps() > 0


def test_delay_comes_and_goes_while_the_link_is_used(fresh) -> None:
    assert rtt_ms(fresh, "dc1", "dc2") < 4
    fresh.client.call("link_set", src="dc1", dst="dc2", both=True, delay="15ms")
    assert 29 <= rtt_ms(fresh, "dc1", "dc2") < 34
    assert {row["carrier"] for row in _rows(fresh, "dc1", "dc2")} == {"delay-line"}
    fresh.client.call("link_set", src="dc1", dst="dc2", both=True, delay="0ms")
    assert rtt_ms(fresh, "dc1", "dc2") < 4
    assert {row["carrier"] for row in _rows(fresh, "dc1", "dc2")} == {"kernel"}


def test_moving_between_kernel_and_delay_line_loses_nothing(fresh) -> None:
    stream = Stream(fresh, "dc1", "dc2", 10e6)
    for n in range(8):
        time.sleep(0.4)  # the pace of the changes
        fresh.client.call("link_set", src="dc1", dst="dc2", delay=("5ms", "0ms")[n % 2])
    time.sleep(0.4)  # traffic after the last one
    sent, seen, _ = stream.end()
    assert seen == sent > 0


def _rows(testbed, *ends: str) -> list[dict]:
    return [row for row in testbed.client.call("links") if {row["src"], row["dst"]} == set(ends)]


def test_a_cut_link_is_seen_by_its_switches_and_mends(fresh) -> None:
    site, address = fresh.site("dc1"), fresh.wan_ip("dc2")
    fresh.client.call("link_down", src="dc1", dst="dc2")
    assert {row["state"] for row in _rows(fresh, "dc1", "dc2")} == {"down"}
    wait_for(lambda: fresh.rerouted(["dc1", "dc2"]), "the controller to have moved the traffic", 20)
    assert rtt_ms(fresh, "dc1", "dc2") >= 20, "round the cut link, over the slow one"
    fresh.client.call("link_up", src="dc1", dst="dc2")
    wait_for(fresh.rerouted, "the controller to have moved it back", 20)
    assert rtt_ms(fresh, "dc1", "dc2") < 20
    site.run("ping", "-c", "2", "-i", "0.1", address)
    assert 0.85 <= usual_bps(fresh, "dc1", "dc2") / 50e6 <= 1.0, "it is shaped as before"


def test_a_black_hole_swallows_one_direction_in_silence(fresh) -> None:
    site, address = fresh.site("dc1"), fresh.wan_ip("dc2")
    fresh.client.call("blackhole", src="dc1", dst="dc2")
    assert "100% packet loss" in site.run("ping", "-c", "3", "-i", "0.1", "-W", "1", address, check=False)
    there, back = _rows(fresh, "dc1", "dc2")
    assert (there["state"], back["state"]) == ("blackhole", "up")
    assert there["delay_line"]["drops"]["blackhole"] == 3
    fresh.client.call("blackhole", src="dc1", dst="dc2", on=False)
    site.run("ping", "-c", "2", "-i", "0.1", address)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"src": "dc1", "dst": "dc9", "rate": "5mbit"}, "no site 'dc9'"),
        ({"src": "dc1", "dst": "dc2", "rate": "5"}, "'5' has no unit"),
        ({"src": "dc1", "dst": "dc2", "rate": 5}, "5 has no unit"),
        ({"src": "dc1", "dst": "dc2", "colour": "red"}, "a link has no 'colour'"),
        ({"src": "dc1", "dst": "dc2"}, "no new value"),
        ({}, "names no link"),
    ],
)
def test_bad_changes_are_refused_and_change_nothing(fresh, arguments, message) -> None:
    before = fresh.client.call("links")
    with pytest.raises(UsageError, match=message):
        fresh.client.call("link_set", **arguments)
    keys = ("rate_bps", "delay_s", "loss_ratio", "carrier")
    after = fresh.client.call("links")
    assert [[row[k] for k in keys] for row in after] == [[row[k] for k in keys] for row in before]


def test_calibration_finds_the_triangle_faithful(fresh) -> None:
    stages: list[str] = []

    def calibrate() -> dict:
        return fresh.client.call("calibrate", stages.append, seconds=1.5)

    report = undisturbed(calibrate, lambda report: report["verdict"] == "faithful")
    assert report["verdict"] == "faithful", report["reasons"]
    assert len(report["links"]) == 6 and all(0.90 <= link["ratio"] <= 0.97 for link in report["links"])
    assert stages[0] == "probing 6 directions"


def test_calibration_names_a_link_that_is_not_as_declared(fresh, monkeypatch) -> None:
    """The supervisor believes 50 Mbit/s while the device is shaped to 30: found, and named."""
    (row,) = [r for r in fresh.client.call("links") if (r["src"], r["dst"]) == ("dc1", "dc2")]
    entered = fresh.supervisor()
    change = f"dev {row['device']} parent 1: classid 1:1 htb rate 30mbit ceil 30mbit quantum 60000"
    try:
        entered.run("tc", "class", "change", *change.split())
        report = undisturbed(
            lambda: fresh.client.call("calibrate", seconds=1.5),
            lambda report: len(report["reasons"]) == 1,
        )
    finally:
        fresh.client.call("link_set", src="dc1", dst="dc2", rate="49mbit")  # writes the classes anew
    assert report["verdict"] == "degraded"
    (reason,) = report["reasons"]
    assert reason.startswith("dc1 -> dc2: ") and reason.endswith("at 50mbit")


def test_nothing_is_flooded(fresh) -> None:
    """No broadcast or multicast frame crosses the WAN."""
    entered = fresh.supervisor()
    devices = [row["device"] for row in fresh.client.call("links")]
    read = (
        "import sys; from pathlib import Path; "
        "print(sum(int(Path(f'/sys/class/net/{d}/statistics/tx_packets').read_text()) for d in sys.argv[1:]))"
    )

    def crossed() -> int:
        return int(entered.python(read, *devices))

    # What connections of earlier tests still have to say, and say again after a fifth of a second.
    wait_for(lambda: len({crossed() for _ in range(5)}) == 1, "the network to be quiet", 30)
    before = crossed()
    fresh.site("dc1").run("ping", "-b", "-c", "3", "-i", "0.2", "-W", "1", "10.0.255.255", check=False)
    assert crossed() == before


def test_metrics_tell_rates_and_bytes(fresh) -> None:
    import urllib.request

    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    address = fresh.info.management.supervisor
    links = opener.open(f"http://{address}:9104/metrics", timeout=30).read().decode()
    assert 'stormbed_link_configured_bytes_per_second{dst="dc2",src="dc1"} 6.25e+06' in links
    line = opener.open(f"http://{address}:9103/metrics", timeout=30).read().decode()
    assert "stormbed_delay_line_up 1.0" in line
    assert f'stormbed_delay_line_lateness_seconds_bucket{{dst="{FAR}",le="+Inf",src="dc1"}}' in line


def test_a_link_test_measures_from_host_to_host(fresh) -> None:
    def measure(dst: str, seconds: float) -> dict:
        return fresh.client.call("link_test", src="dc1", dst=dst, seconds=seconds)

    # A machine that stalls in one second lets what waited arrive in the next, or too late to be waited for.
    found = undisturbed(
        lambda: measure(FAR, 1.0),
        lambda found: (
            0.85 <= found["carried_bps"] / 50e6 <= 0.97
            and (found["loss_ratio"], found["back_loss_ratio"]) == (0, 0)
            and found["rtt_s"] < 0.026
        ),
    )
    assert found["path"][0] == "dc1" and found["path"][-1] == FAR
    assert found["least_rate_bps"] == 50_000_000
    assert found["declared_rtt_s"] == 0.02
    assert 0.85 <= found["carried_bps"] / 50e6 <= 0.97
    assert 0.0195 <= found["rtt_s"] < 0.026
    assert (found["loss_ratio"], found["back_loss_ratio"]) == (0, 0)
    fresh.client.call("link_set", src="dc1", dst="dc2", loss="20%")
    lossy = undisturbed(lambda: measure("dc2", 0.5), lambda found: found["back_loss_ratio"] == 0)
    assert 0.1 < lossy["loss_ratio"] < 0.3 and lossy["back_loss_ratio"] == 0
    assert lossy["declared_loss_ratio"] == 0.2
    for ends, seconds, message in ((("dc1", "dc1"), 1, "itself"), (("dc1", "dc2"), 0, "0.1 to 60 s")):
        with pytest.raises(UsageError, match=message):
            fresh.client.call("link_test", src=ends[0], dst=ends[1], seconds=seconds)


DETOUR = {
    "name": "detour",
    "sites": {"a": {}, "b": {}, "c": {}, "d": {}},
    "defaults": {"rate": "50mbit"},
    "links": [
        {"endpoints": ["a", "b"], "rate": "5mbit", "delay": "5ms"},
        {"endpoints": ["b", "c"]},
        {"endpoints": ["a", "c"]},
        {"endpoints": ["c", "d"]},
        {"endpoints": ["a", "d"]},
    ],
}


def test_a_link_test_of_neighbours_measures_their_link_and_of_others_the_way_that_packets_go_now(bring) -> None:
    """The fastest way from a to b is around by c, ten times as fast as the link between them."""
    detour = bring(DETOUR)
    # Three seconds: a whole queue of such a slow link, which may arrive at once, is a tenth of one.
    found = detour.client.call("link_test", src="a", dst="b", seconds=3.0)
    assert (found["path"], found["back_path"]) == (["a", "b"], ["b", "a"])
    assert (found["least_rate_bps"], found["declared_rtt_s"]) == (5e6, 0.01)
    assert 0.85 <= found["carried_bps"] / 5e6 <= 1.0
    assert 0.0095 <= found["rtt_s"] < 0.02
    assert detour.client.call("link_test", src="b", dst="d", seconds=0.2)["path"] == ["b", "c", "d"]
    detour.client.call("link_down", src="c", dst="d")
    moved = detour.client.call("link_test", src="b", dst="d", seconds=3.0)
    assert (moved["path"], moved["back_path"]) == (["b", "a", "d"], ["d", "a", "b"])
    assert (moved["least_rate_bps"], moved["declared_rtt_s"]) == (5e6, 0.01)
    assert 0.85 <= moved["carried_bps"] / 5e6 <= 1.0
