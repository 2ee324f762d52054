"""How often how long: counts of seconds for Prometheus."""

from __future__ import annotations

from typing import Final

# Seconds; from a barrier on a local network to AlexNet over a star at 20 Mbit/s.
BUCKETS: Final = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)


class Histogram:
    """Counts of seconds over `BUCKETS`, with their sum."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS) + 1)
        self.sum = 0.0

    def observe(self, seconds: float) -> None:
        """Count one value."""
        for place, bound in enumerate(BUCKETS):
            if seconds <= bound:
                self.counts[place] += 1
                break
        else:
            self.counts[-1] += 1
        self.sum += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """As Prometheus wants them: cumulative, the last one `+Inf`."""
        total, result = 0, []
        for bound, count in zip((*BUCKETS, float("inf")), self.counts, strict=True):
            total += count
            result.append(("+Inf" if bound == float("inf") else str(bound), float(total)))
        return result
