"""Data that make no sense are told in plain words wherever they come in: the object, the field, the fix."""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from agents.job_spec import JobSpec, segment_options
from agents.numpy_worker import Segment as NumpySegment
from agents.numpy_worker import parse_segment as numpy_segment
from agents.options import AuxiliaryOptions, AwarenessOptions, PolicyOptions
from agents.trials import TrialSegment
from agents.worker.segment import parse_segment as torch_segment
from testbed.emulation.rundir import RunDir, read_info
from testbed.experiments.manifest import read_manifest
from testbed.experiments.schema import Experiment
from testbed.experiments.sweep import Sweep, sweep_of
from testbed.timeline import RunDynamics, TimelineEntry
from topologies.dynamics import Dynamics
from topologies.errors import StormbedError
from topologies.model import Topology
from topologies.validation import Unfit, fit

JOB = {"job": "train", "sites": {"dc1": 1}}
SEGMENT = {"label": "a", "iterations": 1, "elements": 1, "model": "mlp-2m"}
DEFAULT = (AwarenessOptions(), AuxiliaryOptions(), PolicyOptions())
MANIFEST = {"schema": 1, "id": "i", "name": "n", "world": "simulated", "started_s": 0, "topology": "pair", "scale": 1}
STATE = {"name": "x", "created_s": 0, "state": "up", "topology": {}, "subnet": "", "interface": "", "sites": {}}


def _manifest(folder: Path) -> Any:
    (folder / "manifest.json").write_text(json.dumps({**MANIFEST, "status": "ended"}))
    return read_manifest(folder)


def _state(folder: Path) -> Any:
    RunDir(folder).state.write_text(json.dumps({**STATE, "state": "upp"}))
    return read_info(RunDir(folder))


DOORS: dict[str, tuple[Callable[[Path], Any], tuple[str, ...]]] = {
    "job": (
        lambda folder: JobSpec.read({**JOB, "chunk_elements": 0}),
        ("job train", "chunk_elements", "greater than or equal to 1, not 0"),
    ),
    "job without a name": (
        lambda folder: JobSpec.read({"sites": {"dc1": 1}}),
        ("job", "the key 'job' is missing", "add it"),
    ),
    "options of a job": (
        lambda folder: JobSpec.read({**JOB, "awareness": {"estimater": "unbiased"}}),
        ("job train", "awareness.estimater", "did you mean estimator?"),
    ),
    "options of a segment": (
        lambda folder: segment_options({"label": "a", "policy": {"switch": "soon"}}, DEFAULT),
        ("segment a", "policy.switch", "should be 'barrier', 'announced' or 'within', not 'soon'"),
    ),
    "segment of numpy": (
        lambda folder: numpy_segment({**SEGMENT, "compute": {"mean_s": -1}}),
        ("segment 'a'", "compute.mean_s", "greater than 0, not -1"),
    ),
    "segment of torch": (
        lambda folder: torch_segment({**SEGMENT, "optimizer": "sdg"}),
        ("segment 'a'", "optimizer", "should be 'sgd' or 'adam', not 'sdg'"),
    ),
    "segment of a trial": (
        lambda folder: TrialSegment.parse({**SEGMENT, "layers": [3, 0]}),
        ("segment 'a'", "layers[1]", "greater than or equal to 1, not 0"),
    ),
    "manifest": (_manifest, ("manifest.json", "status", "'completed'", "not 'ended'", "cannot be read any more")),
    "state of a testbed": (_state, ("testbed.json", "state", "'starting' or 'up', not 'upp'", "testbed clean")),
    "dynamics": (lambda folder: Dynamics.parse("walk?rate=1"), ("dynamics 'walk?rate=1'", "rate", "write")),
    "sweep": (
        lambda folder: sweep_of("quickstart", ["seed=1,1"]),
        ("axes.seed", "the same value twice", "for example --axis"),
    ),
}


@pytest.mark.parametrize("door", DOORS)
def test_what_is_wrong_is_told_in_plain_words(door: str, tmp_path: Path) -> None:
    go, told = DOORS[door]
    with pytest.raises(StormbedError) as caught:
        go(tmp_path)
    text = str(caught.value)
    for words in told:
        assert words in text
    assert "pydantic" not in text and "validation error" not in text and "\n" not in text
    assert caught.value.exit_code == 2


SHIPPED = Path(__file__).parents[3]
WHOLE: dict[type[BaseModel], list[Any]] = {
    JobSpec: [{**JOB, "awareness": {"estimator": "unbiased"}, "auxiliary": "off", "policy": {"switch": "announced"}}],
    NumpySegment: [{**SEGMENT, "elements": [3, 4], "compute": {"mean_s": 1, "sites": {"dc1": {"mean_s": 2}}}}],
    TrialSegment: [{**SEGMENT, "layers": [3, 4]}],
    Experiment: [yaml.safe_load(file.read_text()) for file in SHIPPED.glob("testbed/experiments/library/*.yaml")],
    Topology: [yaml.safe_load(file.read_text()) for file in SHIPPED.glob("topologies/library/*.yaml")],
    Sweep: [{"name": "a", "experiment": "e", "axes": {"seed": [1, 2]}}],
    TimelineEntry: [{"at": "1s", "action": "link-set", "link": "a-b", "rate": "5mbit", "for": "2s"}],
    RunDynamics: [{"kind": "uniform", "every": "1s", "rate": "20mbit..30mbit"}],
}
# All that a YAML file may hold, dates, sets and bytes included.
JUNK = [
    *(None, True, -1, 3.5, float("nan"), float("inf"), 10**30, "", "x", "off", "ä\n", b"x", date(2020, 1, 1)),
    *([], [1], [None], {}, {"a": 1}, {1: 2}, {"name": "x"}, {1, 2}),
]


def _places(data: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inside = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in inside:
        yield (*place, key)
        yield from _places(value, (*place, key))


def _spoilt(rng: random.Random, data: Any) -> Any:
    """The same with one to three of its values replaced, left out, or joined by a key that does not belong."""
    data = copy.deepcopy(data)
    for _ in range(rng.randint(1, 3)):
        places = list(_places(data))
        if not places:
            return data
        *above, key = rng.choice(places)
        held = data
        for part in above:
            held = held[part]
        match rng.randrange(3):
            case 0:
                held[key] = copy.deepcopy(rng.choice(JUNK))
            case 1:
                del held[key]
            case _ if isinstance(held, dict):
                held[rng.choice(["nosuch", "naem", 3])] = copy.deepcopy(rng.choice(JUNK))
    return data


@pytest.mark.parametrize("model", WHOLE, ids=lambda model: f"{model.__module__}.{model.__name__}")
def test_whatever_is_wrong_there_are_words_for_it(model: type[BaseModel]) -> None:
    rng, refused = random.Random(7), 0
    for _ in range(500):
        data = _spoilt(rng, rng.choice(WHOLE[model]))
        try:
            fit(model, data)
        except Unfit as unfit:
            refused += 1
            # No name of pydantic's for what it has tried, and one line.
            raw = re.search(r"function-|literal\[|constrained|chain\[|lax-or|nonetype|\n", str(unfit).lower())
            assert raw is None, (str(unfit), data)
    assert refused > 100
