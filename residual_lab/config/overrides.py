"""Which overrides Hydra refuses, each said in one line. Hydra itself names only the first."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from residual_lab.errors import ConfigError, suggestion

if TYPE_CHECKING:
    from hydra._internal.hydra import Hydra
    from hydra.core.override_parser.types import Override


# Launchers that come with an extra of this package.
_EXTRAS = {
    "joblib": "joblib",
    "ray": "ray",
    "submitit_local": "submitit",
    "submitit_slurm": "submitit",
}


def parse(overrides: Sequence[str], loader: Any = None) -> tuple[list["Override"], list[str]]:
    """Return the overrides that are well formed, and a line for each that is not.

    ``loader`` is Hydra's configuration loader, for sweeps over ``glob(...)``.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser = OverridesParser.create(config_loader=loader)
    parsed, problems = [], []
    for text in overrides:
        try:
            parsed += parser.parse_overrides([text])
        except HydraException as error:
            reason = str(error).split("\n")[1]  # between "Error parsing" and "See"
            problems.append(
                f"{text}: not an override ({reason}); write KEY=VALUE, and in the shell quote "
                "values that hold spaces, brackets or commas"
            )
    return parsed, problems


def refused(
    hydra: "Hydra", overrides: Sequence[str], config_name: str
) -> tuple[list[str], list[str]]:
    """Return a line for each override that Hydra refuses, and the overrides that it accepts.

    Choices of groups are tried first: which keys there are depends on them.
    """
    parsed, problems = parse(overrides)
    groups = [o for o in parsed if _options(hydra, o.key_or_group, config_name)]
    accepted: list[str] = []
    for override in [*groups, *(o for o in parsed if o not in groups)]:
        assert override.input_line is not None
        problem = _problem(hydra, override, accepted, config_name)
        if problem is None:
            accepted.append(override.input_line)
        else:
            problems.append(problem)
    return problems, [text for text in overrides if text in accepted]


def _options(hydra: "Hydra", group: str, config_name: str) -> list[str]:
    loader: Any = hydra.config_loader
    options: list[str] = loader.get_group_options(group, config_name=config_name, overrides=[])
    return options


def _problem(
    hydra: "Hydra", override: "Override", accepted: list[str], config_name: str
) -> str | None:
    from residual_lab.config.composition import compose_unchecked

    text = override.input_line
    assert text is not None
    if override.is_sweep_override():
        return f"{text}: several values; add -m to sweep over them, or quote it as one value"
    value, options = override.value(), _options(hydra, override.key_or_group, config_name)
    extra = _EXTRAS.get(str(value)) if override.key_or_group == "hydra/launcher" else None
    if extra is not None and value not in options:
        return f"{text}: it is not installed: pip install 'residual-lab[{extra}]'"
    if isinstance(value, str) and options and value not in options:
        choices = ", ".join(options)
        return f"{text}: no such choice{suggestion(value, options)} (there are {choices})"
    try:
        compose_unchecked(hydra, [*accepted, text], config_name)
    except ConfigError as error:
        return f"{text}: {_reason(hydra, override, accepted, config_name, str(error))}"
    return None


def _reason(
    hydra: "Hydra", override: "Override", accepted: list[str], config_name: str, message: str
) -> str:
    from residual_lab.config.composition import compose_unchecked, resolved

    if "An item is already at" in message:
        return f"{override.key_or_group} is there already; leave out the +"
    if not message.startswith(("Could not override", "Could not find")):
        return message
    if override.key_or_group == "hydra.launcher.n_jobs":
        return "this launcher runs one job at a time; add hydra/launcher=joblib"
    plain = resolved(compose_unchecked(hydra, accepted, config_name))
    return f"no such key{suggestion(override.key_or_group, dotted_keys(plain))}"


def dotted_keys(plain: Any, prefix: str = "") -> Iterator[str]:
    """``model``, ``model.layers``, …: the key of every section and value."""
    if isinstance(plain, dict):
        for key, value in plain.items():
            yield f"{prefix}{key}"
            yield from dotted_keys(value, f"{prefix}{key}.")
