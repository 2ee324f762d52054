"""The flows of one coflow as arrays."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from agents.coflow.base import CoflowError
from agents.coflow.fabric import Fabric, Flow, merged

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Demand:
    """Flows in the order (source, destination), one a pair, none empty; sizes in bytes."""

    src: Array
    dst: Array
    size: Array

    @classmethod
    def of(cls, flows: Iterable[Flow]) -> Demand:
        kept = merged(flows)
        if not kept:
            raise CoflowError("a coflow without a byte to send", hint="give it at least one flow above 0")
        return cls(
            np.array([flow.src for flow in kept], dtype=np.int64),
            np.array([flow.dst for flow in kept], dtype=np.int64),
            np.array([float(flow.size) for flow in kept]),
        )

    def __len__(self) -> int:
        return len(self.size)

    @property
    def bytes(self) -> float:
        return float(self.size.sum())

    def routes(self, fabric: Fabric) -> Array:
        """The links of every flow, one row each; shorter routes are filled up with a link past the last."""
        if fabric.routes is None:
            if self.src.max(initial=0) >= fabric.ports or self.dst.max(initial=0) >= fabric.ports:
                fabric.route(int(self.src.max()), int(self.dst.max()))
            return np.column_stack((self.src, self.dst + fabric.ports))
        rows = [fabric.route(int(u), int(v)) for u, v in zip(self.src, self.dst, strict=True)]
        width = fabric.longest
        return np.array([row + (len(fabric.capacity),) * (width - len(row)) for row in rows], dtype=np.int64)

    def loads(self, fabric: Fabric) -> dict[int, float]:
        """Seconds on each link."""
        return link_seconds(self.routes(fabric), self.size, fabric)


def link_seconds(routes: Array, left: Array, fabric: Fabric) -> dict[int, float]:
    """Seconds on each link that carries any of `left` bytes of each flow."""
    links = len(fabric.capacity)
    total = np.bincount(routes.ravel(), weights=np.repeat(left, routes.shape[1]), minlength=links + 1)[:links]
    return {int(link): float(total[link]) / float(fabric.capacity[link]) for link in np.flatnonzero(total)}
