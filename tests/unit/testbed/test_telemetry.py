"""Telemetry: what Prometheus is told, what its answers mean, and the metrics of the links."""

from __future__ import annotations

import csv
import json
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from testbed.telemetry import export, prometheus
from testbed.telemetry.links import LinkCollector, LinkReading, MetricsServer
from testbed.telemetry.query import PrometheusClient, PrometheusError, Series, parse_result
from topologies.addressing import Management
from topologies.errors import DeadlineError
from topologies.load import load_topology

MANAGEMENT = Management("10.199.4.0/24")
RUN = Path("/run/stormbed/try")


def test_every_site_and_every_service_is_a_target() -> None:
    targets = prometheus.targets_of(load_topology("triangle"), MANAGEMENT)
    assert {(target.job, target.instance): target.address for target in targets} == {
        ("agent", "dc1"): "10.199.4.1:9101",
        ("agent", "dc2"): "10.199.4.2:9101",
        ("agent", "dc3"): "10.199.4.3:9101",
        ("coordinator", "testbed"): "10.199.4.253:9102",
        ("controller", "testbed"): "10.199.4.253:8080",
        ("delay-line", "testbed"): "10.199.4.253:9103",
        ("links", "testbed"): "10.199.4.253:9104",
        ("prometheus", "testbed"): "10.199.4.253:9090",
    }


def test_prometheus_listens_on_the_management_address_only() -> None:
    argv = prometheus.argv(RUN, MANAGEMENT)
    assert "--web.listen-address=10.199.4.253:9090" in argv
    assert "--storage.tsdb.path=/run/stormbed/try/prometheus/data" in argv


