"""Checks of a composed configuration: every problem at once, a line each.

A line names the key, its value, what is allowed and, where one is near, what was probably meant.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from pydantic import BaseModel, ValidationError, create_model

from residual_lab.config.conflicts import conflicts, option_schema
from residual_lab.config.data import SOURCES
from residual_lab.config.models import FAMILIES
from residual_lab.config.schema import Config, ResidualConfig
from residual_lab.errors import ConfigError, suggestion


def validate(plain: Mapping[str, Any]) -> Config:
    """Return the typed configuration or raise :class:`ConfigError` with all problems."""
    problems = list(dict.fromkeys(_all_problems(plain)))
    if problems:
        raise ConfigError(*problems)
    return Config.model_validate(plain)


def _all_problems(plain: Mapping[str, Any]) -> Iterator[str]:
    missing = [key for key, value in _leaves(plain) if value == "???"]
    yield from (f"{key}: missing; give {key}=VALUE" for key in missing)
    schema, unknown = _schema_for(plain)
    yield from (line for line in unknown if _key(line) not in missing)
    known = [*missing, *map(_key, unknown)]
    yield from (line for line in problems_of(schema, plain) if _key(line) not in known)
    sections = _valid_sections(schema, plain)
    residual = sections.get("residual")
    if isinstance(residual, ResidualConfig):
        try:
            options = option_schema(residual.connection)
        except ConfigError as error:
            yield from error.problems
            del sections["residual"]
        else:
            found = list(problems_of(options, residual.options, "residual."))
            yield from found
            if found:
                del sections["residual"]
    yield from conflicts(sections)


# The key that tells which of several schemas a section has, its values, and its default.
_KINDS: dict[str, tuple[str, Mapping[str, type[BaseModel]], str]] = {
    "model": ("family", FAMILIES, "decoder"),
    "data": ("source", SOURCES, "python"),
}


def _schema_for(plain: Mapping[str, Any]) -> tuple[type[BaseModel], list[str]]:
    """``Config`` with the schemas that the model and the data of ``plain`` have.

    Also a line for each of the two that is of no known kind.
    """
    chosen, problems = [], []
    for section, (key, kinds, default) in _KINDS.items():
        value = plain.get(section)
        kind = value.get(key, default) if isinstance(value, Mapping) else default
        if not isinstance(kind, str) or kind not in kinds:
            near = suggestion(str(kind), kinds)
            allowed = ", ".join(kinds)
            problems.append(f"{section}.{key}={_shown(kind)}: must be one of {allowed}{near}")
            kind = default
        chosen.append(kinds[kind])
    return _with_sections(*chosen), problems


@lru_cache
def _with_sections(model: type[BaseModel], data: type[BaseModel]) -> type[BaseModel]:
    sections: dict[str, Any] = {"model": (model, ...), "data": (data, ...)}
    return create_model("Config", __base__=Config, **sections)


def _valid_sections(schema: type[BaseModel], plain: Mapping[str, Any]) -> dict[str, BaseModel]:
    """The sections that are right by themselves, typed."""
    sections = {}
    for name, field in schema.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            try:
                sections[name] = field.annotation.model_validate(plain.get(name))
            except ValidationError:
                continue
    return sections


def problems_of(schema: type[BaseModel], plain: Any, prefix: str = "") -> Iterator[str]:
    """Yield a line for each key of ``plain`` that ``schema`` refuses."""
    nodes = _nodes(schema)
    try:
        schema.model_validate(plain)
    except ValidationError as error:
        for problem in error.errors(include_url=False):
            yield _line(nodes, plain, problem["loc"], problem["type"], prefix)
    for key, value in _leaves(plain):
        # pydantic reads true as 1
        if isinstance(value, bool) and not nodes.takes_booleans(key):
            yield f"{prefix}{key}={_shown(value)}: must be {nodes.allowed(key)}"


def _line(
    nodes: "_Nodes", plain: Any, location: Sequence[str | int], kind: str, prefix: str
) -> str:
    if kind == "extra_forbidden":
        key = ".".join(map(str, location))
        near = suggestion(prefix + key, [prefix + known for known in nodes.names()])
        section = nodes.names(".".join(map(str, location[:-1])))
        return (
            f"{prefix}{key}={_shown(_at(plain, location))}: no such key{near} "
            f"(there are {', '.join(section) or 'none'})"
        )
    key = nodes.known_part(location)
    allowed = nodes.allowed(key)
    if kind == "missing" and key == ".".join(map(str, location)):
        return f"{prefix}{key}: missing; must be {allowed}"
    value = _at(plain, key.split("."))
    near = suggestion(value, nodes.choices(key)) if isinstance(value, str) else ""
    return f"{prefix}{key}={_shown(value)}: must be {allowed}{near}"


@lru_cache
def _nodes(schema: type[BaseModel]) -> "_Nodes":
    return _Nodes(schema)


class _Nodes:
    """The JSON schema of a pydantic model, asked by dotted key."""

    def __init__(self, schema: type[BaseModel]) -> None:
        self._root = schema.model_json_schema()

    def _node(self, key: str) -> dict[str, Any] | None:
        node: dict[str, Any] | None = self._root
        for part in key.split(".") if key else []:
            node = self._follow(node).get("properties", {}).get(part) if node else None
        return node

    def _follow(self, node: dict[str, Any]) -> dict[str, Any]:
        if "$ref" in node:
            target: dict[str, Any] = self._root["$defs"][node["$ref"].rpartition("/")[2]]
            return target
        return node

    def names(self, section: str | None = None) -> list[str]:
        """The names of the keys of one section, or every dotted key there is."""
        node = self._node(section or "")
        names = list(self._follow(node).get("properties", {})) if node else []
        if section is not None:
            return names
        return [*names, *(f"{name}.{key}" for name in names for key in self.names(name))]

    def known_part(self, location: Sequence[str | int]) -> str:
        """The dotted key without what pydantic adds, such as the member of a union."""
        parts: list[str] = []
        for part in location:
            if self._node(".".join([*parts, str(part)])) is None:
                break
            parts.append(str(part))
        return ".".join(parts)

    def choices(self, key: str) -> list[str]:
        node = self._follow(self._node(key) or {})
        return [str(c) for option in node.get("anyOf", [node]) for c in _constants(option)]

    def takes_booleans(self, key: str) -> bool:
        return self._node(key) is None or "true or false" in self.allowed(key)

    def allowed(self, key: str) -> str:
        node = self._node(key)
        return "any value" if node is None else self._allowed(self._follow(node))

    def _allowed(self, node: dict[str, Any]) -> str:
        if "anyOf" in node:
            options = [self._allowed(self._follow(option)) for option in node["anyOf"]]
            return " or ".join(dict.fromkeys(options))
        if _constants(node):
            constants = [str(c) for c in _constants(node)]
            return constants[0] if len(constants) == 1 else f"one of {', '.join(constants)}"
        if "prefixItems" in node:
            return f"a list of {len(node['prefixItems'])}: {self._allowed(node['prefixItems'][0])}"
        if node.get("type") == "array":
            return f"a list of {self._allowed(node.get('items', {}))}"
        if node.get("type") == "object":
            return f"a section with the keys {', '.join(node.get('properties', {}))}"
        return _NOUNS.get(node.get("type", ""), "a value") + _bounds(node)


_NOUNS = {
    "integer": "a whole number",
    "number": "a number",
    "string": "text",
    "boolean": "true or false",
    "null": "null",
}
_SIGNS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


def _bounds(node: Mapping[str, Any]) -> str:
    bounds = [f"{sign} {node[name]}" for name, sign in _SIGNS.items() if name in node]
    return " " + " and ".join(bounds) if bounds else ""


def _constants(node: Mapping[str, Any]) -> list[Any]:
    return node.get("enum", [node["const"]] if "const" in node else [])


def _leaves(plain: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(plain, Mapping):
        for key, value in plain.items():
            yield from _leaves(value, f"{prefix}{key}.")
    else:
        yield prefix[:-1], plain


def _at(plain: Any, location: Sequence[str | int]) -> Any:
    for part in location:
        plain = plain[part]
    return plain


def _key(line: str) -> str:
    return line.partition(":")[0].partition("=")[0]


def _shown(value: Any) -> str:
    """As the value is written in an override."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)
