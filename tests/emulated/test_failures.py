"""Links that are cut and mended, and a controller that is killed, while traffic and collectives go on."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from testbed.emulation.waiting import wait_for
from testbed.experiments.manifest import read_manifest
from testbed.experiments.run import run_experiment
from testbed.experiments.spec import experiment_from_text
from tests.emulated.conftest import Standing
from topologies.addressing import switch_name

pytestmark = pytest.mark.emulated

MOVED_WITHIN_S = 5.0
"""Two seconds are what is promised on a machine with time to spare; here others may be at work."""

# Numbered datagrams at an even pace, as "number arrival" by one clock of all sites.
COUNTER = """
import socket, sys, time
sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sink.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
sink.bind((sys.argv[1], 5003))
sink.settimeout(30)
print("ready", flush=True)
while True:
    number = int(sink.recv(2000).split(b" ", 1)[0])
    if number < 0:
        break
    print(number, time.monotonic())
"""
PACED = """
import os, socket, sys, time
peer, pace_s = (sys.argv[1], 5003), float(sys.argv[2])
out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
begun, sent = time.monotonic(), 0
while not os.path.exists(sys.argv[3]):
    time.sleep(max(0, begun + sent * pace_s - time.monotonic()))
    try:
        out.sendto(b"%d " % sent + bytes(900), peer)
    except OSError:
        pass
    print(sent, time.monotonic())
    sent += 1
for _ in range(20):
    time.sleep(0.05)
    out.sendto(b"-1 ", peer)
"""
PACE_S = 0.005

# A file that the sender makes from a seed, and its digest at both ends.
TAKE = """
import hashlib, socket, sys, time
server = socket.create_server((sys.argv[1], 5004))
print("ready", flush=True)
peer, _ = server.accept()
peer.settimeout(60)
digest, total = hashlib.sha256(), 0
while data := peer.recv(1 << 16):
    digest.update(data)
    total += len(data)
print(total, digest.hexdigest())
"""
GIVE = """
import hashlib, random, socket, sys, time
block = random.Random(7).randbytes(125_000)
out = socket.create_connection((sys.argv[1], 5004))
digest, begun = hashlib.sha256(), time.monotonic()
for k in range(int(sys.argv[2])):  # 20 Mbit/s
    time.sleep(max(0, begun + k * 0.05 - time.monotonic()))
    part = bytes([k % 256]) + block
    out.sendall(part)
    digest.update(part)
