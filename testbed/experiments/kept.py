"""What a run keeps of the testbed that it ran on: its links and versions, its logs, decisions and metrics.

What cannot be kept is noted in the run and ends nothing.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence

from agents.decision_file import decision_path
from testbed.client import SupervisorClient
from testbed.emulation.rundir import TestbedInfo
from testbed.experiments.manifest import DECISIONS, LinkRow
from testbed.experiments.readiness import ended
from testbed.experiments.rundir import RunDirectory
from testbed.runner import run as run_command
from testbed.telemetry.export import export_window
from testbed.telemetry.query import PrometheusClient
from topologies.errors import StormbedError

LOG_BYTES = 1_000_000


def keep_network(run: RunDirectory, testbed: TestbedInfo, client: SupervisorClient) -> None:
    """What the links are now, which may not be what the file declares, and what carries them."""
    rows = client.call("links")
    links = tuple(LinkRow(**{key: row[key] for key in LinkRow.model_fields}) for row in rows)
    changed = [
        f"{link.src}>{link.dst}"
        for link, declared in zip(links, run.manifest.links, strict=True)
        if link != declared
    ]
    version = run_command(["ovs-vsctl", "--version"], timeout=10).stdout.splitlines()[0].split()[-1]
    run.update(links=links, versions=run.manifest.versions | {"openvswitch": version})
    for limit in testbed.limits:
        run.note(limit)
    for part in ended(testbed.name):
        run.note(f"{part} of the testbed had ended before the run")
    if changed:
        run.note(f"not as the topology declares, changed since bring-up: {', '.join(changed)}")


def keep_logs(run: RunDirectory, testbed: TestbedInfo) -> None:
    """The last part of every log of the testbed, beside the run's own files."""
    source = testbed.run_dir
    for log in sorted([*source.glob("*.log"), *source.glob("sites/*/*.log"), source / "events.jsonl"]):
        name = "-".join(log.relative_to(source).parts).removeprefix("sites-")
        try:
            with log.open("rb") as file:
                file.seek(max(0, log.stat().st_size - LOG_BYTES))
                (run.logs / name).write_bytes(file.read())
        except OSError as error:
            run.note(f"{log} could not be kept: {error}")


def keep_decisions(run: RunDirectory, testbed: TestbedInfo) -> None:
    """What the coordinator wrote of transfers that were decided one by one."""
    written = decision_path(testbed.run_dir, run.manifest.id)
    try:
        if written.exists():
            shutil.move(written, run.path / DECISIONS)
    except OSError as error:
        run.note(f"{written} could not be kept: {error}")


def keep_metrics(run: RunDirectory, testbed: TestbedInfo, selectors: Sequence[str]) -> None:
    """What Prometheus has seen of this run."""
    try:
        with PrometheusClient(testbed.prometheus_url) as client:
            export_window(client, run.manifest.started_s, time.time(), run.path, selectors)
    except (StormbedError, OSError) as error:
        run.note(f"the metrics could not be kept: {error}")
