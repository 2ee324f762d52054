"""The worker's client against real agents: every collective, several workers a site, order, errors."""

from __future__ import annotations

import functools
import gc
import itertools
import json
import socket
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from agents import wire
from agents.handles import Handle
from agents.local import LocalClient
from agents.local_server import SOCKET_NAME
from topologies.errors import DeadlineError, RunFailedError, UsageError
from topologies.unix_sockets import socket_address

# Ranks 0, 1 are at dc1, rank 2 at dc2, ranks 3, 4, 5 at dc3.
WORKERS = {"dc1": 2, "dc2": 1, "dc3": 3}
WORLD = 6
PLACES = [(0, 0), (0, 1), (1, 0), (2, 0), (2, 1), (2, 2)]


@pytest.fixture
def job(make_cluster: Any, everywhere: Any) -> Any:
    """Six workers of an open job at three sites, by rank."""
    cluster = make_cluster("triangle")
    runner = cluster.runner()
    spec = {"job": "job", "sites": WORKERS, "chunk_elements": 1000, "scheduler": "netstorm", "deadline_s": 20}
    assert runner.open_job(spec) == {"job": "job", "world_size": WORLD}
    clients = [cluster.join(site, worker=worker) for site, worker in PLACES]
    assert [client.rank for client in clients] == list(range(WORLD))
    yield clients
    for client in clients:
        client.close()
    runner.close_job("job")


Everywhere = Callable[[dict[Any, Callable[[], Any]]], dict[Any, Any]]


def at_all(
    clients: list[LocalClient], everywhere: Everywhere, work: Callable[[LocalClient], Any]
) -> list[Any]:
    results = everywhere({client.rank: lambda client=client: work(client) for client in clients})
    return [results[rank] for rank in range(len(clients))]


def test_who_is_where(job: list[LocalClient]) -> None:
    for client, (site, _) in zip(job, PLACES, strict=True):
        assert client.world_size == WORLD
        assert client.sites == (0, 0, 1, 2, 2, 2)
        assert client.site_names == ("dc1", "dc2", "dc3")
        assert client.site_index == site and client.site == client.site_names[site]


OPERATIONS: dict[str, Any] = {
    "sum": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}
ON_BOOL = {"sum": np.logical_or, "prod": np.logical_and}
DTYPES = ("float32", "float64", "float16", "complex64", "int64", "uint8", "bool")


def combinations() -> list[tuple[str, str]]:
    """Every element type with every operator that is defined on it."""
    pairs = list(itertools.product(DTYPES, OPERATIONS))
    floating = [
        pair for pair in pairs if np.dtype(pair[0]).kind in "fc" and pair[1] in ("band", "bor", "bxor")
    ]
    return [pair for pair in pairs if pair not in [*floating, ("complex64", "min"), ("complex64", "max")]]


def test_reductions_of_every_type_and_operator(job: list[LocalClient], everywhere: Everywhere) -> None:
    random = np.random.default_rng(5)
    cases = combinations()
    assert len(cases) == 35
    inputs = {case: [random.integers(0, 3, 2345).astype(case[0]) for _ in range(WORLD)] for case in cases}

    def work(client: LocalClient) -> list[tuple[Any, Any]]:
        arrays, handles = [], []
        for case in cases:
            everyone, one = (inputs[case][client.rank].copy() for _ in range(2))
            handles += [client.allreduce(everyone, case[1]), client.reduce(one, 4, case[1])]
            arrays.append((everyone, one))
        for handle in handles:
            handle.wait()
        return arrays

    for rank, results in enumerate(at_all(job, everywhere, work)):
        for (dtype, op), (everyone, one) in zip(cases, results, strict=True):
            given = inputs[dtype, op]
            operation = ON_BOOL.get(op, OPERATIONS[op]) if dtype == "bool" else OPERATIONS[op]
            wanted = functools.reduce(operation, given)
            assert np.array_equal(everyone, wanted), (dtype, op)
            assert np.array_equal(one, wanted if rank == 4 else given[rank]), (dtype, op)


def test_transfers_from_and_to_every_rank(job: list[LocalClient], everywhere: Everywhere) -> None:
    size = 1234

    def own(rank: int) -> Any:
        return np.arange(size, dtype=np.int32) + 10_000 * rank

    def work(client: LocalClient, root: int) -> dict[str, Any]:
        mine = own(client.rank)
        mine.flags.writeable = client.rank != root  # a source is only read
        at_root = client.rank == root
        result: dict[str, Any] = {"broadcast": mine if at_root else np.zeros(size, np.int32)}
        result["allgather"] = [np.zeros(size, np.int32) for _ in range(WORLD)]
        result["gather"] = [np.zeros(size, np.int32) for _ in range(WORLD)] if at_root else None
        result["scatter"] = np.zeros(size, np.int32)
        parts = [own(rank) + 5 for rank in range(WORLD)] if at_root else None
        handles = [
            client.broadcast(result["broadcast"], root),
            client.allgather(mine, result["allgather"]),
            client.gather(mine, result["gather"], root),
            client.barrier(),
            client.scatter(result["scatter"], parts, root),
        ]
        for handle in handles:
            handle.wait()
        return result

    for root in range(WORLD):
        for rank, result in enumerate(at_all(job, everywhere, functools.partial(work, root=root))):
            assert np.array_equal(result["broadcast"], own(root))
            assert all(np.array_equal(part, own(r)) for r, part in enumerate(result["allgather"]))
            if rank == root:
                assert all(np.array_equal(part, own(r)) for r, part in enumerate(result["gather"]))
            assert np.array_equal(result["scatter"], own(rank) + 5)