out.close()
print(int(sys.argv[2]) * (len(block) + 1), digest.hexdigest())
"""


class Watched:
    """A triangle and its controller."""

    def __init__(self, testbed: Standing) -> None:
        self.testbed = testbed
        self.name = testbed.name
        self.client = testbed.client

    def get(self, path: str) -> Any:
        """From the controller; None while it does not answer."""
        return self.testbed.controller(path)

    def settled(self, *down: list[str]) -> bool:
        """Whether the switches hold what they have to while these links are down, and no others are."""
        return self.testbed.rerouted(*down)

    def cut(self) -> None:
        self.client.call("link_down", src="dc1", dst="dc2")

    def mend(self) -> None:
        self.client.call("link_up", src="dc1", dst="dc2")

    def controller(self) -> dict[str, Any]:
        found = [p for p in self.client.call("status")["processes"] if p["name"] == "controller"]
        return dict(found[-1])

    def kill_controller(self) -> dict[str, Any]:
        controller = self.controller()
        self.client.call("kill", pid=controller["pid"], signal_name="SIGKILL")
        wait_for(lambda: self.controller()["status"] == -9, "the controller to have ended", 5)
        return controller

    def start_controller(self, as_before: dict[str, Any]) -> None:
        self.client.call("spawn", argv=as_before["argv"], name="controller", log=as_before["log"])

    def rules(self) -> list[str]:
        """What every switch holds, without counters and ages."""
        return [line for k in range(3) for line in self._flows(k, "--no-stats")]

    def youngest_s(self) -> float:
        """The least age of any rule: one that is written anew begins at zero."""
        words = [word for k in range(3) for line in self._flows(k) for word in line.split(", ")]
        ages = [float(word[9:-1]) for word in words if word.startswith("duration=")]
        return min(ages)

    def _flows(self, k: int, *options: str) -> list[str]:
        socket = self.testbed.info.run_dir / "ovs" / f"{switch_name(k)}.mgmt"
        text = self.testbed.supervisor().run(
            "ovs-ofctl", "-O", "OpenFlow13", *options, "dump-flows", f"unix:{socket}"
        )
        return sorted(f"s{k + 1} {line.strip()}" for line in text.splitlines() if "cookie=" in line)


@pytest.fixture(scope="module")
def testbed(bring: Callable[..., Standing]) -> Watched:
    return Watched(bring("triangle"))


@pytest.fixture
def watched(testbed: Watched) -> Iterator[Watched]:
    """The triangle, whole before and after."""
    wait_for(testbed.settled, "the network to be whole", 20)
    yield testbed
    testbed.mend()
    if testbed.controller()["status"] is not None:
        testbed.start_controller(testbed.controller())
    wait_for(testbed.settled, "the network to be whole again", 20)


class Datagrams:
    """A paced stream from dc1 to dc2, until `end`."""

    def __init__(self, testbed: Standing, stop: Path) -> None:
        self._stop = stop
        self._sink = testbed.site("dc2").start_python(COUNTER, testbed.wan_ip("dc2"))
        assert self._sink.stdout is not None and self._sink.stdout.readline() == "ready\n"
        self._source = testbed.site("dc1").start_python(PACED, testbed.wan_ip("dc2"), str(PACE_S), str(stop))

    def end(self) -> tuple[dict[int, float], dict[int, float]]:
        """When each number was sent, and when it first arrived."""
        self._stop.touch()
        return self._read(self._source), self._read(self._sink)

    @staticmethod
    def _read(process: subprocess.Popen[str]) -> dict[int, float]:
        text, _ = process.communicate(timeout=40)
        pairs = [line.split() for line in text.splitlines()]
        return {int(number): float(at) for number, at in reversed(pairs)}


def test_traffic_moves_from_a_cut_link_and_moves_back_without_a_loss(
    watched: Watched, tmp_path: Path
) -> None:
    whole = watched.rules()
    stream = Datagrams(watched.testbed, tmp_path / "stop")
    try:
        time.sleep(1.0)  # traffic before
        cut_at = time.monotonic()
        watched.cut()
        wait_for(lambda: watched.settled(["dc1", "dc2"]), "the controller to have moved the traffic", 20)
        moved = watched.get("/routes?moved=1")["routes"]
        time.sleep(1.0)  # traffic over the detour
        mended_at = time.monotonic()
        watched.mend()
        wait_for(watched.settled, "the controller to have moved it back", 20)
        time.sleep(3.0)  # also the rules of the detour go in this time
    finally:
        sent, arrived = stream.end()
    assert {(r["src"], r["dst"]) for r in moved} == {("dc1", "dc2"), ("dc2", "dc1")}
    assert moved[0]["primary"] == {"path": 1, "sites": ["dc1", "dc3", "dc2"], "moved": True}
    times = sorted(at for at in arrived.values() if at > cut_at - 0.5)
    outage_s = max(b - a for a, b in pairwise(t for t in times if t < mended_at))
    assert outage_s < MOVED_WITHIN_S, f"nothing arrived for {outage_s:.2f} s"
    late = [n for n, at in sent.items() if at > mended_at - 0.5]
    assert len(late) > 3.0 / PACE_S / 2, "the stream went on"
    assert [n for n in late if n not in arrived] == [], "the return of a link loses nothing"
    wait_for(lambda: watched.rules() == whole, "the rules to be as before", 10)


def test_a_transfer_survives_a_cut_a_return_and_a_killed_controller(watched: Watched) -> None:
    testbed = watched.testbed
    sink = testbed.site("dc2").start_python(TAKE, testbed.wan_ip("dc2"))
    assert sink.stdout is not None and sink.stdout.readline() == "ready\n"
    source = testbed.site("dc1").start_python(GIVE, testbed.wan_ip("dc2"), "240")
    time.sleep(1.0)  # traffic before
    watched.cut()
    wait_for(lambda: watched.settled(["dc1", "dc2"]), "the controller to have moved the traffic", 20)
    before = watched.kill_controller()
    watched.start_controller(before)
    wait_for(lambda: watched.settled(["dc1", "dc2"]), "the new controller to know of the cut", 20)
    watched.mend()
    given = source.communicate(timeout=60)[0]
    assert sink.communicate(timeout=60)[0] == given and int(given.split()[0]) == 240 * 125_001


EXPERIMENT = """
name: failures
topology: triangle
training: {model: tensor-300k, iterations: 150, chunk_elements: 30000, deadline_s: 60}
schedulers: [netstorm]
"""


class Training:
    """A run in a thread of its own, and how far it is. Each sum is compared bit by bit by its workers."""

    def __init__(self, watched: Watched, out: Path) -> None:
        self._out = out
        self.path: Path | None = None
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(watched.name,))
        self._thread.start()

    def _run(self, name: str) -> None:
        try:
            experiment = experiment_from_text(EXPERIMENT)
            self.path = run_experiment(experiment, out=self._out, testbed=name, on_directory=self._begun)
        except BaseException as error:
            self._failure = error

    def _begun(self, path: Path) -> None:
        self.path = path

    @property
    def done(self) -> int:
        """Iterations that the worker at dc2 has finished."""
        trace = self.path and self.path / "workers" / "dc2-0" / "trace.jsonl"
        return trace.read_bytes().count(b"\n") if trace and trace.exists() else 0

    def wait_for_more(self, count: int, seconds: float = 40) -> None:
        assert self._thread.is_alive(), f"the run has ended: {self._failure}"
        wanted = self.done + count
        wait_for(
            lambda: self.done >= wanted or not self._thread.is_alive(), f"{count} more iterations", seconds
        )
        assert self.done >= wanted, f"the run has ended: {self._failure}"

    def end(self) -> list[dict[str, Any]]:
        """Wait for the end; the records of dc2's worker."""
        self._thread.join(120)
        assert not self._thread.is_alive(), "the run does not end"
        if self._failure is not None:
            raise self._failure
        assert self.path is not None
        assert read_manifest(self.path).status == "completed"
        text = (self.path / "workers" / "dc2-0" / "trace.jsonl").read_text()
        return [json.loads(line) for line in text.splitlines()]


