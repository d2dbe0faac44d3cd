"""Runs grouped by what differs between their configurations, and the names of the groups."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from residual_lab.errors import LabError, suggestion
from residual_lab.tables.runs import Run

# Where a run lies and what it reports to changes no result; seeds are what is averaged over.
_IGNORED_SECTIONS = ("run", "logger")
_IGNORED_KEYS = ("seed", "data.cache_dir", "data.workers")
# Losses on other data, or at another length of context, are no comparison.
_DATA_KEYS = (
    *("data.name", "data.path", "data.repository", "data.revision"),
    *("data.subset", "data.text_field"),
    *("data.tokenizer", "data.vocabulary", "data.sequence_length"),
    *("data.validation_tokens", "data.validation_fraction"),
    *("data.test_tokens", "data.test_fraction"),
    *("data.width", "data.target", "data.target_seed"),
    *("data.validation_examples", "data.test_examples"),
    *("data.classes", "data.image_size", "data.resize", "data.image_field", "data.label_field"),
    *("data.validation_images", "data.channels"),
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


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Groups in the order of their labels, whatever the order of the runs.

    Of runs with the same configuration *and* seed the one that started last counts.
    """
    # The settings stand beside the set that they make: a set has no order.
    members: dict[frozenset[tuple[str, Hashable]], tuple[Settings, dict[int, Run]]] = {}
    for run in sorted(runs, key=lambda run: (str(run.result.get("started", "")), str(run.path))):
        own = settings_of(run.config)
        _, found = members.setdefault(frozenset(own.items()), (own, {}))
        found[run.seed] = run
    settings = [own for own, _ in members.values()]
    by_seed = [tuple(found[seed] for seed in sorted(found)) for _, found in members.values()]
    named = zip(labels(settings), settings, by_seed, strict=True)
    return sorted(
        (Group(*parts) for parts in named), key=lambda group: _in_natural_order(group.label)
    )


def settings_of(config: dict[str, Any]) -> Settings:
    """The dotted keys that can change a result, the seed apart, with hashable values.

    Keys that a run of an earlier version has not are at their defaults.
    """
    settings: Settings = {}

    def walk(prefix: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, entry in value.items():
                walk(f"{prefix}.{key}" if prefix else str(key), entry)
        elif prefix not in _IGNORED_KEYS:
            settings[prefix] = tuple(map(str, value)) if isinstance(value, list) else value

    walk("", {key: value for key, value in config.items() if key not in _IGNORED_SECTIONS})
    kinds = (config["model"].get("family"), config["data"].get("source"))
    for key, value in _defaults(*kinds).items():
        settings.setdefault(key, value)
    return settings


@lru_cache
def _defaults(family: str | None, source: str | None) -> Settings:
    """The defaults of all keys that have one, for a model and data of these kinds."""
    from residual_lab.config.data import SOURCES, TextDataConfig
    from residual_lab.config.models import FAMILIES, DecoderConfig
    from residual_lab.config.schema import Config

    sections: dict[str, Any] = {name: f.annotation for name, f in Config.model_fields.items()}
    sections["model"] = FAMILIES.get(family or "", DecoderConfig)
    sections["data"] = SOURCES.get(source or "", TextDataConfig)
    found: Settings = {}
    for name, section in sections.items():
        if name in _IGNORED_SECTIONS:
            continue
        for key, field in getattr(section, "model_fields", {}).items():
            if not field.is_required() and f"{name}.{key}" not in _IGNORED_KEYS:
                value = field.default
                found[f"{name}.{key}"] = (
                    tuple(map(str, value)) if isinstance(value, tuple) else value
                )
    return found


def check_keys(settings: Iterable[Settings], keys: Sequence[str], where: str = "") -> None:
    """Raise LabError for a key that none of ``settings``, if there are any, has."""
    if not keys:
        return  # of a thousand runs the settings take a while
    known = dict.fromkeys(key for own in settings for key in own)
    for key in keys:
        if known and key not in known:
            near = suggestion(key, known) or "; name a key of the configuration, as model.width"
            raise LabError(f"{where}{key}: no row has such a key{near}")


def labels(settings: Sequence[Settings]) -> list[str]:
    """A short name for each: the connection, then ``key=value`` for what tells it from the rest."""
    varying = _varying_keys(settings)
    peers: dict[tuple[str, Hashable], Counter[str]] = defaultdict(Counter)
    for own in settings:
        for key in varying:
            peers[key, _kin(own, key)][_shown(own, key)] += 1
    told = [
        [key for key in varying if _tells(own, key, peers[key, _kin(own, key)])] for own in settings
    ]
    lasts = Counter(key.rpartition(".")[2] for key in {key for keys in told for key in keys})

    def short(key: str) -> str:
        section, _, last = key.rpartition(".")
        return section if last == "name" else last if lasts[last] == 1 else key

    return [
        " ".join([str(own["residual.name"]), *(f"{short(key)}={_shown(own, key)}" for key in keys)])
        for own, keys in zip(settings, told, strict=True)
    ]


def _varying_keys(settings: Sequence[Settings]) -> list[str]:
    """The keys that differ anywhere, in the order of the configuration."""
    keys = dict.fromkeys(key for own in settings for key in own)
    return [key for key in keys if len({_shown(own, key) for own in settings}) > 1]


def _kin(own: Settings, key: str) -> Hashable:
    """What groups must share for their values of ``key`` to be compared: the section's name.

    Another model preset differs in many keys, and its name says it all.
    """
    section = f"{key.partition('.')[0]}.name"
    return None if key == section else own.get(section)


def _tells(own: Settings, key: str, values: Counter[str]) -> bool:
    """Whether a label needs the key: its value is not the one that most of its kin have."""
    if key == "residual.name" or len(values) == 1:
        return False
    (usual, count), (_, second) = values.most_common(2)
    return count == second or _shown(own, key) != usual


def _shown(settings: Settings, key: str) -> str:
    """The value as one would type it in an override; "unset" where there is no such key."""
    value = settings.get(key, "unset")
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{','.join(map(str, value))}]"
    return str(value).removesuffix(".0") if isinstance(value, float) else str(value)


