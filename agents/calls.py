"""What the ranks of one site do in a collective: from a worker's call to parts, sources and places.

The WAN protocol knows only sites (`agents.sync.spec`). Here a call of every worker of this site becomes the
collective's parts, what this site contributes to each, and where each part's result lands.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from agents.chunks import Chunk
from agents.sync import spec as specs
from agents.sync.payload import ArrayPayload, combine_arrays
from agents.sync.spec import CollectiveSpec
from topologies.errors import StormbedError, UsageError

# Local sums and copies are done in slices of this size, so that chunks in transit do not wait for them.
SLICE_BYTES: Final = 4 * 1024 * 1024

Array = npt.NDArray[Any]


class LentPayload(ArrayPayload):
    """A payload whose memory belongs to a worker: its collective is not done while it waits to be sent."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Ranks:
    """Which ranks are where: rank r is worker `worker[r]` of site `site[r]`."""

    site: tuple[int, ...]
    worker: tuple[int, ...]

    @classmethod
    def of(cls, workers_per_site: Sequence[int]) -> Ranks:
        """Ranks in the order of sites, then of workers."""
        places = [(site, worker) for site, count in enumerate(workers_per_site) for worker in range(count)]
        return cls(tuple(site for site, _ in places), tuple(worker for _, worker in places))

    @property
    def world(self) -> int:
        return len(self.site)

    def at(self, site: int) -> tuple[int, ...]:
        """The ranks of a site, in the order of its workers."""
        return tuple(rank for rank, place in enumerate(self.site) if place == site)


@dataclass(frozen=True, slots=True)
class Call:
    """One worker's call.

    kind, op, dtype   as in `CollectiveSpec`; op is None where nothing is combined
    elements          of the array, or of one rank's part of an allgather, gather or scatter
    peer              the source or destination rank, if the kind has one
    cls               as in `CollectiveSpec`; all-reduces only
    """

    kind: str
    op: str | None
    dtype: str
    elements: int
    peer: int | None
    cls: int = 0

    def __str__(self) -> str:
        words = [self.kind, self.op, f"{self.dtype} [{self.elements}]"]
        if self.peer is not None:
            words.append(f"({'to' if self.kind in ('reduce', 'gather') else 'from'} rank {self.peer})")
        return " ".join(word for word in words if word)

    def spec(self, ranks: Ranks, n_sites: int) -> CollectiveSpec:
        """The collective as the sites see it. StormbedError when the call makes no sense."""
        if self.kind in ("allreduce", "reduce") and self.op is None:
            raise UsageError(f"{self.kind} without an operator")
        if self.kind == "barrier":
            return specs.barrier()
        if self.kind == "allreduce":
            return specs.allreduce(self.elements, self.dtype, str(self.op), self.cls)
        if self.kind == "allgather":
            return specs.allgather(self.elements, ranks.site, n_sites, self.dtype)
        if self.peer is None or not 0 <= self.peer < ranks.world:
            raise UsageError(f"{self.kind} names rank {self.peer}", hint=f"ranks are 0 to {ranks.world - 1}")
        site = ranks.site[self.peer]
        if self.kind == "reduce":
            return specs.reduce(self.elements, site, self.dtype, str(self.op))
        if self.kind == "broadcast":
            return specs.broadcast(self.elements, site, n_sites, self.dtype)
        if self.kind == "gather":
            return specs.gather(self.elements, site, ranks.site, self.dtype)
        if self.kind == "scatter":
            return specs.scatter(self.elements, site, ranks.site, self.dtype)
        raise UsageError(f"unknown collective {self.kind!r}")

    def data_elements(self) -> int:
        """Length of the array that every rank passes."""
        return 0 if self.kind == "barrier" else self.elements

    def table_elements(self, rank: int, world: int) -> int:
        """Length of the array of all ranks' parts that this rank passes; 0 when it passes none."""
        if self.kind == "allgather" or (self.kind in ("gather", "scatter") and rank == self.peer):
            return self.elements * world
        return 0


