"""The testbed's own Prometheus: what it scrapes, its configuration, and its command line.

It runs inside the testbed's network namespace, listens on the supervisor's management address only, and
keeps its samples in the run directory. It is scraped once a second: the usual fifteen are useless for a run
of twenty seconds.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from topologies.addressing import (
    AGENT_METRICS_PORT,
    CONTROLLER_HTTP_PORT,
    COORDINATOR_METRICS_PORT,
    DELAY_LINE_METRICS_PORT,
    PROMETHEUS_PORT,
    SUPERVISOR_METRICS_PORT,
    Management,
)
from topologies.model import Topology

SCRAPE_INTERVAL_S = 1
RETENTION_TIME = "6h"
RETENTION_SIZE = "256MB"


@dataclass(frozen=True)
class Target:
    """Something to scrape.

    Args:
        job: what it is: agent, coordinator, controller, delay-line, links or prometheus.
        address: "ip:port" on the management network.
        instance: whose it is: a site's name, or "testbed".
        labels: further labels of all its samples.
    """

    job: str
    address: str
    instance: str
    labels: dict[str, str] = field(default_factory=dict)


def targets_of(
    topology: Topology, management: Management, coordinator: str | None = None
) -> tuple[Target, ...]:
    """Everything that a testbed of this topology serves metrics from; `coordinator` is its address where that
    is not the testbed's own.
    """
    center = management.supervisor
    own = (
        ("controller", CONTROLLER_HTTP_PORT),
        ("delay-line", DELAY_LINE_METRICS_PORT),
        ("links", SUPERVISOR_METRICS_PORT),
        ("prometheus", PROMETHEUS_PORT),
    )
    agents = (
        Target("agent", f"{management.site(k)}:{AGENT_METRICS_PORT}", site, {"site": site})
        for k, site in enumerate(topology.site_names)
    )
    planning = Target("coordinator", f"{coordinator or center}:{COORDINATOR_METRICS_PORT}", "testbed")
    return (*agents, planning, *(Target(job, f"{center}:{port}", "testbed") for job, port in own))


def targets_json(targets: Sequence[Target]) -> str:
    """The text of a file for `file_sd_configs`."""
    groups = [
        {
            "targets": [target.address],
            "labels": {"job": target.job, "instance": target.instance, **target.labels},
        }
        for target in targets
    ]
    return json.dumps(groups, indent=2) + "\n"


def config(run_dir: Path) -> str:
    """The text of prometheus.yml."""
    document: dict[str, Any] = {
        "global": {
            "scrape_interval": f"{SCRAPE_INTERVAL_S}s",
            "scrape_timeout": f"{SCRAPE_INTERVAL_S}s",
            "external_labels": {"testbed": run_dir.name},
        },
        "scrape_configs": [
            {
                "job_name": "stormbed",
                # The file is also watched; the interval only covers a notification that was lost.
                "file_sd_configs": [{"files": [str(targets_path(run_dir))], "refresh_interval": "5s"}],
            }
        ],
    }
    return yaml.safe_dump(document, sort_keys=False)


def targets_path(run_dir: Path) -> Path:
    return run_dir / "targets.json"


def argv(run_dir: Path, management: Management) -> list[str]:
    """The command that runs inside the testbed's network namespace."""
    directory = run_dir / "prometheus"
    return [
        "prometheus",
        f"--config.file={directory / 'prometheus.yml'}",
        f"--storage.tsdb.path={directory / 'data'}",
        f"--storage.tsdb.retention.time={RETENTION_TIME}",
        f"--storage.tsdb.retention.size={RETENTION_SIZE}",
        f"--web.listen-address={management.supervisor}:{PROMETHEUS_PORT}",
        "--log.level=warn",
    ]


def prepare(run_dir: Path, management: Management, targets: Sequence[Target]) -> list[str]:
    """Write the configuration and the targets; return the command to start."""
    directory = run_dir / "prometheus"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "prometheus.yml").write_text(config(run_dir), encoding="utf-8")
    write_targets(run_dir, targets)
    return argv(run_dir, management)


def write_targets(run_dir: Path, targets: Sequence[Target]) -> None:
    """Replace the list of targets; Prometheus takes it up by itself."""
    path = targets_path(run_dir)
    fresh = path.with_suffix(".new")
    fresh.write_text(targets_json(targets), encoding="utf-8")
    fresh.replace(path)
