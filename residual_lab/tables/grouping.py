"""Runs grouped by what differs between their configurations, and the names of the groups."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from residual_lab.errors import LabError
from residual_lab.tables.runs import Run

# Where a run lies and what it reports to changes no result; seeds are what is averaged over.
_IGNORED_SECTIONS = ("run", "logger")
_IGNORED_KEYS = ("seed", "data.cache_dir", "data.workers")
# Losses on other data, or at another length of context, are no comparison.
_DATA_KEYS = (
    *("data.name", "data.path", "data.repository", "data.subset", "data.text_field"),
    *("data.tokenizer", "data.vocabulary", "data.sequence_length"),
)

Settings = dict[str, Hashable]


@dataclass(frozen=True)
class Group:
    """The runs of one configuration, seeds apart; ``settings`` are its keys, dotted."""

    label: str
    settings: Settings
    runs: tuple[Run, ...]

    @property
    def finished(self) -> list[Run]:
        return [run for run in self.runs if run.status == "finished"]

    @property
    def data(self) -> tuple[Hashable, ...]:
        """Equal for groups whose losses can be compared."""
        return tuple(self.settings.get(key) for key in _DATA_KEYS)

    def distance(self, other: "Group") -> int:
        """How many keys differ, the connection's own apart."""
        keys = self.settings.keys() | other.settings.keys()
        return sum(
            self.settings.get(key) != other.settings.get(key)
            for key in keys
            if not key.startswith("residual.")
        )


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Groups in the order of their labels, whatever the order of the runs.

    Of runs with the same configuration *and* seed the one that started last counts.
    """
    members: dict[frozenset[tuple[str, Hashable]], dict[int, Run]] = defaultdict(dict)
    for run in sorted(runs, key=lambda run: (str(run.result.get("started", "")), str(run.path))):
        members[frozenset(settings_of(run.config).items())][run.seed] = run
    settings = [dict(key) for key in members]
    by_seed = [tuple(found[seed] for seed in sorted(found)) for found in members.values()]
    named = zip(labels(settings), settings, by_seed, strict=True)
    return sorted(
        (Group(*parts) for parts in named), key=lambda group: _in_natural_order(group.label)
    )


def settings_of(config: dict[str, Any]) -> Settings:
    """The dotted keys that can change a result, the seed apart, with hashable values."""
    settings: Settings = {}

    def walk(prefix: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, entry in value.items():
                walk(f"{prefix}.{key}" if prefix else str(key), entry)
        elif prefix not in _IGNORED_KEYS:
            settings[prefix] = tuple(map(str, value)) if isinstance(value, list) else value

    walk("", {key: value for key, value in config.items() if key not in _IGNORED_SECTIONS})
    return settings


def labels(settings: Sequence[Settings]) -> list[str]:
    """A short name for each: the connection, then ``key=value`` for what tells it from the rest."""
    told = [_telling_keys(own, settings) for own in settings]
    lasts = Counter(key.rpartition(".")[2] for key in {key for keys in told for key in keys})

    def short(key: str) -> str:
        section, _, last = key.rpartition(".")
        return section if last == "name" else last if lasts[last] == 1 else key

    return [
        " ".join([str(own["residual.name"]), *(f"{short(key)}={_shown(own, key)}" for key in keys)])
        for own, keys in zip(settings, told, strict=True)
    ]


def _telling_keys(own: Settings, settings: Sequence[Settings]) -> list[str]:
    """The keys that a label needs so that no two labels are equal.

    A key is compared among the groups that share its section's name: another model preset
    differs in many keys, and its name says it all. The value that most of those have needs no
    mention.
    """
    telling = []
    for key in own:
        section = key.partition(".")[0] + ".name"
        peers = settings
        if key == "residual.name":
            continue
        if key != section:
            peers = [other for other in settings if other.get(section) == own.get(section)]
        counts = Counter(_shown(other, key) for other in peers).most_common(2)
        if len(counts) > 1 and (counts[0][1] == counts[1][1] or counts[0][0] != _shown(own, key)):
            telling.append(key)
    return telling


def _shown(settings: Settings, key: str) -> str:
    """The value as one would type it in an override; "unset" where there is no such key."""
    value = settings.get(key, "unset")
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{','.join(map(str, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _in_natural_order(label: str) -> tuple[list[str | float], str]:
    """Sorts ``rank=4`` before ``rank=16``, and 0.0001 before 0.001."""
    parts = re.split(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)", label)
    return [float(part) if i % 2 else part for i, part in enumerate(parts)], label


def find_baselines(
    groups: Sequence[Group], name: str, best: Callable[[Group], float]
) -> dict[tuple[Hashable, ...], Group]:
    """The baseline for each kind of data among the groups, by :attr:`Group.data`.

    ``name`` is a label, or a connection with any of its ``key=value``. Where several groups fit
    (``plain`` at two depths), the one whose settings are nearest to all other groups is taken, and
    of equally near ones (``plain`` at several learning rates) the one with the lowest ``best``.
    Raises LabError if no group fits; ``plain`` may be absent.
    """
    fitting = [group for group in groups if group.label == name]
    fitting = fitting or [group for group in groups if _fits(group, name)]
    if not fitting and name != "plain":
        choices = ", ".join(group.label for group in groups)
        raise LabError(f"baseline={name}: no such row; choose one of {choices}")

    def rank(group: Group) -> tuple[int, float]:
        others = [other for other in groups if other.data == group.data]
        return sum(group.distance(other) for other in others), best(group)

    ordered = sorted(fitting, key=rank, reverse=True)
    return {group.data: group for group in ordered}  # the last of each kind stays: the nearest


def _fits(group: Group, name: str) -> bool:
    connection, *conditions = name.split()
    if group.settings["residual.name"] != connection:
        return False
    for condition in conditions:
        wanted, _, value = condition.partition("=")
        keys = [
            key for key in group.settings if f".{key}".endswith((f".{wanted}", f".{wanted}.name"))
        ]
        if value not in [_shown(group.settings, key) for key in keys]:
            return False
    return True
