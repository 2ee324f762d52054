"""Errors of a daemon as plain values for a runner, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from topologies import errors
from topologies.errors import DeadlineError, RunFailedError, StormbedError


def error_to_dict(error: StormbedError) -> dict[str, Any]:
    """An error for the runner; `error_from_dict` makes it one again."""
    plain: dict[str, Any] = {"type": type(error).__name__, "message": error.message, "hint": error.hint}
    plain["exit_code"] = error.exit_code
    if isinstance(error, DeadlineError):
        plain["what"], plain["seconds"] = error.what, error.seconds
    return plain


def error_from_dict(plain: Mapping[str, Any]) -> StormbedError:
    """The inverse of `error_to_dict`; classes that are not in `topologies.errors` become
    their nearest ancestor there by exit code."""
    if plain.get("type") == "DeadlineError":
        return DeadlineError(plain["what"], plain["seconds"], hint=plain["hint"])
    kind = getattr(errors, plain["type"], None)
    if not (isinstance(kind, type) and issubclass(kind, StormbedError)):
        kind = {2: errors.UsageError, 5: RunFailedError}.get(plain["exit_code"], StormbedError)
    return kind(plain["message"], hint=plain["hint"])
