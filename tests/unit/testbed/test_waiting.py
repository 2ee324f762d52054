"""Processes that run, end, or are gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from testbed.emulation.waiting import is_ending, is_running, start_ticks, wait_for


def test_a_running_process_does_not_end() -> None:
    assert not is_ending(os.getpid())
    assert is_running(os.getpid(), start_ticks(os.getpid()))


def test_a_killed_process_ends_from_the_signal_on() -> None:
    """Stopped processes cannot hide it either; whatever moment the kernel shows, it counts as ending."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    ticks = start_ticks(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    assert is_ending(process.pid)
    wait_for(lambda: not is_running(process.pid, ticks), "the killed process to be a zombie", 10)
    assert is_ending(process.pid), "a zombie is past its end"
    process.wait()
    assert is_ending(process.pid), "and so is one that is gone"
