"""Every metric that a testbed exports, read from the collectors that export them.

The reference in docs/metrics.md and the Grafana dashboards come from this, so neither names what is not there.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from prometheus_client.core import Metric

from topologies.addressing import Management
from topologies.load import load_topology

# An info metric says its content in labels, which exist only with a value.
_INFO_LABELS: Final = {"stormbed_agent_segment": ("segment", "scheduler")}
_SUFFIXES: Final = {
    "counter": ("_total",),
    "histogram": ("_bucket", "_sum", "_count"),
    "info": ("_info",),
    "gauge": ("",),
}
_SUBNET: Final = "10.199.0.0/24"
TARGET_LABELS: Final = ("job", "instance")
"""What Prometheus adds to every sample; those of an agent have its `site` besides."""
TARGET_METRICS: Final = ("up",)
"""What Prometheus makes itself for every target."""


@dataclass(frozen=True)
class Exported:
    """A metric.

    Args:
        name: as it is declared, without the suffix of its samples.
        kind: counter, gauge, histogram or info.
        help: what it says.
        labels: its own, besides those of its target.
        job: Prometheus' job: who exports it.
    """

    name: str
    kind: str
    help: str
    labels: tuple[str, ...]
    job: str

    @property
    def samples(self) -> tuple[str, ...]:
        """The names under which Prometheus has it."""
        return tuple(self.name + suffix for suffix in _SUFFIXES[self.kind])

    @property
    def all_labels(self) -> frozenset[str]:
        """Its own labels and those of its target."""
        site = ("site",) if self.job == "agent" else ()
        bound = ("le",) if self.kind == "histogram" else ()
        return frozenset((*self.labels, *TARGET_LABELS, *site, *bound))


def exported() -> tuple[Exported, ...]:
    """Every metric of our own, by who exports it and by name."""
    found = [
        *_described("agent", asyncio.run(_of_agent())),
        *_described("coordinator", asyncio.run(_of_coordinator())),
        *_described("controller", _of_controller()),
        *_described("delay-line", _of_delay_line()),
        *_described("links", _of_links()),
    ]
    return tuple(sorted(found, key=lambda metric: (metric.job, metric.name)))


def _described(job: str, families: Iterable[Metric]) -> Iterator[Exported]:
    for family in families:
        # prometheus-client tells a family's labels only with its samples, and nothing has happened yet.
        labels = tuple(getattr(family, "_labelnames", ()))
        further = _INFO_LABELS.get(family.name, ())
        text = family.documentation.rstrip(".")
        yield Exported(family.name, family.type, text, (*labels, *further), job)


# The real things on a network that nobody has started: what they export does not depend on what happens.


async def _of_agent() -> list[Metric]:
    from agents.agent import Agent
    from agents.config import AddressBook, Config
    from agents.metrics.agent import AgentCollector

    topology = load_topology("pair")
    with tempfile.TemporaryDirectory() as folder:
        config = Config(topology, AddressBook.of_testbed(2, Management(_SUBNET)), Path(folder))
        agent = Agent(config, 0)
        try:
            return list(AgentCollector(agent).collect())
        finally:
            await agent.close()


async def _of_coordinator() -> list[Metric]:
    from agents.config import AddressBook, Config
    from agents.coordinator import Coordinator
    from agents.metrics.coordinator import CoordinatorCollector

    topology = load_topology("pair")
    with tempfile.TemporaryDirectory() as folder:
        config = Config(topology, AddressBook.of_testbed(2, Management(_SUBNET)), Path(folder))
        return list(CoordinatorCollector(Coordinator(config)).collect())


def _of_controller() -> list[Metric]:
    from controller.api import FabricCollector
    from controller.fabric import Fabric

    return list(FabricCollector(Fabric(load_topology("pair"))).collect())


def _of_delay_line() -> Iterable[Metric]:
    from testbed.emulation import metrics

    return metrics._families()


def _of_links() -> Iterable[Metric]:
    from testbed.telemetry import links

    return links.LinkCollector(tuple).describe()
