"""What all tests share."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# A shell that starts something in the background makes it ignore SIGINT, and so would every process that the
# tests start; those that press Ctrl-C would then wait for nothing.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says what else the machine does, and everybody is to see the same examples:
# HYPOTHESIS_PROFILE=explore draws new ones.
settings.register_profile("everywhere", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "everywhere"))


@pytest.fixture
def only_reno() -> Iterator[None]:
    """A machine that allows network namespaces nothing but reno, and whose own default is not cubic."""
    allowed, default = (
        Path(f"/proc/sys/net/ipv4/tcp_{name}") for name in ("allowed_congestion_control", "congestion_control")
    )
    if not os.access(allowed, os.W_OK):
        pytest.skip("needs root in the machine's first network namespace: what this test claims is UNVERIFIED here")
    before = allowed.read_text(), default.read_text()
    if before[1] == "cubic\n":
        default.write_text("reno")
    allowed.write_text("reno")
    yield
    allowed.write_text(before[0])
    if default.read_text() != before[1]:
        default.write_text(before[1])
