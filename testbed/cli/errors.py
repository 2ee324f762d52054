"""The one place where errors become a message on stderr and an exit code."""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from collections.abc import Callable

import typer

from topologies.errors import StormbedError

INTERNAL_ERROR = 1
INTERRUPTED = 130


def exit_code_of(command: Callable[[], object]) -> int:
    """Run a command line to its end; say on stderr what went wrong, and return the exit code."""
    try:
        command()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else (0 if error.code is None else INTERNAL_ERROR)
        if code == INTERRUPTED:
            _say("interrupted")
        return code
    except KeyboardInterrupt:
        _say("interrupted")
        return INTERRUPTED
    except StormbedError as error:
        _say(error.message)
        if error.hint:
            typer.echo(f"  hint: {error.hint}", err=True)
        return error.exit_code
    except BrokenPipeError:
        # The reader of a pipe has gone, as with `| head`; keep Python from flushing into it once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return INTERNAL_ERROR
    except Exception as error:
        text = " ".join(str(error).split()) or "no message"
        _say(f"internal error: {type(error).__name__}: {text}; the traceback is in {_save_traceback()}")
        return INTERNAL_ERROR
    return 0


def _say(text: str) -> None:
    typer.echo(f"testbed: {text}", err=True)


def _save_traceback() -> str:
    with tempfile.NamedTemporaryFile("w", prefix="stormbed-traceback-", suffix=".txt", delete=False) as file:
        file.write(f"{sys.argv}\n")
        traceback.print_exc(file=file)
    return file.name
