"""What the page is told: of a run directory, and of a testbed that stands. No browser, no testbed."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

pytest.importorskip("starlette", reason="starlette is not installed: the page is UNVERIFIED here")

from starlette.applications import Starlette

from testbed.dashboard import auxiliary, live
from testbed.dashboard.live import LogTail, SyncMeter, Turns, plan_again, planned_rates
from testbed.dashboard.page import HEIGHT, WIDTH, describe_network, event_text
from testbed.dashboard.replay import frames, read_replay
from testbed.dashboard.server import application, url
from testbed.emulation.waiting import start_ticks
from testbed.events import EventLog, read_events
from testbed.experiments.manifest import read_manifest
from testbed.experiments.run import run_experiment
from testbed.experiments.spec import experiment_from_text
from testbed.report.measurements import LinkSample, beginning, read_run
from testbed.status import JobStatus
from testbed.telemetry.export import JSON_FILE, open_packed
from testbed.telemetry.query import Series
from topologies.errors import DeadlineError, StormbedError
from topologies.load import list_library, load_topology
from topologies.paths import path_sets

RUN = """
name: small
topology: netstorm-9
world: simulated
dynamics: {kind: netstorm, every: 1s}
training: {model: tensor-2m, iterations: 3, chunk_elements: 100000}
schedulers:
  - {name: star, options: {server: first}}
  - netstorm
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_experiment(experiment_from_text(RUN), out=tmp_path_factory.mktemp("runs"))


@pytest.mark.parametrize("name", list_library())
def test_every_site_has_a_place_of_its_own_on_the_canvas(name: str) -> None:
    topology = load_topology(name)
    network = describe_network(topology)
    places = {(site["x"], site["y"]) for site in network["sites"]}
    assert len(places) == len(topology.sites)
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in places)
    assert [(link["src"], link["dst"]) for link in network["links"]] == [
        (link.src, link.dst) for link in topology.directed
    ]


def test_a_replay_has_what_the_run_directory_has(run: Path) -> None:
    document = read_replay(run)
    measured = read_run(run)
    manifest = measured.manifest
    assert (document["mode"], document["world"], document["status"]) == ("replay", "simulated", "completed")
    assert [segment["label"] for segment in document["segments"]] == ["star-first", "netstorm"]
    assert [plan["roots"] for plan in document["plans"]] == [s.plan["roots"] for s in manifest.segments if s.plan]
    assert len(document["syncs"]) == 6
    wanted = [i.synchronisation_s for label in ("star-first", "netstorm") for i in measured.iterations[label]]
    assert [sync["seconds"] for sync in document["syncs"]] == wanted
    # Every byte of links.csv is in the frames.
    carried = sum(sum(frame["achieved_bps"]) * frame["interval_s"] / 8 for frame in document["frames"])
    assert carried == pytest.approx(sum(sample.carried_bytes for sample in measured.links), rel=0.01)
    times = [frame["t"] for frame in document["frames"]]
    assert times == sorted(set(times))
    redraws = [event for event in document["events"] if event["kind"] == "link_changes"]
    rows = [line.split(",")[0] for line in (run / "changes.csv").read_text().splitlines()[1:]]
    wanted_words = [f"{rows.count(t)} directions changed" for t in dict.fromkeys(rows)]
    assert [event["text"] for event in redraws] == wanted_words != []
    assert sorted(document["phases"]) == [f"dc{k}" for k in range(1, 10)]
    assert all(a <= b <= c <= d for rows in document["phases"].values() for a, b, c, d in rows)
    json.dumps(document, allow_nan=False)


def test_the_clock_of_the_links_is_found_from_where_segments_begin(run: Path) -> None:
    """As in an emulated run, whose monotonic clock did not begin with it."""
    manifest = read_manifest(run)
    shifted = manifest.model_copy(
        update={
            "segments": tuple(
                s.model_copy(update={"started_ns": (s.started_ns or 0) + 7_000_000_000_000})
                for s in manifest.segments
            )
        }
    )
    began = beginning(shifted, read_run(run).links)
    assert began == pytest.approx(7_000_000_000_000, abs=2_000_000)
    assert beginning(shifted, ()) == 7_000_000_000_000


