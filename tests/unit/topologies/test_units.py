import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from topologies.errors import UsageError
from topologies.units import Delay, Loss, Rate, Size, Span, UnitError


@pytest.mark.parametrize(
    ("text", "bps"),
    [
        ("100mbit", 100_000_000),
        ("100Mbps", 100_000_000),
        ("100 mbit/s", 100_000_000),
        ("1.5gbit", 1_500_000_000),
        ("64KBIT", 64_000),
        ("64kbps", 64_000),
        ("8bit", 8),
        ("1gbps", 10**9),
        ("0.001kbit", 1),
    ],
)
def test_rates_are_bits_in_every_spelling(text: str, bps: int) -> None:
    assert Rate.parse(text).bps == bps


@pytest.mark.parametrize(
    ("text", "suggestion"),
    [
        ("12.5MB/s", "100mbit"),
        ("100MBps", "800mbit"),
        ("100MB", "800mbit"),
        ("1GiB", "8gbit"),
        ("2kB/s", "16kbit"),
        ("10B", "80bit"),
        ("100MBPS", "800mbit"),
    ],
)
def test_byte_rates_are_refused_with_the_bit_value(text: str, suggestion: str) -> None:
    with pytest.raises(UnitError, match=suggestion):
        Rate.parse(text)


@pytest.mark.parametrize(
    "text", ["100", "", "mbit", "100 furlongs", "1e3mbit", "0.5bit", "1,5mbit", "1_0mbit", "９mbit"]
)
def test_texts_that_are_no_rate(text: str) -> None:
    with pytest.raises(UnitError):
        Rate.parse(text)


@pytest.mark.parametrize("text", ["0mbit", "-5mbit", "99999999gbit"])
def test_rates_out_of_range(text: str) -> None:
    with pytest.raises(UnitError, match=r"not above zero|beyond"):
        Rate.parse(text)


@given(st.integers(1, Rate.maximum_bps))
def test_a_rate_survives_its_text(bps: int) -> None:
    assert Rate.parse(str(Rate(bps))) == Rate(bps)


@given(st.integers(0, Delay.maximum_ns))
def test_a_delay_survives_its_text(ns: int) -> None:
    assert Delay.parse(str(Delay(ns))) == Delay(ns)


@given(st.decimals(0, 100, places=6))
def test_a_loss_survives_its_text(percent: object) -> None:
    loss = Loss.parse(f"{percent}%")
    assert Loss.parse(str(loss)) == loss


@given(st.integers(1, Size.maximum_bytes))
def test_a_size_survives_its_text(size: int) -> None:
    assert Size.parse(str(Size(size))) == Size(size)


def test_texts_are_what_a_person_would_write() -> None:
    assert [str(Rate(n)) for n in (1, 62_500_000, 100_000_000, 10**9, 1_500_000_000)] == [
        "1bit",
        "62.5mbit",
        "100mbit",
        "1gbit",
        "1.5gbit",
    ]
    assert [str(Delay(n)) for n in (0, 500_000, 10_000_000, 2 * 10**9, 7)] == [
        "0ms",
        "0.5ms",
        "10ms",
        "2s",
        "7ns",
    ]
    assert str(Loss(0.001)) == "0.1%"
    assert str(Loss(0.0)) == "0%"
    assert str(Size(64_000)) == "64KB"


def test_delays() -> None:
    assert Delay.parse("10ms").seconds == 0.01
    assert Delay.parse("250us") == Delay.parse("250µs") == Delay(250_000)
    for text in ("10", "-1ms", "2min", "61s", "10MS"):
        with pytest.raises(UnitError):
            Delay.parse(text)


def test_losses() -> None:
    assert Loss.parse("100%").ratio == 1.0
    with pytest.raises(UnitError, match=r"0\.1%"):
        Loss.parse("0.001")
    for text in ("101%", "-1%", "nan%"):
        with pytest.raises(UnitError):
            Loss.parse(text)


@pytest.mark.parametrize(("text", "hint"), [("50", "write 50%"), ("0.5", "write 50% or 0.5%")])
def test_a_loss_without_its_sign_is_answered_with_what_can_be_meant(text: str, hint: str) -> None:
    with pytest.raises(UnitError) as refused:
        Loss.parse(text)
    assert refused.value.hint == hint


@pytest.mark.parametrize(("text", "example"), [("0", "100mbit"), ("5", "5mbit")])
def test_a_rate_without_unit_is_answered_with_one_that_is_accepted(text: str, example: str) -> None:
    with pytest.raises(UnitError) as refused:
        Rate.parse(text)
    assert refused.value.hint.endswith(f" {example}")
    assert Rate.parse(example).bps > 0


def test_sizes() -> None:
    assert Size.parse("64KiB").bytes == 65_536
    for text in ("64kb", "64", "0B", "2GiB", "1.5B"):
        with pytest.raises(UnitError):
            Size.parse(text)


def test_quantities_are_ordered_and_frozen() -> None:
    assert Rate(5) < Rate(6) and len({Rate(5), Rate(5)}) == 1
    with pytest.raises(AttributeError):
        Rate(5).bps = 6  # type: ignore[misc]


def test_scaling_never_reaches_zero() -> None:
    assert Rate(100).scaled(0.5) == Rate(50)
    assert Rate(1).scaled(0.001) == Rate(1)
    for factor in (0, -1, float("inf"), float("nan")):
        with pytest.raises(UsageError):
            Rate(100).scaled(factor)


def test_links_are_emulated_from_a_kilobit_on() -> None:
    Rate(1000).require_emulated("link a > b")
    with pytest.raises(UsageError, match="link a > b has a rate of 999bit, and links are emulated from 1kbit"):
        Rate(999).require_emulated("link a > b")


def test_models_take_text_and_refuse_numbers() -> None:
    class Model(BaseModel):
        rate: Rate

    assert Model.model_validate({"rate": "1mbit"}).rate == Rate(10**6)
    assert Model(rate=Rate(10**6)).model_dump_json() == '{"rate":"1mbit"}'
    assert Model.model_json_schema()["properties"]["rate"]["type"] == "string"
    for wrong in (100, 1.5, True, None, ["1mbit"]):
        with pytest.raises(ValidationError):
            Model.model_validate({"rate": wrong})


@pytest.mark.parametrize(("text", "seconds"), [("180s", 180), ("3min", 180), ("500ms", 0.5), ("2h", 7200)])
def test_spans(text: str, seconds: float) -> None:
    assert Span.parse(text).seconds == seconds
    assert Span.parse(str(Span.parse(text))) == Span.parse(text)


@pytest.mark.parametrize("text", ["180", "0s", "-1s", "3 days", "9999999h", "s", "1e3s"])
def test_texts_that_are_no_span(text: str) -> None:
    with pytest.raises(UnitError):
        Span.parse(text)
