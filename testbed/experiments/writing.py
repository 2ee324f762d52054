"""Failures to write into a run directory, as errors that name it."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from testbed.events import EventLog
from topologies.errors import RunFailedError

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def writing(directory: Path) -> Iterator[None]:
    """Turn a failure to write in the block into one of the run.

    Raises:
        RunFailedError: naming the run directory and the operating system's reason.
    """
    try:
        yield
    except OSError as error:
        raise _failure(directory, error) from error


def no_room(directory: Path, error: BaseException | None) -> RunFailedError | None:
    """The failure of the run that a full disk is, wherever it showed; None of any other error."""
    if isinstance(error, OSError) and error.errno in _NO_ROOM:
        return _failure(directory, error)
    return None


def _failure(directory: Path, error: OSError) -> RunFailedError:
    elsewhere = "choose another folder with --out"
    return RunFailedError(
        f"cannot write in the run directory {directory}: {error.strerror or error}",
        hint=f"make room there, or {elsewhere}" if error.errno in _NO_ROOM else elsewhere,
    )


class RunEvents(EventLog):
    """The event log of a run; RunFailedError when it cannot be written."""

    def write(self, kind: str, **fields: object) -> None:
        with writing(self.path.parent):
            super().write(kind, **fields)
