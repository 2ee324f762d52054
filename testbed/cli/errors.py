"""The one place where errors become a message on stderr and an exit code."""

from __future__ import annotations

import codecs
import io
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from typing import TextIO

import typer

from topologies.errors import StormbedError

INTERNAL_ERROR = 1
INTERRUPTED = 130
SPELLED = {"±": "+-", "→": "->", "–": "-", "—": "-", "…": "...", "µ": "u", "μ": "u", "×": "x"}
"""How signs are written on a terminal, or into a pipe, whose encoding does not have them."""


def spell_out(*streams: TextIO) -> None:
    """Have streams write in other words, or as "?", what their encoding does not have, instead of failing."""

    def replaced(error: UnicodeError) -> tuple[str, int]:
        assert isinstance(error, UnicodeEncodeError)
        missing = error.object[error.start : error.end]
        return "".join(SPELLED.get(sign, "?") for sign in missing), error.end

    codecs.register_error("stormbed", replaced)
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="stormbed")


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
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", prefix="stormbed-traceback-", suffix=".txt", delete=False
    ) as file:
        file.write(f"{sys.argv}\n")
        traceback.print_exc(file=file)
    return file.name