def test_a_link_that_was_cut_is_down_until_it_is_mended() -> None:
    topology = load_topology("pair")
    samples = [
        LinkSample(float(t), 1.0, "s", src, dst, 10**8, 5e7, 1, 0)
        for t in (1, 2, 3)
        for src, dst in (("dc1", "dc2"), ("dc2", "dc1"))
    ]
    changes = [
        {"t_s": "1.5", "src": "dc1", "dst": "dc2", "state": "down"},
        {"t_s": "2.5", "src": "dc1", "dst": "dc2", "state": "up"},
    ]
    assert [frame["down"] for frame in frames(topology, samples, changes)] == [[], [0], []]


@pytest.mark.parametrize(
    ("event", "text"),
    [
        ({"kind": "link_set", "src": "a", "dst": "b", "rate_bps": 2e7}, "a > b set to 20 Mbit/s"),
        ({"kind": "link_down", "src": "a", "dst": "b"}, "a - b cut"),
        ({"kind": "blackhole", "src": "a", "dst": "b", "on": True}, "a > b drops everything"),
        ({"kind": "link_reset", "src": None, "dst": None}, "all links reset"),
        ({"kind": "calibrated", "verdict": "faithful"}, "calibrated: faithful"),
        (
            {"kind": "link_changes", "links": [{"src": "a", "dst": "b", "rate_bps": 5e6}]},
            "a > b now 5 Mbit/s",
        ),
        ({"kind": "link_changes", "links": [{"src": "a", "dst": "b", "state": "down"}]}, "a > b: down"),
        ({"kind": "dynamics_start"}, "dynamics start"),
    ],
)
def test_events_in_words(event: dict[str, Any], text: str) -> None:
    assert event_text(event) == text


# --- a testbed that stands ---


def series(name: str, job: str, site: str, value: float) -> Series:
    return Series({"__name__": name, "run": job, "instance": site}, ((0.0, value),))


def job(scheduler: str, segment: str, version: int = 1) -> JobStatus:
    return JobStatus("j", segment, scheduler, 4, version, None)


def test_synchronisations_come_from_the_growth_of_the_slowest_site() -> None:
    meter = SyncMeter()

    def look(t: float, *sites: tuple[str, float, float]) -> Sequence[dict[str, Any]]:
        sums = [series("sum", "j", site, total) for site, total, _ in sites]
        counts = [series("count", "j", site, count) for site, _, count in sites]
        return meter.advance(t, [job("netstorm", "netstorm")], sums, counts)

    assert look(0.0, ("dc1", 10.0, 5), ("dc2", 11.0, 5)) == []
    assert look(1.0, ("dc1", 10.0, 5), ("dc2", 11.0, 5)) == []
    (found,) = look(2.0, ("dc1", 12.0, 7), ("dc2", 14.0, 7))
    assert (found["seconds"], found["scheduler"], found["finished"]) == (1.5, "netstorm", 2)
    # An agent that began anew counts from zero: no negative time comes of it.
    assert look(3.0, ("dc1", 0.0, 0), ("dc2", 0.0, 0)) == []


def test_turns_begin_and_end() -> None:
    turns = Turns()
    (first,) = turns.advance(1.0, [job("star-first", "star-first")])
    assert (first["t0"], first["t1"]) == (1.0, None)
    assert turns.advance(2.0, [job("star-first", "star-first")]) == []
    ended, begun = turns.advance(3.0, [job("netstorm", "netstorm")])
    assert (ended["label"], ended["t1"], begun["label"]) == ("star-first", 3.0, "netstorm")
    assert [turn["t1"] for turn in turns.advance(4.0, [])] == [4.0]
    assert [turn["t1"] for turn in turns.all()] == [3.0, 4.0]


def test_a_plan_is_made_again_from_the_coordinators_rates() -> None:
    topology = load_topology("triangle")
    declared = plan_again(topology, "netstorm", {})
    assert {root["site"] for root in declared["roots"]} <= set(topology.site_names)
    slow = Series({"run": "j", "src": "dc1", "dst": "dc2"}, ((0.0, 1e6),))
    rates = planned_rates([slow, Series({"run": "other", "src": "dc2", "dst": "dc1"}, ((0.0, 1.0),))], "j")
    assert rates == {("dc1", "dc2"): 1e6}
    changed = plan_again(topology, "netstorm", rates)
    used = {(c, p) for root in changed["roots"] for c, p in root["parents"].items()}
    assert ("dc1", "dc2") not in used, "the slow link is in no tree"
    # What plans nothing ahead, or has a name that is not known here, draws no tree.
    assert "roots" not in plan_again(topology, "tsengine", {})
    assert plan_again(topology, "my-own", {}) == {"scheduler": "my-own"}