@dataclass
class LocalCollective:
    """One collective at one site: the calls of its workers and what follows from them.

    `add` every worker's call; then `prepare`, `source` and `deliver` may be used.
    """

    seq: int
    site: int
    ranks: Ranks
    n_sites: int
    call: Call | None = None
    data: dict[int, Array] = field(default_factory=dict)  # by rank
    table: dict[int, Array] = field(default_factory=dict)
    _inputs: dict[int, Array] = field(default_factory=dict)  # by part
    _outputs: dict[int, list[Array]] = field(default_factory=dict)
    _merges: list[tuple[Array, Array]] = field(default_factory=list)
    _copies: list[tuple[Array, Array]] = field(default_factory=list)

    def add(self, rank: int, call: Call, data: Array, table: Array) -> None:
        """A worker's call. StormbedError when it is not the same as that of the site's other workers."""
        if self.call is None:
            self.call = call
        elif call != self.call:
            first = next(iter(self.data))
            raise UsageError(
                f"rank {rank} called {call} as collective {self.seq}, but rank {first} called {self.call}",
                hint="all ranks must make the same calls in the same order",
            )
        if rank in self.data:
            raise UsageError(f"rank {rank} called collective {self.seq} twice")
        self.data[rank], self.table[rank] = data, table

    @property
    def missing(self) -> tuple[int, ...]:
        """Ranks of this site that have not called yet."""
        return tuple(rank for rank in self.ranks.at(self.site) if rank not in self.data)

    def arrange(self) -> CollectiveSpec:
        """All calls are in: fix sources and places. Returns the collective as the sites see it."""
        call = self.call
        assert call is not None and not self.missing
        spec = call.spec(self.ranks, self.n_sites)
        local = self.ranks.at(self.site)
        peer = call.peer
        if call.kind == "barrier":
            self._inputs[0] = np.zeros(1, np.uint8)
        elif call.kind in ("allreduce", "reduce"):
            base = local[0] if peer is None or peer not in local else peer
            self._inputs[0] = self.data[base]
            self._merges = [(self.data[base], self.data[rank]) for rank in local if rank != base]
            wanted = local if peer is None else [rank for rank in local if rank == peer]
            self._outputs[0] = [self.data[rank] for rank in wanted]
        elif call.kind == "broadcast":
            assert peer is not None
            if peer in local:
                self._inputs[0] = self.data[peer]
                self._copies = [(self.data[rank], self.data[peer]) for rank in local if rank != peer]
            else:
                self._outputs[0] = [self.data[rank] for rank in local]
        else:
            self._arrange_parts(call, local)
        return spec

    def _arrange_parts(self, call: Call, local: Sequence[int]) -> None:
        """allgather, gather and scatter: part r belongs to rank r."""
        for part in range(self.ranks.world):
            span = slice(part * call.elements, (part + 1) * call.elements)
            here = part in local
            if call.kind == "scatter":
                own = self.table[call.peer][span] if call.peer is not None and call.peer in local else None
                places = [self.data[part]] if here else []
            else:
                own = self.data[part] if here else None
                takers = local if call.kind == "allgather" else [r for r in local if r == call.peer]
                places = [self.table[rank][span] for rank in takers]
            if own is None:
                self._outputs[part] = places
            else:
                self._inputs[part] = own
                self._copies += [(place, own) for place in places]

    @property
    def own_parts(self) -> tuple[int, ...]:
        """The parts to which this site contributes."""
        return tuple(sorted(self._inputs))

    @property
    def needs_preparation(self) -> bool:
        return bool(self._merges or self._copies)

    def prepare(self) -> Iterator[None]:
        """Combine and copy among this site's workers, a slice per step."""
        call = self.call
        assert call is not None
        for target, other in self._merges:
            for span in _slices(target):
                combine_arrays(str(call.op), target[span], other[span], out=target[span])
                yield
        for target, other in self._copies:
            for span in _slices(target):
                target[span] = other[span]
                yield

    def source(self, chunk: Chunk) -> ArrayPayload:
        """This site's contribution to a chunk, where it lies in a worker's memory."""
        assert self.call is not None
        values = self._inputs[chunk.part][chunk.offset : chunk.offset + chunk.size]
        # A reduction may build up in place: the result lands in the same memory. What is only forwarded must
        # stay.
        return LentPayload(values, owned=self.call.op is not None)

    def deliver(self, chunk: Chunk, values: Array) -> None:
        """Write a result to the workers that want it."""
        address = values.__array_interface__["data"][0]
        for place in self._outputs.get(chunk.part, ()):
            target = place[chunk.offset : chunk.offset + chunk.size]
            if target.__array_interface__["data"][0] != address:
                target[...] = values

    def only_place(self, part: int) -> Array | None:
        """The one array that gets this part's result at this site; None when there are several or none."""
        places = self._outputs.get(part, ())
        return places[0] if len(places) == 1 else None


def _slices(values: Array) -> Iterator[slice]:
    step = max(1, SLICE_BYTES // max(1, values.itemsize))
    for start in range(0, len(values), step):
        yield slice(start, start + step)


def call_from_header(header: Mapping[str, Any]) -> Call:
    """The call that a frame describes. StormbedError when it makes no sense."""
    kind, op, dtype = header.get("call"), header.get("op"), header.get("dtype")
    elements, peer, cls = header.get("elements"), header.get("peer"), header.get("class", 0)
    if not isinstance(kind, str) or not (op is None or isinstance(op, str)) or not isinstance(dtype, str):
        raise StormbedError(f"not a call: {dict(header)}")
    if not isinstance(elements, int) or elements < 0 or not (peer is None or isinstance(peer, int)):
        raise StormbedError(f"not a call: {dict(header)}")
    if not isinstance(cls, int):
        raise StormbedError(f"not a class: {cls!r}")
    specs.item_size(dtype)
    return Call(kind, op, dtype, elements, peer, cls)
