"""What a collective is, in terms of sites.

A collective is one call that every rank of a job makes in the same order (an all-reduce, a broadcast, ...).
The protocol only sees sites: how the ranks of one site share a part is that site's own matter. Each part
names the sites that contribute to it and the sites that want its result.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from topologies.errors import StormbedError

KINDS = ("allreduce", "reduce", "broadcast", "gather", "scatter", "allgather", "barrier")
OPS = ("sum", "prod", "min", "max", "band", "bor", "bxor")
MOST_CLASS = 7
BITWISE_OPS = frozenset({"band", "bor", "bxor"})


def item_size(dtype: str) -> int:
    """Bytes per element of the numpy type named `dtype`. StormbedError if there is none."""
    try:
        return int(np.dtype(dtype).itemsize)
    except TypeError:
        raise StormbedError(
            f"unknown element type {dtype!r}", hint="use a numpy name such as float32, int64, uint8"
        ) from None


def is_floating(dtype: str) -> bool:
    """True for real and complex floating types; only their all-reduces are spread over several trees."""
    return np.dtype(dtype).kind in "fc"


def site_mask(sites: Iterable[int] | None, n_sites: int) -> int:
    """The set of sites as a bit mask (bit k = site k); None means every site."""
    if sites is None:
        return (1 << n_sites) - 1
    mask = 0
    for site in sites:
        mask |= 1 << site
    return mask


@dataclass(frozen=True)
class Part:
    """A piece of a collective that has its own contributors and targets.

    elements      how many elements it has (0 is allowed: such a part moves nothing and delivers nothing)
    contributors  sites whose data is combined; None = every site
    targets       sites that receive the result; None = every site. A site that already holds the result (the
                  source of a broadcast) should be left out, so that its own bytes are not sent back to it.
    """

    elements: int
    contributors: frozenset[int] | None = None
    targets: frozenset[int] | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            "elements": self.elements,
            "contributors": None if self.contributors is None else sorted(self.contributors),
            "targets": None if self.targets is None else sorted(self.targets),
        }


@dataclass(frozen=True)
class CollectiveSpec:
    """One collective. `op` is None where nothing is combined (broadcast, gather, scatter, allgather).

    `cls` is the class by which its chunks go over the network: 7 before all others, 0 last (`topologies.dscp`).

    Raises StormbedError when the kind, operator and element type do not fit together.
    """

    kind: str
    op: str | None
    dtype: str
    parts: tuple[Part, ...]
    cls: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise StormbedError(f"unknown collective {self.kind!r}", hint=f"one of {', '.join(KINDS)}")
        if self.op is not None and self.op not in OPS:
            raise StormbedError(f"unknown operator {self.op!r}", hint=f"one of {', '.join(OPS)}")
        item_size(self.dtype)
        if not 0 <= self.cls <= MOST_CLASS:
            raise StormbedError(f"the {self.kind} has class {self.cls}", hint=f"0 to {MOST_CLASS}")
        if self.op in BITWISE_OPS and is_floating(self.dtype):
            raise StormbedError(
                f"operator {self.op} is not defined on {self.dtype}",
                hint="use an integer or bool element type",
            )
        for number, part in enumerate(self.parts):
            if part.elements < 0:
                raise StormbedError(f"part {number} of the {self.kind} has {part.elements} elements")
            if part.contributors is not None and not part.contributors:
                raise StormbedError(f"part {number} of the {self.kind} has no contributor")
            if self.op is None and (part.contributors is None or len(part.contributors) != 1):
                raise StormbedError(
                    f"part {number} of the {self.kind} has no operator, so exactly one site may contribute"
                )

    @cached_property
    def digest(self) -> str:
        """A short fingerprint: two sites agree on a collective if and only if their digests are equal."""
        parts = [sorted(p.to_dict().items()) for p in self.parts]
        canonical = repr((self.kind, self.op, self.dtype, parts, self.cls))
        return hashlib.blake2b(canonical.encode(), digest_size=8).hexdigest()

    @cached_property
    def summary(self) -> str:
        """One line for messages to people, such as `allreduce sum float32 [57029322]`."""
        sizes = [str(part.elements) for part in self.parts[:4]] + (["..."] if len(self.parts) > 4 else [])
        return " ".join(filter(None, (self.kind, self.op, self.dtype, "[" + ", ".join(sizes) + "]")))

    @property
    def nbytes(self) -> int:
        """Bytes of all parts together, as one site would hold them."""
        return item_size(self.dtype) * sum(part.elements for part in self.parts)


def allreduce(elements: int, dtype: str = "float32", op: str = "sum", cls: int = 0) -> CollectiveSpec:
    """Every site contributes, every site receives the combination."""
    return CollectiveSpec("allreduce", op, dtype, (Part(elements),), cls)


def reduce(elements: int, dst: int, dtype: str = "float32", op: str = "sum") -> CollectiveSpec:
    """Every site contributes, only site `dst` receives the combination."""
    return CollectiveSpec("reduce", op, dtype, (Part(elements, None, frozenset({dst})),))


def broadcast(elements: int, src: int, n_sites: int, dtype: str = "float32") -> CollectiveSpec:
    """Site `src` sends, every other site receives."""
    others = frozenset(range(n_sites)) - {src}
    return CollectiveSpec("broadcast", None, dtype, (Part(elements, frozenset({src}), others),))


def allgather(
    elements: int, site_of_rank: Sequence[int], n_sites: int, dtype: str = "float32"
) -> CollectiveSpec:
    """One part per rank, `elements` each: the rank's site sends it, every other site receives it."""
    everyone = frozenset(range(n_sites))
    parts = tuple(Part(elements, frozenset({site}), everyone - {site}) for site in site_of_rank)
    return CollectiveSpec("allgather", None, dtype, parts)


def gather(elements: int, dst: int, site_of_rank: Sequence[int], dtype: str = "float32") -> CollectiveSpec:
    """One part per rank, `elements` each: from the rank's site to site `dst` (none moves if it is there)."""
    parts = tuple(Part(elements, frozenset({site}), frozenset({dst}) - {site}) for site in site_of_rank)
    return CollectiveSpec("gather", None, dtype, parts)


def scatter(elements: int, src: int, site_of_rank: Sequence[int], dtype: str = "float32") -> CollectiveSpec:
    """One part per rank, `elements` each: from site `src` to the rank's site (none moves if it is there)."""
    parts = tuple(Part(elements, frozenset({src}), frozenset({site}) - {src}) for site in site_of_rank)
    return CollectiveSpec("scatter", None, dtype, parts)


def barrier() -> CollectiveSpec:
    """An all-reduce of one byte: it ends nowhere before every site has begun it."""
    return CollectiveSpec("barrier", "max", "uint8", (Part(1),))
