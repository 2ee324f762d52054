"""The listening end of control connections: who may come in, and that every request is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from agents import wire
from agents.control_server import ControlServer, Verb
from agents.streams import FrameStream
from topologies.errors import UsageError

HELLO = {"role": "agent", "site": 1, "version": wire.VERSION}
RUNNER = {"role": "runner", "version": wire.VERSION}


class House:
    """Keeps what it is told; refuses who is called Mallory."""

    def __init__(self, verbs: Mapping[str, Verb] | None = None) -> None:
        self.server = ControlServer(self, "house", 3, verbs or {})
        self.heard: list[Any] = []

    def refuses(self, site: int, body: Mapping[str, Any]) -> str | None:
        return "not you" if body.get("name") == "mallory" else None

    def agent_came(self, site: int, stream: FrameStream, body: Mapping[str, Any]) -> None:
        self.heard.append(("came", site))

    def agent_said(self, site: int, kind: str, body: dict[str, Any]) -> None:
        if kind == "number":
            self.heard.append(("said", site, int(body["number"])))
        else:
            raise UsageError(f"no {kind}")

    def agent_gone(self, site: int, stream: FrameStream, reason: str) -> None:
        self.heard.append(("gone", site, reason))

    def runner_gone(self, stream: FrameStream, reason: str) -> None:
        self.heard.append(("runner gone", reason))


class Caller:
    """One connection to it."""

    def __init__(self) -> None:
        self.frames: asyncio.Queue[tuple[str, dict[str, Any]]] = asyncio.Queue()
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.stream: FrameStream

    async def dial(self, port: int, hello: dict[str, Any]) -> Caller:
        def stream() -> FrameStream:
            return FrameStream(
                lambda stream, kind, body: self.frames.put_nowait((kind, body)),
                lambda stream, reason: self.ended.set_result(reason),
            )

        _, self.stream = await asyncio.get_running_loop().create_connection(stream, "127.0.0.1", port)
        self.stream.send("hello", hello)
        return self

    async def answer(self) -> dict[str, Any]:
        kind, body = await self.frames.get()
        assert kind == "answer"
        return body


def run(house: Callable[[], House], work: Callable[[House, int], Awaitable[None]]) -> House:
    async def main() -> House:
        async with asyncio.timeout(10):
            made = house()
            port = await made.server.start(["127.0.0.1"], 0)
            try:
                await work(made, port)
            finally:
                await made.server.close()
            return made

    return asyncio.run(main())


@pytest.mark.parametrize(
    "hello",
    [
        {**HELLO, "version": 0},
        {**HELLO, "site": 3},
        {**HELLO, "site": "1"},
        {**HELLO, "role": "cook"},
    ],
)
def test_who_greets_wrongly_is_hung_up_on(hello: dict[str, Any]) -> None:
    async def work(house: House, port: int) -> None:
        await (await Caller().dial(port, hello)).ended
        assert not house.server.agents

    assert run(House, work).heard == []


def test_agents_come_speak_and_go() -> None:
    async def work(house: House, port: int) -> None:
        assert await house.server.wait_for_agents([1], 0.01) == [1]
        waiting = asyncio.create_task(house.server.wait_for_agents([1], 5))
        agent = await Caller().dial(port, HELLO)
        assert await waiting == [] and house.server.agents.keys() == {1}
        agent.stream.send("number", {"number": 7})
        agent.stream.send("number", {"number": "seven"})
        await agent.ended
        assert not house.server.agents

    came, said, gone = run(House, work).heard
    assert (came, said) == (("came", 1), ("said", 1, 7))
    assert gone[:2] == ("gone", 1) and "malformed number frame: ValueError" in gone[2]


def test_an_error_of_the_owners_ends_the_connection_in_its_words() -> None:
    async def work(house: House, port: int) -> None:
        agent = await Caller().dial(port, HELLO)
        agent.stream.send("song", {})
        await agent.ended

    assert "it broke the protocol: no song" in run(House, work).heard[-1][2]


def test_who_is_refused_is_told_why_and_not_kept() -> None:
    async def work(house: House, port: int) -> None:
        caller = await Caller().dial(port, {**HELLO, "name": "mallory"})
        assert await caller.frames.get() == ("refused", {"why": "not you"})
        await caller.ended
        assert not house.server.agents and not house.server._streams

    assert run(House, work).heard == []


def test_of_two_agents_of_a_site_the_newer_counts_and_the_end_of_the_older_is_no_news() -> None:
    async def work(house: House, port: int) -> None:
        older = await Caller().dial(port, HELLO)
        await house.server.wait_for_agents([1], 5)
        newer = await Caller().dial(port, HELLO)
        newer.stream.send("number", {"number": 1})
        while ("said", 1, 1) not in house.heard:
            await asyncio.sleep(0)
        older.stream.send("song", {})  # which ends it
        await older.ended
        assert house.server.agents.keys() == {1}

    assert [what for what, *_ in run(House, work).heard] == ["came", "came", "said"]


def test_every_request_is_answered_whatever_happens() -> None:
    def fails(stream: FrameStream) -> None:
        raise RuntimeError("a slip")

    async def fails_later(stream: FrameStream) -> None:
        await asyncio.sleep(0)
        raise RuntimeError("a slip")

    async def refuses(stream: FrameStream) -> None:
        raise UsageError("not now", hint="later")

    def house() -> House:
        verbs = {
            "double": lambda stream, x: 2 * x,
            "look_up": lambda stream, key: {}[key],
            "fails": fails,
            "fails_later": fails_later,
            "refuses": refuses,
        }
        return House(verbs)

    async def work(house: House, port: int) -> None:
        runner = await Caller().dial(port, RUNNER)

        async def ask(verb: str, **arguments: Any) -> tuple[Any, Any]:
            runner.stream.send(verb, {"id": 5, "args": arguments})
            answer = await runner.answer()
            assert answer["id"] == 5
            error = answer.get("error") or {}
            return answer.get("result"), (error.get("exit_code"), error.get("message"))

        assert await ask("double", x=2) == (4, (None, None))
        assert await ask("nosuch") == (None, (2, "the house has no verb 'nosuch'"))
        assert (await ask("double"))[1][0] == 2
        assert await ask("look_up", key="job") == (None, (2, "look_up: there is no 'job'"))
        assert await ask("refuses") == (None, (2, "not now"))
        for verb in ("fails", "fails_later"):
            assert await ask(verb) == (None, (1, f"the house failed during {verb}: RuntimeError: a slip"))

    run(house, work)


def test_a_long_request_holds_up_no_other_and_ends_with_its_runner() -> None:
    ended: list[str] = []
    begun = asyncio.Event()

    async def long(stream: FrameStream) -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("long")
            raise

    async def work(house: House, port: int) -> None:
        runner = await Caller().dial(port, RUNNER)
        runner.stream.send("long", {"id": 1})
        runner.stream.send("short", {"id": 2})
        assert await runner.answer() == {"id": 2, "result": "done"}
        await begun.wait()
        runner.stream.close()
        while not ended:
            await asyncio.sleep(0)

    house = run(lambda: House({"long": long, "short": lambda stream: "done"}), work)
    assert ended == ["long"] and house.heard == [("runner gone", "it closed the connection")]
