"""The agent's connection to the coordinator: dialled, kept, dialled again."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from agents import wire
from agents.streams import FrameStream

log = logging.getLogger(__name__)

FIRST_RETRY_SECONDS: Final = 0.05
LAST_RETRY_SECONDS: Final = 1.0
ATTEMPT_SECONDS: Final = 5.0


class CoordinatorLink:
    """Keeps one connection to the coordinator as long as it runs.

    Args:
        address: where the coordinator listens.
        site: index of this agent's site, said in the greeting.
        on_frame: called with (kind, body) for every frame.
        on_lost: called with the reason when an established connection has ended.
        name: what is at the other end, for the log.
    """

    def __init__(
        self,
        address: tuple[str, int],
        site: int,
        on_frame: Callable[[str, dict[str, Any]], None],
        on_lost: Callable[[str], None],
        name: str = "coordinator",
    ) -> None:
        self._address = address
        self._site = site
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._name = name
        self._stream: FrameStream | None = None
        self._ended = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._past: Counter[str] = Counter()

    @property
    def connected(self) -> bool:
        """Whether the coordinator can be told something now."""
        return self._stream is not None

    def start(self) -> None:
        """Begin to dial."""
        self._task = asyncio.get_running_loop().create_task(self._keep())

    def send(self, kind: str, body: dict[str, Any]) -> int:
        """Queue a frame; its bytes, 0 when there is no connection."""
        if self._stream is None:
            return 0
        return self._stream.send(kind, body)

    @property
    def sent(self) -> Counter[str]:
        """Bytes by class (`agents.control_classes`), over all connections so far."""
        return self._past + (Counter() if self._stream is None else self._stream.sent)

    async def close(self) -> None:
        """Hang up."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        pause = FIRST_RETRY_SECONDS
        while True:
            self._ended.clear()
            try:
                async with asyncio.timeout(ATTEMPT_SECONDS):
                    _, stream = await loop.create_connection(
                        lambda: FrameStream(lambda _, kind, body: self._on_frame(kind, body), self._over),
                        *self._address,
                    )
            except (OSError, TimeoutError):
                await asyncio.sleep(pause)
                pause = min(2 * pause, LAST_RETRY_SECONDS)
                continue
            pause = FIRST_RETRY_SECONDS
            if not self._ended.is_set():
                self._stream = stream
                stream.send(
                    "hello",
                    {"role": "agent", "site": self._site, "pid": os.getpid(), "version": wire.VERSION},
                )
                await self._ended.wait()
            await asyncio.sleep(pause)  # a coordinator that refuses this agent is not asked in a tight loop

    def _over(self, stream: FrameStream, reason: str) -> None:
        self._ended.set()
        if self._stream is stream:
            self._past += stream.sent
            self._stream = None
            log.warning("lost the %s: %s", self._name, reason)
            self._on_lost(reason)
