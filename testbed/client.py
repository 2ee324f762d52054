"""Talking to a testbed's supervisor."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from testbed.emulation.rundir import RunDir, connect_unix
from topologies import errors
from topologies.errors import DeadlineError, StormbedError, UsageError

DEFAULT_TIMEOUT_S: Final = 60.0


class SupervisorClient:
    """A testbed's supervisor, by the testbed's name. Every call is one connection, so clients may be shared.

    Raises from every call:
        UsageError: no testbed of that name is up.
        StormbedError: what the supervisor answered, with its own class, message and hint.
        DeadlineError: no answer in time.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._run = RunDir.of(name)

    def call(
        self,
        verb: str,
        on_progress: Callable[[str], None] | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
        **args: Any,
    ) -> Any:
        """Have a verb done and return its result.

        Args:
            verb: such as "links"; see `testbed.supervisor.verbs`.
            on_progress: gets every line of progress.
            timeout: seconds without a word from the supervisor before giving up.
            args: the verb's own.
        """
        try:
            connection = connect_unix(self._run.socket, timeout)
        except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
            raise UsageError(
                f"no testbed {self.name!r} is up", hint="`testbed status` lists those that are"
            ) from None
        with connection, connection.makefile("rwb") as stream:
            try:
                stream.write(json.dumps({"verb": verb, **args}).encode() + b"\n")
                stream.flush()
                for line in stream:
                    answer = json.loads(line)
                    if "progress" not in answer:
                        return _result(answer)
                    if on_progress is not None:
                        on_progress(answer["progress"])
            except TimeoutError:
                raise DeadlineError(f"the supervisor of {self.name!r} to answer {verb!r}", timeout) from None
            except (ConnectionResetError, BrokenPipeError):
                pass
        raise StormbedError(
            f"the supervisor of {self.name!r} ended while it was asked {verb!r}",
            hint=f"its last words are in {self._run.log}",
        )


def error_to_dict(error: BaseException) -> dict[str, Any]:
    """An error as it travels: class, message, hint and exit code."""
    if isinstance(error, StormbedError):
        kind = next(c.__name__ for c in type(error).__mro__ if c.__module__ == errors.__name__)
        return {"kind": kind, "message": error.message, "hint": error.hint, "exit_code": error.exit_code}
    return {"kind": "", "message": f"{type(error).__name__}: {error}", "hint": "", "exit_code": 1}


def error_from_dict(fields: dict[str, Any]) -> StormbedError:
    """The error again. A class that this side does not know becomes the root class."""
    kind = getattr(errors, fields.get("kind") or "StormbedError", StormbedError)
    if kind is DeadlineError or not (isinstance(kind, type) and issubclass(kind, StormbedError)):
        kind = StormbedError  # a deadline's message is made from its parts, which did not travel
    return kind(fields["message"], hint=fields.get("hint", ""))


def _result(answer: dict[str, Any]) -> Any:
    if answer.get("ok"):
        return answer.get("result")
    raise error_from_dict(answer["error"])
