from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agents.worker.models import build_model, mlp_size, mlp_widths, parameter_count
from topologies.errors import UsageError


@pytest.mark.parametrize(("name", "count"), [("2nn", 199_210), ("cnn", 1_663_370)])
def test_the_models_of_fedavg_have_the_published_counts(name, count):
    model = build_model(name, 0)
    assert parameter_count(model) == count
    assert model(torch.zeros(2, 1, 28, 28)).shape == (2, 10)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("mlp-2m", 2_000_000),
        ("mlp-2000000", 2_000_000),
        ("mlp-1.5k", 1_500),
        ("mlp-50k", 50_000),
        ("mlp-1000", 1_000),
    ],
)
def test_an_mlp_has_about_the_parameters_of_its_name(name, size):
    assert mlp_size(name) == size
    model = build_model(name, 0)
    assert abs(parameter_count(model) - size) <= 0.01 * size
    assert model(torch.zeros(2, 1, 28, 28)).shape == (2, 10)


@given(st.integers(1_000, 1_000_000_000))
def test_every_size_is_met_within_one_percent(size):
    first, second = mlp_widths(size)
    count = 785 * first + (first + 1) * second + (second + 1) * 10
    assert abs(count - size) <= max(1, (first + 11) / 2) and abs(count - size) <= 0.01 * size


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cn", r"no model 'cn'.*did you mean cnn\?"),
        ("mpl-2m", r"no model 'mpl-2m'.*did you mean mlp-2m\?"),
        ("mlp-2q", "no model 'mlp-2q'"),
        ("mlp-999", r"999 parameters \(between 1,000 and"),
        ("resnet", "no model 'resnet': 2nn, cnn, textcnn, mlp-2m, mlp-SIZE$"),
    ],
)
def test_a_wrong_name_is_named_with_the_nearest(name, message):
    with pytest.raises(UsageError, match=message):
        build_model(name, 0)


def test_weights_come_from_the_seed_alone():
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    first = build_model("2nn", 7)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(2)
    again, other = build_model("2nn", 7), build_model("2nn", 8)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert not torch.equal(next(first.parameters()), next(other.parameters()))
