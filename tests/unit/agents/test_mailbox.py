"""Messages before and after their receives."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents import mailbox
from agents.mailbox import Line, Mailbox
from topologies.errors import RunFailedError

LINES = [Line(0, 1, 0), Line(0, 1, 5), Line(2, 1, 0)]


@given(st.lists(st.tuples(st.booleans(), st.sampled_from(LINES)), max_size=60))
def test_messages_meet_their_receives_in_order_whichever_comes_first(steps: list[tuple[bool, Line]]) -> None:
    box = Mailbox()
    sent = dict.fromkeys(LINES, 0)
    posted: dict[Line, list[memoryview]] = {line: [] for line in LINES}
    done: dict[Line, list[int]] = {line: [] for line in LINES}
    for arrives, line in steps:
        if arrives:
            place = box.place(line, 1)
            place[0] = sent[line]
            sent[line] += 1
            box.arrived(line, place)
        else:
            number = len(posted[line])
            posted[line].append(memoryview(bytearray(b"\xff")))
            box.post(line, posted[line][-1], lambda line=line, number=number: done[line].append(number))
    for line in LINES:
        met = min(sent[line], len(posted[line]))
        assert done[line] == list(range(met))
        assert [place[0] for place in posted[line]][:met] == list(range(met))
    assert box.kept_bytes == sum(max(0, sent[line] - len(posted[line])) for line in LINES)


def test_a_waiting_receive_is_read_straight_into() -> None:
    box = Mailbox()
    place = memoryview(bytearray(10))
    box.post(LINES[0], place, lambda: None)
    assert box.place(LINES[0], 10) is place
    assert box.place(LINES[1], 10) is not place


def test_lengths_must_agree() -> None:
    box = Mailbox()
    box.post(LINES[0], memoryview(bytearray(4)), lambda: None)
    with pytest.raises(RunFailedError, match=r"from rank 0 to rank 1 with tag 0 has 5 bytes, .* expects 4"):
        box.arrived(LINES[0], box.place(LINES[0], 5))


def test_what_nobody_receives_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailbox, "MAX_KEPT_BYTES", 2 << 20)
    box = Mailbox()
    for _ in range(2):
        box.arrived(LINES[0], box.place(LINES[0], 1 << 20))
    with pytest.raises(RunFailedError, match="more than 2 MiB of messages wait unreceived"):
        box.place(LINES[1], 1)
