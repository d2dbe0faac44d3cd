"""Printed numbers: values, errors, units, and when a number of ours is the same."""

import pytest

from residual_lab.reproduce.printed import Printed


@pytest.mark.parametrize(
    ("text", "value", "error", "last_digit", "unit"),
    [
        ("157.20M", 157.2e6, None, 1e4, ""),
        ("4.400B", 4.4e9, None, 1e6, ""),
        ("75M", 75e6, None, 1e6, ""),
        ("378,446,592", 378_446_592, None, 1, ""),
        ("3.0159", 3.0159, None, 1e-4, ""),
        ("18.06 ± 0.01", 18.06, 0.01, 0.01, ""),
        ("18.61 (0.02)", 18.61, 0.02, 0.01, ""),
        ("11.65 GB", 11.65e9, None, 1e7, "GB"),
        ("6 GiB", 6 * 2**30, None, 2**30, "GiB"),
        ("11.65MiB", 11.65 * 2**20, None, 2**20 / 100, "MiB"),
        ("11.65GB", 11.65e9, None, 1e7, "GB"),
        ("0.095 s", 0.095, None, 1e-3, "s"),
        ("657 ms", 0.657, None, 1e-3, "ms"),
        ("8.09 h", 8.09 * 3600, None, 36, "h"),
        ("84%", 84, None, 1, "%"),
        ("-1.443", -1.443, None, 1e-3, ""),
        ("−0.02", -0.02, None, 0.01, ""),
    ],
)
def test_what_papers_print(
    text: str, value: float, error: float | None, last_digit: float, unit: str
) -> None:
    printed = Printed.of(text)
    assert printed.value == pytest.approx(value, rel=1e-15)
    assert printed.error == (None if error is None else pytest.approx(error))
    assert printed.last_digit == pytest.approx(last_digit)
    assert (printed.text, printed.unit) == (text, unit)


@pytest.mark.parametrize("text", ["", "n/a", "157.20.1M", "± 0.01", "3.0 (0.1", "1e6", "12 M x"])
def test_what_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no number as papers print them"):
        Printed.of(text)


@pytest.mark.parametrize("text", ["11.65 Gb", "3 K", "0.1 sec", "157.20 M"])
def test_units_that_are_not_known_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"the unit \w+ is not known \(there are %, B, MB"):
        Printed.of(text)


@pytest.mark.parametrize(
    ("text", "number", "how"),
    [
        ("157.20M", 157_204_992, "rounded"),
        ("157.20M", 157_205_000, "truncated"),  # a half rounds up
        ("160.83M", 160_836_216, "truncated"),
        ("160.83M", 160_744_056, None),
        ("49.73M", 49_737_008, "truncated"),
        ("49.74M", 49_737_008, "rounded"),
        ("378.45M", 378_446_592, "rounded"),
        ("75M", 74_789_313, "rounded"),
        ("75M", 76_000_000, None),
        ("378,446,592", 378_446_592, "rounded"),
        ("378,446,592", 378_446_593, None),
        ("-0.02", -0.0249, "rounded"),
        ("-0.02", -0.029, "truncated"),
        ("0.1%", 0.1, "rounded"),
    ],
)
def test_equal_to_the_last_printed_digit(text: str, number: float, how: str | None) -> None:
    assert Printed.of(text).matches(number) == how
