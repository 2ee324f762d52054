"""Frames: round trips under any cutting of the stream, limits, and refusal of everything else."""

from __future__ import annotations

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents import wire

headers = st.dictionaries(
    st.text(max_size=8), st.none() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=20), max_size=5
)
frames = st.lists(st.tuples(headers, st.binary(max_size=5000)), max_size=8)


@given(frames, st.data())
@settings(max_examples=60, deadline=None)
def test_any_cutting_of_the_stream_gives_the_same_frames(items: list, data: st.DataObject) -> None:
    stream = b"".join(wire.encode_bytes(header, payload) for header, payload in items)
    decoder = wire.Decoder()
    out: list[wire.Frame] = []
    position = 0
    while position < len(stream):
        room = decoder.buffer()
        step = min(len(room), data.draw(st.integers(1, 3000)), len(stream) - position)
        room[:step] = stream[position : position + step]
        decoder.advance(step)
        while (frame := decoder.next_frame()) is not None:
            out.append(frame)
        position += step
    assert [(frame.header, bytes(frame.payload)) for frame in out] == items
    assert not decoder.mid_frame


@given(st.binary(max_size=400))
@settings(max_examples=300, deadline=None)
def test_noise_is_refused_or_awaits_more_but_never_breaks_otherwise(noise: bytes) -> None:
    decoder = wire.Decoder()
    try:
        decoder.feed(noise)
    except wire.ProtocolError:
        with pytest.raises(wire.ProtocolError):
            decoder.feed(b"SB")


@given(st.integers(0, 60), st.integers(0, 255))
@settings(max_examples=200, deadline=None)
def test_one_changed_byte_in_the_head_is_refused_or_gives_another_frame(position: int, value: int) -> None:
    stream = bytearray(wire.encode_bytes({"kind": "chunk", "seq": 7, "job": "abc"}, b"x" * 30))
    stream[position % len(stream)] = value
    decoder = wire.Decoder()
    try:
        out = decoder.feed(bytes(stream))
    except wire.ProtocolError:
        return
    assert all(isinstance(frame.header, dict) for frame in out)


def test_the_payload_is_read_into_the_place_that_allocate_names() -> None:
    place = np.zeros(1000, np.float32)
    asked: list[tuple[dict, int]] = []

    def allocate(header: dict, nbytes: int) -> memoryview:
        asked.append((header, nbytes))
        return wire.as_bytes(place)

    data = np.arange(1000, dtype=np.float32)
    out = wire.Decoder(allocate).feed(wire.encode_bytes({"k": 1}, data))
    assert asked == [({"k": 1}, 4000)]
    assert np.array_equal(place, data)
    assert out[0].payload.obj is not None and len(out[0].payload) == 4000


def test_encode_does_not_copy_the_payload() -> None:
    data = np.arange(10, dtype=np.int32)
    _, view = wire.encode({}, data)
    data[0] = 77
    assert np.frombuffer(view, np.int32)[0] == 77


def test_limits_hold_on_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(wire.ProtocolError, match="header of 70"):
        wire.encode({"text": "x" * 70_000})
    long_header = wire.PREFIX.pack(wire.MAGIC, wire.VERSION, 0, wire.MAX_HEADER + 1, 0)
    with pytest.raises(wire.ProtocolError, match="header of 65537"):
        wire.Decoder().feed(long_header)
    long_payload = wire.PREFIX.pack(wire.MAGIC, wire.VERSION, 0, 1, wire.MAX_PAYLOAD + 1)
    with pytest.raises(wire.ProtocolError, match="payload of 268435457"):
        wire.Decoder().feed(long_payload)
    monkeypatch.setattr(wire, "MAX_PAYLOAD", 10)
    with pytest.raises(wire.ProtocolError, match="payload of 11"):
        wire.encode({}, b"x" * 11)


def test_the_largest_header_passes_and_crosses_reads() -> None:
    header = {"text": "x" * (wire.MAX_HEADER - 20)}
    out = wire.Decoder().feed(wire.encode_bytes(header, b"end") * 3)
    assert [frame.header for frame in out] == [header] * 3


@pytest.mark.parametrize(
    ("stream", "words"),
    [
        (b"GET / HTTP/1.1\r\n", "not a frame"),
        (wire.PREFIX.pack(wire.MAGIC, 9, 0, 0, 0), "version 9"),
        (wire.PREFIX.pack(wire.MAGIC, wire.VERSION, 0, 1, 0) + b"\xc1", "not valid msgpack"),
        (wire.PREFIX.pack(wire.MAGIC, wire.VERSION, 0, 0, 0), "not valid msgpack"),
        (wire.PREFIX.pack(wire.MAGIC, wire.VERSION, 0, 1, 0) + msgpack.packb(5), "not a map"),
        (wire.PREFIX.pack(wire.MAGIC, wire.VERSION, 0, 3, 0) + msgpack.packb({1: 2}), "not a map"),
    ],
)
def test_malformed_frames_are_named(stream: bytes, words: str) -> None:
    with pytest.raises(wire.ProtocolError, match=words):
        wire.Decoder().feed(stream)


def test_a_refusing_allocate_stops_the_stream_before_the_payload() -> None:
    def refuse(header: dict, nbytes: int) -> memoryview:
        raise wire.ProtocolError(f"no job {header['job']}")

    decoder = wire.Decoder(refuse)
    with pytest.raises(wire.ProtocolError, match="no job x"):
        decoder.feed(wire.encode({"job": "x"}, b"12345")[0])
    with pytest.raises(wire.ProtocolError, match="no job x"):
        decoder.buffer()


def test_bodies_round_trip_and_bad_ones_are_refused() -> None:
    body = {"trees": [1, 2.5, None], "paths": {3: "x"}}
    assert wire.unpack_body(memoryview(wire.pack_body(body))) == body
    with pytest.raises(wire.ProtocolError, match="payload is not valid msgpack"):
        wire.unpack_body(memoryview(b"\xc1"))


@given(headers, st.integers(0, 2**60), st.sampled_from([True, False, None]))
@settings(max_examples=60, deadline=None)
def test_a_stamp_is_filled_in_when_the_frame_leaves(header: dict, ns: int, follows: bool | None) -> None:
    head, payload = wire.encode(header, b"abc", stamp=True)
    (frame,) = wire.Decoder().feed(wire.stamped(head, wire.Stamp(ns, follows)) + bytes(payload))
    assert wire.stamp_of(frame.header) == (ns, follows) and bytes(frame.payload) == b"abc"
    del frame.header[wire.STAMP]
    assert frame.header == header and wire.stamp_of(header) is None


@pytest.mark.parametrize("nonsense", ["now", -1, 3, 1.5])
def test_stamps_that_make_no_sense_are_refused(nonsense: object) -> None:
    with pytest.raises(wire.ProtocolError, match="a frame left at"):
        wire.stamp_of({wire.STAMP: nonsense})
