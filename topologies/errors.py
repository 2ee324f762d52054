"""One root for every error a user can meet. A message names the object, the hint says what to do."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import ClassVar


class StormbedError(Exception):
    """Root of the project's errors.

    Args:
        message: what went wrong, naming the object.
        hint: what to do about it; shown in parentheses after the message.

    `exit_code` is what the command line exits with.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class UsageError(StormbedError):
    """A command or a call was given something it cannot take."""

    exit_code = 2


class InvalidFileError(StormbedError):
    """A file is missing, unreadable, or says something that makes no sense."""

    exit_code = 2


class FidelityError(StormbedError):
    """The emulated network is not what the file declares."""

    exit_code = 3


class CannotHonourError(StormbedError):
    """This machine cannot do what the file asks for."""

    exit_code = 4


class RunFailedError(StormbedError):
    """A run ended without its result."""

    exit_code = 5


class CleanupError(StormbedError):
    """Something of ours could not be removed."""

    exit_code = 6


class DeadlineError(StormbedError):
    """A wait ran out of time.

    Args:
        what: what was waited for, as it reads after "waited for".
        seconds: how long.
    """

    def __init__(self, what: str, seconds: float, *, hint: str = "") -> None:
        super().__init__(f"waited {seconds:g} s for {what} in vain", hint=hint)
        self.args = (what, seconds)  # so that the error survives pickling
        self.what = what
        self.seconds = seconds


def nearest(word: str, known: Sequence[str]) -> str:
    """A hint naming the known word that looks most like this one, or all of them when none does."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]}?"
    listed = ", ".join(known[:12])
    return f"known: {listed}{', ...' if len(known) > 12 else ''}"
