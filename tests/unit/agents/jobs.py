"""Jobs of tests over whole systems on loopback."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

Everywhere = Callable[[dict[Any, Callable[[], Any]]], dict[Any, Any]]


def segment(label: str, scheduler: Any, **fields: Any) -> dict[str, Any]:
    return {"label": label, "scheduler": scheduler, "iterations": 2, "elements": 1000, **fields}


def open_job(cluster: Any, workers: dict[str, int] | None = None, **spec: Any) -> Any:
    runner = cluster.runner()
    sites = workers or dict.fromkeys(cluster.names, 1)
    runner.open_job({"job": "job", "sites": sites, "deadline_s": 20, **spec})
    return runner


def wait_until(condition: Callable[[], Any], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "a condition did not come about"
        pause.wait(0.01)
