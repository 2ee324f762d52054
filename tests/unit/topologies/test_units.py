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
        ("8000bit", 8_000),
        ("1gbps", 10**9),
        ("0.001mbit", 1_000),
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


@pytest.mark.parametrize("text", ["0mbit", "-5mbit", "99999999gbit", "999bit", "0.5kbit"])
def test_rates_out_of_range(text: str) -> None:
    with pytest.raises(UnitError, match=r"not above zero|beyond|below 1kbit"):
        Rate.parse(text)


@given(st.integers(Rate.minimum_bps, Rate.maximum_bps))
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
    assert [str(Rate(n)) for n in (1_000, 62_500_000, 100_000_000, 10**9, 1_500_000_000)] == [
        "1kbit",
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
    assert Rate(5000) < Rate(6000) and len({Rate(5000), Rate(5000)}) == 1
    with pytest.raises(AttributeError):
        Rate(5000).bps = 6000  # type: ignore[misc]


def test_scaling_keeps_to_the_bounds() -> None:
    assert Rate(10_000).scaled(0.5) == Rate(5_000)
    for factor in (0, -1, float("inf"), float("nan"), 0.09, 1e-9, 1e11):
        with pytest.raises(UsageError):
            Rate(10_000).scaled(factor)


def test_bursty_losses() -> None:
    loss = Loss.parse("1% burst 8")
    assert loss == Loss(0.01, 8.0) == Loss.parse(" 1%  bursts 8 ") and str(loss) == "1% burst 8"
    assert loss.gilbert is not None
    p, r = loss.gilbert
    assert r == 1 / 8 and p / (p + r) == pytest.approx(0.01)
    assert Loss(0.01).gilbert is None
    assert Loss.parse("50% burst 1").gilbert == (1.0, 1.0), "every other packet"
    for text, words in (
        ("1% burst 0.9", "burst of 0.9"),
        ("1% burst 1e9", "number of packets"),
        ("1% burst 2000000", "not between"),
        ("1% burst 8ms", "number of packets"),
        ("51% burst 1", "cannot come in bursts"),
        ("100% burst 1000", "cannot come in bursts"),
        ("101% burst 8", "between 0% and 100%"),
        ("1 burst 8", "no per cent sign"),
        ("1% burst", "not a loss"),
    ):
        with pytest.raises(UnitError, match=words):
            Loss.parse(text)


@given(st.decimals(0, 50, places=4), st.decimals(1, 1000, places=2))
def test_a_bursty_loss_survives_its_text(percent: object, burst: object) -> None:
    loss = Loss.parse(f"{percent}% burst {burst}")
    assert Loss.parse(str(loss)) == loss and loss.burst == float(str(burst))


def test_files_may_write_bursty_losses_as_a_map() -> None:
    class Model(BaseModel):
        loss: Loss

    model = Model.model_validate({"loss": {"mean": "1%", "burst": 8}})
    assert model.loss == Loss(0.01, 8.0)
    assert Model.model_validate(model.model_dump()) == Model.model_validate_json(model.model_dump_json()) == model
    for value, words in (
        ({"mean": "1%"}, "keys mean and burst"),
        ({"mean": "1%", "burst": 8, "p": 1}, "keys mean and burst"),
        ({"mean": 0.01, "burst": 8}, "bare number"),
        ({"mean": "1%", "burst": "8"}, "number of packets"),
        ({"mean": "1%", "burst": True}, "number of packets"),
        ({"mean": "1% burst 2", "burst": 8}, "number of packets"),
        ({"mean": "1%", "burst": float("nan")}, "not between"),
    ):
        with pytest.raises(ValidationError, match=words):
            Model.model_validate({"loss": value})


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
