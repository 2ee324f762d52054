"""A page that is really served, and a browser that really opens it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from testbed.experiments.run import run_experiment
from testbed.experiments.spec import experiment_from_text

HERE = Path(__file__).parent
CHROMIUM = shutil.which("chromium")


def missing() -> list[str]:
    """What these tests need and this machine lacks."""
    needs = {
        "chromium (apt-get install chromium)": CHROMIUM is not None,
        "node (apt-get install nodejs)": shutil.which("node") is not None,
        "playwright-core (npm ci in tests/browser)": (HERE / "node_modules" / "playwright-core").is_dir(),
        "starlette and uvicorn (pip)": None not in (find_spec("starlette"), find_spec("uvicorn")),
    }
    return [what for what, there in needs.items() if not there]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip loudly where no browser is: every claim tested here is then unverified."""
    lacking = missing()
    if not lacking:
        return
    mark = pytest.mark.skip(reason=f"needs {', '.join(lacking)}: what this test claims is UNVERIFIED here")
    for item in items:
        if item.get_closest_marker("browser"):
            item.add_marker(mark)


@pytest.fixture(scope="session")
def shots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where screenshots are kept: STORMBED_SCREENSHOTS, or the tests' temporary directory."""
    folder = os.environ.get("STORMBED_SCREENSHOTS")
    path = Path(folder) if folder else tmp_path_factory.mktemp("screenshots")
    path.mkdir(parents=True, exist_ok=True)
    return path


@pytest.fixture(scope="session")
def record(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Runs an experiment in the simulated world and returns its run directory."""
    return lambda text: run_experiment(
        experiment_from_text(text), out=tmp_path_factory.mktemp("runs"), say=lambda line: None
    )


@pytest.fixture
def serve() -> Iterator[Callable[[Path | str], str]]:
    """Serves a run directory or a testbed with the command itself, and returns the page's address."""
    servers: list[subprocess.Popen[str]] = []

    def start(what: Path | str) -> str:
        command = [sys.executable, "-m", "testbed", "dashboard", str(what), "--port", "0"]
        servers.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        assert servers[-1].stdout is not None
        line = servers[-1].stdout.readline()
        assert "http://127.0.0.1:" in line, line
        return line.split()[-1]

    yield start
    for server in servers:
        server.terminate()
    for server in servers:
        try:
            server.communicate(timeout=30)
        finally:
            server.kill()


@pytest.fixture(scope="session")
def drive() -> Callable[..., dict[str, Any]]:
    """Opens a page and returns what `drive.mjs` saw there."""

    def run(**asked: Any) -> dict[str, Any]:
        done = subprocess.run(
            ["node", "drive.mjs", json.dumps({"chromium": CHROMIUM, **asked}, default=str)],
            cwd=HERE,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))

    return run
