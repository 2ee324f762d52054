"""Serves the page: static files, one document, and a stream of what is new.

    GET /                the page
    GET /api/document    everything so far, as JSON
    GET /api/stream      server-sent events: `update` with new records, `gone` when the testbed has gone
    GET /static/...      script, style and the charting library

The page asks nothing of any other machine, and a browser is told to let it ask nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final, Protocol

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from topologies.errors import StormbedError, UsageError

STATIC: Final = Path(__file__).parent / "static"
PERIOD_S: Final = 1.0
# A comment now and then lets a proxy and the browser know that the stream lives.
KEEP_ALIVE_S: Final = 15.0
# A page that falls this many updates behind asks for the document anew.
BEHIND: Final = 60
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
LOOPBACK: Final = ("127.0.0.1", "localhost")

log = logging.getLogger(__name__)


class Source(Protocol):
    """Where a live page's records come from; `LiveSource` is the one."""

    def document(self) -> dict[str, Any]: ...

    def read(self) -> dict[str, list[dict[str, Any]]]: ...


class Broadcast:
    """Reads a source once a period while anybody looks, and tells all of them."""

    def __init__(self, source: Source, period_s: float = PERIOD_S) -> None:
        self._source = source
        self._period_s = period_s
        self._lock = asyncio.Lock()
        self._listeners: set[asyncio.Queue[str]] = set()
        self._task: asyncio.Task[None] | None = None
        self.gone: str | None = None

    async def document(self) -> dict[str, Any]:
        """The document so far; the first one has a look at the testbed in it."""
        async with self._lock:
            document = self._source.document()
            if not document["sites"] and self.gone is None:
                await self._look()
                document = self._source.document()
        return document

    async def listen(self) -> AsyncIterator[str]:
        """Server-sent events, one string each, until the testbed has gone."""
        queue: asyncio.Queue[str] = asyncio.Queue(maxsize=BEHIND)
        self._listeners.add(queue)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        try:
            yield "retry: 2000\n\n"
            if self.gone is not None:
                yield message("gone", {"why": self.gone})
                return
            while True:
                try:
                    text = await asyncio.wait_for(queue.get(), KEEP_ALIVE_S)
                except TimeoutError:
                    yield ": alive\n\n"
                    continue
                yield text
                if text.startswith(("event: gone", "event: behind")):
                    return
        finally:
            self._listeners.discard(queue)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while self._listeners and self.gone is None:
            async with self._lock:
                update = await self._look()
            self._tell(
                message("update", update) if self.gone is None else message("gone", {"why": self.gone})
            )
            due = max(due + self._period_s, loop.time())
            await asyncio.sleep(due - loop.time())

    async def _look(self) -> dict[str, Any]:
        try:
            return await asyncio.to_thread(self._source.read)
        except StormbedError as error:
            self.gone = error.message
            return {}

    def _tell(self, text: str) -> None:
        for queue in list(self._listeners):
            try:
                queue.put_nowait(text)
            except asyncio.QueueFull:
                while not queue.empty():
                    queue.get_nowait()
                queue.put_nowait(message("behind", {}))


def message(kind: str, fields: Any) -> str:
    """One server-sent event. Pure."""
    return f"event: {kind}\ndata: {json.dumps(fields, separators=(',', ':'))}\n\n"


def application(
    document: dict[str, Any] | None, source: Source | None = None, hosts: tuple[str, ...] = LOOPBACK
) -> Starlette:
    """The page's application: of a finished run (`document`), or of a testbed that stands (`source`).

    Args:
        hosts: names under which a browser may ask for it, so that no page of another site can reach it by a
            name of its own; ("*",) allows all.
    """
    broadcast = Broadcast(source) if source is not None else None

    async def page(request: Request) -> Response:
        return FileResponse(STATIC / "index.html", headers=HEADERS)

    async def whole(request: Request) -> Response:
        found = document if broadcast is None else await broadcast.document()
        body = json.dumps(found, separators=(",", ":"))
        return Response(body, media_type="application/json", headers=HEADERS)

    async def stream(request: Request) -> Response:
        if broadcast is None:
            return Response("a finished run has nothing new\n", 404, HEADERS, "text/plain")
        headers = HEADERS | {"Cache-Control": "no-store"}
        return StreamingResponse(broadcast.listen(), headers=headers, media_type="text/event-stream")

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        if broadcast is not None:
            await broadcast.close()

    return Starlette(
        routes=[
            Route("/", page),
            Route("/api/document", whole),
            Route("/api/stream", stream),
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
        middleware=[
            Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts)),
            Middleware(GZipMiddleware, minimum_size=2000),
        ],
        lifespan=lifespan,
    )


class _Announced(uvicorn.Server):
    """Says when it answers."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()


def serve(app: Starlette, host: str, port: int, on_ready: Callable[[str], None]) -> None:
    """Serve until interrupted.

    Args:
        port: 0 takes any that is free.
        on_ready: is told the page's address once it answers there.

    Raises:
        UsageError: the address cannot be used.
    """
    try:
        listener = _listen(host, port)
    except OSError as error:
        raise UsageError(
            f"the page cannot be served at {host} port {port}: {error.strerror}",
            hint="another --port, or 0 for any that is free",
        ) from None
    _serve(app, host, listener, on_ready)


def serve_near(app: Starlette, host: str, port: int, on_ready: Callable[[str], None]) -> None:
    """Serve as `serve` does, at a port that need not be free: where it is not, any that is."""
    try:
        listener = _listen(host, port)
    except OSError:
        serve(app, host, 0, on_ready)
        return
    _serve(app, host, listener, on_ready)


def _listen(host: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        # Two that begin at once would both be bound; only one of them may listen.
        listener.listen(socket.SOMAXCONN)
    except OSError:
        listener.close()
        raise
    return listener


def _serve(app: Starlette, host: str, listener: socket.socket, on_ready: Callable[[str], None]) -> None:
    with listener:
        config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=1)
        _Announced(config, lambda: on_ready(url(host, listener.getsockname()[1]))).run(sockets=[listener])


def url(host: str, port: int) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"
