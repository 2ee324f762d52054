"""Data that make no sense are told in plain words wherever they come in: the object, the field, the fix."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agents.job_spec import JobSpec, segment_options
from agents.numpy_worker import parse_segment as numpy_segment
from agents.options import AuxiliaryOptions, AwarenessOptions, PolicyOptions
from agents.trials import TrialSegment
from agents.worker.segment import parse_segment as torch_segment
from testbed.emulation.rundir import RunDir, read_info
from testbed.experiments.manifest import read_manifest
from testbed.experiments.sweep import sweep_of
from topologies.dynamics import Dynamics
from topologies.errors import StormbedError

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
