"""What every test relies on."""

import signal

import pytest


@pytest.fixture(scope="session", autouse=True)
def signals_as_in_a_terminal() -> None:
    """A job in the background ignores some, and its tests of being stopped would wait for ever."""
    defaults = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGTERM: signal.SIG_DFL,
        signal.SIGHUP: signal.SIG_DFL,
    }
    for number, default in defaults.items():
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, default)