def test_a_log_is_followed_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    tail = LogTail(path)
    assert tail.news() == []
    path.write_text('{"kind": "a"}\n{"kind": "b"')
    assert [event["kind"] for event in tail.news()] == ["a"]
    with path.open("a") as file:
        file.write("}\nnonsense\n")
    assert [event["kind"] for event in tail.news()] == ["b"]


# --- the server ---


class Ending:
    """A source that is gone at the third look."""

    def __init__(self) -> None:
        self.looks = 0

    def document(self) -> dict[str, Any]:
        return {"sites": [{"t": 0.0}] * self.looks}

    def read(self) -> dict[str, list[dict[str, Any]]]:
        self.looks += 1
        if self.looks == 3:
            raise StormbedError("no testbed 'x' is up")
        return {"events": [{"t": self.looks}]}


def ask(app: Starlette, *requests: tuple[str, dict[str, str]]) -> list[httpx.Response]:
    """The answers to requests made one after the other; a stream is read to its end."""

    async def all_of_them() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8800") as browser:
            return [await browser.get(path, headers=headers) for path, headers in requests]

    return asyncio.run(all_of_them())


def test_a_finished_run_is_served_whole_and_to_this_machine_only(run: Path) -> None:
    document = read_replay(run)
    static = ("app.js", "map.js", "charts.js", "style.css", "uplot.min.js", "uplot.min.css", "uplot.LICENSE")
    whole, stream, page, stranger, *files = ask(
        application(document),
        ("/api/document", {}),
        ("/api/stream", {}),
        ("/", {}),
        # A page of another site that reaches this address by a name of its own gets nothing.
        ("/api/document", {"host": "evil.example"}),
        *((f"/static/{name}", {}) for name in static),
    )
    assert whole.json() == json.loads(json.dumps(document))
    assert stream.status_code == 404
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert stranger.status_code == 400
    assert [answer.status_code for answer in files] == [200] * len(static)


def test_a_standing_testbed_is_streamed_until_it_goes() -> None:
    app = application(None, Ending())
    document, stream, later = ask(app, ("/api/document", {}), ("/api/stream", {}), ("/api/stream", {}))
    assert document.json() == {"sites": [{"t": 0.0}]}
    kinds = [line.removeprefix("event: ") for line in stream.text.splitlines() if line.startswith("event: ")]
    assert kinds == ["update", "gone"]
    assert 'data: {"events":[{"t":2}]}' in stream.text
    assert "no testbed 'x' is up" in stream.text
    # Who comes later is told at once.
    assert "event: gone" in later.text


def test_a_testbed_that_answers_late_is_not_taken_for_gone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said: list[Exception] = [DeadlineError("the supervisor of 'x' to answer 'sample'", 10)] * 2

    class Reader:
        def __init__(self, testbed: object) -> None: ...

        def read(self) -> object:
            raise said.pop()

    monkeypatch.setattr(live, "StatusReader", Reader)
    mine = {"pid": os.getpid(), "started_ticks": start_ticks(os.getpid())}
    info = SimpleNamespace(prometheus_url="http://127.0.0.1:1", **mine)
    topology = load_topology("pair")
    source = live.LiveSource(SimpleNamespace(info=info, run_dir=tmp_path, topology=topology))
    first, second = source.read(), source.read()
    assert [event["level"] for event in first["events"]] == ["warning"]
    assert "answers late" in first["events"][0]["text"]
    assert second["events"] == [], "it is told once"
    # Its process has ended: now it is gone.
    said.append(StormbedError("no testbed 'x' is up"))
    info.started_ticks += 1
    with pytest.raises(StormbedError, match="no testbed 'x' is up"):
        source.read()


class Looks:
    """A status reader whose looks are all alike; `during` happens in the middle of each."""

    during: Callable[[], None] = staticmethod(lambda: None)
    jobs: tuple[JobStatus, ...] = ()

    def __init__(self, testbed: object) -> None: ...

    def read(self) -> SimpleNamespace:
        type(self).during()
        return SimpleNamespace(links=(), sites=(), jobs=self.jobs)


def a_source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, reader: type[Looks]) -> live.LiveSource:
    monkeypatch.setattr(live, "StatusReader", reader)
    info = SimpleNamespace(prometheus_url="http://127.0.0.1:1", pid=None, started_ticks=None)
    return live.LiveSource(SimpleNamespace(info=info, run_dir=tmp_path, topology=load_topology("pair")))


