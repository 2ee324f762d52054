"""What simulated runs leave in their directory: how they ended, and what the links carried."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from testbed.experiments.manifest import FidelityRow
from testbed.experiments.rundir import RunDirectory
from testbed.experiments.spec import LoadedExperiment
from testbed.report.measurements import LinkSample
from testbed.simulation.world import SECOND, World
from topologies.model import DirectedLink

SAMPLE_NS = SECOND

OnDirectory = Callable[[Path], None]


@contextmanager
def recorded(
    experiment: LoadedExperiment, out_dir: Path, fidelity: FidelityRow, on_directory: OnDirectory
) -> Iterator[RunDirectory]:
    """The run directory `out_dir`, which must not exist, for the block to run in. However that ends, it is told.

    `on_directory` is told the directory as soon as there is one, also of a run that then fails.
    """
    with RunDirectory(out_dir, experiment, "simulated") as run:
        on_directory(run.path)
        failure: BaseException | None = None
        try:
            yield run
        except BaseException as error:
            failure = error
            raise
        finally:
            run.finish(failure, fidelity)


def link_sample(
    link: DirectedLink, segment: str, *, end_s: float, interval_s: float, payload_bits: float, efficiency: float
) -> LinkSample:
    """What a link carried in an interval, on the wire as the emulated links count: payload and what goes with it."""
    bits = payload_bits / efficiency
    return LinkSample(
        t_s=end_s,
        interval_s=interval_s,
        segment=segment,
        src=link.src_name,
        dst=link.dst_name,
        configured_bps=link.rate.bps,
        achieved_bps=bits / interval_s if interval_s else 0.0,
        carried_bytes=round(bits / 8),
        dropped_packets=0,
    )


class LinkSampler:
    """Samples what the links carry, every second of a segment's time.

    Args:
        world: whose links.
        links: as they are at the moment; kept up to date by whoever changes them.
        run: receives the samples.
    """

    def __init__(self, world: World, links: Sequence[DirectedLink], run: RunDirectory) -> None:
        self._world = world
        self._links = links
        self._run = run
        self._carried = [0.0] * len(links)
        self._sampled_ns = 0
        self._label: str | None = None
        self._begun = 0

    def begin(self, label: str) -> None:
        """What is carried from now on counts to this segment."""
        self._label, self._sampled_ns = label, self._world.clock.now_ns
        self._begun += 1
        self._tick_later(self._begun)

    def end(self) -> None:
        """The segment is over."""
        self._sample()
        self._label = None

    def _tick_later(self, number: int) -> None:
        def tick() -> None:
            # The next segment begins in the moment in which this one ends, and has ticks of its own.
            if self._label is None or number != self._begun:
                return
            self._sample()
            # A network at rest must be seen to be at rest, so the sampling alone keeps nothing alive.
            if self._world.clock.pending:
                self._tick_later(number)

        self._world.clock.after(SAMPLE_NS, tick)

    def _sample(self) -> None:
        network, now = self._world.network, self._world.clock.now_ns
        elapsed = now - self._sampled_ns
        if not elapsed or self._label is None:
            return
        network.settle()
        self._run.add_links(
            [
                link_sample(
                    link,
                    self._label,
                    end_s=now / SECOND,
                    interval_s=elapsed / SECOND,
                    payload_bits=carried - before,
                    efficiency=network.efficiency,
                )
                for link, carried, before in zip(self._links, network.carried_bits, self._carried, strict=True)
            ]
        )
        self._carried = list(network.carried_bits)
        self._sampled_ns = now
