"""What a chunk carries: an array, or a ghost that only remembers who contributed.

Ownership, which lets the runtime avoid copies:

* An `ArrayPayload` with `owned=True` may be written to by the machine that holds it; a received message hands
  its buffer over, so the transport gives `owned=True`. A contribution may be `owned=True` too: sums then
  build up in place in the buffer given (typically the agent's own sum of its workers).
* With `owned=False` the array is only read; the first combination allocates (or builds up in the other
  operand).
* After a payload was handed out in a `Send` or a `Deliver`, nobody writes to it any more. The bytes behind a
  payload in a `Send` must therefore stay unchanged until the transport has written them, even when the
  collective is already complete at this site: give contributions from buffers that the workers do not touch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from topologies.errors import StormbedError

Array = npt.NDArray[Any]

_OPERATORS: dict[str, Callable[..., Array]] = {
    "sum": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}


class PayloadError(StormbedError):
    """Two payloads do not fit together, or a result does not hold what it must."""


class Payload(Protocol):
    """Anything that has a size and can be combined with its like."""

    @property
    def nbytes(self) -> int:
        """Bytes that this payload takes on the wire."""
        ...

    def combine(self, op: str, other: Any) -> Payload:
        """The combination of both. It may reuse either: the caller goes on with the result only."""
        ...


def combine_arrays(op: str, left: Array, right: Array, out: Array | None = None) -> Array:
    """left op right, element by element in their own type. PayloadError when types or lengths differ."""
    if left.dtype != right.dtype or left.shape != right.shape:
        raise PayloadError(
            f"cannot combine {left.dtype}[{left.size}] with {right.dtype}[{right.size}]",
            hint="every rank must pass the same element type and length",
        )
    if left.dtype == np.bool_ and op in ("sum", "prod"):
        op = "bor" if op == "sum" else "band"
    return _OPERATORS[op](left, right, out=out)


class ArrayPayload:
    """A one-dimensional, contiguous numpy array. See the module's text for `owned`."""

    __slots__ = ("array", "owned")

    def __init__(self, array: Array, *, owned: bool = False) -> None:
        self.array = array
        self.owned = owned

    @property
    def nbytes(self) -> int:
        return int(self.array.nbytes)

    def combine(self, op: str, other: ArrayPayload) -> ArrayPayload:
        if self.owned:
            combine_arrays(op, self.array, other.array, out=self.array)
            return self
        if other.owned:
            combine_arrays(op, self.array, other.array, out=other.array)
            return other
        return ArrayPayload(combine_arrays(op, self.array, other.array), owned=True)

    def __repr__(self) -> str:
        return f"ArrayPayload({self.array.dtype}[{self.array.size}], owned={self.owned})"


@dataclass(frozen=True, slots=True)
class GhostPayload:
    """Carries no bytes, only which sites contributed. Immutable, constant-time to combine.

    nbytes    size it stands for
    once      bit mask of the sites counted at least once
    again     bit mask of the sites counted more than once (empty in a correct run)
    """

    nbytes: int
    once: int
    again: int = 0

    @classmethod
    def of(cls, site: int, nbytes: int) -> GhostPayload:
        """The contribution of one site."""
        return cls(nbytes, 1 << site)

    def combine(self, op: str, other: GhostPayload) -> GhostPayload:
        if self.nbytes != other.nbytes:
            raise PayloadError(
                f"cannot combine a ghost of {self.nbytes} bytes with one of {other.nbytes} bytes"
            )
        return GhostPayload(
            self.nbytes, self.once | other.once, self.again | other.again | (self.once & other.once)
        )

    @property
    def sites(self) -> frozenset[int]:
        """The sites counted at least once."""
        return frozenset(_bits(self.once))

    def assert_exact(self, contributors: Iterable[int]) -> None:
        """PayloadError unless exactly the given sites are in, each exactly once."""
        wanted = 0
        for site in contributors:
            wanted |= 1 << site
        if self.once == wanted and not self.again:
            return
        faults = []
        if wanted & ~self.once:
            faults.append(f"missing sites {_bits(wanted & ~self.once)}")
        if self.once & ~wanted:
            faults.append(f"unwanted sites {_bits(self.once & ~wanted)}")
        if self.again:
            faults.append(f"sites counted more than once {_bits(self.again)}")
        raise PayloadError("inexact result: " + ", ".join(faults))


def _bits(mask: int) -> list[int]:
    return [k for k in range(mask.bit_length()) if mask >> k & 1]
