"""What all tests share."""

from __future__ import annotations

import signal

# A shell that starts something in the background makes it ignore SIGINT, and so would every process that the
# tests start; those that press Ctrl-C would then wait for nothing.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
