"""Messages over fluid links: hand-computed times, conservation, order, breaks, repeatability."""

from __future__ import annotations

import random
from functools import partial

import pytest

from testbed.simulation.clock import VirtualClock
from testbed.simulation.fluid import FluidLink, FluidNetwork

MBIT = 1_000_000
MS = 1_000_000


def network(*links: FluidLink, **options: float) -> tuple[VirtualClock, FluidNetwork]:
    clock = VirtualClock()
    return clock, FluidNetwork(clock, links, **options)  # type: ignore[arg-type]


def test_two_connections_share_then_one_has_it_all() -> None:
    """10 and 20 Mbit at 100 Mbit/s, 10 ms away: the first ends after 0.2 s of sharing, then the second."""
    clock, net = network(FluidLink(100 * MBIT, 10 * MS))
    done: dict[str, int] = {}
    net.send(net.connect([0]), 1_250_000, lambda: done.setdefault("a", clock.now_ns))
    net.send(net.connect([0]), 2_500_000, lambda: done.setdefault("b", clock.now_ns))
    clock.run()
    assert done == {"a": 210 * MS, "b": 310 * MS}
    assert net.carried_bits == [30 * MBIT]


def test_one_connection_sends_in_order_one_at_a_time() -> None:
    clock, net = network(FluidLink(8 * MBIT, 5 * MS), FluidLink(4 * MBIT, 5 * MS))
    connection = net.connect([0, 1])
    done: list[tuple[int, int]] = []
    for k in range(3):
        net.send(connection, 500_000, lambda k=k: done.append((k, clock.now_ns)))  # type: ignore[misc]
    assert connection.waiting == 2
    clock.run()
    assert done == [(k, (1000 * (k + 1) + 10) * MS) for k in range(3)]


def test_the_lowest_order_goes_first_but_never_interrupts() -> None:
    clock, net = network(FluidLink(8 * MBIT))
    connection = net.connect([0])
    done: list[str] = []
    for name, order in (("first", 9.0), ("late", 5.0), ("early", 1.0), ("late too", 5.0)):
        net.send(connection, 1000, lambda name=name: done.append(name), (order,))  # type: ignore[misc]
    clock.run()
    assert done == ["first", "early", "late", "late too"]


def test_a_higher_class_stops_a_lower_one() -> None:
    clock, net = network(FluidLink(8 * MBIT))
    done: dict[str, int] = {}
    low, high = net.connect([0], 0), net.connect([0], 7)
    net.send(low, 1_000_000, lambda: done.setdefault("low", clock.now_ns))
    clock.at(500 * MS, lambda: net.send(high, 1_000_000, lambda: done.setdefault("high", clock.now_ns)))
    clock.run()
    assert done == {"high": 1500 * MS, "low": 2000 * MS}


def test_a_rate_change_bites_at_once() -> None:
    clock, net = network(FluidLink(8 * MBIT))
    done: list[int] = []
    net.send(net.connect([0]), 1_000_000, lambda: done.append(clock.now_ns))
    clock.at(500 * MS, lambda: net.set_rate(0, 2 * MBIT))
    clock.run()
    assert done == [2500 * MS]


def test_a_dead_link_holds_its_messages_until_it_is_back() -> None:
    clock, net = network(FluidLink(8 * MBIT))
    done: list[int] = []
    net.send(net.connect([0]), 1_000_000, lambda: done.append(clock.now_ns))
    clock.at(250 * MS, lambda: net.set_rate(0, 0))
    clock.at(10_000 * MS, lambda: net.set_rate(0, 8 * MBIT))
    clock.run()
    assert done == [10_750 * MS]


def test_a_shorter_delay_does_not_let_messages_overtake() -> None:
    clock, net = network(FluidLink(8 * MBIT, 100 * MS))
    connection = net.connect([0])
    done: list[tuple[str, int]] = []
    net.send(connection, 1000, lambda: done.append(("a", clock.now_ns)))
    net.send(connection, 1000, lambda: done.append(("b", clock.now_ns)))
    clock.at(int(1.5 * MS), lambda: net.set_delay(0, 0))
    clock.run()
    assert done == [("a", 101 * MS), ("b", 101 * MS)]


def test_a_reset_loses_everything_on_the_connection_and_nothing_else() -> None:
    clock, net = network(FluidLink(8 * MBIT, 50 * MS))
    broken, other = net.connect([0]), net.connect([0])
    done: list[str] = []
    for k in range(3):
        net.send(broken, 1000, lambda k=k: done.append(f"broken {k}"))  # type: ignore[misc]
    net.send(other, 4000, lambda: done.append("other"))
    lost: list[int] = []
    # After 3 ms the first is on its way, the second is being sent, the third waits.
    clock.at(3 * MS, lambda: lost.append(net.reset(broken)))
    clock.at(100 * MS, lambda: net.send(broken, 1000, lambda: done.append("anew")))
    clock.run()
    assert lost == [2]
    assert done == ["other", "anew"]


def test_efficiency_and_message_overhead() -> None:
    clock, net = network(FluidLink(10 * MBIT), efficiency=0.8, per_message_bytes=1000)
    done: list[int] = []
    net.send(net.connect([0]), 999_000, lambda: done.append(clock.now_ns))
    clock.run()
    assert done == [1000 * MS]
    with pytest.raises(ValueError, match="efficiency"):
        network(FluidLink(1.0), efficiency=0.0)


def test_a_callback_that_sends_again_keeps_its_connection_busy() -> None:
    clock, net = network(FluidLink(8 * MBIT))
    connection = net.connect([0])
    times: list[int] = []

    def again() -> None:
        times.append(clock.now_ns)
        if len(times) < 4:
            net.send(connection, 1000, again)

    net.send(connection, 1000, again)
    clock.run()
    assert times == [k * MS for k in (1, 2, 3, 4)]


def random_traffic(seed: int) -> tuple[list[tuple[int, int]], list[float], float]:
    rng = random.Random(seed)
    links = [FluidLink(rng.uniform(1, 50) * MBIT, rng.randrange(20) * MS) for _ in range(rng.randint(1, 6))]
    clock, net = network(*links)
    connections = [
        net.connect(rng.sample(range(len(links)), rng.randint(1, len(links))), rng.randrange(3))
        for _ in range(8)
    ]
    arrivals: list[tuple[int, int]] = []
    expected = [0.0] * len(links)
    bits = 0.0
    for k in range(120):
        connection, size = rng.choice(connections), rng.randrange(0, 200_000)
        for link in connection.route:
            expected[link] += 8.0 * size
        bits += 8.0 * size
        clock.at(
            rng.randrange(2000) * MS,
            lambda c=connection, s=size, k=k: net.send(c, s, lambda: arrivals.append((k, clock.now_ns))),  # type: ignore[misc]
        )
    for _ in range(10):
        link, rate = rng.randrange(len(links)), rng.uniform(1, 50) * MBIT
        clock.at(rng.randrange(2000) * MS, partial(net.set_rate, link, rate))
    clock.run()
    assert net.carried_bits == pytest.approx(expected, rel=1e-9, abs=1.0)
    return arrivals, net.carried_bits, bits


@pytest.mark.parametrize("seed", range(20))
def test_every_bit_is_carried_once_and_a_run_repeats_exactly(seed: int) -> None:
    first, second = random_traffic(seed), random_traffic(seed)
    assert len(first[0]) == 120
    assert first == second
