"""The supervisor's UNIX socket: one JSON line in, lines of progress and one result out.

A request is {"verb": NAME, ...arguments}. The answer is any number of {"progress": TEXT} and then
{"ok": true, "result": ...} or {"ok": false, "error": {"kind", "message", "hint", "exit_code"}}.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Callable
from typing import Any, Final

from testbed.client import error_to_dict
from testbed.emulation.rundir import HANDED_OVER
from testbed.supervisor.state import Supervisor
from testbed.supervisor.verbs import VERBS, Verb, bind
from topologies.errors import DeadlineError, StormbedError, UsageError
from topologies.unix_sockets import socket_address

REQUEST_BYTES: Final = 4 * 2**20


class Server:
    """Serves the verbs of one supervisor until it is told to stop.

    Args:
        supervisor: what the verbs act on.
        owner: a pipe whose other end only the caller of `up` holds. It says HANDED_OVER when the testbed is up
            and written down; when it closes before, the caller has gone, nobody is there to be handed the
            testbed, and it ends at once.
    """

    def __init__(self, supervisor: Supervisor, owner: int) -> None:
        self._supervisor = supervisor
        self._owner = owner
        self._changing = (
            asyncio.Lock()
        )  # verbs that change something wait for each other; readers do not wait
        self._stopped = asyncio.Event()

    async def run(self) -> None:
        with socket_address(self._supervisor.run_dir.socket) as address:
            server = await asyncio.start_unix_server(self._serve, address, limit=REQUEST_BYTES)
        async with server:
            self._supervisor.loop.add_reader(self._owner, self._hear_owner)
            await self._stopped.wait()

    def stop(self) -> None:
        self._stopped.set()

    def _hear_owner(self) -> None:
        word = os.read(self._owner, len(HANDED_OVER))
        self._supervisor.loop.remove_reader(self._owner)
        os.close(self._owner)
        if word != HANDED_OVER:
            self._supervisor.events.write("abandoned", phase=self._supervisor.phase)
            os._exit(1)
        self._supervisor.events.write("handed_over")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            line = await reader.readline()
            if line:
                await self._answer(line, writer)
        except (ConnectionError, ValueError):
            pass  # the caller has gone, or sent more than any request needs
        finally:
            writer.close()

    async def _answer(self, line: bytes, writer: asyncio.StreamWriter) -> None:
        loop = self._supervisor.loop

        def say(answer: dict[str, Any]) -> None:
            if not writer.is_closing():
                writer.write(json.dumps(answer, default=str).encode() + b"\n")

        def progress(text: str) -> None:
            loop.call_soon_threadsafe(say, {"progress": text})

        name = "?"
        try:
            name, verb, arguments = _parse(line)
            result = await self._perform(name, verb, arguments, progress)
        except StormbedError as error:
            self._supervisor.events.write("verb_failed", verb=name, error=str(error))
            say({"ok": False, "error": error_to_dict(error)})
        except Exception as error:
            self._supervisor.events.write("verb_failed", verb=name, error=repr(error))
            say({"ok": False, "error": error_to_dict(error)})
            raise
        else:
            say({"ok": True, "result": result})
        finally:
            with contextlib.suppress(ConnectionError):
                await writer.drain()
            if self._supervisor.phase == "stopping":
                self.stop()

    async def _perform(
        self,
        name: str,
        verb: Verb,
        arguments: dict[str, Any],
        progress: Callable[[str], None],
    ) -> Any:
        async def do() -> Any:
            call = bind(verb, self._supervisor, progress, arguments)
            if not verb.changes:
                return await asyncio.to_thread(call)
            async with self._changing:
                self._supervisor.events.write("verb", verb=name, arguments=arguments)
                return await asyncio.to_thread(self._alone, call)

        try:
            return await asyncio.wait_for(do(), verb.deadline(arguments))
        except TimeoutError:
            raise DeadlineError(f"the verb {name!r}", verb.deadline(arguments)) from None

    def _alone(self, call: Callable[[], Any]) -> Any:
        with self._supervisor.lock:  # dynamics change links too, from a thread of their own
            return call()


def _parse(line: bytes) -> tuple[str, Verb, dict[str, Any]]:
    try:
        request = json.loads(line)
        name = request.pop("verb")
    except (ValueError, KeyError, AttributeError, TypeError):
        raise UsageError('a request is a JSON object with a "verb"') from None
    verb = VERBS.get(name)
    if verb is None:
        raise UsageError(f"the supervisor has no verb {name!r}", hint=f"it has {', '.join(sorted(VERBS))}")
    return name, verb, request


def run_server(supervisor_of: Callable[[asyncio.AbstractEventLoop], Supervisor], owner: int) -> None:
    """Run a supervisor's server to its end, in the main thread; `owner` as `Server` has it."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        server = Server(supervisor_of(loop), owner)
        for number in (2, 15):
            loop.add_signal_handler(number, server.stop)
        await server.run()

    asyncio.run(main())
    # A thread may still be inside a verb; it is not worth waiting for, since all ends with this process.
    os._exit(0)
