"""The HTTP interface over real sockets, above model switches."""

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from controller.api import Api
from controller.fabric import Fabric, poll_seconds
from controller.session import ReadPorts, ReadRules
from controller.steering import Orders
from controller.table import ModelNetwork
from topologies.errors import CannotHonourError
from topologies.load import load_topology


@dataclass
class World:
    """A fabric, the network it controls, and its HTTP interface."""

    fabric: Fabric
    network: ModelNetwork
    api: Api

    def talk(self, orders: Orders) -> None:
        while orders:
            (number, commands), *orders = orders
            switch = self.network.switches[number]
            for question in switch.execute(commands):
                if isinstance(question, ReadRules):
                    orders += self.fabric.on_rules(number, switch.entries, time.monotonic())
                elif isinstance(question, ReadPorts):
                    up = dict.fromkeys(range(1, 4), True)
                    orders += self.fabric.on_ports(number, up, time.monotonic())
                else:
                    orders += self.fabric.on_barrier(number, time.monotonic())

    def connect(self, number: int) -> None:
        self.talk(self.fabric.on_connect(number, time.monotonic()))

    def tick(self) -> None:
        self.talk(self.fabric.poll(time.monotonic()))

    def port(self, number: int, port: int, up: bool) -> None:
        self.talk(self.fabric.on_port(number, port, up, time.monotonic()))

    def settle(self) -> None:
        """Let the time pass that the fabric waits for."""
        for seconds in (1.0, 4.0, 8.0):
            self.talk(self.fabric.on_time(time.monotonic() + seconds))

    def fetch(self, path: str, method: str = "GET") -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.api.port, timeout=10)
        try:
            connection.request(method, path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        status, body = self.fetch(path)
        assert status == 200
        return json.loads(body)

    def metrics(self) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        families = text_string_to_metric_families(self.fetch("/metrics")[1])
        return {
            (s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples
        }


@pytest.fixture
def world() -> Iterator[World]:
    topology = load_topology("triangle")
    fabric = Fabric(topology)
    api = Api(fabric, "127.0.0.1", 0, CollectorRegistry())
    api.start()
    yield World(fabric, ModelNetwork(topology), api)
    api.close()


def test_health_follows_the_switches(world: World) -> None:
    health = world.get("/health")
    assert (health["schema"], health["ready"], health["connected"], health["missing"]) == (
        1,
        False,
        [],
        [1, 2, 3],
    )
    world.connect(1)
    world.connect(2)
    health = world.get("/health")
    assert (health["ready"], health["connected"], health["missing"]) == (False, [1, 2], [3])
    world.connect(3)
    health = world.get("/health")
    assert (health["ready"], health["missing"]) == (True, [])
    assert health["rules"] == sum(len(session.wanted) for session in world.fabric.sessions.values())
    world.fabric.on_disconnect(2, time.monotonic())
    health = world.get("/health")
    assert (health["ready"], health["missing"]) == (False, [2])
    assert health["switches"][1] == {
        "dpid": 2,
        "site": "dc2",
        "connected": False,
        "in_sync": False,
        "rules_planned": len(world.fabric.sessions[2].wanted),
        "rules_foreign": 0,
        "repairs": 0,
        "last_error": None,
        "ports": [],
    }


def test_an_error_and_a_port_are_shown(world: World) -> None:
    world.connect(1)
    world.fabric.on_error(1, "table full", time.monotonic())
    world.port(1, 2, False)
    shown = world.get("/health")["switches"][0]
    assert shown["last_error"] == "table full"
    assert shown["ports"] == [
        {"port": 1, "peer": "dc1", "up": True},
        {"port": 2, "peer": "dc2", "up": False},
        {"port": 3, "peer": "dc3", "up": True},
    ]


def test_a_switch_of_another_topology_gets_no_command(world: World) -> None:
    world.fabric.note_stranger(77, here=True)
    assert world.fabric.on_connect(77, 0) == []
    assert world.get("/health")["unexpected"] == [77]
    world.fabric.note_stranger(77, here=False)
    assert world.get("/health")["unexpected"] == []


def test_routes(world: World) -> None:
    answer = world.get("/routes")
    assert (answer["schema"], answer["topology"], len(answer["routes"])) == (1, "triangle", 6)
    assert answer["routes"][0] == {
        "src": "dc1",
        "dst": "dc2",
        "paths": [
            {"path": 0, "sites": ["dc1", "dc2"], "intact": True},
            {"path": 1, "sites": ["dc1", "dc3", "dc2"], "intact": True},
        ],
        "primary": {"path": 0, "sites": ["dc1", "dc2"], "moved": False},
    }


def test_a_cut_link_is_shown(world: World) -> None:
    for number in (1, 2, 3):
        world.connect(number)
    assert world.metrics()["stormbed_controller_links_down", ()] == 0
    world.port(1, 2, False)
    world.port(2, 2, False)
    world.settle()
    health = world.get("/health")
    assert health["ready"] and not health["rerouting"]
    assert (health["links_down"], health["moved"], health["parted"]) == ([["dc1", "dc2"]], 2, 0)
    assert health["version"] == 1 and health["reroutes"] == 2
    assert health["last_reroute"]["pairs"] == 2
    assert health["last_reroute"]["links_down"] == [["dc1", "dc2"]]
    moved = world.get("/routes?moved=1")
    assert moved["links_down"] == [["dc1", "dc2"]] and moved["version"] == 1
    assert [(r["src"], r["dst"]) for r in moved["routes"]] == [("dc1", "dc2"), ("dc2", "dc1")]
    assert moved["routes"][0]["primary"] == {"path": 1, "sites": ["dc1", "dc3", "dc2"], "moved": True}
    assert [path["intact"] for path in moved["routes"][0]["paths"]] == [False, True]
    metrics = world.metrics()
    assert metrics["stormbed_controller_links_down", ()] == 1
    assert metrics["stormbed_controller_primaries_moved", ()] == 2
    assert metrics["stormbed_controller_reroutes_total", ()] == 2
    world.port(1, 3, False)
    world.settle()
    health = world.get("/health")
    assert (len(health["links_down"]), health["moved"], health["parted"]) == (2, 4, 4)
    alone = world.get("/routes?src=dc1&dst=dc3")["routes"]
    assert [r["primary"] for r in alone] == [{"path": None, "sites": None, "moved": True}]


def test_routes_of_an_unknown_site(world: World) -> None:
    status, body = world.fetch("/routes?src=dc11")
    assert status == 400 and json.loads(body)["error"].startswith("there is no site 'dc11' (did you mean dc1")


def test_counters_are_counted_once_at_the_source(world: World) -> None:
    for number in (1, 2, 3):
        world.connect(number)
    for path, times in ((0, 1), (1, 2), (5, 3)):
        for _ in range(times):
            world.network.send(0, 1, path=path)
    world.tick()
    counters = world.get("/counters")
    assert counters["schema"] == 1 and counters["age_s"] < 10
    used = [c for c in counters["paths"] if c["packets"]]
    assert sorted(used, key=lambda c: c["packets"]) == [
        {"src": "dc1", "dst": "dc2", "path": 0, "packets": 1, "sent_bytes": 100},
        {"src": "dc1", "dst": "dc2", "path": 1, "packets": 2, "sent_bytes": 200},
        {"src": "dc1", "dst": "dc2", "path": None, "packets": 3, "sent_bytes": 300},
    ]
    assert {(d["site"], d["table"]) for d in counters["dropped"]} == {
        (f"dc{k}", t) for k in (1, 2, 3) for t in (0, 1)
    }


def test_old_counters_are_read_again_before_they_are_shown(world: World) -> None:
    stop = threading.Event()

    def switches() -> None:
        while not stop.is_set():
            if world.fabric.refresh_wanted.wait(0.05):
                world.fabric.refresh_wanted.clear()
                world.tick()

    for number in (1, 2, 3):
        world.connect(number)
        world.fabric.sessions[number].read_at_s = time.monotonic() - 60
    assert world.fabric.counters(time.monotonic())["age_s"] > 59
    thread = threading.Thread(target=switches)
    thread.start()
    try:
        assert world.get("/counters")["age_s"] < 30, "read again: before they were a minute old"
    finally:
        stop.set()
        thread.join()


def test_metrics_have_the_projects_names(world: World) -> None:
    for number in (1, 2):
        world.connect(number)
    world.settle()
    world.port(1, 9, True)  # not planned, so not shown
    world.network.send(0, 1, path=1)
    world.tick()
    metrics = world.metrics()
    assert all(name.startswith("stormbed_controller_") for name, _ in metrics)
    assert metrics["stormbed_controller_switch_connected", (("site", "dc1"),)] == 1
    assert metrics["stormbed_controller_switch_connected", (("site", "dc3"),)] == 0
    assert metrics["stormbed_controller_switch_in_sync", (("site", "dc2"),)] == 1
    assert metrics["stormbed_controller_flow_rules", (("site", "dc1"),)] == len(
        world.fabric.sessions[1].wanted
    )
    path = (("dst", "dc2"), ("path", "1"), ("src", "dc1"))
    assert metrics["stormbed_controller_path_bytes_total", path] == 100
    ports = {labels: value for (name, labels), value in metrics.items() if name.endswith("port_up")}
    assert set(ports) == {
        (("peer", f"dc{peer}"), ("site", f"dc{site}")) for site in (1, 2) for peer in (1, 2, 3)
    }
    reasons = {labels[0][1] for name, labels in metrics if name.endswith("dropped_bytes_total")}
    assert reasons == {"not-ipv4", "unknown-address"}


def test_other_requests_are_answered_too(world: World) -> None:
    status, body = world.fetch("/nothing")
    assert status == 404 and "/health" in json.loads(body)["error"]
    assert world.fetch("/health", "POST")[0] == 501
    assert world.fetch("/health?verbose=1")[0] == 200
    with socket.create_connection(("127.0.0.1", world.api.port), timeout=5) as raw:
        raw.sendall(b"\x00garbage\r\n\r\n")
        assert b"400" in raw.recv(1000)
    assert world.get("/health")["schema"] == 1


def test_a_taken_port_is_said_clearly(world: World) -> None:
    with pytest.raises(CannotHonourError, match=rf"127\.0\.0\.1:{world.api.port}.*--http"):
        Api(world.fabric, "127.0.0.1", world.api.port, CollectorRegistry())


def test_many_in_one_process(world: World) -> None:
    for _ in range(20):
        api = Api(world.fabric, "127.0.0.1", 0, CollectorRegistry())
        api.start()
        api.close()
    Api(world.fabric, "127.0.0.1", 0, CollectorRegistry()).close()  # never started


def test_links_answers_when_one_fails_and_not_before_all_switches_have_told(world: World) -> None:
    world.connect(1)
    begun = time.monotonic()
    unknown = world.get("/links?wait=0.2")
    assert time.monotonic() - begun >= 0.2, "a switch that has not told about its ports may have links down"
    assert unknown["down"] == []
    world.connect(2)
    world.connect(3)
    whole = world.get(f"/links?since={unknown['token']}&wait=5")
    assert whole["down"] == [] and whole["token"] != unknown["token"]
    answers: list[Any] = []
    waiting = threading.Thread(target=lambda: answers.append(world.get(f"/links?since={whole['token']}&wait=20")))
    waiting.start()
    world.port(1, 2, False)
    world.settle()
    waiting.join(30)
    assert [answer["down"] for answer in answers] == [[["dc1", "dc2"]]]
    assert world.get("/links")["token"] == answers[0]["token"]
    assert Fabric(load_topology("triangle")).links()["token"] != unknown["token"], "another controller"
    status, body = world.fetch("/links?wait=soon")
    assert status == 400 and "wait=soon is not a number of seconds from 0 to 60" in body


def test_many_rules_are_read_less_often() -> None:
    assert poll_seconds(0) == poll_seconds(1348) == 10  # NetStorm-9
    assert poll_seconds(72_000) == pytest.approx(216)
    # Whatever the number, reading stays a small part of a core.
    assert all(rules * 60e-6 / poll_seconds(rules) <= 0.02 + 1e-9 for rules in (1_000, 10_000, 1_000_000))
