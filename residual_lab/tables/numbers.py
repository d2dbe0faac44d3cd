"""Numbers as text: as many digits as the error supports, true minus signs, units with prefixes."""

import math

from residual_lab.tables.statistics import Spread

DASH = "–"  # no value


def decimals(error: float) -> int:
    """Decimal places that show two significant digits of ``error``."""
    if error <= 0 or not math.isfinite(error):
        return 4
    return min(6, max(0, 1 - math.floor(math.log10(error))))


def fixed(value: float, places: int, sign: bool = False) -> str:
    """The value with ``places`` decimals; a zero has no sign."""
    if not math.isfinite(value):
        return str(value).replace("-", "−")
    text = f"{value:{'+' if sign else ''},.{places}f}"
    if float(text.replace(",", "")) == 0:
        text = text.lstrip("+-")
    return text.replace("-", "−")


def significant(value: float, digits: int = 4) -> str:
    """The value with so many significant digits, whole numbers in full: 157,204,992."""
    if not math.isfinite(value) or value == int(value):
        return fixed(value, 0)
    return fixed(value, max(0, digits - 1 - math.floor(math.log10(abs(value)))))


def tiny(*values: float) -> bool:
    """Whether fixed decimals would leave few digits of any of the values."""
    return 0 < max(map(abs, values)) < 1e-3


def scientific(value: float, digits: int = 2, sign: bool = False) -> str:
    """``1.3e-5``"""
    mantissa, _, exponent = f"{value:{'+' if sign else ''}.{digits - 1}e}".partition("e")
    return f"{mantissa}e{int(exponent)}".replace("-", "−")


def with_prefix(value: float) -> str:
    """Three decimals and a decimal prefix: 943.218 M."""
    for power, prefix in ((15, "P"), (12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if abs(value) >= 10**power:
            return f"{value / 10**power:.3f} {prefix}"
    return significant(value)


def mean_and_deviation(spread: Spread, digits: int = 4) -> str:
    """``3.4216 ± 0.0031``; where nothing varies the mean alone, with ``digits``."""
    if not spread.std:
        return significant(spread.mean, digits)
    if tiny(spread.mean):
        return f"{scientific(spread.mean)} ± {scientific(spread.std)}"
    places = decimals(spread.std)
    return f"{fixed(spread.mean, places)} ± {fixed(spread.std, places)}"


def percentage(change: float) -> str:
    """A relative change: ``+0.75%``, ``−12.3%``; what rounds to nothing: ``< +0.01%``."""
    if 0 < abs(change) < 0.00005:
        return f"< {'+' if change > 0 else '−'}0.01%"
    return fixed(100 * change, 2 if abs(change) < 0.01 else 1, sign=True) + "%"


def probability(p: float) -> str:
    """``0.42``, ``0.013``, ``< 0.001``."""
    if p < 0.001:
        return "< 0.001"
    return f"{p:.2f}" if p >= 0.1 else f"{p:.2g}"


def interval_text(
    mean: float, low: float | None = None, high: float | None = None, places: int = 4
) -> str:
    """A difference, with its interval: ``−0.0261 [−0.0352, −0.0170]``; alone at ``places``."""
    if low is None or high is None:
        return scientific(mean, sign=True) if tiny(mean) else fixed(mean, places, sign=True)
    if tiny(mean, low, high):
        texts = [scientific(value, sign=True) for value in (mean, low, high)]
    else:
        places = decimals((high - low) / 2)
        texts = [fixed(value, places, sign=True) for value in (mean, low, high)]
    return f"{texts[0]} [{texts[1]}, {texts[2]}]"
