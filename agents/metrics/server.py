"""Serving metrics over HTTP, on the loop of whoever they belong to."""

from __future__ import annotations

import asyncio
from typing import Final

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.registry import Collector

REQUEST_BYTES: Final = 16 * 1024
REQUEST_SECONDS: Final = 10.0


class Server:
    """Serves one collector at http://ADDRESS/metrics, on the loop that it was started on.

    No thread: what is collected belongs to that loop, and a scrape takes it a few milliseconds.
    """

    def __init__(self, collector: Collector) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(collector)
        self._server: asyncio.Server | None = None

    async def start(self, endpoint: tuple[str, int]) -> None:
        """Listen. Raises OSError when the address cannot be used."""
        self._server = await asyncio.start_server(self._serve, *endpoint, limit=REQUEST_BYTES)

    async def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request a connection, as Prometheus' text format over HTTP/1.1."""
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                request = await reader.readuntil(b"\r\n\r\n")
                method, target = request.split(b" ", 2)[:2]
                known = target.split(b"?")[0] in (b"/", b"/metrics")
                if method != b"GET" or not known:
                    status, body = "404 Not Found", b"try GET /metrics\n"
                else:
                    status, body = "200 OK", generate_latest(self._registry)
                head = f"HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE_LATEST}\r\n"
                head += f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
                writer.write(head.encode() + body)
                await writer.drain()
        except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # whoever asked is gone, or did not speak HTTP
        finally:
            writer.close()
