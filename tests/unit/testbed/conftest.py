"""What tests of the command line share."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from testbed.cli import build, errors


@pytest.fixture
def testbed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """The command with a run root of its own: no testbed that stands here is seen.

    It runs in this process, which saves a second each, unless it is to run `before` something.
    """
    monkeypatch.setenv("STORMBED_RUN_ROOT", str(tmp_path / "root"))
    monkeypatch.setenv("NO_COLOR", "1")

    def run(*arguments: str, before: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
        if before:
            argv = [*before, sys.executable, "-m", "testbed", *arguments]
            return subprocess.run(argv, capture_output=True, text=True, timeout=60)
        capsys.readouterr()
        code = errors.exit_code_of(lambda: build()(list(arguments), prog_name="testbed"))
        return subprocess.CompletedProcess(arguments, code, *capsys.readouterr())

    return run