def test_training_goes_on_over_a_cut_link_and_without_a_controller(watched: Watched, tmp_path: Path) -> None:
    rules = watched.rules()
    training = Training(watched, tmp_path)
    wait_for(lambda: training.done >= 5, "the first iterations", 60)
    cut_ns = time.monotonic_ns()
    watched.cut()
    training.wait_for_more(5)
    wait_for(lambda: watched.settled(["dc1", "dc2"]), "the rules to lead around the link", 20)
    mended_ns = time.monotonic_ns()
    watched.mend()
    training.wait_for_more(5)
    wait_for(lambda: watched.settled() and watched.rules() == rules, "the rules to be as before", 20)

    # Killed: the switches go on by themselves.
    wait_for(lambda: watched.youngest_s() > 1, "the rules to be older than a second", 20)
    youngest_s, killed_at = watched.youngest_s(), time.monotonic()
    before = watched.kill_controller()
    training.wait_for_more(5)
    assert watched.rules() == rules

    # Back: it finds all as it should be, and writes nothing.
    watched.start_controller(before)
    wait_for(watched.settled, "the new controller to be ready", 30)
    assert watched.rules() == rules and len(set(rules)) == len(rules)
    assert watched.youngest_s() > youngest_s + time.monotonic() - killed_at - 1.5
    training.wait_for_more(5)

    # Cut while there is no controller: the sums wait, and the next controller moves them.
    before = watched.kill_controller()
    watched.cut()
    watched.start_controller(before)
    wait_for(lambda: watched.settled(["dc1", "dc2"]), "the new controller to find the cut link", 30)
    training.wait_for_more(5)
    watched.mend()

    records = training.end()
    assert [record["iteration"] for record in records] == list(range(150))
    ends = [record["done_ns"] for record in records]
    pauses = [(b - a) / 1e9 for a, b in pairwise(ends) if cut_ns < b < mended_ns]
    usual = sorted((b - a) / 1e9 for a, b in pairwise(ends))[75]
    assert max(pauses) < MOVED_WITHIN_S + 2 * usual, f"an iteration took {max(pauses):.2f} s over the cut"
