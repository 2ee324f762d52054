"""What a lane's socket is told and asked: options of Linux that Python 3.11 has no names for."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
from typing import Final

from topologies.errors import UsageError

SEND_BUFFER: Final = "STORMBED_SEND_BUFFER_BYTES"

# In <linux/in.h> and <netinet/tcp.h>, not in the socket module of Python 3.11.
IP_BIND_ADDRESS_NO_PORT: Final = 24
TCP_NOTSENT_LOWAT: Final = 25
# In <asm-generic/socket.h>: beyond the machine's net.core.wmem_max, for who may administer networks.
SO_SNDBUFFORCE: Final = 32
# In <linux/sockios.h>.
SIOCOUTQ: Final = 0x5411
SIOCOUTQNSD: Final = 0x894B
TCP_RTO_MAX_MS: Final = 44
# A link that comes back after a minute is tried again within this time, not after another minute.
LONGEST_RETRANSMISSION_MS: Final = 2000


def mark(sock: socket.socket, tos: int) -> None:
    """Prepare a socket that is not connected yet for one lane; its packets carry this TOS byte."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos)
    sock.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with contextlib.suppress(OSError):  # Linux 6.15 and later
        sock.setsockopt(socket.IPPROTO_TCP, TCP_RTO_MAX_MS, LONGEST_RETRANSMISSION_MS)


def limit_unsent(sock: socket.socket, nbytes: int) -> None:
    """Report the socket as writable only while the kernel has less than so much that it has not sent."""
    sock.setsockopt(socket.IPPROTO_TCP, TCP_NOTSENT_LOWAT, nbytes)


def fixed_send_buffer() -> int:
    """What the environment asks for in STORMBED_SEND_BUFFER_BYTES; 0 for nothing. UsageError if no number.

    For showing what it costs: what a large buffer has taken is sent in the order in which it was taken.
    """
    asked = os.environ.get(SEND_BUFFER, "0")
    if not asked.isascii() or not asked.isdigit() or int(asked) >= 2**31:
        raise UsageError(f"{SEND_BUFFER} cannot be {asked!r}", hint="a whole number of bytes, or leave it unset")
    return int(asked)


def fix_send_buffer(sock: socket.socket, nbytes: int) -> None:
    """Give the kernel's buffer this size from the start, for all that it takes, sent or not; without the right
    to administer networks no more than the machine allows everybody.
    """
    try:
        sock.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, nbytes)
    except PermissionError:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, nbytes)


def unsent(sock: socket.socket) -> int:
    """Bytes that the kernel has not even sent."""
    return _queued(sock, SIOCOUTQNSD)


def unacknowledged(sock: socket.socket) -> int:
    """Bytes that the kernel has and the peer has not acknowledged, sent or not."""
    return _queued(sock, SIOCOUTQ)


def _queued(sock: socket.socket, request: int) -> int:
    return int(struct.unpack("i", fcntl.ioctl(sock, request, bytes(4)))[0])
