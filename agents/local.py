"""A worker's connection to the agent of its site.

Arrays are copied into memory that both processes see, the agent is told their places, and results are copied
back before the call's `Handle` is done. An array made by `LocalClient.empty` lies in that memory already:
then neither copy happens for an all-reduce or a broadcast.
"""

from __future__ import annotations

import json
import os
import queue
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TextIO

import numpy as np
import numpy.typing as npt

from agents.calls import Call
from agents.handles import Handle
from agents.local_link import LocalLink, dial
from agents.local_server import SOCKET_NAME
from agents.shared_memory import Region
from agents.wire import MAX_PAYLOAD, Header
from topologies.errors import DeadlineError, StormbedError, UsageError

Array = npt.NDArray[Any]

JOIN_SECONDS: Final = 120.0
# After its deadline the agent stops a collective and says why; a wait outlasts that.
GRACE_SECONDS: Final = 30.0


class LocalClient:
    """One worker of a job. Thread-safe; results arrive on one reader thread.

    Collectives are numbered in the order of calls, and every rank must make the same ones in the same order.
    `send` and `recv` are outside that order.

    Attributes:
        rank, world_size: of the job.
        site, site_index: where this worker runs.
        sites: site index of every rank.
        site_names: name of every site of the job.
    """

    rank: int
    world_size: int
    site_index: int
    sites: tuple[int, ...]
    site_names: tuple[str, ...]

    def __init__(self, link: LocalLink, out: Path | None = None) -> None:
        """Use `connect` or `from_env`. `out` is where `report` writes."""
        self._link = link
        self._arena = link.arena
        self._out = out
        self._trace: TextIO | None = None
        self._call_lock = threading.Lock()
        self._seq = 0
        self._messages = 0
        self.job = link.job
        self.site = link.site
        welcome = link.welcome
        self.rank = int(welcome["rank"])
        self.sites = tuple(welcome["sites"])
        self.site_names = tuple(welcome["site_names"])
        self.world_size = len(self.sites)
        self.site_index = self.sites[self.rank]
        self._deadline_s = float(welcome["deadline_s"]) + GRACE_SECONDS

    # ---- joining and leaving

    @classmethod
    def connect(
        cls,
        run_dir: str | Path,
        site: str,
        job: str,
        local_index: int,
        timeout: float = JOIN_SECONDS,
        *,
        out: Path | None = None,
    ) -> LocalClient:
        """Join a job as worker `local_index` of a site; waits for the agent to run and the job to be opened.

        Raises DeadlineError naming what was missing, RunFailedError when the agent refuses.
        """
        deadline = time.monotonic() + timeout
        path = Path(run_dir) / "sites" / site / SOCKET_NAME
        link = LocalLink(dial(path, site, timeout), site, job)
        try:
            if not link.join(local_index, max(0.0, deadline - time.monotonic())):
                raise DeadlineError(f"job {job} to be opened at {site}", timeout)
        except StormbedError:
            link.leave()
            raise
        return cls(link, out)

    @classmethod
    def from_env(cls) -> LocalClient:
        """Join as a worker's environment says: STORMBED_RUN_DIR, _SITE, _JOB, _WORKER, and _OUT if set."""
        try:
            run_dir, site = os.environ["STORMBED_RUN_DIR"], os.environ["STORMBED_SITE"]
            job, worker = os.environ["STORMBED_JOB"], int(os.environ["STORMBED_WORKER"])
            timeout = float(os.environ.get("STORMBED_JOIN_TIMEOUT", JOIN_SECONDS))
        except KeyError as missing:
            raise UsageError(
                f"the environment has no {missing.args[0]}", hint="start workers through the testbed"
            ) from None
        except ValueError as error:
            raise UsageError(f"STORMBED_WORKER or STORMBED_JOIN_TIMEOUT: {error}") from None
        out = os.environ.get("STORMBED_OUT")
        return cls.connect(run_dir, site, job, worker, timeout, out=Path(out) if out else None)

    def close(self) -> None:
        """Leave the job in good order. May be called again."""
        if self._link.leave() and self._trace is not None:
            self._trace.close()

    def abort(self, why: str) -> None:
        """Stop the whole job; every other worker's calls fail with this cause, naming this worker."""
        self._link.try_send({"kind": "abort", "why": why})
        self.close()

    def __enter__(self) -> LocalClient:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is not None:
            self.abort(f"{type(error).__name__}: {error}")
        self.close()

    # ---- collectives

    def allreduce(self, array: Array, op: str = "sum", cls: int = 0) -> Handle:
        """Combine all ranks' arrays; the result lands in each rank's array.

        `cls` is its class on the network, the same at every rank: 7 before all others, 0 last.
        """
        call = Call("allreduce", op, array.dtype.name, array.size, None, cls)
        return self._collective(call, array, result=True)

    def reduce(self, array: Array, dst: int, op: str = "sum") -> Handle:
        """Combine all ranks' arrays; the result lands in that of rank `dst`."""
        call = Call("reduce", op, array.dtype.name, array.size, dst)
        return self._collective(call, array, result=self.rank == dst, lend=False)

    def broadcast(self, array: Array, src: int) -> Handle:
        """Bring rank `src`'s array to all."""
        call = Call("broadcast", None, array.dtype.name, array.size, src)
        return self._collective(call, array, result=self.rank != src)

    def allgather(self, array: Array, out: Sequence[Array]) -> Handle:
        """Bring every rank's array to all: out[r] becomes rank r's. All have the same length."""
        self._check_parts("allgather", array, out)
        call = Call("allgather", None, array.dtype.name, array.size, None)
        return self._collective(call, array, result=False, out=out, lend=False)

    def gather(self, array: Array, out: Sequence[Array] | None, dst: int) -> Handle:
        """Bring every rank's array to rank `dst`, where out[r] becomes rank r's. `out` is None elsewhere."""
        if self.rank == dst:
            self._check_parts("gather", array, out)
        call = Call("gather", None, array.dtype.name, array.size, dst)
        return self._collective(call, array, result=False, out=out if self.rank == dst else None, lend=False)

    def scatter(self, array: Array, parts: Sequence[Array] | None, src: int) -> Handle:
        """Bring parts[r] of rank `src` to rank r's array. `parts` is None elsewhere."""
        if self.rank == src:
            self._check_parts("scatter", array, parts)
        call = Call("scatter", None, array.dtype.name, array.size, src)
        given = parts if self.rank == src else None
        return self._collective(call, array, result=True, given=given, lend=False)

    def barrier(self) -> Handle:
        """Done when every rank has called it."""
        return self._collective(Call("barrier", None, "uint8", 0, None), np.empty(0, np.uint8), result=False)

    # ---- messages

    def send(self, array: Array, dst: int, tag: int = 0) -> Handle:
        """Send an array to rank `dst`; done when the array may be changed again."""
        self._check_peer(dst)
        values = _flat(array)
        return self._message("send", {"dst": dst, "tag": tag}, values, result=False)

    def recv(self, array: Array, src: int, tag: int = 0) -> Handle:
        """Receive the next array that rank `src` sends with this tag; lengths must agree."""
        self._check_peer(src)
        values = _flat(array, written=True)
        return self._message("recv", {"src": src, "tag": tag}, values, result=True)

    # ---- segments and records

    def next_segment(self, timeout: float | None = None) -> dict[str, Any] | None:
        """The fields of the next segment to run, or None when the job is over.

        Without a timeout it waits as long as the runner, the coordinator and the agent all live; the end of
        any of them ends the job, which raises RunFailedError here.
        """
        self._link.check()
        self._link.send({"kind": "next"})
        try:
            segment = self._link.segments.get(timeout=timeout)
        except queue.Empty:
            raise DeadlineError(f"the next segment of job {self.job}", timeout or 0.0) from None
        if segment is None:
            self._link.check()
        return segment

    def report(self, record: Mapping[str, Any]) -> None:
        """Append a record to this worker's trace.jsonl, and tell the agent how far it is."""
        if self._out is not None:
            if self._trace is None:
                self._trace = open(self._out / "trace.jsonl", "a", encoding="utf-8")  # noqa: SIM115
            self._trace.write(json.dumps(dict(record)) + "\n")
            self._trace.flush()
        told = {key: record[key] for key in ("segment", "scheduler", "iteration") if key in record}
        self._link.try_send({"kind": "progress", **told})

    def empty(self, shape: int | tuple[int, ...], dtype: Any = np.float32) -> Array:
        """An array in the memory shared with the agent, so that it need not be copied. Freed like any

        other.
        """
        count = int(np.prod(shape))
        region = self._arena.allocate(count * np.dtype(dtype).itemsize)
        # Not a view of an array: numpy has views of views keep only the first array alive, which is this one.
        values: Array = np.frombuffer(self._arena.buffer(region), dtype, count)
        weakref.finalize(values, self._arena.free, region)
        return values.reshape(shape)

    # ---- inside

    def _collective(
        self,
        call: Call,
        array: Array,
        *,
        result: bool,
        out: Sequence[Array] | None = None,
        given: Sequence[Array] | None = None,
        lend: bool = True,
    ) -> Handle:
        """Hand a collective to the agent.

        Args:
            result: the outcome lands in `array`.
            out: arrays that take the parts of the table.
            given: arrays that make up the table.
            lend: the agent may work in the caller's array if it lies in shared memory.
        """
        values = _flat(array, written=result)
        outs = [_flat(part, written=True) for part in out or ()]
        handle = Handle(f"{call} of rank {self.rank}", self._deadline_s, (array, out))
        with self._call_lock:
            self._link.check()
            header: Header = {
                "kind": "call",
                "seq": self._seq,
                "call": call.kind,
                "op": call.op,
                "dtype": call.dtype,
                "elements": call.elements,
                "peer": call.peer,
                "class": call.cls,
            }
            regions: list[Region] = []
            fetch: list[tuple[Array, Array]] = []
            if values.size:
                place = self._arena.find(values) if lend else None
                if place is None:
                    place = self._arena.allocate(values.nbytes)
                    regions.append(place)
                    shared = self._arena.view(place, values.dtype, values.size)
                    if call.kind != "scatter":
                        shared[:] = values
                    if result:
                        fetch.append((values, shared))
                header["data"] = place[:2]
                size = call.table_elements(self.rank, self.world_size)
                if size:
                    place = self._arena.allocate(size * values.itemsize)
                    regions.append(place)
                    table = self._arena.view(place, values.dtype, size)
                    for number, part in enumerate(given or ()):
                        table[number * values.size : (number + 1) * values.size] = part.reshape(-1)
                    for number, part in enumerate(outs):
                        fetch.append((part, table[number * values.size : (number + 1) * values.size]))
                    header["table"] = place[:2]
            self._launch(("call", self._seq), handle, fetch, regions)
            self._seq += 1
            self._link.send(header)
        return handle

    def _message(self, kind: str, header: Header, values: Array, *, result: bool) -> Handle:
        verb = "to" if kind == "send" else "from"
        peer, tag = header["dst" if kind == "send" else "src"], header["tag"]
        what = f"{kind} of {values.nbytes} bytes {verb} rank {peer} with tag {tag}"
        if values.nbytes > MAX_PAYLOAD:
            raise UsageError(
                f"the {what} is over the limit of {MAX_PAYLOAD >> 20} MiB", hint="send it in parts"
            )
        handle = Handle(f"{what} at rank {self.rank}", self._deadline_s, values)
        with self._call_lock:
            self._link.check()
            region = self._arena.allocate(values.nbytes)
            shared = self._arena.view(region, values.dtype, values.size)
            if not result:
                shared[:] = values
            number = self._messages
            self._messages += 1
            self._launch((kind, number), handle, [(values, shared)] if result else [], [region])
            self._link.send(
                {"kind": kind, "id": number, "nbytes": values.nbytes, "data": region[:2], **header}
            )
        return handle

    def _launch(
        self, key: tuple[str, int], handle: Handle, fetch: list[tuple[Array, Array]], regions: list[Region]
    ) -> None:
        def finish() -> None:
            for target, shared in fetch:
                np.copyto(target, shared)
            for region in regions:
                self._arena.free(region)

        self._link.expect(key, handle, finish)

    def _check_peer(self, peer: int) -> None:
        if not 0 <= peer < self.world_size or peer == self.rank:
            raise UsageError(
                f"rank {self.rank} has no other rank {peer}", hint=f"world size {self.world_size}"
            )

    def _check_parts(self, what: str, array: Array, parts: Sequence[Array] | None) -> None:
        if parts is None or len(parts) != self.world_size:
            count = "no" if parts is None else len(parts)
            raise UsageError(f"{what}: {count} arrays for {self.world_size} ranks")
        for rank, part in enumerate(parts):
            if part.dtype != array.dtype or part.size != array.size:
                raise UsageError(
                    f"{what}: the array for rank {rank} is {part.dtype}[{part.size}], "
                    f"not {array.dtype}[{array.size}]",
                    hint="all ranks' arrays have the same type and length",
                )


def _flat(array: Array, *, written: bool = False) -> Array:
    """A one-dimensional view; UsageError when that would need a copy or writing is not allowed."""
    if not isinstance(array, np.ndarray) or not array.flags.c_contiguous:
        raise UsageError("agents exchange C-contiguous numpy arrays", hint="use np.ascontiguousarray")
    if written and not array.flags.writeable:
        raise UsageError("a result cannot land in a read-only array", hint="pass a copy")
    return array.reshape(-1)
