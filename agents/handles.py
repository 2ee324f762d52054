"""The outcome of one call to the agent, as the worker sees it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from topologies.errors import DeadlineError, RunFailedError

log = logging.getLogger(__name__)


class Handle:
    """A collective or message under way. Thread-safe.

    When it is done, the result is in the caller's array, or `wait` raises why there is none.

    Attributes:
        what: one line for messages.
        keep: whatever must live until it is done (the caller's arrays).
    """

    def __init__(self, what: str, deadline_s: float, keep: Any = None) -> None:
        self.what = what
        self.keep = keep
        self._deadline_s = deadline_s
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._error: RunFailedError | None = None
        self._callbacks: list[Callable[[Handle], Any]] = []

    def done(self) -> bool:
        """Whether it has ended, well or badly."""
        return self._event.is_set()

    def wait(self, timeout: float | None = None) -> None:
        """Block until it is done.

        Args:
            timeout: seconds; None waits a little longer than the job allows any collective to take, after
                which the agent itself must have ended it.

        Raises RunFailedError with the named cause when the job has stopped, DeadlineError when time ran out.
        """
        seconds = self._deadline_s if timeout is None else timeout
        if not self._event.wait(seconds):
            raise DeadlineError(self.what, seconds)
        if self._error is not None:
            # A new object each time: one that is raised twice would gather tracebacks.
            raise RunFailedError(self._error.message, hint=self._error.hint)

    def add_done_callback(self, fn: Callable[[Handle], Any]) -> None:
        """Call `fn(handle)` when it is done: on the client's reader thread, or at once when it already is."""
        with self._lock:
            if not self._event.is_set():
                self._callbacks.append(fn)
                return
        fn(self)

    def finish(self, error: RunFailedError | None = None) -> None:
        """For the client: it has ended."""
        with self._lock:
            if self._event.is_set():
                return
            self._error = error
            self.keep = None
            self._event.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            try:
                callback(self)
            except Exception:
                # The reader thread serves all other calls too.
                log.exception("a callback on %s failed", self.what)