def test_a_change_is_told_with_the_links_as_they_are_after_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One that happens after the links were read is told with the next look, which shows it."""
    log = EventLog(tmp_path / "events.jsonl")

    class Reader(Looks):
        during = staticmethod(lambda: log.write("link_up", src="dc1", dst="dc2"))

    source = a_source(monkeypatch, tmp_path, Reader)
    assert source.read()["events"] == []
    assert [event["kind"] for event in source.read()["events"]] == ["link_up"]


def test_a_coordinator_that_answers_late_is_asked_again_for_the_plan_in_use(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Reader(Looks):
        jobs = (JobStatus("j", "s", "netstorm", 1, 4, None),)

    source = a_source(monkeypatch, tmp_path, Reader)
    monkeypatch.setattr(source._prometheus, "instant", lambda query: ())
    monkeypatch.setattr(live, "ASK_AGAIN_S", 0.0)
    issued: list[dict[str, Any] | None] = [None, None, {"scheduler": "netstorm", "roots": [{"site": "dc2"}]}]
    monkeypatch.setattr(source, "_issued_plan", lambda job: issued.pop(0))
    told = [[plan["source"] for plan in source.read()["plans"]] for _ in range(4)]
    assert told[0] == ["planned again here, from the rates that the coordinator plans with"]
    assert told[1] == [], "it is told once"
    assert told[2] == ["version 4, as the coordinator issued it"]
    assert told[3] == [] and issued == [], "and then nobody is asked again"


def rounds(*flows: tuple[str, str, int, str, list[list[float]]]) -> dict[str, Any]:
    """Metrics as a run keeps them."""
    return {
        "series": [
            {
                "labels": {
                    "__name__": auxiliary.METRIC,
                    "instance": src,
                    "peer": dst,
                    "path": str(path),
                    "auxiliary": of,
                },
                "samples": samples,
            }
            for src, dst, path, of, samples in flows
        ]
    }


def test_chunks_that_go_round_are_told_by_the_sites_they_visit() -> None:
    topology = load_topology("triangle")
    routes = auxiliary.Routes(topology)
    first, second, _ = topology.site_names
    round_, direct = [0, 2, 1], 0
    number = path_sets(topology)[0, 1].index((0, 2, 1))
    assert number != direct
    record = routes.record(3.0, {(first, second, number): 2.5, (first, second, 99): 1.0, ("gone", second, 0): 1.0})
    assert record == {"t": 3.0, "flows": [{"sites": round_, "chunks_per_s": 2.5}]}
    # Of a finished run: a record a second, the last one empty again; what did not grow, and what went its own
    # way, is not among them.
    metrics = rounds(
        (first, second, number, "1", [[100.0, 0], [101.0, 0], [102.0, 6], [103.0, 8], [104.0, 8]]),
        (first, second, 0, "0", [[100.0, 0], [101.0, 50]]),
    )
    found = auxiliary.of_run(metrics, -100.0, routes)
    assert [(record["t"], [flow["chunks_per_s"] for flow in record["flows"]]) for record in found] == [
        (1.0, [6.0]),
        (2.0, [2.0]),
        (3.0, []),
    ]
    assert auxiliary.of_run(rounds(), 0.0, routes) == []
    assert auxiliary.of_series([Series({"instance": first, "peer": second, "path": "1"}, ((5.0, 2.0),))]) == {
        (first, second, 1): 2.0
    }


def test_a_replay_reads_them_from_the_metrics_that_the_run_kept(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    assert read_replay(copy)["auxiliary"] == []
    began_ns = beginning(read_run(copy).manifest, read_run(copy).links)
    event = next(iter(read_events(copy / "events.jsonl")))
    # The moment of unix time at which the run's clock is at 5 s.
    five = float(event["t_s"]) + 5.0 - (int(event["monotonic_ns"]) - began_ns) * 1e-9
    samples = [[five, 0], [five + 1, 4]]
    with open_packed(copy / JSON_FILE, "wt") as file:
        json.dump(rounds(("dc1", "dc2", 1, "1", samples)), file)
    first, last = read_replay(copy)["auxiliary"]
    assert first["t"] == pytest.approx(5.0, abs=1.0) and last["flows"] == []
    topology = load_topology("netstorm-9")
    assert first["flows"] == [{"sites": list(path_sets(topology)[0, 1][1]), "chunks_per_s": 4.0}]


@pytest.mark.parametrize(
    ("host", "address"), [("127.0.0.1", "http://127.0.0.1:8800/"), ("::1", "http://[::1]:8800/")]
)
def test_addresses(host: str, address: str) -> None:
    assert url(host, 8800) == address
