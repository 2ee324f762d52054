"""Schedulers of other distributions: the example of docs/write-a-scheduler.md, installed and run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from agents.planning import registry
from testbed.experiments.spec import SchedulerEntry
from topologies.errors import UsageError

PAGE = Path(__file__).parents[4] / "docs" / "write-a-scheduler.md"
SITES = ("dc1", "dc2")
Install = Callable[..., Path]


def example_files() -> dict[str, str]:
    """The files that the page shows, by name."""
    found = re.findall(r"`([\w.]+)`\n\n```\w+\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return dict(found)


def test_the_labels_that_the_page_shows_are_labels() -> None:
    (block,) = re.findall(r"```yaml\n(schedulers:.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    entries = [entry for entry in yaml.safe_load(block)["schedulers"] if isinstance(entry, dict)]
    assert entries
    for entry in entries:
        assert SchedulerEntry.model_validate(entry).label == entry["label"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example, installed by pip into a folder of its own."""
    source = tmp_path_factory.mktemp("source")
    for name, text in example_files().items():
        (source / name).write_text(text, encoding="utf-8")
    target = tmp_path_factory.mktemp("target")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--no-index", "--target", str(target), str(source)], check=True, timeout=120)
    return target


def run(program: list[str], installed: Path, folder: Path) -> str:
    """A Python program outside the source tree that has the example on its path."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(installed), str(PAGE.parents[1])])}
    done = subprocess.run(
        [sys.executable, *program], cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_example_is_short() -> None:
    files = example_files()
    assert set(files) == {"pyproject.toml", "widest.py"}
    assert len(files["widest.py"].splitlines()) < 60


def test_it_is_found_by_name_and_planned(installed: Path, tmp_path: Path) -> None:
    command = ["plan", "netstorm-9", "--scheduler", "widest", "--option", "root=dc4", "--format", "json"]
    document = json.loads(run(["-m", "testbed", *command], installed, tmp_path))
    (root,) = document["roots"]
    assert (document["scheduler"], root["site"], root["share"]) == ("widest", "dc4", 1.0)
    assert sum(parent is None for parent in root["parents"].values()) == 1


def test_it_runs_in_the_simulated_world(installed: Path, tmp_path: Path) -> None:
    program = """
from agents.planning.registry import scheduler_names, scheduler_style, scheduler_summary
from testbed.simulation.synchronise import synchronise
from topologies.load import load_topology
assert scheduler_names()[-1] == "widest"
assert scheduler_style("widest+slack").colour == "#882255"
topology = load_topology("netstorm-9")
for spec in ("widest", {"name": "widest", "options": {"root": "dc9", "link_order": "slack"}}):
    result = synchronise(topology, spec, 1_000_003, 10_007)
    print(result.scheduler, result.seconds)
"""
    lines = run(["-c", program], installed, tmp_path).split("\n")
    assert lines[0].startswith("widest ")
    assert lines[1].startswith("widest+slack ")
    assert all(float(line.split()[1]) > 0 for line in lines[:2])


# ---- distributions that are wrong


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """A distribution written by hand: entry points, and one module."""

    def write(entry_points: str, module: str = "", name: str = "broken", folder: str = "a") -> Path:
        site = tmp_path / folder
        info = site / f"{name}-2.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 2.0\n")
        (info / "entry_points.txt").write_text(f"[stormbed.schedulers]\n{entry_points}\n")
        (site / f"{name}_scheduler.py").write_text(module)
        monkeypatch.syspath_prepend(str(site))
        return site

    yield write
    for name in [name for name in sys.modules if name.endswith("_scheduler")]:
        del sys.modules[name]
    registry._load.cache_clear()


ENTRY = """
from agents.planning.netstorm import NetStorm
from agents.planning.registry import Entry, Style
ENTRY = Entry("{name}", "a test", Style("{colour}", "o"), NetStorm.from_options)
"""


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("import no_such_module", "cannot be loaded: ModuleNotFoundError: No module named 'no_such_module'"),
        ("1 / 0", "cannot be loaded: ZeroDivisionError"),
        ("", "cannot be loaded: AttributeError"),
        ("ENTRY = 3", "is of type int, not an Entry"),
        (ENTRY.format(name="other", colour="#112233"), "calls itself 'other'"),
        (ENTRY.format(name="mine", colour="blue"), "colour 'blue' and marker 'o' make no style"),
    ],
)
def test_a_broken_one_is_named_and_disturbs_nobody_else(install: Install, module: str, message: str) -> None:
    install("mine = broken_scheduler:ENTRY", module)
    assert registry.get_scheduler("netstorm", SITES).name == "netstorm"
    assert "mine" in registry.scheduler_names()
    with pytest.raises(UsageError, match=re.escape(message)) as caught:
        registry.get_scheduler("mine", SITES)
    assert "'mine' (broken_scheduler:ENTRY) of the distribution broken 2.0" in str(caught.value)


def test_a_name_of_ours_cannot_be_taken(install: Install) -> None:
    install("netstorm = broken_scheduler:ENTRY")
    assert registry.get_scheduler("netstorm", SITES).name == "netstorm"
    with pytest.raises(UsageError, match=r"distribution broken 2\.0: stormbed has a scheduler of this name"):
        registry.scheduler_names()


def test_two_distributions_with_one_name(install: Install) -> None:
    install("mine = broken_scheduler:ENTRY")
    install("mine = other_scheduler:ENTRY", name="other", folder="b")
    with pytest.raises(UsageError, match="have the same name"):
        registry.get_scheduler("mine", SITES)


def test_a_good_one_takes_link_order_and_no_unknown_option(install: Install) -> None:
    install("mine = broken_scheduler:ENTRY", ENTRY.format(name="mine", colour="#112233"))
    spec = {"name": "mine", "options": {"link_order": "index"}}
    assert registry.get_scheduler(spec, SITES).name == "netstorm+index"
    with pytest.raises(UsageError, match="no option 'roots'"):
        registry.get_scheduler({"name": "mine", "options": {"roots": 1}}, SITES)
