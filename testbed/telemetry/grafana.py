"""Grafana's dashboards, made from the exported metrics. Pure; `testbed reference --write` writes the files.

Every dashboard and the data source have fixed uids, so that links to them stay true.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from testbed.telemetry.exported import Exported

DIRECTORY: Final = Path(__file__).parent / "grafana"
DATASOURCE_UID: Final = "stormbed-prometheus"
# Scraped once a second: five samples are enough for a rate, and follow a redraw of the links.
WINDOW: Final = "5s"
_WIDTH: Final = 12
_HEIGHT: Final = 8


@dataclass(frozen=True)
class Query:
    """A PromQL expression, and how Grafana shall name its series."""

    expression: str
    legend: str = ""


@dataclass(frozen=True)
class Panel:
    """A chart. `unit` is one of Grafana's; `kind` timeseries, stat, table or heatmap."""

    title: str
    queries: tuple[Query, ...]
    unit: str = "short"
    kind: str = "timeseries"
    text: str = ""


@dataclass(frozen=True)
class Dashboard:
    uid: str
    title: str
    panels: tuple[Panel, ...]


def _q(expression: str, legend: str = "") -> Query:
    return Query(expression.replace("$w", WINDOW), legend)


_LINK: Final = "{{src}} > {{dst}}"
_USE: Final = "rate(stormbed_link_transmit_bytes_total[$w]) / on(src, dst) stormbed_link_configured_bytes_per_second"

NETWORK: Final = Dashboard(
    "stormbed-network",
    "Stormbed: network",
    (
        Panel("Use of each direction", (_q(_USE, _LINK),), "percentunit", text="Carried over configured."),
        Panel("Busiest ten directions", (_q(f"topk(10, {_USE})", _LINK),), "percentunit"),
        Panel("Carried", (_q("8 * rate(stormbed_link_transmit_bytes_total[$w])", _LINK),), "bps"),
        Panel("Configured rate", (_q("8 * stormbed_link_configured_bytes_per_second", _LINK),), "bps"),
        Panel("Waiting in the shapers", (_q("stormbed_link_queue_bytes", _LINK),), "bytes"),
        Panel("Dropped", (_q("rate(stormbed_link_dropped_frames_total[$w]) > 0", f"{_LINK} {{{{reason}}}}"),), "cps"),
        Panel("Directions that carry nothing", (_q("stormbed_link_up == 0", _LINK),), kind="table"),
        Panel(
            "Bytes that enter each path",
            (_q("8 * rate(stormbed_controller_path_bytes_total[$w]) > 0", f"{_LINK} by {{{{path}}}}"),),
            "bps",
        ),
        Panel(
            "Lateness of the delay line, p99",
            (
                _q(
                    "histogram_quantile(0.99, sum by (src, dst, le) "
                    "(rate(stormbed_delay_line_lateness_seconds_bucket[$w])))",
                    _LINK,
                ),
            ),
            "s",
            text="Faithful below 2 ms.",
        ),
        Panel("Processor of the delay line", (_q("rate(stormbed_delay_line_cpu_seconds_total[$w])"),), "percentunit"),
    ),
)

TRAINING: Final = Dashboard(
    "stormbed-training",
    "Stormbed: training",
    (
        Panel(
            "Synchronisation time, mean of the last 30 s",
            (
                _q(
                    "sum by (run, site) (rate(stormbed_agent_synchronisation_seconds_sum[30s])) / "
                    "sum by (run, site) (rate(stormbed_agent_synchronisation_seconds_count[30s]))",
                    "{{run}} {{site}}",
                ),
            ),
            "s",
        ),
        Panel(
            "What the workers run",
            (_q("count by (run, segment, scheduler) (stormbed_agent_segment_info)", "{{segment}}"),),
            kind="table",
        ),
        Panel("Iteration", (_q("stormbed_agent_iteration", "{{run}} {{site}}"),)),
        Panel(
            "Policy versions",
            (
                _q("stormbed_agent_policy_version", "{{run}} {{site}}"),
                _q("stormbed_coordinator_policy_version", "{{run}} coordinator"),
            ),
        ),
        Panel(
            "Sent by each agent",
            (_q("8 * sum by (site) (rate(stormbed_agent_sent_bytes_total[$w]))", "{{site}}"),),
            "bps",
        ),
        Panel(
            "Received by each agent",
            (_q("8 * sum by (site) (rate(stormbed_agent_received_bytes_total[$w]))", "{{site}}"),),
            "bps",
        ),
        Panel("Chunks that wait to be sent", (_q("stormbed_agent_queue_chunks", "{{site}} by {{first_hop}}"),)),
        Panel("Held until the release", (_q("stormbed_agent_held_bytes", "{{site}}"),), "bytes"),
        Panel(
            "Chunks by auxiliary paths",
            (
                _q(
                    'sum by (run, site) (rate(stormbed_agent_path_chunks_total{auxiliary="1"}[$w]))',
                    "{{run}} {{site}}",
                ),
            ),
            "cps",
        ),
        Panel(
            "Rates that the plan counts on",
            (_q("stormbed_coordinator_rate_bps", f"{{{{run}}}} {_LINK}"),),
            "bps",
        ),
    ),
)

