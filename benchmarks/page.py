"""The live page of a large testbed, open for minutes: what it costs, and whether it grows. As root.

    python benchmarks/page.py                    # 37 sites and 58 links, 12 minutes; writes docs/bench.md
    python benchmarks/page.py --minutes 1 --no-write

The GEANT network of the Topology Zoo stands with rates that change every two seconds while numpy workers train
on all sites. A real browser keeps the page open.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tables import table, write_table

from testbed.api import Testbed
from testbed.dashboard.background import ensure

ROOT = Path(__file__).parents[1]
GEANT = "topohub:topozoo/Geant2012?default-rate=4mbit"
EVERY_S = 15
TRAINING = f"""
name: page-load
topology: {GEANT}
training: {{model: tensor-100k, iterations: 100000, chunk_elements: 10000}}
schedulers: [netstorm]
"""
TICKS = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def used(pid: int) -> tuple[float, int]:
    """CPU seconds and resident bytes of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS, int(fields[21]) * PAGE_BYTES


def measure(testbed: Testbed, seconds: float, folder: Path) -> dict[str, Any]:
    assert testbed.info.pid is not None
    url = ensure(testbed.name, testbed.run_dir, testbed.info.pid)
    pid = int(json.loads((testbed.run_dir / "page.json").read_text(encoding="utf-8"))["pid"])
    (folder / "load.yaml").write_text(TRAINING, encoding="utf-8")
    said = folder / "training.log"
    with said.open("wb") as log:
        training = subprocess.Popen(
            [sys.executable, "-m", "testbed", "run", "load.yaml", "--name", testbed.name, "--allow-degraded"],
            cwd=folder,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        words = {"url": url, "chromium": shutil.which("chromium"), "seconds": seconds, "every": EVERY_S}
        browser = subprocess.Popen(
            ["node", "soak.mjs", json.dumps(words)], cwd=ROOT / "tests/browser", stdout=subprocess.PIPE, text=True
        )
        assert browser.stdout is not None
        rows: list[dict[str, Any]] = []
        began = time.monotonic(), used(pid)[0]
        for line in browser.stdout:
            cpu_s, rss = used(pid)
            rows.append({**json.loads(line), "cpu_s": cpu_s - began[1], "rss_bytes": rss})
            sys.stderr.write(f"{rows[-1]}\n")
        if browser.wait() != 0:
            raise SystemExit("the browser ended before its time")
        if training.poll() is not None:
            raise SystemExit(f"the training ended before its time: {said.read_text(encoding='utf-8')[-2000:]}")
        return {"rows": rows, "elapsed_s": time.monotonic() - began[0]}
    finally:
        training.send_signal(signal.SIGINT)
        training.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=12)
    parser.add_argument("--no-write", action="store_true")
    asked = parser.parse_args()
    load = os.getloadavg()[0]
    with (
        tempfile.TemporaryDirectory() as folder,
        Testbed.up(GEANT, name=f"page-{os.getpid()}", calibrate=False, allow_degraded=True) as testbed,
    ):
        dynamics = {"kind": "uniform", "every": "2s", "rate": "2mbit..6mbit"}
        testbed.call("dynamics_start", dynamics=dynamics, seed=1)
        found = measure(testbed, 60 * asked.minutes, Path(folder))
    rows = found["rows"]
    if any(row["errors"] for row in rows):
        raise SystemExit(f"the page said: {rows[-1]['errors'][:3]}")
    shown = [rows[0], rows[len(rows) // 2], rows[-1]]
    cells = [
        [
            f"{row['t_s']:.0f}",
            f"{row['heap_bytes'] / 1e6:.1f}",
            f"{row['nodes']:,}",
            f"{row['rss_bytes'] / 1e6:.0f}",
            f"{100 * row['cpu_s'] / row['t_s']:.1f}",
        ]
        for row in shown
    ]
    text = (
        f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores, load before {load:.1f}. "
        f"{len(testbed.topology.sites)} sites, {len(testbed.topology.links)} links, rates redrawn every 2 s, "
        "training on all sites, one browser.\n\n"
        + table(["after s", "page MB", "its nodes", "server MB", "server CPU, % of a core"], cells)
    )
    if asked.no_write:
        sys.stdout.write(text)
        return 0
    write_table(ROOT / "docs" / "bench.md", "page", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
