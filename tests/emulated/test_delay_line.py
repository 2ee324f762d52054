"""The delay line process on real devices: delay, jitter, loss, counters."""

from __future__ import annotations

import math
import re
import signal
import statistics

import pytest

from testbed.emulation.impairment import quantile_s
from testbed.emulation.waiting import wait_for
from tests.emulated.traffic import PUNCTUAL, undisturbed
from topologies.errors import StormbedError

pytestmark = pytest.mark.emulated

PROBES = f"""{PUNCTUAL}
import socket, sys, time
kind, address, count, gap = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
if kind == "send":
    sock.connect((address, 5005))
    for n in range(count):
        sock.send(b"%d %d" % (n, time.monotonic_ns())); time.sleep(gap)
    time.sleep(1); sock.send(b"end")
else:
    sock.setsockopt(socket.SOL_SOCKET, 33, 1 << 26)  # SO_RCVBUFFORCE
    sock.bind((address, 5005)); print("ready", flush=True); sock.settimeout(20)
    while (data := sock.recv(100)) != b"end":
        number, sent = map(int, data.split()); print(number, (time.monotonic_ns() - sent) / 1e6)
"""


@pytest.fixture(scope="module")
def pair(bring):
    return bring("pair")


@pytest.fixture
def fresh(pair):
    pair.client.call("link_reset")
    return pair


def probes(testbed, count: int, gap_s: float) -> tuple[list[int], list[float]]:
    """The numbers and the one-way delays in ms of those that arrived, in the order of arrival."""
    receiver = testbed.site("dc2").start_python(PROBES, "receive", testbed.wan_ip("dc2"), "0", "0")
    assert receiver.stdout.readline() == "ready\n"
    testbed.site("dc1").python(PROBES, "send", testbed.wan_ip("dc2"), str(count), str(gap_s), timeout=60)
    rows = [line.split() for line in receiver.communicate(timeout=30)[0].splitlines()]
    return [int(row[0]) for row in rows], [float(row[1]) for row in rows]


def line_of(testbed, src: str = "dc1") -> dict:
    (row,) = [row for row in testbed.client.call("links") if row["src"] == src]
    return row["delay_line"]


def test_the_delay_is_kept_to_a_millisecond(fresh) -> None:
    numbers, delays = probes(fresh, 200, 0.005)
    assert len(numbers) == 200
    assert min(delays) > 9.5 and statistics.median(delays) < 11.0


def test_lateness_is_measured_and_small(fresh) -> None:
    before = line_of(fresh)["lateness"]
    probes(fresh, 200, 0.005)
    gained = [now - then for then, now in zip(before, line_of(fresh)["lateness"], strict=True)]
    assert sum(gained) >= 200
    assert quantile_s(gained, 0.5) <= 0.001


def test_jitter_varies_the_delay_and_keeps_the_order(fresh) -> None:
    fresh.client.call("link_set", src="dc1", dst="dc2", delay="20ms", jitter="8ms")
    numbers, delays = probes(fresh, 300, 0.004)
    assert numbers == list(range(300))
    assert min(delays) < 17 and max(delays) > 23
    assert all(delay >= 12.0 for delay in delays)
    assert sorted(delays)[270] < 32.0, "nine of ten; a busy machine may hold a few longer"


@pytest.mark.parametrize("loss", ["2%", "20%"])
def test_loss_is_as_often_as_declared(fresh, loss: str) -> None:
    fresh.client.call("link_set", src="dc1", dst="dc2", loss=loss)
    before = line_of(fresh)["drops"]["loss"]
    numbers, _ = probes(fresh, 2000, 0.001)
    share, lost = float(loss.rstrip("%")) / 100, 2000 - len(numbers)
    assert abs(lost - 2000 * share) < 4 * math.sqrt(2000 * share * (1 - share))
    assert line_of(fresh)["drops"]["loss"] - before in (lost, lost + 1), (
        "only the final word may be lost uncounted"
    )


FLOOD = f"""{PUNCTUAL}
import itertools, socket, sys, time
kind, address, count, pps = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
if kind == "send":
    sock.connect((address, 5007))
    number, due = 0, time.monotonic()
    while number < count:
        now = time.monotonic()
        due = max(due, now - 0.005)  # after a stall not all at once: no queue on the way takes that
        while due <= now and number < count:
            sock.send(number.to_bytes(4, "big")); number += 1; due += 1 / pps
        time.sleep(0.001)
    time.sleep(1)
    try:
        for _ in range(20): sock.send(bytes([255] * 4)); time.sleep(0.05)
    except ConnectionRefusedError: pass  # the first of them has arrived
else:
    sock.setsockopt(socket.SOL_SOCKET, 33, 1 << 26)
    sock.bind((address, 5007)); print("ready", flush=True); sock.settimeout(30)
    arrived = bytearray(count)
    while (number := int.from_bytes(sock.recv(10), "big")) != 0xffffffff: arrived[number] = 1
    runs = [sum(1 for _ in group) for there, group in itertools.groupby(arrived) if not there]
    print(sum(runs), len(runs))
"""


def flood(testbed, count: int, pps: int = 20_000) -> tuple[int, int]:
    """How many of so many datagrams were lost, and in how many runs."""
    numbers = (str(count), str(pps))
    receiver = testbed.site("dc2").start_python(FLOOD, "receive", testbed.wan_ip("dc2"), *numbers)
    assert receiver.stdout.readline() == "ready\n"
    testbed.site("dc1").python(FLOOD, "send", testbed.wan_ip("dc2"), *numbers, timeout=90)
    lost, runs = receiver.communicate(timeout=60)[0].split()
    return int(lost), int(runs)


