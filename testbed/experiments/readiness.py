"""Whether a standing testbed can take a measurement now: all that it needs alive, and nobody measuring."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agents.control import CoordinatorClient
from testbed.client import SupervisorClient
from testbed.parts import ended_parts
from topologies.errors import CannotHonourError, DeadlineError, RunFailedError, StormbedError, UsageError

if TYPE_CHECKING:
    from testbed.emulation.rundir import TestbedInfo

ANSWER_S: Final = 10.0
# It listens all the time a testbed stands; only a busy machine makes it slow to answer.
COORDINATOR_S: Final = 5.0
VITAL: Final = ("agent", "coordinator", "delay-line", "sshd")
"""Without one of these no run can go on. Routes outlive the controller, and numbers outlive Prometheus."""


def ended(name: str) -> tuple[str, ...]:
    """Which of a testbed's own processes have ended."""
    return ended_parts(SupervisorClient(name).call("status", timeout=ANSWER_S)["processes"])


def has_ended(name: str) -> bool:
    """Whether nobody is left of a testbed. One that only answers late is there."""
    try:
        SupervisorClient(name).call("ping", timeout=ANSWER_S)
    except DeadlineError:
        return False
    except StormbedError:
        return True
    return False


def require_healthy(name: str, parts: tuple[str, ...] | None = None, *, whole: bool = False) -> None:
    """Refuse a testbed that has lost what a run needs.

    Args:
        name: the testbed's.
        parts: which of its processes have ended; asked of it when left out.
        whole: refuse it without any of its processes, not only without one that a run needs.

    Raises:
        CannotHonourError: naming what has ended and what mends it.
    """
    found = ended(name) if parts is None else parts
    lost = [part for part in found if whole or part.split(" of ")[0] in VITAL]
    if lost:
        raise CannotHonourError(
            f"testbed {name} is unhealthy, ended: {', '.join(lost)}",
            hint=f"`testbed down {name}` and `testbed up` make it anew",
        )


def current_job(info: TestbedInfo) -> str | None:
    """The run that is going on, if one is.

    Raises:
        RunFailedError: the coordinator, which knows, does not answer.
    """
    try:
        with CoordinatorClient(*info.coordinator, timeout=COORDINATOR_S) as coordinator:
            jobs = coordinator.status()["jobs"]
    except (DeadlineError, OSError) as error:
        raise RunFailedError(
            f"the coordinator of testbed {info.name} does not answer: {error}",
            hint=f"`testbed status {info.name}` tells what has ended; `testbed down {info.name}` and `up` mend it",
        ) from error
    return str(jobs[0]["job"]) if jobs else None


def require_free(info: TestbedInfo, hint: str) -> None:
    """Refuse a testbed on which a run goes on: two at once would measure each other.

    Raises:
        UsageError: naming the run.
        RunFailedError: the coordinator does not answer.
    """
    job = current_job(info)
    if job is not None:
        raise UsageError(f"testbed {info.name} is busy with the run {job}", hint=hint)


def require_still(name: str) -> None:
    """Refuse a testbed whose links change by themselves for an experiment that has them change.

    Raises:
        UsageError: telling how they change.
    """
    dynamics = SupervisorClient(name).call("status", timeout=ANSWER_S)["dynamics"]
    if dynamics is not None:
        raise UsageError(
            f"the links of testbed {name} change by themselves already ({dynamics['text']}), "
            "and the experiment has dynamics or a timeline of its own",
            hint="`testbed link vary --stop` ends it",
        )


def require_undisturbed(info: TestbedInfo, verb: str) -> None:
    """Refuse to load the links while a run measures on them; without a coordinator there is no run.

    Raises:
        UsageError: naming the run.
    """
    if any(part.split(" of ")[0] == "coordinator" for part in ended(info.name)):
        return
    require_free(
        info,
        f"`testbed {verb}` would load the links that it measures; wait for it to end, or add --force",
    )
