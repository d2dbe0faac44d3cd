"""``residual-lab completion``: commands, groups, choices and keys completed in the shell."""

import sys
from collections.abc import Sequence
from importlib import import_module
from itertools import pairwise

from residual_lab.cli import COMMANDS
from residual_lab.errors import LabError, suggestion

USAGE = """\
usage: residual-lab completion bash|zsh|fish

Print a script that completes commands, groups, choices and keys. Load it with
  bash   eval "$(residual-lab completion bash)"          (in ~/.bashrc)
  zsh    eval "$(residual-lab completion zsh)"           (in ~/.zshrc, after compinit)
  fish   residual-lab completion fish | source           (in ~/.config/fish/config.fish)

A shell completes names, so for `python -m residual_lab` give that one:
  alias residual-lab='python -m residual_lab'"""

# bash splits words at "=" and ":", but wants back only the part after the last of them.
BASH = """\
_residual_lab() {
    local line="${COMP_LINE:0:COMP_POINT}" IFS=$'\\n' word prefix
    word="${line##* }"
    prefix="${word%"${word##*[=:]}"}"
    COMPREPLY=($(residual-lab completion --line "$line" 2>/dev/null))
    COMPREPLY=("${COMPREPLY[@]#"$prefix"}")
}
complete -o nospace -o default -F _residual_lab residual-lab
"""

ZSH = """\
_residual_lab() {
    local -a candidates
    candidates=("${(@f)$(residual-lab completion --line "${LBUFFER}" 2>/dev/null)}")
    if [[ -n "${candidates[1]}" ]]; then
        compadd -Q -S '' -a candidates
    else
        _files
    fi
}
compdef _residual_lab residual-lab
"""

FISH = """\
complete -c residual-lab -a '(residual-lab completion --line (commandline -cp) 2>/dev/null)'
"""

SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}


def main(arguments: list[str]) -> int:
    match arguments:
        case ["--line", line]:
            print("\n".join(candidates(line)))
        case [shell] if shell in SCRIPTS:
            sys.stdout.write(SCRIPTS[shell])
        case [] | ["-h" | "--help"]:
            print(USAGE)
        case _:
            word = " ".join(arguments)
            raise LabError(f"{word}: no such shell{suggestion(word, SCRIPTS)} (bash, zsh or fish)")
    return 0


def candidates(line: str) -> list[str]:
    """What the last word of the command ``line``, up to the cursor, may become."""
    words = line.split()[1:]
    if not words or (len(words) == 1 and not line.endswith(" ")):
        return _starting(words[-1] if words else "", COMMANDS)
    command, word = words[0], "" if line.endswith(" ") else words[-1]
    if command in ("train", "estimate", "bench"):  # they take overrides
        return _overrides(words[1:], word)
    if command == "list":
        from residual_lab.commands.list import KINDS, TABLES

        return _starting(word, [*KINDS, TABLES, "format=", "out="])
    if command == "reproduce":
        return _of_a_table(words[1:], word)
    if command in ("table", "inspect", "eval", "generate"):
        options = import_module(f"residual_lab.commands.{command}").OPTIONS
        found = _starting(word, [f"{option}=" for option in options])
        data = command == "eval" and word.startswith("data")
        return [*found, *(_overrides(words[1:], word) if data else [])]
    if command == "completion":
        return _starting(word, SCRIPTS)
    return []


def _of_a_table(words: list[str], word: str) -> list[str]:
    from residual_lab.reproduce.arguments import MATCH, ONLY, OPTIONS
    from residual_lab.reproduce.table_file import SCALES, table_names
    from residual_lab.tables import FORMATS

    values = {"scale": SCALES, "only": ONLY, "match": MATCH, "tune": ["lr"], "format": FORMATS}
    key, equals, _ = word.partition("=")
    if equals and key in values:
        return _starting(word, [f"{key}={value}" for value in values[key]])
    named = any("=" not in other for other in words if other is not word)
    if not named and not equals:
        return _starting(word, table_names())
    return [*_starting(word, [f"{option}=" for option in OPTIONS]), *_overrides(words, word)]


def _starting(word: str, choices: Sequence[str] | dict[str, str]) -> list[str]:
    return sorted(choice for choice in choices if choice.startswith(word))


def _overrides(words: list[str], word: str) -> list[str]:
    """Hydra's completion, over the package's own groups and those of ``--config-dir``."""
    from hydra._internal.core_plugins.bash_completion import BashCompletion

    from residual_lab.config.composition import started_hydra

    if word.startswith("-"):
        return _starting(word, ["--cfg", "--config-dir", "--config-name", "--help", "--multirun"])
    folders = [after for before, after in pairwise(words) if before in ("--config-dir", "-cd")]
    with started_hydra(folders[-1] if folders else None) as hydra:
        overrides = [w for w in words if "=" in w and not w.startswith("-")]
        if word and word not in overrides:
            overrides.append(word)
        line = " ".join(overrides) + ("" if word else " ")
        return BashCompletion(hydra.config_loader)._query(config_name="config", line=line)
