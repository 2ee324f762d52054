"""The page of a run: from files alone, asking nothing of the network."""

from __future__ import annotations

import re
import shutil
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agents.planning.registry import scheduler_style
from testbed.cli import build
from testbed.experiments.manifest import LINKS, TOPOLOGY
from testbed.experiments.run import run_experiment
from testbed.experiments.spec import experiment_from_text
from testbed.report.bounds import bounds_of
from testbed.report.figures_links import Stretch, coarser, stretches
from testbed.report.html import PAGE, render_page
from testbed.report.measurements import LinkSample
from topologies.errors import InvalidFileError

EXPERIMENT = """
name: small
topology: triangle
world: simulated
repeats: 2
training: {model: mlp-2m, iterations: 2, compute: {mean: 20ms, cv: 0.2}}
schedulers: [star-first, {name: netstorm, label: trees}, ring]
timeline:
  - {at: 0.2s, action: link-set, link: [dc1, dc2], rate: 20mbit}
"""


@pytest.fixture(scope="module")
def run_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_experiment(experiment_from_text(EXPERIMENT), out=tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def page(run_directory: Path) -> str:
    return render_page(run_directory, bounds_of)


class Reader(HTMLParser):
    """Ids, links within the page, and whatever a browser would fetch."""

    VOID = frozenset({"meta", "link", "img", "br", "path", "use", "rect"})

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.inner: set[str] = set()
        self.fetched: list[str] = []
        self.tags: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)
        for key, value in attrs:
            text = value or ""
            if key == "id":
                self.ids.append(text)
            elif key in ("href", "xlink:href") and text.startswith("#"):
                self.inner.add(text[1:])
            elif key in ("src", "href", "xlink:href", "srcset", "data", "poster"):
                self.fetched.append(text)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    assert reader.open == []
    return reader


def test_the_page_asks_nothing_of_the_network(page: str) -> None:
    reader = read(page)
    assert reader.fetched
    assert all(text.startswith("data:") for text in reader.fetched)
    assert "script" not in reader.tags
    assert not re.search(r"@import|url\((?!#)", page)


def test_ids_are_unique_and_every_inner_link_has_its_end(page: str) -> None:
    reader = read(page)
    assert len(reader.ids) == len(set(reader.ids))
    assert reader.inner <= set(reader.ids)
    assert set(re.findall(r"url\(#([^)]+)\)", page)) <= set(reader.ids)


def test_every_figure_is_there_and_is_vectors_in_the_colours_of_the_page(page: str) -> None:
    drawings = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    labels = [match[1] for one in drawings if (match := re.match(r'<svg role="img" aria-label="([^"]+)"', one))]
    assert len(labels) == len(drawings) == 4, labels
    for one in drawings:
        ET.fromstring(one)
        assert "<image" not in one
        # A stand-in that no variable took the place of would be black on black.
        assert not re.search(r"#0102[0-9a-f]{2}", one)
        assert "var(--ink)" in one


def test_a_scheduler_has_its_own_colour_also_under_a_label(page: str) -> None:
    sync = re.search(r'<section class="card" id="synchronisation">.*?</section>', page, re.DOTALL)
    assert sync is not None
    assert scheduler_style("netstorm").colour.lower() in sync[0]
    assert scheduler_style("star-first").colour.lower() in sync[0]
    assert "trees" in sync[0]
    # Black would be lost on a dark page; so would what has no fill of its own.
    assert "fill: var(--black)" in sync[0] and "stroke: var(--black)" in sync[0] and "#000000" not in sync[0]


def test_the_page_is_the_same_from_a_copy_elsewhere(run_directory: Path, page: str, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere"
    shutil.copytree(run_directory, copy)
    assert render_page(copy, bounds_of) == page


def test_text_of_files_cannot_become_markup(run_directory: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run_directory, copy)
    manifest = copy / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"name": "small"', '"name": "<script>alert(1)</script>"'))
    assert "<script" not in render_page(copy)


def test_without_samples_there_is_no_heat_map_but_a_page(run_directory: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run_directory, copy)
    (copy / LINKS).unlink()
    page = render_page(copy)
    read(page)
    assert 'id="utilisation"' not in page
    assert 'id="synchronisation"' in page


def test_without_a_topology_the_file_is_named(run_directory: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run_directory, copy)
    (copy / TOPOLOGY).unlink()
    with pytest.raises(InvalidFileError, match=TOPOLOGY):
        render_page(copy)


def sample(t: float, achieved: float, configured: int = 100) -> LinkSample:
    return LinkSample(t, 1.0, "s", "a", "b", configured, achieved, 0, 0)


def test_neighbours_of_one_level_are_one_stretch_and_gaps_stay_gaps() -> None:
    samples = [sample(1, 10), sample(2, 30), sample(3, 99), sample(5, 98), sample(6, 0)]
    assert stretches(samples, [("a", "b")]) == [
        Stretch(0, 1, 0.0, 2),
        Stretch(0, 4, 2.0, 3),
        Stretch(0, 4, 4.0, 5),
        Stretch(0, 0, 5.0, 6),
    ]


def test_the_verb_writes_beside_the_run_or_where_it_is_told(run_directory: Path, tmp_path: Path) -> None:
    runner, app = CliRunner(), build()
    assert runner.invoke(app, ["report", str(run_directory), "--html"]).exit_code == 0
    assert (run_directory / PAGE).read_text(encoding="utf-8").startswith("<!doctype html>")
    other = tmp_path / "page.html"
    told = runner.invoke(app, ["report", str(run_directory), "--out", str(other), "--format", "json"])
    assert told.exit_code == 0 and f'"path": "{other}"' in told.stdout
    assert other.read_text(encoding="utf-8") == (run_directory / PAGE).read_text(encoding="utf-8")


def test_a_long_run_is_drawn_coarser_but_no_sample_crosses_the_end_of_a_turn() -> None:
    samples = [sample(1, 10), sample(2, 30), sample(3, 50), replace(sample(4, 70), segment="other")]
    assert coarser(samples, 0.5) == samples
    assert [(one.t_s, one.interval_s, one.achieved_bps, one.segment) for one in coarser(samples, 2)] == [
        (2, 2.0, 20.0, "s"),
        (3, 1.0, 50, "s"),
        (4, 1.0, 70, "other"),
    ]