CONTROL: Final = Dashboard(
    "stormbed-control",
    "Stormbed: control plane",
    (
        Panel("Targets that do not answer", (_q("up == 0", "{{job}} {{instance}}"),), kind="table"),
        Panel(
            "Switches",
            (
                _q("sum(stormbed_controller_switch_connected)", "connected"),
                _q("sum(stormbed_controller_switch_in_sync)", "in sync"),
            ),
        ),
        Panel("Flow rules", (_q("stormbed_controller_flow_rules", "{{site}}"),)),
        Panel("Rules put right", (_q("increase(stormbed_controller_repairs_total[1m])", "{{site}}"),)),
        Panel("Links that are down", (_q("stormbed_controller_links_down"),), kind="stat"),
        Panel("Primaries moved away", (_q("stormbed_controller_primaries_moved"),), kind="stat"),
        Panel("Agents connected", (_q("sum(stormbed_coordinator_agent_connected)"),), kind="stat"),
        Panel("Open jobs", (_q("stormbed_coordinator_jobs"),), kind="stat"),
        Panel(
            "Control traffic",
            (
                _q(
                    "sum by (site) (rate(stormbed_agent_control_sent_bytes_total[$w]))",
                    "{{site}} to the coordinator",
                ),
                _q("sum by (site) (rate(stormbed_coordinator_sent_bytes_total[$w]))", "coordinator to {{site}}"),
            ),
            "Bps",
        ),
        Panel(
            "New plans",
            (_q("increase(stormbed_coordinator_replans_total[1m])", "{{run}}"),),
        ),
    ),
)


def everything(metrics: Sequence[Exported]) -> Dashboard:
    """One panel for every metric there is."""
    return Dashboard("stormbed-all", "Stormbed: every metric", tuple(_plain_panel(metric) for metric in metrics))


def _plain_panel(metric: Exported) -> Panel:
    labels = ("site", *metric.labels) if metric.job == "agent" else metric.labels
    legend = " ".join(f"{{{{{label}}}}}" for label in labels)
    name = metric.samples[0]
    unit = _unit(metric)
    if metric.kind == "histogram":
        by = ", ".join((*labels, "le"))
        query = _q(f"histogram_quantile(0.95, sum by ({by}) (rate({name}[$w])))", legend)
        return Panel(f"{metric.name}, p95", (query,), unit, text=metric.help)
    if metric.kind == "info":
        return Panel(metric.name, (_q(name, legend),), kind="table", text=metric.help)
    if metric.kind == "counter":
        return Panel(f"{metric.name}, per second", (_q(f"rate({name}[$w])", legend),), unit, text=metric.help)
    return Panel(metric.name, (_q(name, legend),), unit, text=metric.help)


def _unit(metric: Exported) -> str:
    """Grafana's unit for what the name says."""
    counted = metric.kind == "counter"
    for ending, of_gauge, of_rate in (
        ("_bytes_per_second", "Bps", "Bps"),
        ("_bytes", "bytes", "Bps"),
        ("_bps", "bps", "bps"),
        ("_seconds", "s", "percentunit"),
        ("_ratio", "percentunit", "percentunit"),
    ):
        if metric.name.endswith(ending):
            return of_rate if counted else of_gauge
    return "cps" if counted else "short"


def dashboards(metrics: Sequence[Exported]) -> tuple[Dashboard, ...]:
    return (NETWORK, TRAINING, CONTROL, everything(metrics))


def to_json(dashboard: Dashboard) -> dict[str, Any]:
    """The dashboard as Grafana reads it from a file."""
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "tags": ["stormbed"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "1s",
        "time": {"from": "now-5m", "to": "now"},
        "timepicker": {"refresh_intervals": ["1s", "5s", "30s"]},
        # One cross-hair over all charts.
        "graphTooltip": 1,
        "panels": [_panel_json(number, panel) for number, panel in enumerate(dashboard.panels)],
    }


def _panel_json(number: int, panel: Panel) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": DATASOURCE_UID}
    table = panel.kind == "table"
    result: dict[str, Any] = {
        "id": number + 1,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": source,
        "gridPos": {"x": number % 2 * _WIDTH, "y": number // 2 * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + place),
                "datasource": source,
                "expr": query.expression,
                "legendFormat": query.legend or "__auto",
                **({"instant": True, "range": False, "format": "table"} if table else {}),
            }
            for place, query in enumerate(panel.queries)
        ],
    }
    if panel.kind == "timeseries":
        result["options"] = {
            "tooltip": {"mode": "multi", "sort": "desc"},
            "legend": {"displayMode": "table", "placement": "right", "calcs": ["lastNotNull"]},
        }
    return result


def files(metrics: Sequence[Exported]) -> Mapping[str, str]:
    """Every file of the provisioning directory: its path within, and its text."""
    made = {
        f"dashboards/{dashboard.uid}.json": json.dumps(to_json(dashboard), indent=1) + "\n"
        for dashboard in dashboards(metrics)
    }
    made["provisioning/datasources/stormbed.yaml"] = _DATASOURCE
    made["provisioning/dashboards/stormbed.yaml"] = _PROVIDER
    return made


# Grafana itself puts the environment's variables in.
_DATASOURCE: Final = f"""\
apiVersion: 1
datasources:
  - name: Stormbed
    uid: {DATASOURCE_UID}
    type: prometheus
    access: proxy
    url: ${{STORMBED_PROMETHEUS}}
    isDefault: true
    jsonData:
      timeInterval: 1s
"""
_PROVIDER: Final = """\
apiVersion: 1
providers:
  - name: stormbed
    type: file
    folder: Stormbed
    folderUid: stormbed
    disableDeletion: true
    options:
      path: ${STORMBED_DASHBOARDS}
"""
