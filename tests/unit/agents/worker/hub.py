"""Ranks without agents: a switchboard of pipes that offers the interface of the agents' client.

It stands in for the network where only the torch side is looked at. Training over real agents is tested in
test_train.py.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import traceback
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np
import torch._dynamo  # noqa: F401  (DDP loads it, which takes a second: once here, not in every child)
import torch.distributed as dist

from agents.worker import Options
from topologies.errors import DeadlineError, RunFailedError

CONTEXT = multiprocessing.get_context("fork")
REDUCE = {
    "sum": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}


class HubHandle:
    def __init__(self, what: str, out: list[np.ndarray]) -> None:
        self.what, self.out = what, out
        self._event, self._lock = threading.Event(), threading.Lock()
        self._callbacks: list[Callable[[Any], None]] = []
        self._error: Exception | None = None

    def finish(self, results: list[np.ndarray], error: Exception | None = None) -> None:
        for out, result in zip(self.out, results, strict=False):
            out[...] = result
        self._error = error
        with self._lock:
            self._event.set()
            callbacks, self._callbacks = self._callbacks, []
        for fn in callbacks:
            fn(self)

    def done(self) -> bool:
        return self._event.is_set()

    def wait(self, timeout: float | None = None) -> None:
        if not self._event.wait(timeout):
            raise DeadlineError(self.what, timeout or 0)
        if self._error:
            raise self._error

    def add_done_callback(self, fn: Callable[[Any], None]) -> None:
        with self._lock:
            if not self._event.is_set():
                self._callbacks.append(fn)
                return
        fn(self)


class HubClient:
    """What `agents.local.LocalClient` offers, over one pipe."""

    def __init__(self, pipe: Connection, rank: int, world_size: int) -> None:
        self.rank, self.world_size = rank, world_size
        self._pipe = pipe
        self._lock = threading.Lock()
        self._seq = 0
        self._waiting: dict[Any, HubHandle] = {}
        self._receives: dict[tuple[int, int], list[HubHandle]] = defaultdict(list)
        self._arrived: dict[tuple[int, int], list[np.ndarray]] = defaultdict(list)
        self.closed = False
        self.classes: list[int] = []  # of the all-reduces, in the order of calls
        threading.Thread(target=self._read, daemon=True).start()

    def _collective(
        self, kind: str, given: list[np.ndarray], out: list[np.ndarray], **fields: Any
    ) -> HubHandle:
        assert all(a.flags.c_contiguous and a.ndim == 1 for a in [*given, *out])
        handle = HubHandle(kind, out)
        with self._lock:
            self._seq += 1
            self._waiting[self._seq] = handle
            self._pipe.send(("collective", self._seq, kind, [a.copy() for a in given], fields))
        return handle

    def allreduce(self, array: np.ndarray, op: str = "sum", cls: int = 0) -> HubHandle:
        self.classes.append(cls)
        return self._collective("allreduce", [array], [array], op=op)

    def reduce(self, array: np.ndarray, dst: int, op: str = "sum") -> HubHandle:
        return self._collective("reduce", [array], [array] if dst == self.rank else [], op=op, root=dst)

    def broadcast(self, array: np.ndarray, src: int) -> HubHandle:
        return self._collective("broadcast", [array] if src == self.rank else [], [array], root=src)

    def allgather(self, array: np.ndarray, out: list[np.ndarray]) -> HubHandle:
        return self._collective("allgather", [array], out)

    def gather(self, array: np.ndarray, out: list[np.ndarray] | None, dst: int) -> HubHandle:
        return self._collective("gather", [array], out or [], root=dst)

    def scatter(self, array: np.ndarray, parts: list[np.ndarray] | None, src: int) -> HubHandle:
        return self._collective("scatter", parts or [], [array], root=src)

    def barrier(self) -> HubHandle:
        return self._collective("barrier", [], [])

    def send(self, array: np.ndarray, dst: int, tag: int = 0) -> HubHandle:
        with self._lock:
            self._pipe.send(("message", dst, tag, array.copy()))
        handle = HubHandle("send", [])
        handle.finish([])
        return handle

    def recv(self, array: np.ndarray, src: int, tag: int = 0) -> HubHandle:
        handle = HubHandle("recv", [array])
        with self._lock:
            arrived = self._arrived[src, tag].pop(0) if self._arrived[src, tag] else None
            if arrived is None:
                self._receives[src, tag].append(handle)
        if arrived is not None:
            handle.finish([arrived])
        return handle

    def close(self) -> None:
        self.closed = True

    def _read(self) -> None:
        while True:
            try:
                kind, *rest = self._pipe.recv()
            except (EOFError, OSError):
                return
            if kind == "results":
                seq, results = rest
                with self._lock:
                    handle = self._waiting.pop(seq)
                handle.finish(results)
            elif kind == "failed":
                with self._lock:
                    pending, self._waiting = list(self._waiting.values()), {}
                for handle in pending:
                    handle.finish([], RunFailedError(rest[0]))
            else:
                source, tag, array = rest
                with self._lock:
                    waiting = self._receives[source, tag]
                    receiver = waiting.pop(0) if waiting else None
                    if receiver is None:
                        self._arrived[source, tag].append(array)
                if receiver is not None:
                    receiver.finish([array])


def results_of(
    kind: str, given: list[list[np.ndarray]], fields: dict[str, Any], rank: int
) -> list[np.ndarray]:
    """What one rank gets back, from what all gave."""
    if kind in ("allreduce", "reduce"):
        total = REDUCE[fields["op"]].reduce(np.stack([g[0] for g in given]), axis=0, dtype=given[0][0].dtype)
        return [total]
    if kind == "broadcast":
        return [given[fields["root"]][0]]
    if kind in ("allgather", "gather"):
        return [g[0] for g in given]
    if kind == "scatter":
        return [given[fields["root"]][rank]]
    return []


def serve(pipes: list[Connection], fail_after: int | None, cause: str) -> None:
    """Until every rank has gone. After `fail_after` collectives every further one fails with the cause."""
    pending: dict[int, dict[int, Any]] = defaultdict(dict)
    alive = dict(enumerate(pipes))
    while alive:
        for pipe in wait(list(alive.values())):
            rank = pipes.index(pipe)
            try:
                kind, *rest = pipe.recv()
            except (EOFError, OSError):
                del alive[rank]
                continue
            if kind == "message":
                dst, tag, array = rest
                pipes[dst].send(("message", rank, tag, array))
                continue
            seq, kind, given, fields = rest
            if fail_after is not None and seq > fail_after:
                pipe.send(("failed", cause))
                continue
            pending[seq][rank] = (kind, given, fields)
            if len(pending[seq]) == len(pipes):
                calls = pending.pop(seq)
                assert len({(k, str(f)) for k, _, f in calls.values()}) == 1, f"ranks out of step at {seq}"
                everything = [calls[r][1] for r in range(len(pipes))]
                for r, target in enumerate(pipes):
                    target.send(("results", seq, results_of(kind, everything, fields, r)))


def run_children(
    bodies: list[Callable[[], Any]], timeout: float = 60, ready: Callable[[], Any] = list
) -> list[Any]:
    """Runs each body in a forked process of its own and returns what they returned.

    `ready` is called here once all are started. A failing child fails the caller with the child's traceback.
    """
    outcomes = [CONTEXT.Pipe(duplex=False) for _ in bodies]

    def child(number: int) -> None:
        try:
            outcome = (True, bodies[number]())
        except BaseException:
            outcome = (False, traceback.format_exc())
        outcomes[number][1].send(outcome)
        os._exit(0)

    processes = [CONTEXT.Process(target=child, args=(n,), daemon=True) for n in range(len(bodies))]
    for process in processes:
        process.start()
    ready()
    results, failed = [], []
    for number, (receiver, sender) in enumerate(outcomes):
        sender.close()
        if not receiver.poll(timeout):
            failed.append(f"child {number} gave no answer within {timeout} s")
            continue
        try:
            ok, value = receiver.recv()
        except EOFError:
            ok, value = False, f"child {number} died"
        (results if ok else failed).append(value)
    for process in processes:
        process.join(5)
        if process.is_alive():
            process.kill()
    assert not failed, "\n".join(map(str, failed))
    return results


def run_ranks(
    world: int,
    body: Callable[[int, int], Any],
    *,
    fail_after: int | None = None,
    cause: str = "site dc2 left: its agent is gone",
) -> list[Any]:
    """Runs `body(rank, world)` in one forked process per rank, inside an initialised group."""
    ends = [CONTEXT.Pipe() for _ in range(world)]

    def rank_body(rank: int) -> Any:
        for other, (ours, theirs) in enumerate(ends):
            ours.close()
            if other != rank:
                theirs.close()
        options = Options(client=HubClient(ends[rank][1], rank, world))
        dist.init_process_group(
            "stormbed", store=dist.HashStore(), rank=rank, world_size=world, pg_options=options
        )
        result = body(rank, world)
        dist.destroy_process_group()
        return result

    def ready() -> None:
        # Only now: a process must not be forked while threads of its parent hold locks.
        for _, theirs in ends:
            theirs.close()
        pipes = [ours for ours, _ in ends]
        threading.Thread(target=serve, args=(pipes, fail_after, cause), daemon=True).start()

    return run_children([partial(rank_body, rank) for rank in range(world)], ready=ready)
