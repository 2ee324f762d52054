"""The status: what counters and metrics come to, and how it is drawn."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from testbed import status
from testbed.cli.scroll import Scroll, Window
from testbed.cli.status import render
from testbed.parts import ended_parts
from testbed.status import JobStatus, LinkStatus, SiteStatus, Snapshot
from testbed.supervisor.link_verbs import _in_words
from testbed.telemetry.query import Series
from testbed.timeline import RunDynamics


def row(src: str, dst: str, rate_bps: float = 100e6, **changes: Any) -> dict[str, Any]:
    values = {"src": src, "dst": dst, "rate_bps": rate_bps, "delay_s": 0.01, "state": "up"}
    values |= {"jitter_s": 0.0, "loss_ratio": 0.0, "loss_burst": None}
    return values | {"counters": {"backlog_bytes": 5000}} | changes


def test_rates_are_differences_over_the_time_between_two_looks() -> None:
    before = {("a", "b"): (1_000_000, 3), ("b", "a"): (0, 0)}
    now = {("a", "b"): (13_500_000, 7), ("b", "a"): (0, 0)}
    forward, backward = status.link_statuses([row("a", "b"), row("b", "a")], before, now, 2.0)
    assert forward.achieved_bps == pytest.approx(50e6)
    assert forward.utilisation_ratio == pytest.approx(0.5)
    assert (forward.drops, forward.drops_per_s) == (7, 2.0)
    assert backward.achieved_bps == 0


def test_jitter_and_loss_are_shown_where_there_are_any() -> None:
    rows = [row("a", "b", jitter_s=0.002, loss_ratio=0.015, loss_burst=8.0), row("b", "a")]
    links = status.link_statuses(rows, None, {("a", "b"): (10, 1), ("b", "a"): (0, 0)}, 0.0)
    text = drawn(replace(snapshot(), links=links))
    assert "jitter" in text and "loss %" in text
    forward, backward = (line.split() for line in text.splitlines() if line.split()[:1] in (["a"], ["b"]))
    assert forward[6:11] == ["10", "2", "1.5", "burst", "8"]
    assert backward[6:9] == ["10", "-", "-"]
    assert "jitter" not in drawn(snapshot()) and "loss" not in drawn(snapshot())


def test_the_first_look_has_no_rates() -> None:
    (link,) = status.link_statuses([row("a", "b")], None, {("a", "b"): (10, 1)}, 0.0)
    assert (link.achieved_bps, link.utilisation_ratio, link.drops_per_s, link.drops) == (None, None, None, 1)


def test_counters_that_went_back_are_not_negative_rates() -> None:
    (link,) = status.link_statuses([row("a", "b")], {("a", "b"): (100, 9)}, {("a", "b"): (10, 1)}, 1.0)
    assert (link.achieved_bps, link.drops_per_s) == (0, 0)


def test_jobs_come_from_the_agents_metrics() -> None:
    def series(value: float, **labels: str) -> Series:
        return Series({"job": "agent", "run": "r1", **labels}, ((100.0, value),))

    metrics = dict.fromkeys(status.JOB_QUERIES, ())
    segments, iterations, versions, seconds = status.JOB_QUERIES
    metrics[segments] = (series(1, segment="netstorm-1", scheduler="netstorm"),)
    metrics[iterations] = (series(7),)
    metrics[versions] = (series(2),)
    metrics[seconds] = (series(0.25),)
    assert status.job_statuses(metrics) == (JobStatus("r1", "netstorm-1", "netstorm", 7, 2, 0.25),)
    # 0/0 while nothing is synchronised
    metrics[seconds] = (series(float("nan")),)
    assert status.job_statuses(metrics)[0].synchronisation_s is None


def test_a_process_of_the_testbed_that_ended_is_named_and_one_of_a_user_is_not() -> None:
    processes = [
        {"name": "agent", "site": "dc2", "status": -9},
        {"name": "agent", "site": "dc1", "status": None},
        {"name": "controller", "site": None, "status": 1},
        {"name": "iperf3", "site": "dc1", "status": 0},
    ]
    assert ended_parts(processes) == ("agent of dc2", "controller")


@pytest.mark.skipif(os.geteuid() != 0, reason="another namespace needs root: this claim is UNVERIFIED here")
def test_use_of_a_site_counts_its_processes_and_its_distinct_workers() -> None:
    script = (
        "STORMBED_WORKER=0 sleep 60 & STORMBED_WORKER=0 sleep 60 & STORMBED_WORKER=1 sleep 60 & "
        "echo ready; wait"
    )
    shell = subprocess.Popen(
        ["unshare", "--net", "sh", "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert shell.stdout is not None
        shell.stdout.readline()
        inode = Path(f"/proc/{shell.pid}/ns/net").stat().st_ino
        deadline = time.monotonic() + 20
        while len(status.site_uses({inode: "dc1"})["dc1"].workers) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        use = status.site_uses({inode: "dc1"})["dc1"]
        assert use.processes == 4
        assert use.workers == {"0", "1"}
        assert use.rss_bytes > 0
    finally:
        os.killpg(shell.pid, 9)
        shell.wait()


# --- Drawing ----------------------------------------------------------------------------------------------


def snapshot(links: int = 26, **changes: Any) -> Snapshot:
    values: dict[str, Any] = {
        "name": "try",
        "topology": "netstorm-9",
        "up_s": 75.0,
        "healthy": True,
        "ended_processes": (),
        "fidelity": {"verdict": "faithful"},
        "prometheus_url": "http://10.199.0.253:9090",
        "page_url": "http://127.0.0.1:8800/",
        "ssh_config": "/run/stormbed/try/ssh_config",
        "prometheus_up": True,
        "dynamics": None,
        "links": tuple(
            LinkStatus("dc1", f"x{k}", "up", 1e8, 0.01, k * 1e6, k / 100, 0, 0, 0.0) for k in range(links)
        ),
        "sites": tuple(
            SiteStatus(f"dc{k}", f"10.0.0.{k}", f"10.199.0.{k}", True, 1, 3, 0.5, 10**8) for k in range(1, 10)
        ),
        "jobs": (JobStatus("r1", "netstorm-1", "netstorm", 7, 2, 0.25),),
    }
    return Snapshot(**(values | changes))


def drawn(shown: Snapshot, size: tuple[int, int] | None = None) -> str:
    console = Console(width=size[0] if size else 200, record=True, file=io.StringIO())
    console.print(render(shown, size))
    return console.export_text()


def test_the_picture_names_scheduler_iteration_and_synchronisation_time() -> None:
    text = drawn(snapshot())
    for word in ("netstorm-1", "0.250", "faithful", "1m15s", "x25", "25%", "live page http://127.0.0.1:8800/"):
        assert word in text


@pytest.mark.parametrize("size", [(80, 24), (100, 50), (140, 24), (200, 60)])
@pytest.mark.parametrize("loss_ratio", [0.0, 0.015])
def test_the_picture_fits_the_screen_and_keeps_the_busiest_links(size: tuple[int, int], loss_ratio: float) -> None:
    shown = snapshot()
    links = tuple(replace(link, loss_ratio=loss_ratio, jitter_s=loss_ratio) for link in shown.links)
    text = drawn(replace(shown, links=links), size)
    assert len(text.splitlines()) <= size[1]
    assert "x25" in text


MANY = snapshot(
    80,
    sites=tuple(
        SiteStatus(f"site-{k}", f"10.0.0.{k}", f"10.199.0.{k}", True, 1, 3, k / 64, 10**8) for k in range(1, 25)
    ),
)


def on_screen(shown: Snapshot, size: tuple[int, int], scroll: Scroll) -> list[str]:
    """The lines of the terminal, as `status --watch` draws them."""
    console = Console(width=size[0], height=size[1], record=True, file=io.StringIO())
    console.print(Window(render(shown, None if scroll.top else size), size[1], scroll), end="")
    return console.export_text().splitlines()


@pytest.mark.parametrize("size", [(80, 24), (60, 16), (140, 40)])
def test_many_sites_and_links_fit_any_screen_and_can_all_be_scrolled_to(size: tuple[int, int]) -> None:
    scroll = Scroll()
    lines = on_screen(MANY, size, scroll)
    assert len(lines) <= size[1]
    assert "q ends" in lines[-1]
    if size[0] >= 80 and size[1] >= 24:
        assert any("x79" in line for line in lines), "the busiest link is shown first"
        assert any("site-24" in line for line in lines), "and the busiest site"
    seen: set[str] = set()
    for _ in range(60):
        at = scroll.top
        scroll.press(" ")
        lines = on_screen(MANY, size, scroll)
        assert len(lines) <= size[1]
        seen.update(word for line in lines for word in line.split())
        if scroll.top == at:
            break
    assert {f"x{k}" for k in range(80)} | {f"site-{k}" for k in range(1, 25)} <= seen
    scroll.press("g")
    assert scroll.top == 0


def test_keys_that_do_not_move() -> None:
    scroll = Scroll(lines=100, height=24)
    assert not scroll.press("x") and not scroll.press("")
    assert scroll.press("G") and scroll.top == 78
    assert scroll.press("b") and scroll.top == 56
    assert scroll.press("j") and scroll.press("k") and scroll.top == 56


def test_what_is_wrong_is_said() -> None:
    text = drawn(snapshot(healthy=False, ended_processes=("agent of dc2",), prometheus_up=False, jobs=()))
    for words in ("unhealthy", "agent of dc2", "Prometheus does not answer", "no run is going on"):
        assert words in text


def test_importing_the_package_is_light() -> None:
    code = (
        "import sys, testbed; "
        "sys.exit(', '.join({'mininet', 'torch', 'fabric', 'rich', 'typer'} & set(sys.modules)) or None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_how_links_change_is_shown() -> None:
    playing = {"owner": "standing", "text": "uniform?every=10s", "steps": 12, "failure": None}
    assert "links change by themselves: uniform?every=10s, 12 steps so far" in drawn(snapshot(dynamics=playing))
    assert "(of the run)" in drawn(snapshot(dynamics=playing | {"owner": "run"}))
    assert "no longer change by themselves: tc failed" in drawn(snapshot(dynamics=playing | {"failure": "tc failed"}))
    assert "by themselves" not in drawn(snapshot())


def test_what_makes_the_links_change_is_said_in_words() -> None:
    uniform = RunDynamics.model_validate({"kind": "uniform", "every": "10s"})
    assert _in_words(RunDynamics.model_validate("none"), 1) == "a timeline of 1 entry"
    assert _in_words(uniform, 0) == str(uniform)
    assert _in_words(uniform, 2) == f"{uniform} and a timeline of 2 entries"
