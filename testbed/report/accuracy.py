"""How long a scheduler took to reach an accuracy. Pure.

The time to an accuracy is the sum of a turn's iteration times up to the first iteration after which the model was
measured to have it, warm-up included: what was learnt in it counts. It is as fine as the measuring (`eval_every`),
and includes the time that measuring takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from testbed.report.measurements import Iteration

Turn = Sequence[Iteration]


def reached_s(turn: Turn, target: float) -> float | None:
    """Seconds of one turn until the accuracy `target` (0..1); None where it was not reached, or is not known."""
    total = 0.0
    for iteration in turn:
        if iteration.iteration_s is None:
            return None
        total += iteration.iteration_s
        if iteration.accuracy is not None and iteration.accuracy >= target:
            return total
    return None


def target_of(experiment: Mapping[str, Any], turns: Iterable[Turn]) -> float | None:
    """The accuracy that is asked for: what the experiment names, else the highest that every turn reached.

    None where some turn measured none.
    """
    named = experiment.get("training", {}).get("target_accuracy")
    if isinstance(named, int | float):
        return float(named)
    best = [max((i.accuracy for i in turn if i.accuracy is not None), default=None) for turn in turns]
    found = [value for value in best if value is not None]
    return min(found) if found and len(found) == len(best) else None
