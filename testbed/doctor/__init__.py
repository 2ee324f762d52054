"""What this machine offers to an emulated testbed, and what is used where something is absent.

Every row is one of the field's known pains. What has to be tried is tried in scratch namespaces, and at last
on a throw-away testbed of two sites. The machine is left as it was, except that the trial, like every `up`, may
add cubic to the congestion controls that network namespaces may choose.
"""

from __future__ import annotations

from collections.abc import Callable

from testbed.doctor.kernel import KERNEL_FEATURES, check_kernel, congestion_row, kernel_rows
from testbed.doctor.machine import (
    check_cpu,
    check_cpu_quota,
    check_disk,
    check_leftovers,
    check_memory,
    check_ports,
    check_root,
    check_testbeds,
    steal_ratio,
)
from testbed.doctor.rows import Check, State, fit, rows_of
from testbed.doctor.software import (
    PYTHON_PACKAGES,
    check_open_vswitch,
    check_programs,
    check_prometheus,
    check_python,
    check_ssh,
    check_ssh_programs,
    check_torch,
)
from testbed.doctor.trial import check_trial
from topologies.errors import CannotHonourError

__all__ = [
    "KERNEL_FEATURES",
    "PYTHON_PACKAGES",
    "Check",
    "State",
    "check_kernel",
    "check_leftovers",
    "check_open_vswitch",
    "congestion_row",
    "examine",
    "fit",
    "kernel_rows",
    "preflight",
    "require_packages",
    "rows_of",
    "steal_ratio",
]


def examine(*, trial: bool = False) -> tuple[Check, ...]:
    """All rows, in the order of the table. Without the trial it takes about a second; nothing is changed.

    Args:
        trial: bring up two sites and try TCP, gloo and SSH between them, unless the rows before rule it out.
    """
    checks: dict[str, Callable[[], Check | list[Check]]] = {
        "root": check_root,
        "kernel": check_kernel,
        "open vswitch": check_open_vswitch,
        "programs": check_programs,
        "python": check_python,
        "torch": check_torch,
        "ssh": check_ssh,
        "prometheus": check_prometheus,
        "cpu": check_cpu,
        "cpu quota": check_cpu_quota,
        "memory": check_memory,
        "disk": check_disk,
        "ports": check_ports,
        "testbeds": check_testbeds,
    }
    rows: list[Check] = []
    for name, check in checks.items():
        rows += rows_of(name, check)
    if trial and fit(rows):
        rows += rows_of("trial", check_trial)
    return tuple(rows)


def preflight() -> None:
    """The part of `examine` that costs nothing, before anything is created.

    Raises:
        CannotHonourError: not root, or a program or Python package is missing; the first one found is named.
    """
    for check in (
        check_root,
        check_open_vswitch,
        check_programs,
        check_python,
        check_ssh_programs,
        check_prometheus,
    ):
        row = check()
        if row.state is State.MISSING:
            raise CannotHonourError(f"{row.name}: {row.found}", hint=row.fix)


def require_packages() -> None:
    """Refuse what needs the emulated world's Python packages, wherever they are not installed.

    Raises:
        CannotHonourError: one is missing; the hint installs it for this very interpreter.
    """
    row = check_python()
    if row.state is State.MISSING:
        raise CannotHonourError(f"{row.name}: {row.found}", hint=row.fix)
