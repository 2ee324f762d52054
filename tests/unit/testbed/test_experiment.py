"""Experiment files: what is accepted, what is refused and how it is said, and the turns they come to."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from testbed.experiments.models import parameter_count
from testbed.experiments.spec import (
    LIBRARY,
    Experiment,
    experiment_from_text,
    list_experiments,
    load_experiment,
    open_experiment,
)
from topologies.errors import InvalidFileError

BASE = "name: x\ntopology: pair\ntraining: {model: mlp-2m}\n"


@pytest.mark.parametrize("name", list_experiments())
def test_library_experiments_are_valid(name: str) -> None:
    assert load_experiment(name).name == name


def test_the_quickstart_is_what_the_readme_says() -> None:
    experiment = open_experiment("quickstart")
    assert experiment.spec.topology == "netstorm-9"
    assert experiment.spec.training.model == "mlp-2m"
    assert experiment.spec.training.chunk_elements == 100_000
    assert [(s.label, s.iterations, s.warmup) for s in experiment.segments] == [
        ("star-first", 3, 0),
        ("netstorm", 10, 0),
    ]


def test_defaults_are_written_out_and_read_back_the_same() -> None:
    loaded = experiment_from_text(BASE + "schedulers: [netstorm]\n")
    resolved = loaded.resolved_yaml()
    plain = yaml.safe_load(resolved)
    assert plain["training"]["compute"] == "real"
    assert plain["training"]["chunk_elements"] == 100_000
    assert plain["schedulers"][0]["name"] == "netstorm"
    assert plain["coordinator"] == "management"
    assert Experiment.model_validate(plain) == loaded.spec


def test_segments_follow_the_declared_order_and_every_repeat_has_its_seed() -> None:
    text = (
        BASE + "schedulers: [{name: star, iterations: 2}, {name: netstorm, warmup: 1}]\nrepeats: 2\nseed: 7\n"
    )
    segments = experiment_from_text(text).segments
    assert [segment.label for segment in segments] == [
        "star-first#1",
        "netstorm#1",
        "star-first#2",
        "netstorm#2",
    ]
    assert [segment.iterations for segment in segments] == [2, 10, 2, 10]
    assert [segment.warmup for segment in segments] == [0, 1, 0, 1]
    assert [segment.seed for segment in segments] == [7, 7, 8, 8]
    assert segments[0].scheduler == {"name": "star", "options": {}}


def test_turns_are_shuffled_by_the_seed_of_their_repeat() -> None:
    schedulers = "schedulers: [star-first, star-best, star-all, mlnet, ring, netstorm, packing]\n"
    text = BASE + schedulers + "repeats: 5\n"
    declared = experiment_from_text(text)
    assert declared.turns == declared.segments
    shuffled = experiment_from_text(text + "order: shuffled\n")
    assert shuffled.segments == declared.segments, "reports keep the order of the file"
    orders = []
    for repeat in range(5):
        turns = shuffled.turns[7 * repeat : 7 * repeat + 7]
        assert {turn.repeat for turn in turns} == {repeat}
        orders.append(tuple(turn.shown for turn in turns))
        assert sorted(orders[-1]) == sorted(segment.shown for segment in shuffled.segments[:7])
    assert len(set(orders)) == 5
    assert experiment_from_text(text + "order: shuffled\n").turns == shuffled.turns
    another = experiment_from_text(text + "order: shuffled\nseed: 8\n").turns
    assert [turn.shown for turn in another] != [turn.shown for turn in shuffled.turns]


def test_scale_multiplies_every_rate() -> None:
    plain = experiment_from_text(BASE + "schedulers: [netstorm]\n").topology
    half = experiment_from_text(BASE + "schedulers: [netstorm]\nscale: 0.5\n").topology
    assert {arc: rate // 2 for arc, rate in plain.rates().items()} == half.rates()


def test_compute_time_per_site() -> None:
    text = BASE.replace("mlp-2m", "mlp-2m, compute: {mean: 200ms, cv: 0.1, sites: {dc2: 1s}}")
    compute = experiment_from_text(text + "schedulers: [netstorm]\n").spec.training.compute
    assert compute.mean is not None
    assert (compute.mean.seconds, compute.cv, compute.sites["dc2"].seconds) == (0.2, 0.1, 1.0)
    assert not compute.real


def test_sizes_of_a_tensor_model() -> None:
    training = load_experiment("exactness").training
    assert training.numpy_only
    assert training.tensors == (1, 1_234_567, 2_000_000)
    assert load_experiment("quickstart").training.tensors == ()


def test_every_size_of_a_tensor_model_is_a_segment_of_its_own() -> None:
    segments = open_experiment("exactness").segments
    assert [(segment.label, segment.elements) for segment in segments[:3]] == [
        ("star-first/1", 1),
        ("star-first/1234567", 1_234_567),
        ("star-first/2000000", 2_000_000),
    ]
    assert len(segments) == 6


def test_overrides_replace_top_level_keys() -> None:
    experiment = open_experiment("tiny-pair", {"repeats": 2, "scale": 0.5})
    assert (experiment.spec.repeats, experiment.spec.scale) == (2, 0.5)
    assert "repeats" not in experiment.text


def test_a_topology_file_is_looked_up_beside_the_experiment(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        "name: mine\nsites: {a: {}, b: {}}\nlinks: [{endpoints: [a, b], rate: 10mbit}]\n"
    )
    (tmp_path / "e.yaml").write_text(BASE.replace("pair", "mine.yaml") + "schedulers: [netstorm]\n")
    assert open_experiment(tmp_path / "e.yaml").topology.site_names == ("a", "b")


REFUSED = {
    "unknown key": ("schedulers: [netstorm]\nrepeat: 3\n", "unknown key 'repeat'", "did you mean repeats?"),
    "unknown scheduler": (
        "schedulers: [netstrom]\n",
        "schedulers[0]: unknown scheduler 'netstrom'",
        "netstorm?",
    ),
    "unknown option": (
        "schedulers: [{name: star, options: {srever: first}}]\n",
        "scheduler star has no option 'srever'",
        "server",
    ),
    "unknown entry key": (
        "schedulers: [{name: star, iteratoins: 3}]\n",
        "schedulers[0].iteratoins: unknown key",
        "did you mean iterations?",
    ),
    "same name twice": (
        "schedulers: [star, star-first]\n",
        "schedulers[1]: two turns would both be shown as 'star-first'",
        "`label`",
    ),
    "not a list": ("schedulers: netstorm\n", "schedulers: this is a text, not a list", ""),
    "no scheduler": ("schedulers: []\n", "schedulers: ", ""),
    "all warm-up": ("schedulers: [{name: star, warmup: 10}]\n", "10 of 10 leave none to measure", ""),
    "dynamics": ("schedulers: [star]\ndynamics: {kind: uniform, evry: 3s}\n", "unknown key 'evry'", "every?"),
    "dynamics of another network": ("schedulers: [star]\ndynamics: netstorm\n", "not for pair", "uniform"),
    "trace": ("schedulers: [star]\ndynamics: {kind: trace, path: no.csv}\n", "no.csv", ""),
    "timeline": ("schedulers: [star]\ntimeline: [{at: 3s}]\n", "timeline[0]", "action"),
    "timeline's link": (
        "schedulers: [star]\ntimeline: [{at: 3s, action: link-down, link: dc1-dc3}]\n",
        "timeline[0].link: pair has no link 'dc1-dc3'",
        "",
    ),
    "coordinator": (
        "schedulers: [star]\ncoordinator: dc77\n",
        "pair has no site 'dc77' for the coordinator",
        "dc",
    ),
    "coordinator's place": ("schedulers: [star]\ncoordinator: {at: dc1}\n", "at a site: {site: NAME}", ""),
    "order": ("schedulers: [star]\norder: random\n", "'declared' or 'shuffled'", ""),
    "world": ("schedulers: [star]\nworld: moon\n", "'emulated' or 'simulated'", ""),
    "scale": ("schedulers: [star]\nscale: 0\n", "should be greater than 0", ""),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    text, message, hint = REFUSED[case]
    with pytest.raises(InvalidFileError) as caught:
        experiment_from_text(BASE + text)
    assert message in caught.value.message
    assert hint in f"{caught.value.message} {caught.value.hint}"


TRAINING_REFUSED = {
    "unknown model": ("model: resnet-50", "unknown model 'resnet-50'", ""),
    "images for a model of text": (
        "model: textcnn, data: digits",
        "training: model textcnn reads text, not digits; write data: docstrings",
        "",
    ),
    "text for a model of images": ("model: cnn, data: docstrings", "model cnn reads images, not docstrings", ""),
    "model too small": ("model: mlp-10", "unknown model 'mlp-10'", ""),
    "misspelt key": ("modle: mlp-2m", "training.modle: unknown key 'modle'", "did you mean model?"),
    "bare compute": (
        "model: mlp-2m, compute: {mean: 5}",
        "training.compute.mean: 5 is a bare number",
        "10ms",
    ),
    "compute without mean": (
        "model: mlp-2m, compute: {cv: 0.1}",
        "training.compute: a declared compute time",
        "",
    ),
    "compute word": ("model: mlp-2m, compute: fast", "'fast' is neither the word real", ""),
    "compute of zero": ("model: mlp-2m, compute: {mean: 0ms}", "mean: a declared compute time is above", ""),
    "unknown site": (
        "model: mlp-2m, compute: {mean: 5ms, sites: {dc9: 4ms}}",
        "training.compute.sites.dc9: pair has no site 'dc9'",
        "did you mean dc",
    ),
}


@pytest.mark.parametrize("case", TRAINING_REFUSED)
def test_training_refused(case: str) -> None:
    training, message, hint = TRAINING_REFUSED[case]
    with pytest.raises(InvalidFileError) as caught:
        experiment_from_text(f"name: x\ntopology: pair\ntraining: {{{training}}}\nschedulers: [netstorm]\n")
    assert message in caught.value.message
    assert "line 3" in caught.value.message
    assert hint in f"{caught.value.message} {caught.value.hint}"


def test_unknown_experiment_and_topology() -> None:
    with pytest.raises(InvalidFileError, match="did you mean quickstart"):
        load_experiment("quikstart")
    with pytest.raises(
        InvalidFileError, match=r"line 2: topology: there is no topology 'pare'.*did you mean pair"
    ):
        experiment_from_text(BASE.replace("pair", "pare") + "schedulers: [netstorm]\n")
    with pytest.raises(InvalidFileError, match="there is no file"):
        load_experiment("nowhere/e.yaml")


def test_library_names_are_file_names() -> None:
    assert set(list_experiments()) == {path.stem for path in LIBRARY.glob("*.yaml")}


@pytest.mark.parametrize("model", ["2nn", "cnn", "textcnn", "mlp-2m", "mlp-500k", "mlp-1234567", "mlp-1000"])
def test_the_number_of_parameters_is_what_torch_comes_to(model: str) -> None:
    models = pytest.importorskip("agents.worker.models", reason="torch is not installed: counts unverified")
    assert parameter_count(model) == models.parameter_count(models.build_model(model, 1))


def test_the_number_of_parameters_of_tensors() -> None:
    assert parameter_count("tensor-1+2k+3m") == 3_002_001
    with pytest.raises(ValueError, match="no model 'x'"):
        parameter_count("x")
