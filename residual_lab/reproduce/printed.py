"""Numbers as a paper prints them: ``157.20M``, ``18.06 ± 0.01``, ``18.61 (0.02)``, ``11.65 GB``."""

import re
from dataclasses import dataclass, replace
from decimal import ROUND_HALF_UP, Decimal
from typing import Literal

_NUMBER = r"[-−+]?\d[\d,]*(?:\.\d+)?"
_PATTERN = re.compile(
    rf"(?P<value>{_NUMBER})"
    rf"(?:\s*±\s*(?P<error>{_NUMBER})|\s*\((?P<bracketed>{_NUMBER})\))?"
    r"(?P<prefix>(?:[kMBT](?![A-Za-z]))?)(?:\s*(?P<unit>%|[A-Za-z]+))?"
)
_PREFIXES = {"": 0, "k": 3, "M": 6, "B": 9, "T": 12}  # powers of ten; B is a billion
_UNITS = {
    "": Decimal(1),
    "%": Decimal(1),
    "B": Decimal(1),
    "MB": Decimal(10) ** 6,
    "GB": Decimal(10) ** 9,
    "MiB": Decimal(2) ** 20,
    "GiB": Decimal(2) ** 30,
    "s": Decimal(1),
    "ms": Decimal("0.001"),
    "h": Decimal(3600),
}


@dataclass(frozen=True)
class Printed:
    """A printed number in base units: parameters, bytes, seconds, nats; a percentage stays one.

    ``last_digit`` is what one unit of the last printed digit stands for: 157.20M has 10,000.
    ``error`` is what follows ± or stands in brackets. ``unit`` is the one that was printed.
    """

    text: str
    value: float
    error: float | None
    last_digit: float
    unit: str

    @classmethod
    def of(cls, text: str) -> "Printed":
        """Read ``text``; raises ValueError where it is no number, or in a unit not known here."""
        found = _PATTERN.fullmatch(text.strip())
        if found is None:
            raise ValueError(f"{text!r} is no number as papers print them, such as 18.06 ± 0.01")
        unit = found["unit"] or ""
        if unit not in _UNITS:
            known = ", ".join(filter(None, _UNITS))
            raise ValueError(f"{text!r}: the unit {unit} is not known (there are {known})")
        scale = _UNITS[unit].scaleb(_PREFIXES[found["prefix"]])
        value = _decimal(found["value"])
        error = found["error"] or found["bracketed"]
        return cls(
            text=text,
            value=float(value * scale),
            error=None if error is None else float(_decimal(error) * scale),
            last_digit=float(scale.scaleb(int(value.as_tuple().exponent))),
            unit=unit,
        )

    def times(self, factor: float) -> "Printed":
        """The same number in other units."""
        error = None if self.error is None else self.error * factor
        last_digit = self.last_digit * factor
        return replace(self, value=self.value * factor, error=error, last_digit=last_digit)

    def matches(self, number: float) -> Literal["rounded", "truncated"] | None:
        """How ``number`` (in base units) becomes this one at as many digits; None: it does not."""
        digits = Decimal(str(number)) / Decimal(str(self.last_digit))
        printed = (Decimal(str(self.value)) / Decimal(str(self.last_digit))).to_integral_value()
        if digits.to_integral_value(ROUND_HALF_UP) == printed:
            return "rounded"
        return "truncated" if int(digits) == printed else None


def _decimal(text: str) -> Decimal:
    return Decimal(text.replace(",", "").replace("−", "-"))
