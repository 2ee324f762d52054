"""Where agents and runners come in: the listening end of control connections.

Shared by all that agents follow and runners ask: the jobs' coordinator and that of coflows. Who connects says
first who it is. An agent's frames are the owner's business; a runner's are requests, each answered with its id by
a result or by the error that the request met.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from agents import wire
from agents.errors_on_wire import error_to_dict
from agents.streams import FrameStream
from agents.wire import ProtocolError
from topologies.errors import StormbedError, UsageError

log = logging.getLogger(__name__)

Verb = Callable[..., Any]
"""Called with the runner's stream and the request's arguments by name. What it returns is the result; when that is
awaitable, the request is served beside others until it is there."""


class Owner(Protocol):
    """Who is behind the door."""

    def refuses(self, site: int, body: Mapping[str, Any]) -> str | None:
        """Why the agent with this greeting is not wanted; None lets it in."""

    def agent_came(self, site: int, stream: FrameStream, body: Mapping[str, Any]) -> None: ...

    def agent_said(self, site: int, kind: str, body: dict[str, Any]) -> None:
        """KeyError, TypeError, ValueError and StormbedError end the connection as a breach of the protocol."""

    def agent_gone(self, site: int, stream: FrameStream, reason: str) -> None: ...

    def runner_gone(self, stream: FrameStream, reason: str) -> None: ...


class ControlServer:
    """Create and use it on a running asyncio loop.

    Args:
        owner: told what agents say.
        name: of the owner, as errors call it.
        sites: how many sites there are.
        verbs: what runners may ask for.

    Attributes:
        agents: the connected agents, by index of their site; the newest where two say that they are its agent.
    """

    def __init__(self, owner: Owner, name: str, sites: int, verbs: Mapping[str, Verb]) -> None:
        self.agents: dict[int, FrameStream] = {}
        self._owner = owner
        self._name = name
        self._sites = sites
        self._verbs = verbs
        self._streams: set[FrameStream] = set()
        self._requests: dict[FrameStream, set[asyncio.Task[None]]] = {}
        self._changed = asyncio.Event()
        self._server: asyncio.Server | None = None

    async def start(self, hosts: Sequence[str], port: int) -> int:
        """Listen; the port, which is a free one where 0 was asked for. OSError when the address cannot be used."""
        self._server = await asyncio.get_running_loop().create_server(self._accept, hosts, port)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """End all connections, and the requests under way."""
        if self._server is not None:
            self._server.close()
        for tasks in self._requests.values():
            for task in tasks:
                task.cancel()
        for stream in tuple(self._streams):
            stream.close()
        if self._server is not None:
            await self._server.wait_closed()

    async def wait_for_agents(self, sites: Collection[int], seconds: float) -> list[int]:
        """Until the agents of these sites are connected; those that are not after so many seconds."""
        try:
            async with asyncio.timeout(seconds):
                while any(site not in self.agents for site in sites):
                    await self._changed.wait()
        except TimeoutError:
            pass
        return [site for site in sites if site not in self.agents]

    # ---- connections

    def _accept(self) -> FrameStream:
        stream = FrameStream(self._greeted, self._ended)
        self._streams.add(stream)
        return stream

    def _greeted(self, stream: FrameStream, kind: str, body: dict[str, Any]) -> None:
        """The first frame says who it is."""
        if kind != "hello" or body.get("version") != wire.VERSION:
            raise ProtocolError(f"the first frame is not a greeting of version {wire.VERSION}: {kind} {body}")
        if body.get("role") == "runner":
            stream.silence_s = None  # a runner may block for as long as a request takes
            self._requests[stream] = set()
            stream.on_frame = self._runner_said
            return
        site = body.get("site")
        if body.get("role") != "agent" or not isinstance(site, int) or not 0 <= site < self._sites:
            raise ProtocolError(f"a greeting that makes no sense: {body}")
        if (why := self._owner.refuses(site, body)) is not None:
            stream.send("refused", {"why": why})
            stream.close()  # which is not reported
            self._streams.discard(stream)
            return
        self.agents[site] = stream
        stream.on_frame = lambda stream, kind, body: self._agent_said(site, kind, body)
        self._owner.agent_came(site, stream, body)
        self._notify()

    def _ended(self, stream: FrameStream, reason: str) -> None:
        self._streams.discard(stream)
        for site, agent in tuple(self.agents.items()):
            if agent is stream:
                del self.agents[site]
                self._notify()
                self._owner.agent_gone(site, stream, reason)
        if stream in self._requests:
            for task in self._requests.pop(stream):
                task.cancel()
            self._owner.runner_gone(stream, reason)

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _agent_said(self, site: int, kind: str, body: dict[str, Any]) -> None:
        try:
            self._owner.agent_said(site, kind, body)
        except (KeyError, TypeError, ValueError) as error:
            raise ProtocolError(f"malformed {kind} frame: {error!r}") from None
        except StormbedError as error:
            raise ProtocolError(str(error)) from None

    # ---- requests

    def _runner_said(self, stream: FrameStream, verb: str, body: dict[str, Any]) -> None:
        """Begins in the order of the requests; ends in the order of the results."""
        number = body.get("id")
        try:
            if verb not in self._verbs:
                raise UsageError(f"the {self._name} has no verb {verb!r}")
            result = self._verbs[verb](stream, **body.get("args", {}))
        except Exception as error:
            stream.send("answer", {"id": number, "error": self._told(verb, error)})
            return
        if not isinstance(result, Awaitable):
            stream.send("answer", {"id": number, "result": result})
            return
        task = asyncio.get_running_loop().create_task(self._serve(stream, verb, number, result))
        self._requests[stream].add(task)
        task.add_done_callback(lambda task: self._requests.get(stream, set()).discard(task))

    async def _serve(self, stream: FrameStream, verb: str, number: Any, coming: Awaitable[Any]) -> None:
        try:
            answer = {"id": number, "result": await coming}
        except Exception as error:
            answer = {"id": number, "error": self._told(verb, error)}
        stream.send("answer", answer)

    def _told(self, verb: str, error: Exception) -> dict[str, Any]:
        """The error for the runner, who would wait for ever if it got no answer."""
        if isinstance(error, StormbedError):
            return error_to_dict(error)
        if isinstance(error, KeyError):
            return error_to_dict(UsageError(f"{verb}: there is no {error}"))
        if isinstance(error, TypeError | ValueError):
            return error_to_dict(UsageError(f"{verb}: {error}"))
        log.exception("%s failed", verb)
        what = f"the {self._name} failed during {verb}: {type(error).__name__}: {error}"
        return error_to_dict(StormbedError(what, hint="its log has more"))
