"""How well links are measured while training, and how soon a change leads to a new policy.

    python benchmarks/awareness.py                       # both estimators on netstorm-9, then four changes
    python benchmarks/awareness.py --scale 0.5 --iterations 5

Brings up a testbed (root), trains on it with numpy workers, and compares every estimate that reached the
coordinator with the rate that the link was shaped to. Payload is at most 0.956 of a link (TCP and Ethernet
headers), so an error of -0.04 is the least there is. Then the rates of single directions drop to a quarter.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from agents.control import CoordinatorClient
from testbed.api import Testbed

JOB = "awareness"
LOOK_S = 0.05
CHANGES = (("dc3", "dc4"), ("dc4", "dc3"), ("dc6", "dc7"), ("dc2", "dc5"))


class Training:
    """Numpy workers on a testbed, one a site, and one segment at a time."""

    def __init__(self, testbed: Testbed, client: CoordinatorClient, elements: int) -> None:
        self._client, self._elements = client, elements
        self._pool = ThreadPoolExecutor(1)
        names = list(testbed.sites)
        client.open_job({"job": JOB, "sites": dict.fromkeys(names, 1), "chunk_elements": 100_000})
        out = Path(tempfile.mkdtemp(prefix="stormbed-awareness-"))
        for rank, site in enumerate(names):
            (out / site).mkdir()
            environment = {
                "STORMBED_RUN_DIR": str(testbed.run_dir),
                "STORMBED_SITE": site,
                "STORMBED_JOB": JOB,
                "STORMBED_WORKER": "0",
                "STORMBED_OUT": str(out / site),
                "RANK": str(rank),
                "WORLD_SIZE": str(len(names)),
                "OMP_NUM_THREADS": "1",
            }
            argv = [sys.executable, "-m", "agents.numpy_worker"]
            testbed.call("spawn", site=site, argv=argv, env=environment, log=str(out / site / "worker.log"))

    def start(self, label: str, iterations: int, awareness: Mapping[str, Any]) -> None:
        fields = {"label": label, "scheduler": "netstorm", "iterations": iterations}
        fields |= {"elements": self._elements, "awareness": dict(awareness)}
        self.segment = self._pool.submit(self._client.run_segment, JOB, fields)

    def status(self) -> dict[str, Any]:
        (job,) = self._client.status()["jobs"]
        return dict(job)


def errors(training: Training, shaped: Mapping[str, float], estimator: str, iterations: int) -> str:
    """One segment under an estimator; its line of the table."""
    awareness = {"estimator": estimator, "min_message_bytes": 100_000, "update_rate": 1e9}
    training.start(estimator, iterations, awareness | {"replan": "change", "probe_idle_s": 3.0})
    seen: dict[str, set[float]] = {}
    while not training.segment.done():
        status = training.status()
        if status["segment"] == estimator and status["network"]:
            for link, found in status["network"]["measured"].items():
                seen.setdefault(link, set()).add(found["rate_bps"])
        time.sleep(LOOK_S)
    training.segment.result()
    per_link = [abs(statistics.median(rates) / shaped[link] - 1) for link, rates in seen.items()]
    every = [abs(rate / shaped[link] - 1) for link, rates in seen.items() for rate in rates]
    return (
        f"{estimator:<10} {len(seen):>5} {_quantile(per_link, 0.5):>7.3f} {_quantile(per_link, 0.95):>7.3f}"
        f" {len(every):>6} {_quantile(every, 0.5):>7.3f} {_quantile(every, 0.95):>7.3f}"
        f" {os.getloadavg()[0]:>5.1f}"
    )


def change(training: Training, testbed: Testbed, src: str, dst: str, rate: float) -> str:
    """One direction drops to a quarter, once it has been measured, and comes back; its line."""
    link = f"{src}>{dst}"

    def measured(status: Mapping[str, Any]) -> float | None:
        found = (status["network"] or {"measured": {}})["measured"].get(link)
        return None if found is None else float(found["rate_bps"])

    while measured(training.status()) is None and not training.segment.done():
        time.sleep(LOOK_S)
    begun = time.monotonic_ns()
    testbed.link(src, dst).set(rate=f"{int(rate // 4000)}kbit")
    noticed = in_force = float("nan")
    while not training.segment.done() and time.monotonic_ns() - begun < 30e9:
        status = training.status()
        now = time.monotonic_ns()
        estimate = measured(status)
        if noticed != noticed and estimate is not None and estimate < rate / 2:
            noticed = (now - begun) / 1e9
        later = [p["monotonic_ns"] for p in status["policies"] if p["monotonic_ns"] - begun > noticed * 1e9]
        if later:
            in_force = (later[0] - begun) / 1e9
            break
        time.sleep(LOOK_S)
    testbed.link(src, dst).set(rate=f"{int(rate // 1000)}kbit")
    time.sleep(4)
    return f"{link} {rate / 1e6:>6.0f} {noticed:>8.2f} {in_force:>8.2f}"


def _quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else float("nan")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--scale", type=float, default=1.0, help="of all rates")
    parser.add_argument("--iterations", type=int, default=8)
    parser.add_argument("--elements", type=int, default=2_000_000)
    options = parser.parse_args()
    name = f"awareness-{os.getpid()}"
    with (
        Testbed.up("netstorm-9", name=name, scale=options.scale, calibrate=False) as testbed,
        CoordinatorClient(*testbed.info.coordinator) as client,
    ):
        names = testbed.topology.site_names
        shaped = {f"{names[u]}>{names[v]}": float(r) for (u, v), r in testbed.topology.rates().items()}
        training = Training(testbed, client, options.elements)
        sys.stdout.write("estimator  links  median     p95  every  median     p95  load\n")
        for estimator in ("published", "unbiased"):
            sys.stdout.write(errors(training, shaped, estimator, options.iterations) + "\n")
        training.start("change", 8 * options.iterations, {"estimator": "unbiased", "check_period_s": 1.0})
        while len((training.status()["network"] or {"measured": {}})["measured"]) < len(shaped) - 4:
            time.sleep(LOOK_S)
        sys.stdout.write("link      Mbit/s  noticed  in force (s after the change)\n")
        for src, dst in CHANGES:
            sys.stdout.write(change(training, testbed, src, dst, shaped[f"{src}>{dst}"]) + "\n")
        result = training.segment.result()
        sys.stdout.write(f"{result['network']['report_bytes']} bytes of reports\n")
        client.close_job(JOB)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
