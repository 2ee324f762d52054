"""What was behind the failure of a run: often a worker or the testbed had ended, and others fail of it first."""

from __future__ import annotations

import threading
import time

from testbed.experiments.readiness import has_ended
from testbed.experiments.workers import Workers, describe_end
from topologies.errors import DeadlineError, RunFailedError, StormbedError

CAUSE_GRACE_S = 2.0
POLL_S = 0.1


def cause_of(error: BaseException, workers: Workers, testbed: str) -> BaseException:
    """The error, or one that names the testbed or the worker whose end was behind it."""
    # Whatever was asked of it when it was gone fails in its own way, with "no testbed is up" for one.
    if isinstance(error, StormbedError) and has_ended(testbed):
        return _testbed_ended(testbed)
    if not isinstance(error, RunFailedError | DeadlineError):
        return error
    pause = threading.Event()
    deadline = time.monotonic() + CAUSE_GRACE_S
    # The others end as soon as they hear of it, often before the end of the first one is seen here.
    while not workers.all_ended and time.monotonic() < deadline:
        pause.wait(POLL_S)
    # One that was being taken down may still have answered before.
    if workers.all_ended and has_ended(testbed):
        return _testbed_ended(testbed)
    # Asked once: others may end while their exit codes are fetched.
    over = workers.ended()
    codes = {worker.name: workers.exit_code(worker) for worker in over}
    killed = [worker for worker in over if (codes[worker.name] or 0) > 128]
    named = [worker for worker in over if worker.name in error.message]
    culprits = killed or named or over[:1]
    words = [describe_end(worker, codes.get(worker.name)) for worker in culprits]
    told = [text for text in words if text not in error.message]
    if not told and isinstance(error, RunFailedError):
        return error
    return RunFailedError("; ".join([error.message, *told]), hint=error.hint)


def _testbed_ended(testbed: str) -> RunFailedError:
    return RunFailedError(
        f"the testbed {testbed} ended during the run, with everything in it",
        hint="`testbed down` or a killed supervisor does that; bring it up again",
    )
