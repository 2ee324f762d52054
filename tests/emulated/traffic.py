"""Programs that tests run at sites: TCP from a source to a sink, paced datagrams to a counter."""

from __future__ import annotations

SINK = """
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

SOURCE = """
import socket, sys, time
sock = socket.socket(); sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, int(sys.argv[4]))
sock.connect((sys.argv[1], int(sys.argv[2])))
end = time.monotonic() + float(sys.argv[3]); block = bytes(65536)
while time.monotonic() < end: sock.send(block)
"""

COUNTER = """
import socket, sys
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
sock.bind((sys.argv[1], 5002)); print("ready", flush=True); sock.settimeout(10)
seen, order, last = set(), 0, -1
while True:
    try: data = sock.recv(2000)
    except TimeoutError: break
    number = int.from_bytes(data[:4], "big")
    if number == 0xffffffff: break
    order += number < last and number not in seen
    seen.add(number); last = max(last, number)
    sock.settimeout(3)
print(len(seen), order)
"""

PACED = """
import socket, sys, time
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); sock.connect((sys.argv[1], 5002))
rate, seconds, size = float(sys.argv[2]), float(sys.argv[3]), 1472
start, number = time.monotonic(), 0
while (spent := time.monotonic() - start) < seconds:
    while number < spent * rate / 8 / (size + 42):
        sock.send(number.to_bytes(4, "big") + bytes(size - 4)); number += 1
    time.sleep(0.002)
time.sleep(0.5); sock.send(b"\\xff\\xff\\xff\\xff"); print(number)
"""
