"""How virtual environments are made: by a Python that is recent enough, or not at all."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

VENV = Path(__file__).parents[3] / "testbed/setup/venv.sh"


def make(folder: Path, python: str) -> subprocess.CompletedProcess[str]:
    """Make a virtual environment that nothing is installed into."""
    argv = ["bash", str(VENV), str(folder), python]
    return subprocess.run(argv, capture_output=True, encoding="utf-8", timeout=120)


def test_an_older_python_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    older = tmp_path / "python3.9"
    older.write_text("#!/bin/sh\necho 3.9\nexit 1\n", encoding="utf-8")
    older.chmod(0o755)
    done = make(tmp_path / "venv", str(older))
    assert done.returncode == 4 and not (tmp_path / "venv").exists()
    assert "needs Python 3.11 or later" in done.stderr and "is 3.9" in done.stderr


def test_a_python_that_is_not_there_is_named(tmp_path: Path) -> None:
    done = make(tmp_path / "venv", "python3.99")
    assert done.returncode == 4 and "python3.99 is not there" in done.stderr and "line" not in done.stderr


def test_a_python_without_pip_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    """As Debian's, without python3-venv."""
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\ncase "$2" in *ensurepip*) exit 1;; *) echo 3.11;; esac\n', encoding="utf-8")
    python.chmod(0o755)
    done = make(tmp_path / "venv", str(python))
    assert done.returncode == 4 and "apt-get install python3-venv" in done.stderr
    assert not (tmp_path / "venv").exists()


def test_what_was_interrupted_is_made_again_and_what_works_is_kept(tmp_path: Path) -> None:
    folder = tmp_path / "with spaces, größer"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin/python").symlink_to(sys.executable + "-gone")
    assert make(folder, sys.executable).returncode == 0
    assert (folder / ".finished").read_text(encoding="utf-8") == f"{Path.cwd()}\n"
    assert subprocess.run([folder / "bin/pip", "--version"]).returncode == 0
    (folder / "kept").touch()
    assert make(folder, "python3.99").returncode == 0 and (folder / "kept").exists()
    (folder / ".finished").write_text("/where/the/checkout/was\n", encoding="utf-8")
    assert make(folder, sys.executable).returncode == 0 and not (folder / "kept").exists(), "moved: made again"
