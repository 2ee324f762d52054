"""What a lane's socket is told and asked: options of Linux that Python 3.11 has no names for."""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
from typing import Final

# In <linux/in.h> and <netinet/tcp.h>, not in the socket module of Python 3.11.
IP_BIND_ADDRESS_NO_PORT: Final = 24
TCP_NOTSENT_LOWAT: Final = 25
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


def unsent(sock: socket.socket) -> int:
    """Bytes that the kernel has not even sent."""
    return _queued(sock, SIOCOUTQNSD)


def unacknowledged(sock: socket.socket) -> int:
    """Bytes that the kernel has and the peer has not acknowledged, sent or not."""
    return _queued(sock, SIOCOUTQ)


def _queued(sock: socket.socket, request: int) -> int:
    return int(struct.unpack("i", fcntl.ioctl(sock, request, bytes(4)))[0])
