"""Where UNIX sockets lie: the kernel takes only short paths, and run directories may be deep."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def socket_address(path: Path) -> Iterator[str]:
    """A name for a UNIX socket's path that fits the kernel's 108 bytes, however long the path is.

    It can be bound and connected to only inside the `with`.

    Args:
        path: the socket's path; its directory exists.
    """
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)