def test_messages_between_all_pairs_keep_their_order_for_each_tag(
    job: list[LocalClient], everywhere: Everywhere
) -> None:
    pairs = list(itertools.permutations(range(WORLD), 2))

    def content(src: int, dst: int, tag: int, number: int) -> Any:
        return np.full(100 + 900 * tag, src + 10 * dst + 100 * tag + 1000 * number, np.int64)

    def work(client: LocalClient) -> list[tuple[Any, Any]]:
        handles, received = [], []
        early = client.rank % 2  # odd ranks post their receives first, even ranks send first
        for step in (early, 1 - early):
            for src, dst in pairs:
                for tag, number in itertools.product((0, 1), (0, 1)):
                    if step == 0 and src == client.rank:
                        handles.append(client.send(content(src, dst, tag, number), dst, tag))
                    if step == 1 and dst == client.rank:
                        place = np.zeros(100 + 900 * tag, np.int64)
                        received.append((place, content(src, dst, tag, number)))
                        handles.append(client.recv(place, src, tag))
        client.barrier().wait()
        for handle in handles:
            handle.wait()
        return received

    for received in at_all(job, everywhere, work):
        assert len(received) == 4 * (WORLD - 1)
        assert all(np.array_equal(place, wanted) for place, wanted in received)


def test_empty_arrays_and_many_collectives_under_way(job: list[LocalClient], everywhere: Everywhere) -> None:
    def work(client: LocalClient) -> None:
        client.allreduce(np.empty(0, np.float32)).wait()
        client.broadcast(np.empty((0, 5)), 3).wait()
        client.allgather(np.empty(0), [np.empty(0)] * WORLD).wait()
        arrays = [np.full(1 + 300 * k, client.rank, np.float64) for k in range(40)]
        handles = [client.allreduce(array) for array in arrays]
        for array, handle in zip(arrays, handles, strict=True):
            handle.wait()
            assert np.all(array == 15)

    at_all(job, everywhere, work)


def test_arrays_in_shared_memory_are_worked_on_in_place(
    job: list[LocalClient], everywhere: Everywhere
) -> None:
    def work(client: LocalClient) -> None:
        matrix = client.empty((30, 100), np.float32)
        for number in range(3):
            matrix[:] = client.rank + number
            client.allreduce(matrix).wait()
            assert np.all(matrix == 15 + 6 * number)
            matrix[:] = client.rank
            client.broadcast(matrix, 5).wait()
            assert np.all(matrix == 5)
        # A reduction leaves the arrays of the others alone even here.
        matrix[:] = client.rank
        client.reduce(matrix, 0).wait()
        assert np.all(matrix == (15 if client.rank == 0 else client.rank))

    at_all(job, everywhere, work)
    client = job[0]
    region = client._arena.find(client.empty(1000))
    gc.collect()
    part = client.empty(1000)[10:20]
    gc.collect()
    other = client.empty(1000)
    assert client._arena.find(part).offset == region.offset + 40  # the freed room is used again
    assert not np.shares_memory(part, other)  # a view keeps its room


def test_results_are_there_when_callbacks_run(job: list[LocalClient], everywhere: Everywhere) -> None:
    def work(client: LocalClient) -> None:
        array = np.full(5000, client.rank, np.int32)
        seen: list[tuple[int, str]] = []
        called = threading.Event()

        def callback(handle: Handle) -> None:
            handle.wait(0)
            seen.append((int(array[-1]), threading.current_thread().name))
            called.set()

        handle = client.allreduce(array)
        handle.add_done_callback(lambda handle: 1 / 0)  # must not keep the others from running
        handle.add_done_callback(callback)
        assert called.wait(10)
        assert handle.done() and seen == [(15, "stormbed-reader")]
        handle.add_done_callback(callback)
        assert seen[1] == (15, threading.current_thread().name)

    at_all(job, everywhere, work)


def test_calls_from_several_threads_keep_one_order(job: list[LocalClient], everywhere: Everywhere) -> None:
    """Threads that take turns make the same sequence of collectives at every rank."""

    def work(client: LocalClient) -> None:
        arrays = [np.full(10 + number, client.rank * number, np.int64) for number in range(20)]
        handles: dict[int, Handle] = {}
        turns = [threading.Event() for _ in range(21)]

        def call(number: int) -> None:
            assert turns[number].wait(10)
            handles[number] = client.allreduce(arrays[number])
            turns[number + 1].set()

        threads = [threading.Thread(target=call, args=(number,)) for number in range(20)]
        for thread in reversed(threads):
            thread.start()
        turns[0].set()
        for thread in threads:
            thread.join(10)
        for number, array in enumerate(arrays):
            handles[number].wait()
            assert np.all(array == 15 * number)

    at_all(job, everywhere, work)


