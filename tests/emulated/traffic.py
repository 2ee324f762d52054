"""Programs that tests run at sites: TCP from a source to a sink, paced datagrams to a counter.

They ask for real-time scheduling, below that of the network: it is the network that is tested, and not how much
of the machine is left for them. What they receive waits for them in buffers that hold seconds of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

PUNCTUAL = """
import os
try: os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
except PermissionError: pass
"""

SINK = f"""{PUNCTUAL}
import socket, sys, time
listener = socket.create_server((sys.argv[1], int(sys.argv[2]))); print("ready", flush=True)
peer, _ = listener.accept()
first = total = 0
while data := peer.recv(1 << 20):
    now = time.monotonic()
    if not first: first, data = now, b""
    total += len(data)
    last = now
print(total, last - first)
"""

# For so many seconds, or until the end of its input.
SOURCE = f"""{PUNCTUAL}
import select, socket, sys, time
sock = socket.socket(); sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, int(sys.argv[4]))
sock.connect((sys.argv[1], int(sys.argv[2])))
end = time.monotonic() + float(sys.argv[3]); block = bytes(65536)
while time.monotonic() < end and not select.select([sys.stdin], [], [], 0)[0]: sock.send(block)
"""

COUNTER = f"""{PUNCTUAL}
import socket, sys
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.setsockopt(socket.SOL_SOCKET, 33, 1 << 26)  # SO_RCVBUFFORCE
sock.bind((sys.argv[1], 5002)); print("ready", flush=True); sock.settimeout(30)
seen, order, last = set(), 0, -1
while True:
    try: data = sock.recv(2000)
    except TimeoutError: break
    number = int.from_bytes(data[:4], "big")
    if number == 0xffffffff: break
    order += number < last and number not in seen
    seen.add(number); last = max(last, number)
    if len(seen) == 20: print("flowing", flush=True)
print(len(seen), order)
"""

# The pace is a ceiling: what a stall of its own has kept it from sending is not sent all at once after it.
PACED = f"""{PUNCTUAL}
import select, socket, sys, time
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); sock.connect((sys.argv[1], 5002))
size = 1472
step, number, due = 8 * (size + 42) / float(sys.argv[2]), 0, time.monotonic()
while not select.select([sys.stdin], [], [], max(0, due - time.monotonic()))[0]:
    now = time.monotonic()
    due = max(due, now - 8 * step)
    while due <= now:
        sock.send(number.to_bytes(4, "big") + bytes(size - 4)); number += 1; due += step
time.sleep(0.5); sock.send(b"\\xff\\xff\\xff\\xff"); print(number)
"""


def undisturbed(measure: Callable[[], T], is_undisturbed: Callable[[T], bool]) -> T:
    """The first result of three on which nothing else on the machine has left its mark, or else the last one.

    What a stall of the machine takes from a link is no fault of the link, and a fault of the link is in all three.
    """
    for _ in range(3):
        found = measure()
        if is_undisturbed(found):
            break
    return found


class Stream:
    """Numbered datagrams at an even pace from one site to another, until `end`.

    Args:
        testbed: of the tests.
        src, dst: names of sites.
        bps: whole frames.
    """

    def __init__(self, testbed: Any, src: str, dst: str, bps: float) -> None:
        self._sink = testbed.site(dst).start_python(COUNTER, testbed.wan_ip(dst))
        assert self._sink.stdout.readline() == "ready\n"
        self._source = testbed.site(src).start_python(PACED, testbed.wan_ip(dst), str(bps))
        assert self._sink.stdout.readline() == "flowing\n"

    def end(self) -> tuple[int, int, int]:
        """How many were sent, how many of them arrived, and how many of these out of their order."""
        sent = int(self._source.communicate(timeout=60)[0])  # which closes its input
        seen, reordered = (int(word) for word in self._sink.communicate(timeout=60)[0].split())
        return sent, seen, reordered
