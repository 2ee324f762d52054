"""What all tests share."""

from __future__ import annotations

import os
import signal

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
