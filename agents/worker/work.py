"""The outcome of one collective as torch sees it: `Work` and `Future`, and the watchdog that ends every wait.

A result arrives on the reader thread of the agents' client. That thread brings it into the tensors, notes the
time, and completes the torch future, whose callbacks run right there.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Protocol

import torch
import torch.distributed as dist

from topologies.errors import DeadlineError


class Handle(Protocol):
    """What the agents' client returns for a collective."""

    def wait(self, timeout: float | None = None) -> Any: ...
    def add_done_callback(self, fn: Callable[[Any], None]) -> None: ...


@dataclass
class Record:
    """When one collective was handed over and when its result was there.

    Attributes:
        kind: allreduce, broadcast, ...
        dtype: torch's name without `torch.`; empty for a barrier.
        elements: over all its tensors.
        submitted_ns, done_ns: CLOCK_MONOTONIC; `done_ns` is 0 until the result is in the tensors.
        error: why there is no result; empty if there is.
    """

    kind: str
    dtype: str
    elements: int
    submitted_ns: int
    done_ns: int = 0
    error: str = ""


class CollectiveWork(dist.Work):
    """One collective under way.

    Args:
        record: what it is, for messages and for the timeline.
        outputs: the tensors that the future yields.
        finishers: to be called in order once every handle is done, before anyone is told.
        timeout_s: the longest that `wait` blocks when it is given no time of its own.
        on_failure: told the cause, once, when it fails.
    """

    def __init__(
        self,
        record: Record,
        outputs: Sequence[Any],
        finishers: Sequence[Callable[[], None]],
        timeout_s: float,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        super().__init__()
        self.record = record
        self._outputs = list(outputs)
        self._finishers = list(finishers)
        self._timeout_s = timeout_s
        self._on_failure = on_failure
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._settled = False
        self._error: BaseException | None = None
        self._remaining = 0
        # A torch future cannot be failed from Python: set_exception only raises for Python callers, and DDP's
        # reducer (C++) would take the exception object for a list of tensors. A callback that raises does
        # fail its own future in C++, so the future given out is the callback's.
        self._signal: torch.futures.Future[None] | None = None
        self._future: torch.futures.Future[Any] | None = None

    # --- the side of the agents ---

    def follow(self, handles: Sequence[Handle]) -> None:
        """Completes when all of these have. Without any, it is complete at once."""
        if not handles:
            self._settle(None)
            return
        self._remaining = len(handles)
        for handle in handles:
            handle.add_done_callback(partial(self._one_done, handle))

    def _one_done(self, handle: Handle, _given: Any = None) -> None:
        try:
            handle.wait(0)
        except Exception as error:
            self.fail(error)
            return
        with self._lock:
            self._remaining -= 1
            if self._remaining:
                return
        self._settle(None)

    def fail(self, error: BaseException) -> None:
        """Ends it with a cause, unless it has ended already."""
        self._settle(error)

    def _settle(self, error: BaseException | None) -> None:
        with self._lock:
            if self._settled:
                return
            self._settled = True
        if error is None:
            try:
                for finish in self._finishers:
                    finish()
            except Exception as unwritten:
                error = unwritten
        self._finishers.clear()
        self._error = error
        if error is not None:
            self.record.error = str(error)
            self._on_failure(error)
        self.record.done_ns = time.monotonic_ns()
        with self._lock:
            self._done.set()
            signal = self._signal
        if signal is not None:
            signal.set_result(None)

    # --- the side of torch ---

    def _value(self, _signal: Any = None) -> list[Any]:
        if self._error is not None:
            raise self._as_runtime_error()
        return self._outputs

    def _as_runtime_error(self) -> RuntimeError:
        error: RuntimeError = dist.DistBackendError(f"{self._title()}: {self._error}")
        error.__cause__ = self._error
        return error

    def _title(self) -> str:
        size = f" ({self.record.dtype}, {self.record.elements:,} elements)" if self.record.dtype else ""
        return f"{self.record.kind}{size}"

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Blocks until the result is in the tensors.

        Args:
            timeout: None or zero means the group's own timeout.

        Raises RuntimeError naming the cause, also when the time is over.
        """
        seconds = timeout.total_seconds() if timeout else self._timeout_s
        if not self._done.wait(seconds):
            raise dist.DistBackendError(str(DeadlineError(f"the result of {self._title()}", seconds)))
        if self._error is not None:
            raise self._as_runtime_error()
        return True

    def get_future(self) -> torch.futures.Future[Any]:
        """A torch future of the output tensors. On failure it fails, for C++ callers too."""
        with self._lock:
            if self._future is None:
                self._signal = torch.futures.Future()
                self._future = self._signal.then(self._value)
                complete_now = self._done.is_set()
            else:
                complete_now = False
            signal, future = self._signal, self._future
        if complete_now and signal is not None:
            signal.set_result(None)
        return future

    def is_completed(self) -> bool:
        return self._done.is_set()

    def is_success(self) -> bool:
        return self._done.is_set() and self._error is None

    def exception(self) -> BaseException | None:
        return self._error

    def result(self) -> list[Any]:
        return self._outputs

    def synchronize(self) -> None:
        self.wait()


@dataclass(order=True)
class _Watched:
    deadline: float
    number: int
    work: CollectiveWork = field(compare=False)
    seconds: float = field(compare=False)


class Watchdog:
    """Fails every collective that is not done in time, so that waiters without a deadline end too.

    DDP's reducer waits in C++ for a future, without any limit. One thread serves all collectives of a group.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._heap: list[_Watched] = []
        self._numbers = itertools.count()
        self._closed = False
        self._thread: threading.Thread | None = None

    def watch(self, work: CollectiveWork, seconds: float) -> None:
        """Fails the work `seconds` from now, unless it is done by then."""
        if work.is_completed():
            return
        entry = _Watched(time.monotonic() + seconds, next(self._numbers), work, seconds)
        with self._condition:
            if self._closed:
                return
            # The timeouts of a group hardly differ, so those that ended leave from the front.
            while self._heap and self._heap[0].work.is_completed():
                heapq.heappop(self._heap)
            heapq.heappush(self._heap, entry)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="stormbed-watchdog", daemon=True)
                self._thread.start()
            elif self._heap[0] is entry:
                self._condition.notify()

    def close(self) -> None:
        """Ends the thread. What is still under way is watched no longer."""
        with self._condition:
            self._closed = True
            self._heap.clear()
            self._condition.notify()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=5)

    def _run(self) -> None:
        while True:
            with self._condition:
                if self._closed:
                    return
                if not self._heap:
                    self._condition.wait()
                    continue
                entry = self._heap[0]
                remaining = entry.deadline - time.monotonic()
                if remaining > 0 and not entry.work.is_completed():
                    self._condition.wait(remaining)
                    continue
                heapq.heappop(self._heap)
            if not entry.work.is_completed():
                entry.work.fail(DeadlineError("the other ranks", entry.seconds))
