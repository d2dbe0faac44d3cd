"""Shell completion, with the subcommand in place."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from residual_lab.cli import COMMANDS, main
from residual_lab.commands.completion import candidates

LAB = "residual-lab "


def test_commands() -> None:
    assert candidates(LAB) == sorted(COMMANDS)
    assert candidates(LAB + "tr") == ["train"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("train resid", ["residual.", "residual="]),
        ("train residual=laurel_rw+l", ["residual=laurel_rw+lr", "residual=laurel_rw+lr+pa"]),
        ("train model=desk optim.warm", ["optim.warmup_steps="]),
        ("train -m seed=0,1 hardware=cp", ["hardware=cpu"]),
        ("train residual=laurel_lr residual.ran", ["residual.rank="]),
        ("train --config-d", ["--config-dir"]),
        ("estimate model=gpt2_1", ["model=gpt2_124m"]),
        ("list mod", ["models"]),
        ("list ta", ["tables"]),
        ("reproduce laurel/c4", ["laurel/c4_ablation"]),
        ("reproduce laurel/c4_ablation sca", ["scale="]),
        ("reproduce laurel/c4_ablation scale=p", ["scale=paper"]),
        ("reproduce laurel/c4_ablation match=f", ["match=flops"]),
        ("reproduce laurel/c4_ablation hydra/launcher=jo", ["hydra/launcher=joblib"]),
        ("completion z", ["zsh"]),
        ("table runs ax", ["axis="]),
        ("inspect runs o", ["out="]),
        ("generate runs/desk pro", ["prompt="]),
        ("eval runs ta", ["tasks="]),
        ("eval runs data=lm", ["data=lm1b"]),
        ("eval runs data.pa", ["data.path="]),
        ("unknown ", []),
    ],
)
def test_the_last_word(line: str, expected: list[str]) -> None:
    found = candidates(LAB + line)
    assert [c for c in found if c in expected] == expected
    word = line.rpartition(" ")[2]
    assert all(candidate.startswith(word) for candidate in found)


def test_a_new_word_offers_groups_and_keys() -> None:
    assert {"residual=", "model=", "optim.", "seed="} <= set(candidates(LAB + "train "))


def test_a_users_groups(tmp_path: Path) -> None:
    (tmp_path / "optim").mkdir()
    (tmp_path / "optim/mine.yaml").write_text("name: mine\n")
    assert candidates(f"{LAB}train --config-dir {tmp_path} optim=m") == ["optim=mine"]


def test_scripts(capsys: pytest.CaptureFixture[str]) -> None:
    """F14: every shell, and what to do where the lab is started with ``python -m``."""
    for shell in ("bash", "zsh", "fish"):
        assert main(["completion", shell]) == 0
        assert "residual-lab completion --line" in capsys.readouterr().out
    assert main(["completion", "bsh"]) == 2
    assert "did you mean bash" in capsys.readouterr().err
    assert main(["completion"]) == 0
    assert "python -m residual_lab" in capsys.readouterr().out


def test_bash_completes_a_word_with_an_equals_sign() -> None:
    script = """
        eval "$(residual-lab completion bash)"
        COMP_LINE="residual-lab train residual=laurel_rw+l"; COMP_POINT=${#COMP_LINE}
        _residual_lab
        printf '%s\\n' "${COMPREPLY[@]}"
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, env={**os.environ, "PATH": path}
    )
    # bash replaces only what follows the "=" of the word
    assert done.stdout.split() == ["laurel_rw+lr", "laurel_rw+lr+pa"]