def test_prepare_writes_files_that_promtool_accepts(tmp_path: Path) -> None:
    targets = prometheus.targets_of(load_topology("pair"), MANAGEMENT)
    argv = prometheus.prepare(tmp_path, MANAGEMENT, targets)
    config = Path(argv[1].removeprefix("--config.file="))
    checked = subprocess.run(["promtool", "check", "config", str(config)], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    document = yaml.safe_load(config.read_text())
    assert document["global"]["scrape_interval"] == "1s"
    groups = json.loads((tmp_path / "targets.json").read_text())
    assert groups[0] == {
        "targets": ["10.199.4.1:9101"],
        "labels": {"job": "agent", "instance": "dc1", "site": "dc1"},
    }


# --- The client, against an HTTP transport of httpx's own -------------------------------------------------


def client(answer: Any) -> PrometheusClient:
    def handle(request: httpx.Request) -> httpx.Response:
        form = dict(httpx.QueryParams(request.content.decode()))
        return httpx.Response(200, json={"status": "success", "data": answer(form)})

    result = PrometheusClient("http://testbed")
    result._http = httpx.Client(base_url="http://testbed", transport=httpx.MockTransport(handle))
    return result


def test_results_of_every_type_are_series() -> None:
    vector = {"resultType": "vector", "result": [{"metric": {"job": "a"}, "value": [10.5, "2"]}]}
    matrix = {"resultType": "matrix", "result": [{"metric": {}, "values": [[1, "1"], [2, "NaN"]]}]}
    assert parse_result(vector) == (Series({"job": "a"}, ((10.5, 2.0),)),)
    (series,) = parse_result(matrix)
    assert series.samples[0] == (1.0, 1.0) and series.samples[1][1] != series.samples[1][1]
    assert parse_result({"resultType": "scalar", "result": [3, "4"]}) == (Series({}, ((3.0, 4.0),)),)


def test_raw_samples_of_a_long_window_are_asked_for_in_parts_that_do_not_overlap() -> None:
    asked = []

    def answer(form: dict[str, str]) -> dict[str, Any]:
        right = float(form["time"])
        span = int(form["query"].removeprefix("up[").removesuffix("ms]")) / 1000
        asked.append((right - span, right))
        values = [[t, "1"] for t in range(0, 2000, 100) if right - span <= t <= right]
        return {"resultType": "matrix", "result": [{"metric": {"__name__": "up"}, "values": values}]}

    (series,) = client(answer).raw("up", 0.0, 1500.0)
    assert len(asked) == 3
    assert [t for t, _ in series.samples] == [float(t) for t in range(0, 1501, 100)]


def test_a_refused_query_and_a_dead_server_are_errors_that_say_so() -> None:
    with pytest.raises(PrometheusError, match="does not answer"):
        PrometheusClient("http://127.0.0.1:1", timeout=1).instant("up")

    def refuse(request: httpx.Request) -> httpx.Response:
        return httpx.Response(400, json={"status": "error", "error": "parse error"})

    broken = PrometheusClient("http://testbed")
    broken._http = httpx.Client(base_url="http://testbed", transport=httpx.MockTransport(refuse))
    with pytest.raises(PrometheusError, match="parse error"):
        broken.instant("up{")


def test_waiting_names_the_targets_that_are_down() -> None:
    def answer(form: dict[str, str]) -> dict[str, Any]:
        rows = [
            {"metric": {"job": "agent", "instance": "dc1"}, "value": [1, "1"]},
            {"metric": {"job": "agent", "instance": "dc2"}, "value": [1, "0"]},
        ]
        return {"resultType": "vector", "result": rows}

    client(answer).wait_all_up(1, seconds=0)
    with pytest.raises(DeadlineError) as caught:
        client(answer).wait_all_up(2, seconds=0.3)
    assert "agent of dc2" in caught.value.hint


def test_the_proxy_of_the_environment_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    registry = CollectorRegistry()
    with MetricsServer(registry, "127.0.0.1", 0) as server:
        found = PrometheusClient(f"http://127.0.0.1:{server.port}")
        assert found._http.get("/metrics").status_code == 200


# --- Export -----------------------------------------------------------------------------------------------

EXPORTED = (
    Series({"__name__": "stormbed_link_up", "src": "dc1", "dst": "dc2"}, ((1.0, 1.0), (2.0, 0.0))),
    Series({"__name__": "up", "job": "agent"}, ((1.5, 1.0),)),
)


def test_csv_has_one_line_a_sample_and_a_column_for_every_label(tmp_path: Path) -> None:
    export.write_csv(tmp_path / "m.csv", EXPORTED)
    rows = list(csv.DictReader(export.open_packed(tmp_path / "m.csv", "rt")))
    assert [row["metric"] for row in rows] == ["stormbed_link_up", "stormbed_link_up", "up"]
    assert (rows[1]["t_s"], rows[1]["value"], rows[1]["src"], rows[1]["job"]) == ("2.000", "0.0", "dc1", "")


def test_json_keeps_labels_and_samples(tmp_path: Path) -> None:
    export.write_json(tmp_path / "m.json", EXPORTED, 1.0, 2.0)
    document = json.load(export.open_packed(tmp_path / "m.json", "rt"))
    assert document["schema"] == 1 and (document["start_s"], document["end_s"]) == (1.0, 2.0)
    assert document["series"][0]["samples"] == [[1.0, 1.0], [2.0, 0.0]]


# --- Metrics of the links ---------------------------------------------------------------------------------


def reading(**changes: Any) -> LinkReading:
    values: dict[str, Any] = {
        "src": "dc1",
        "dst": "dc2",
        "up": True,
        "rate_bps": 80e6,
        "delay_s": 0.01,
        "jitter_s": 0.0,
        "loss_ratio": 0.001,
        "transmit_bytes": 1234,
        "queue_bytes": 10,
        "dropped_frames": {"queue": 3, "loss": 1},
    }
    return LinkReading(**(values | changes))


def samples(registry: CollectorRegistry) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def test_link_metrics_are_in_base_units() -> None:
    registry = CollectorRegistry()
    registry.register(LinkCollector(lambda: [reading()]))
    found = samples(registry)
    ends = (("dst", "dc2"), ("src", "dc1"))
    assert found["stormbed_link_configured_bytes_per_second", ends] == 10e6
    assert found["stormbed_link_transmit_bytes_total", ends] == 1234
    assert found["stormbed_link_up", ends] == 1
    dropped = ("stormbed_link_dropped_frames_total", (("dst", "dc2"), ("reason", "queue"), ("src", "dc1")))
    assert found[dropped] == 3


def test_a_collector_reads_at_each_scrape_and_not_before() -> None:
    calls = []

    def read() -> list[LinkReading]:
        calls.append(1)
        return [reading(transmit_bytes=len(calls))]

    registry = CollectorRegistry()
    registry.register(LinkCollector(read))
    assert not calls
    samples(registry)
    ends = (("dst", "dc2"), ("src", "dc1"))
    assert samples(registry)["stormbed_link_transmit_bytes_total", ends] == 2


def test_a_metrics_server_can_be_closed_and_opened_again_on_its_port() -> None:
    registry = CollectorRegistry()
    registry.register(LinkCollector(lambda: [reading()]))
    port = 0
    for _ in range(3):
        with MetricsServer(registry, "127.0.0.1", port) as server:
            port = server.port
            text = httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False).text
            assert "stormbed_link_up" in text
        assert not server.thread.is_alive()