def test_calls_that_cannot_be_are_refused_at_once(job: list[LocalClient]) -> None:
    client = job[0]
    fixed = np.zeros(4)
    fixed.flags.writeable = False
    with pytest.raises(UsageError, match="C-contiguous"):
        client.allreduce(np.zeros((4, 4))[:, 1])
    with pytest.raises(UsageError, match="read-only"):
        client.allreduce(fixed)
    with pytest.raises(UsageError, match="rank 0 has no other rank 0"):
        client.send(np.zeros(4), 0)
    with pytest.raises(UsageError, match="no other rank 6"):
        client.recv(np.zeros(4), 6)
    with pytest.raises(UsageError, match="2 arrays for 6 ranks"):
        client.allgather(np.zeros(4), [np.zeros(4)] * 2)
    with pytest.raises(UsageError, match=r"the array for rank 5 is float64\[3\], not float64\[4\]"):
        client.scatter(np.zeros(4), [np.zeros(4)] * 5 + [np.zeros(3)], 0)


def test_a_wait_can_be_shorter_than_the_collective(job: list[LocalClient], everywhere: Everywhere) -> None:
    array = np.ones(10)
    handle = job[0].allreduce(array)
    with pytest.raises(
        DeadlineError, match=r"waited 0.05 s for allreduce sum float64 \[10\] of rank 0 in vain"
    ):
        handle.wait(0.05)
    assert not handle.done()
    everywhere({c.rank: lambda c=c: c.allreduce(np.ones(10)).wait() for c in job[1:]})
    handle.wait()
    assert np.all(array == WORLD)


def test_reports_go_to_the_workers_own_file(make_cluster: Any) -> None:
    cluster = make_cluster("pair")
    runner = cluster.runner()
    runner.open_job({"job": "job", "sites": {"dc1": 1}})
    client = LocalClient.connect(cluster.run_dir, "dc1", "job", 0, out=cluster.run_dir)
    for number in range(3):
        client.report({"segment": "a", "iteration": number, "loss": 0.5})
    lines = (cluster.run_dir / "trace.jsonl").read_text().splitlines()
    assert [json.loads(line)["iteration"] for line in lines] == [0, 1, 2]
    client.close()


def test_joining_says_what_is_missing(make_cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = make_cluster("pair")
    with pytest.raises(DeadlineError, match="job other to be opened at dc1"):
        cluster.join(0, "other", timeout=0.2)
    (cluster.run_dir / "sites" / "nowhere").mkdir()
    with pytest.raises(DeadlineError, match=r"the agent of nowhere to listen at .*agent\.sock"):
        LocalClient.connect(cluster.run_dir, "nowhere", "job", 0, timeout=0.2)
    runner = cluster.runner()
    runner.open_job({"job": "job", "sites": {"dc1": 1, "dc2": 1}})
    with pytest.raises(RunFailedError, match="dc1 has no worker 1 in job job"):
        cluster.join(0, worker=1)
    first = cluster.join(0)
    with pytest.raises(RunFailedError, match="worker 0 of dc1 has joined job job already"):
        cluster.join(0)
    first.close()
    with pytest.raises(RunFailedError, match="this worker of dc1 has left job job"):
        first.barrier()
    for name in ("STORMBED_RUN_DIR", "STORMBED_SITE", "STORMBED_JOB"):
        monkeypatch.setenv(name, "x")
    monkeypatch.delenv("STORMBED_WORKER", raising=False)
    with pytest.raises(UsageError, match="no STORMBED_WORKER"):
        LocalClient.from_env()
    monkeypatch.setenv("STORMBED_WORKER", "first")
    with pytest.raises(UsageError, match="STORMBED_WORKER"):
        LocalClient.from_env()


@pytest.mark.parametrize(
    "opening",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        wire.encode_bytes({"kind": "call", "seq": 0}),
        wire.encode_bytes({"kind": "arena", "segment": 0, "nbytes": 4096}),
        wire.encode_bytes({"kind": "join", "job": "job", "worker": 0, "version": wire.VERSION})
        + wire.encode_bytes({"kind": "dance"}),
        wire.encode_bytes({"kind": "join", "job": "job", "worker": 0, "version": wire.VERSION})
        + wire.encode_bytes({"kind": "call", "seq": 5}),
    ],
)
def test_an_agent_hangs_up_on_what_is_no_worker(make_cluster: Any, opening: bytes) -> None:
    cluster = make_cluster("pair")
    runner = cluster.runner()
    runner.open_job({"job": "job", "sites": {"dc1": 1, "dc2": 1}})
    with (
        socket.socket(socket.AF_UNIX) as sock,
        socket_address(cluster.run_dir / "sites" / "dc1" / SOCKET_NAME) as name,
    ):
        sock.settimeout(5)
        sock.connect(name)
        sock.sendall(opening)
        received = b""
        while data := sock.recv(4096):
            received += data
    assert b"segment" not in received
