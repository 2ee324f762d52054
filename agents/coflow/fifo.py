"""First in first out, plain and with limited multiplexing (Baraat, SIGCOMM 2014)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from agents.coflow.base import Allocation, Coflow, CoflowError, Number, Ranking, View, ascending


@dataclass(frozen=True)
class Fifo:
    """The earliest arrival first."""

    name: ClassVar[str] = "fifo"
    allocation: ClassVar[Allocation] = "greedy"
    reads_loads: ClassVar[bool] = False

    def order(self, view: View) -> Ranking:
        return Ranking.of(coflow.id for coflow in _by_arrival(view))


@dataclass(frozen=True)
class FifoLm:
    """FIFO until the head is heavy; then the next shares with it, and so on.

    The coflows up to and including the first that is not heavy share fairly, the rest follow in order of
    arrival. A coflow is heavy once it has sent more than `threshold` bytes (`heavy_by: sent`), or when it
    is larger than that from the start (`heavy_by: size`). Without a threshold, whoever runs the ordering
    sets the `percentile` of the sizes it knows (`with_sizes`).
    """

    threshold: Number | None = None
    percentile: float = 80.0
    heavy_by: Literal["sent", "size"] = "sent"
    name: ClassVar[str] = "fifo_lm"
    allocation: ClassVar[Allocation] = "greedy"
    reads_loads: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.threshold is not None and self.threshold < 0:
            raise CoflowError(f"fifo_lm: a threshold of {self.threshold} bytes", hint="at least 0")
        if not 0 < self.percentile <= 100:
            raise CoflowError(f"fifo_lm: percentile {self.percentile}", hint="above 0, at most 100")
        if self.heavy_by not in ("sent", "size"):
            raise CoflowError(f"fifo_lm: heavy_by {self.heavy_by!r}", hint="sent or size")

    def with_sizes(self, sizes: Sequence[Number]) -> FifoLm:
        """The same with its threshold at the percentile of these sizes, if it has none yet."""
        if self.threshold is not None or not sizes:
            return self
        ranked = sorted(sizes)
        # The smallest size that at least so many per cent of all do not exceed.
        place = -(-len(ranked) * self.percentile // 100)
        return replace(self, threshold=ranked[max(int(place) - 1, 0)])

    def order(self, view: View) -> Ranking:
        if self.threshold is None:
            raise CoflowError("fifo_lm has no threshold", hint="give one in bytes, or sizes (`with_sizes`)")
        waiting = _by_arrival(view)
        heavy = 0
        while heavy < len(waiting) and self._heavy(waiting[heavy]):
            heavy += 1
        shared = waiting[: heavy + 1]
        watch = {}
        if self.heavy_by == "sent" and heavy < len(waiting) - 1 and waiting[heavy].size > self.threshold:
            watch = {waiting[heavy].id: self.threshold}
        classes = (tuple(coflow.id for coflow in shared),) if shared else ()
        return Ranking(classes + tuple((coflow.id,) for coflow in waiting[heavy + 1 :]), watch=watch)

    def _heavy(self, coflow: Coflow) -> bool:
        # At the threshold itself it counts as heavy: a watch that fires at it must change the order.
        if self.heavy_by == "size":
            return bool(coflow.size > self.threshold)
        return bool(coflow.size > self.threshold and coflow.sent * (1 + 1e-9) >= self.threshold)


def _by_arrival(view: View) -> list[Coflow]:
    return ascending(view.coflows, lambda coflow: coflow.arrival, lambda coflow: coflow.id)
