"""The results that are committed beside the tables."""

from pathlib import Path

import pytest
import yaml

from residual_lab.config import Config, compose
from residual_lab.reproduce.running import _portable
from residual_lab.run_directory import RunDirectory, config_hash

RESULTS = sorted((Path(__file__).parents[2] / "experiments").glob("*/results/*"))


@pytest.mark.parametrize("results", RESULTS, ids=lambda path: "/".join(path.parts[-3::2]))
def test_kept_runs_fit_this_version_and_their_hashes(results: Path) -> None:
    """Otherwise the table's command would run them anew, or refuse them."""
    kept = sorted((results / "runs").iterdir())
    assert kept and all(RunDirectory.open(run).status for run in kept)


@pytest.mark.parametrize(
    "choice",
    [
        ("model=desk",),
        ("model=low_rank_linear", "data=linear_map"),
        ("model=resnet_desk", "data=digits", "optim=resnet"),
    ],
)
def test_what_is_kept_of_a_run_has_its_hash_and_no_place(
    choice: tuple[str, ...], tmp_path: Path
) -> None:
    run = RunDirectory.create(compose([*choice, f"run.dir={tmp_path}"]))
    text = _portable(run.path / "config.yaml")
    assert str(tmp_path) not in text
    assert config_hash(Config.model_validate(yaml.safe_load(text))) == config_hash(run.config)