def _in_natural_order(label: str) -> tuple[list[str | float], str]:
    """Sorts ``rank=4`` before ``rank=16``, and 0.0001 before 0.001."""
    parts = re.split(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)", label)
    return [float(part) if i % 2 else part for i, part in enumerate(parts)], label


def find_baselines(
    groups: Sequence[Group], name: str, best: Callable[[Group], float]
) -> dict[tuple[Hashable, ...], Group]:
    """The baseline for each kind of data among the groups, by :attr:`Group.data`.

    ``name`` is a label, or, for data with no row of that label, a connection with any of its
    ``key=value``. Where several groups fit (``plain`` at two depths), the one whose settings are
    nearest to all other groups is taken, and of equally near ones (``plain`` at several learning
    rates) the one with the lowest ``best``.
    Raises LabError if no group fits; ``plain`` may be absent.
    """
    kinds: dict[tuple[Hashable, ...], list[Group]] = defaultdict(list)
    for group in groups:
        kinds[group.data].append(group)
    baselines = {}
    for data, alike in kinds.items():
        fitting = [group for group in alike if group.label == name]
        fitting = fitting or [group for group in alike if _fits(group, name)]
        if fitting:
            distances = _distances(alike)
            baselines[data] = min(fitting, key=lambda group: (distances[group.label], best(group)))
    if not baselines and name != "plain":
        choices = ", ".join(dict.fromkeys(group.label for group in groups))
        raise LabError(f"baseline={name}: no such row (there are {choices})")
    return baselines


def _distances(groups: Sequence[Group]) -> dict[str, int]:
    """By label: in how many keys a group differs from the others in all, the connection's apart."""
    keys = {key for group in groups for key in group.settings if not key.startswith("residual.")}
    counts = {key: Counter(group.settings.get(key) for group in groups) for key in keys}
    return {
        group.label: sum(len(groups) - counts[key][group.settings.get(key)] for key in keys)
        for group in groups
    }


def _fits(group: Group, name: str) -> bool:
    connection, *conditions = name.split() or [""]
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
