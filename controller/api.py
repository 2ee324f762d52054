"""The controller over HTTP: what is connected, which paths there are, what they carried, and Prometheus
metrics.

Read-only. GET /health, /routes, /links, /counters and /metrics; all but the last answer JSON maps with a schema
number. /routes takes src=SITE, dst=SITE and moved=1 (only pairs whose primary is not the declared one). /links
takes since=TOKEN, of an earlier answer, and wait=SECONDS: it answers when links have failed or returned since.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from controller.fabric import SCHEMA, Fabric
from topologies.errors import CannotHonourError, nearest

LOG = logging.getLogger(__name__)

FRESH_S = 1.0
"""Counters older than this are read again before they are shown."""
REFRESH_TIMEOUT_S = 2.0
MAX_WAIT_S = 60.0
"""The longest that an answer about links is waited for."""
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class FabricCollector(Collector):
    """The state of the switches as Prometheus metrics, taken at each scrape from the last reading."""

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric

    def collect(self) -> Iterator[Metric]:
        site = ["site"]
        connected = GaugeMetricFamily(
            "stormbed_controller_switch_connected", "1 while the site's switch is connected", labels=site
        )
        in_sync = GaugeMetricFamily(
            "stormbed_controller_switch_in_sync",
            "1 while the switch holds exactly its planned rules",
            labels=site,
        )
        rules = GaugeMetricFamily(
            "stormbed_controller_flow_rules",
            "Flow rules of ours in the switch at the last reading",
            labels=site,
        )
        repairs = CounterMetricFamily(
            "stormbed_controller_repairs",
            "Flow rules put right on a switch that was in sync before",
            labels=site,
        )
        ports = GaugeMetricFamily(
            "stormbed_controller_port_up",
            "1 while the switch's port towards the peer is up; a site's own port has itself as peer",
            labels=["site", "peer"],
        )
        for number, name, session in self._fabric.switches():
            connected.add_metric([name], float(session.connected))
            in_sync.add_metric([name], float(session.in_sync))
            rules.add_metric(
                [name], len(session.installed) - session.foreign_rules if session.connected else 0
            )
            repairs.add_metric([name], session.repairs)
            for port, up in sorted(session.ports.items()):
                peer = self._fabric.peer(number, port)
                if peer is not None:
                    ports.add_metric([name, peer], float(up))
        sent = CounterMetricFamily(
            "stormbed_controller_path_bytes",
            "Bytes that entered a path at its source; path 'absent' is numbers the pair does not have",
            labels=["src", "dst", "path"],
        )
        dropped = CounterMetricFamily(
            "stormbed_controller_dropped_bytes",
            "Bytes dropped by a switch: not-ipv4, or addresses that are unknown or cut off",
            labels=["site", "reason"],
        )
        paths, drops = self._fabric.counts()
        for count in paths:
            path = "absent" if count.path is None else str(count.path)
            sent.add_metric([count.src, count.dst, path], count.bytes)
        for drop in drops:
            dropped.add_metric([drop.site, "unknown-address" if drop.table else "not-ipv4"], drop.bytes)
        steering = self._fabric.steering
        down = GaugeMetricFamily(
            "stormbed_controller_links_down", "Links that are down", value=len(steering.watch.down)
        )
        moved = GaugeMetricFamily(
            "stormbed_controller_primaries_moved",
            "Ordered pairs of sites whose primary is another one than declared",
            value=len(steering.moved),
        )
        reroutes = CounterMetricFamily(
            "stormbed_controller_reroutes",
            "Changes of a pair's primary, away from cut links and back",
            value=steering.reroutes,
        )
        yield from (connected, in_sync, rules, repairs, ports, sent, dropped, down, moved, reroutes)


class Api:
    """The HTTP server in threads of its own.

    Args:
        fabric: what to show.
        host, port: where to listen; port 0 takes a free one.
        registry: Prometheus registry to serve; the fabric's collector is added to it.

    Raises CannotHonourError when the address cannot be had.
    """

    def __init__(self, fabric: Fabric, host: str, port: int, registry: CollectorRegistry) -> None:
        registry.register(FabricCollector(fabric))
        handler = type("Handler", (_Handler,), {"fabric": fabric, "registry": registry})
        try:
            self._server = _Server((host, port), handler)
        except OSError as error:
            raise CannotHonourError(
                f"cannot serve HTTP on {host}:{port}: {error.strerror or error}",
                hint="is another controller running there? choose another address with --http",
            ) from None
        # The interval is how long close() waits for the thread at most.
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, name="http", daemon=True
        )

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # The default would answer a burst of scrapers and dashboards with refused connections.
    request_queue_size = 64


class _Handler(BaseHTTPRequestHandler):
    fabric: Fabric
    registry: CollectorRegistry
    protocol_version = "HTTP/1.1"
    server_version = "stormbed-controller"
    sys_version = ""
    timeout = 10  # a client that sends nothing holds its thread no longer

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        try:
            if path == "/metrics":
                self._answer(HTTPStatus.OK, generate_latest(self.registry), METRICS_TYPE)
            elif path == "/health":
                self._json(HTTPStatus.OK, self.fabric.health())
            elif path == "/routes":
                self._routes(query)
            elif path == "/links":
                self._links(query)
            elif path == "/counters":
                self.fabric.refresh(time.monotonic() - FRESH_S, REFRESH_TIMEOUT_S)
                self._json(HTTPStatus.OK, self.fabric.counters(time.monotonic()))
            else:
                known = "/health, /routes, /links, /counters and /metrics"
                self._json(
                    HTTPStatus.NOT_FOUND, {"schema": SCHEMA, "error": f"no {path} here; there are {known}"}
                )
        except (BrokenPipeError, ConnectionResetError):
            LOG.debug("the client left before the answer to %s", path)

    def _routes(self, query: str) -> None:
        asked = dict(parse_qsl(query))
        names = self.fabric.topology.site_names
        for key in ("src", "dst"):
            if key in asked and asked[key] not in names:
                hint = nearest(asked[key], names)
                error = f"there is no site {asked[key][:40]!r}" + (f" ({hint})" if hint else "")
                self._json(HTTPStatus.BAD_REQUEST, {"schema": SCHEMA, "error": error})
                return
        moved = asked.get("moved", "0") not in ("0", "false")
        self._json(HTTPStatus.OK, self.fabric.routes(asked.get("src"), asked.get("dst"), moved=moved))

    def _links(self, query: str) -> None:
        asked = dict(parse_qsl(query))
        try:
            wait_s = float(asked.get("wait", "0"))
        except ValueError:
            wait_s = float("nan")
        if not 0 <= wait_s <= MAX_WAIT_S:
            error = f"wait={asked['wait'][:40]} is not a number of seconds from 0 to {MAX_WAIT_S:g}"
            self._json(HTTPStatus.BAD_REQUEST, {"schema": SCHEMA, "error": error})
            return
        self._json(HTTPStatus.OK, self.fabric.links(asked.get("since", ""), wait_s))

    def _json(self, status: HTTPStatus, body: dict[str, Any]) -> None:
        self._answer(status, json.dumps(body).encode() + b"\n", "application/json")

    def _answer(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        LOG.debug("%s %s", self.address_string(), format % args)
