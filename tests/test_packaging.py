"""Packaging: the pins, the Makefile, and the wheel installed elsewhere."""

import json
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

CHECKOUT = Path(__file__).resolve().parent.parent


def requirements() -> list[Requirement]:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    of_tests = ("test", "joblib", "submitit", "tensorboard", "evaluation")
    needed = [*project["dependencies"], *(line for extra in of_tests for line in extras[extra])]
    return [Requirement(line) for line in needed if not line.startswith("residual-lab")]


def test_whatever_make_setup_installs_is_pinned_within_its_bounds() -> None:
    lines = (CHECKOUT / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    assert pins["torch"] == "2.13.0"  # no local version: any build fits
    for requirement in requirements():
        version = Version(pins[canonicalize_name(requirement.name)])
        assert version in requirement.specifier, requirement
        assert version.local is None


def test_python_3_14_is_refused_while_hydras_help_crashes_there() -> None:
    """F13: pip refuses to install there; test_make_refuses_other_pythons is about make."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    allowed = SpecifierSet(project["requires-python"])
    wanted = {"3.10.18": False, "3.11.0": True, "3.12.9": True, "3.13.5": True, "3.14.0": False}
    assert {version: version in allowed for version in wanted} == wanted


def test_make_explains_its_targets() -> None:
    done = subprocess.run(["make"], cwd=CHECKOUT, capture_output=True, text=True)
    described = {line.split()[1] for line in done.stdout.splitlines() if line.split()[2:]}
    assert described >= {"help", "setup", "train", "test", "lint", "bench"}
    assert done.returncode == 0


@pytest.mark.parametrize("minor", [10, 14])
def test_make_refuses_other_pythons_in_one_line(minor: int, tmp_path: Path) -> None:
    """F13."""
    old = tmp_path / f"python3.{minor}"
    code = f"import sys; sys.version_info = (3, {minor}); exec(sys.argv[1])"
    old.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{code}" "$2"\n')
    old.chmod(0o755)
    makefile = CHECKOUT / "Makefile"
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).touch()
    done = subprocess.run(
        ["make", "-f", makefile, f"PYTHON={old}", "setup"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    first = done.stderr.splitlines()[0]
    assert first.startswith("Python 3.11, 3.12 or 3.13 is needed, ") and f"is 3.{minor}" in first
    assert not (tmp_path / ".venv").exists()


@pytest.mark.slow
def test_the_wheel_works_installed_elsewhere(tmp_path: Path) -> None:
    """F4: the console script of an installed wheel finds its configurations from any folder."""

    def run(*command: str | Path) -> str:
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    run(*pip, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", "dist", CHECKOUT)
    (wheel,) = (tmp_path / "dist").iterdir()
    names = zipfile.ZipFile(wheel).namelist()
    assert "residual_lab/conf/config.yaml" in names
    assert "residual_lab/conf/residual/laurel_rw+lr.yaml" in names
    assert any(name.startswith("residual_lab/experiments/") for name in names)

    run(sys.executable, "-m", "venv", "--without-pip", "env")
    python = tmp_path / "env/bin/python"
    run(*pip, "--python", python, "install", "-q", "--no-deps", wheel)
    # the dependencies are those of this environment, without its editable residual-lab
    (packages,) = (tmp_path / "env").glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    where = run(python, "-c", "import residual_lab; print(residual_lab.__file__)")
    assert where.startswith(str(packages))

    lab = tmp_path / "env/bin/residual-lab"
    rows = json.loads(run(lab, "list", "residuals", "format=json"))["rows"]
    assert {"plain", "laurel_rw+lr"} <= {row["name"] for row in rows}
    (tmp_path / "text").mkdir()
    for number in range(60):
        (tmp_path / f"text/{number}.txt").write_text(f"{number} " + "some words to read " * 20)
    run(
        *(lab, "train", "hardware=cpu", "model.layers=1", "model.width=16", "model.heads=1"),
        *("data=text", "data.path=text", "data.vocabulary=300", "data.sequence_length=16"),
        *("data.cache_dir=cache", "budget.batch_tokens=64", "budget.tokens=128"),
    )
    (result,) = tmp_path.glob("runs/*/result.json")
    assert json.loads(result.read_text())["status"] == "finished"
