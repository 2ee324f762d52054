"""The linear programmes of `packing`, solved by HiGHS through scipy (loaded at first use: it takes time)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from agents.planning.base import PlanError

Vector = npt.NDArray[Any]
# A column's entries in the rows "at most" and "equal": (row, coefficient).
Entries = Sequence[tuple[int, float]]


@dataclass(frozen=True)
class Solution:
    """x: the variables; value: of the objective; at_most (>= 0), equal: the duals of both kinds of rows."""

    x: Vector
    value: float
    at_most: Vector
    equal: Vector


def minimise(
    costs: Sequence[float],
    limits: Vector,
    use: tuple[Sequence[int], Sequence[int]],
    right: Sequence[float] = (),
    balance: tuple[Sequence[int], Sequence[int], Sequence[float]] = ((), (), ()),
) -> Solution | None:
    """min costs x  subject to  A x <= limits, B x = right, x >= 0; None when infeasible.

    use      (rows, columns) of the ones of A
    balance  (rows, columns, coefficients) of B

    The reduced cost of a new column is  cost + sum of at_most over its rows - sum of equal times coefficient.
    """
    from scipy.optimize import linprog
    from scipy.sparse import csr_array

    count = len(costs)
    ones = np.ones(len(use[0]))
    a = csr_array((ones, (np.asarray(use[0], int), np.asarray(use[1], int))), shape=(len(limits), count))
    b = None
    if len(right):
        rows, columns, values = balance
        b = csr_array(
            (np.asarray(values, float), (np.asarray(rows, int), np.asarray(columns, int))),
            shape=(len(right), count),
        )
    answer = linprog(
        np.asarray(costs, float),
        A_ub=a,
        b_ub=limits,
        A_eq=b,
        b_eq=None if b is None else np.asarray(right, float),
        method="highs-ds",  # a vertex, so that few trees carry something; and the same one each time
    )
    if answer.status == 2:
        return None
    if answer.status != 0:
        raise PlanError(f"the packing programme was not solved: {answer.message}")
    equal = np.asarray(answer.eqlin.marginals) if len(right) else np.zeros(0)
    return Solution(answer.x, float(answer.fun), np.maximum(-answer.ineqlin.marginals, 0.0), equal)
