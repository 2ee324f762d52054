from __future__ import annotations

import numpy as np
import pytest

from agents.compute import ComputeTime
from agents.worker.segment import parse_segment
from topologies.errors import UsageError


def test_defaults_and_what_concerns_others():
    segment = parse_segment({"label": "a", "iterations": 3, "scheduler": {"name": "star"}, "job": "ignored"})
    assert (segment.model, segment.data, segment.compute, segment.fresh) == ("mlp-2m", "digits", "real", True)
    assert segment.scheduler_name == "star"
    assert (
        parse_segment({"label": "a", "iterations": 3, "scheduler": "netstorm"}).scheduler_name == "netstorm"
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"iterations": 0}, "segment 'a': iterations: .*greater than or equal to 1"),
        ({"optimizer": "sdg"}, "segment 'a': optimizer: .*'sgd' or 'adam'"),
        ({"lr": -1}, "segment 'a': lr"),
        ({"compute": {"mean_s": 0.1, "cv": 0, "sites": {"dc1": {"mean": 1}}}}, "segment 'a': compute"),
    ],
)
def test_a_wrong_field_is_named(changes, message):
    with pytest.raises(UsageError, match=message):
        parse_segment({"label": "a", "iterations": 1, **changes})


def test_compute_times_are_drawn_for_each_site():
    segment = parse_segment(
        {
            "label": "a",
            "iterations": 1,
            "compute": {"mean_s": 0.2, "cv": 0.5, "sites": {"dc3": {"mean_s": 1.5}}},
        }
    )
    assert segment.compute.at("dc3").draw(0, 2, 0) == 1.5
    usual = segment.compute.at("dc1")
    drawn = np.array([usual.draw(7, 0, iteration) for iteration in range(4000)])
    assert drawn.min() > 0
    assert drawn.mean() == pytest.approx(0.2, rel=0.03)
    assert drawn.std() / drawn.mean() == pytest.approx(0.5, rel=0.08)
    assert (
        usual.draw(7, 0, 1) == drawn[1]
        and usual.draw(7, 1, 1) != drawn[1]
        and usual.draw(8, 0, 1) != drawn[1]
    )
    assert ComputeTime(mean_s=0.2).draw(0, 0, 0) == 0.2