def test_one_per_cent_is_within_a_tenth_of_it_over_enough_packets(fresh) -> None:
    """Over 160,000 packets a tenth of one per cent is four standard deviations."""
    fresh.client.call("link_set", src="dc1", dst="dc2", loss="1%")
    count, before = 160_000, line_of(fresh)["drops"]
    lost, runs = flood(fresh, count)
    drops = {cause: number - before[cause] for cause, number in line_of(fresh)["drops"].items()}
    assert 0.009 <= drops["loss"] / count <= 0.011
    assert drops["loss"] - 20 <= lost <= 1.01 * drops["loss"] + 50, "hardly anything is lost elsewhere"
    assert lost / runs < 1.1, "one by one"


def test_losses_come_in_bursts_of_the_declared_mean(fresh) -> None:
    fresh.client.call("link_set", src="dc1", dst="dc2", loss="2% burst 8")
    (row,) = [row for row in fresh.client.call("links") if row["src"] == "dc1"]
    assert (row["loss_ratio"], row["loss_burst"]) == (0.02, 8)
    count, before = 80_000, line_of(fresh)["drops"]["loss"]
    lost, runs = flood(fresh, count)
    dropped = line_of(fresh)["drops"]["loss"] - before
    correlation = 1 - 0.02 / 0.98 / 8 - 1 / 8
    deviation = math.sqrt(0.02 * 0.98 / count * (1 + correlation) / (1 - correlation))
    assert abs(dropped / count - 0.02) < 4 * deviation
    assert abs(lost / runs - 8) < 4 * math.sqrt(8 * 7 / runs), "runs are geometric"


def test_calibration_reports_bursts(fresh) -> None:
    fresh.client.call("link_set", src="dc1", dst="dc2", rate="20mbit", loss="8% burst 4")
    report = fresh.client.call("calibrate", seconds=0.5)
    there = next(link for link in report["links"] if link["src"] == "dc1")
    assert not [problem for problem in there["problems"] if "loss" in problem]
    assert (there["declared_loss_ratio"], there["declared_loss_burst"]) == (0.08, 4)
    assert 2 < there["loss_burst"] < 6


def test_where_packets_are_lost_one_by_one_segments_are_cut_first(fresh) -> None:
    """TCP sends segments of up to 64 KB; a loss must cost one packet of the wire, not 45."""

    def frame_bytes() -> float:
        before = line_of(fresh)
        run = fresh.site("dc2").start_python(
            "import socket, sys; s = socket.create_server((sys.argv[1], 5006)); print('ready', flush=True); "
            "peer, _ = s.accept()\nwhile peer.recv(1 << 20): pass",
            fresh.wan_ip("dc2"),
        )
        assert run.stdout.readline() == "ready\n"
        fresh.site("dc1").python(
            "import socket, sys; socket.create_connection((sys.argv[1], 5006)).sendall(bytes(5_000_000))",
            fresh.wan_ip("dc2"),
        )
        run.wait(timeout=60)
        after = line_of(fresh)
        return (after["bytes"] - before["bytes"]) / (after["frames"] - before["frames"])

    assert frame_bytes() > 5000
    fresh.client.call("link_set", src="dc1", dst="dc2", loss="0.001%")
    assert frame_bytes() <= 1514
    fresh.client.call("link_set", src="dc1", dst="dc2", loss="0%")
    assert frame_bytes() > 5000


def test_calibration_measures_delay_and_loss(fresh) -> None:
    fresh.client.call("link_set", src="dc1", dst="dc2", rate="20mbit", loss="1%")

    def of_dc1(report: dict) -> dict:
        return next(link for link in report["links"] if link["src"] == "dc1")

    report = undisturbed(
        lambda: fresh.client.call("calibrate", seconds=1.5),
        lambda report: report["verdict"] == "faithful" and of_dc1(report)["delay_s"] < 0.011,
    )
    there = of_dc1(report)
    assert report["verdict"] == "faithful", report["reasons"]
    assert 0.0097 <= there["delay_s"] < 0.011
    assert 0.003 < there["loss_ratio"] < 0.02
    assert 0.90 <= there["ratio"] <= 0.97


def test_calibration_takes_the_switches_own_time_out_of_the_delay(fresh) -> None:
    def all_are_exact(report: dict) -> bool:
        return all(abs(link["delay_s"] - 0.010) < 0.0005 for link in report["links"])

    report = undisturbed(lambda: fresh.client.call("calibrate", seconds=0.5), all_are_exact)
    assert 0 < report["switches_s"] < 0.005
    assert all_are_exact(report), report["links"]


def test_a_dead_delay_line_is_noticed_and_named(bring) -> None:
    testbed = bring("pair")
    (process,) = [p for p in testbed.client.call("status")["processes"] if p["name"] == "delay-line"]
    testbed.client.call("kill", pid=process["pid"], signal_name="SIGKILL")
    wait_for(lambda: not testbed.client.call("status")["healthy"], "the death to be noticed", 20)
    with pytest.raises(StormbedError, match="the delay line"):
        testbed.client.call("link_set", src="dc1", dst="dc2", delay="5ms")
    # Reading still works: whoever looks at a broken testbed is to see what stands.
    assert all(row["delay_line"] is None for row in testbed.client.call("links"))
    status = {p["name"]: p["status"] for p in testbed.client.call("status")["processes"]}
    assert status["delay-line"] == -signal.SIGKILL


def test_ping_shows_twice_the_delay(fresh) -> None:
    out = fresh.site("dc1").run("ping", "-n", "-c", "20", "-i", "0.05", fresh.wan_ip("dc2"))
    times = [float(t) for t in re.findall(r"time=([\d.]+)", out)]
    # The shortest: what a busy machine adds to the others, whose process has no priority, is not the network's.
    assert len(times) == 20 and 19.0 < min(times) < 22.0
