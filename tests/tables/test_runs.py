"""Reading runs back from disk."""

from pathlib import Path

import pytest

from residual_lab.errors import LabError
from residual_lab.tables import load_runs
from residual_lab.tables.grouping import group_runs
from residual_lab.tables.runs import read_runs
from tests.tables.synthetic_runs import make_run


def test_folders_are_searched_to_any_depth(tmp_path: Path) -> None:
    made = {
        make_run(tmp_path / "a", seed=0),
        make_run(tmp_path / "sweep" / "b", seed=1),
        make_run(tmp_path / "sweep" / "b" / "c", "laurel_rw", seed=1),
    }
    assert {run.path for run in load_runs([tmp_path])} == made


def test_a_run_directory_can_be_named_itself(tmp_path: Path) -> None:
    path = make_run(tmp_path, "laurel_rw", seed=3, val_loss=3.25)
    (run,) = load_runs([str(path)])
    assert (run.seed, run.status, run.result["val_loss"]) == (3, "finished", 3.25)
    assert run.config["residual"]["name"] == "laurel_rw"
    assert run.metrics[-1]["val_loss"] == pytest.approx(3.25, abs=0.01)


def test_order_and_repetition_of_paths_change_nothing(tmp_path: Path) -> None:
    first, second = make_run(tmp_path / "a"), make_run(tmp_path / "b")
    expected = [first, second]
    assert [run.path for run in load_runs([first, second])] == expected
    assert [run.path for run in load_runs([second, tmp_path / "a", second, first])] == expected
    (tmp_path / "link").symlink_to(first)
    assert len(load_runs([tmp_path / "link", first])) == 1


def test_insides_of_runs_hidden_folders_and_hydra_files_are_no_runs(tmp_path: Path) -> None:
    path = make_run(tmp_path)
    make_run(path / "checkpoints")
    make_run(tmp_path / ".being-made")
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "config.yaml").write_text("defaults:\n- model: desk\nseed: 0\n")
    assert [run.path for run in load_runs([tmp_path])] == [path]


def test_links_to_runs_count_and_a_way_back_is_not_taken(tmp_path: Path) -> None:
    run = make_run(tmp_path / "elsewhere")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/linked").symlink_to(run)
    (tmp_path / "folder/again").symlink_to(run)
    (tmp_path / "folder/back").symlink_to(tmp_path)
    assert len(load_runs([tmp_path / "folder"])) == 1


def test_a_run_without_result_is_unfinished(tmp_path: Path) -> None:
    make_run(tmp_path, status=None)
    (run,) = load_runs([tmp_path])
    assert (run.status, run.result) == ("unfinished", {})


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("config.yaml", "seed: [1,\n  2", "expected"),
        ("config.yaml", "", "no configuration"),
        ("config.yaml", "seed: 1\nmodel: {}\n", "residual, data"),
        ("result.json", '{"status": "fini', "Unterminated"),
        ("result.json", "[1]", "no result"),
    ],
)
def test_an_unreadable_run_is_one_line_and_spoils_no_other(
    tmp_path: Path, file: str, content: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = make_run(tmp_path, seed=0), make_run(tmp_path, seed=1)
    (bad / file).write_text(content)
    runs, (problem,) = read_runs([tmp_path])
    assert [run.path for run in runs] == [good]
    assert problem.startswith(f"{bad}: ")
    assert reason in problem
    assert "\n" not in problem
    assert len(load_runs([tmp_path])) == 1
    assert capsys.readouterr().err == problem + "\n"


def test_a_missing_folder_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="nowhere: no such folder"):
        load_runs([tmp_path / "nowhere"])


def test_seeds_that_start_from_seeds_of_one_configuration_are_one_group(tmp_path: Path) -> None:
    """Their ``start.run`` differ in seed and hash; runs moved elsewhere are found beside them."""

    def parent(seed: int, lr: float) -> Path:
        made = make_run(tmp_path, seed=seed, overrides={"optim.lr": lr})
        return made.rename(
            made.with_name(f"desk-plain-s{seed}-{len(list(tmp_path.iterdir())):08x}")
        )

    def starts(runs: list[Path]) -> set[str]:
        for seed, run in enumerate(runs):
            start = f"/gone/{run.name}" if seed else str(run)
            make_run(tmp_path / "second", "dca", seed, {"start": {"run": start}})
            run.rename(tmp_path / "second" / run.name)
        found = load_runs([tmp_path / "second"])
        return {run.config["start"]["run"] for run in found if "start" in run.config}

    (name,) = starts([parent(0, 1e-3), parent(1, 1e-3), parent(2, 1e-3)])
    assert name.startswith("desk-plain-")
    make_run(
        tmp_path / "third", "dca", overrides={"start": {"run": "/gone/desk-plain-s3-00000001"}}
    )
    (lost,) = load_runs([tmp_path / "third"])
    assert lost.config["start"]["run"] == "desk-plain"


def test_runs_of_earlier_versions_join_those_with_newer_keys_at_their_defaults(
    tmp_path: Path,
) -> None:
    make_run(tmp_path, seed=0)
    newer = {"start": {"run": None}, "optim.momentum": 0.0, "model.family": "decoder"}
    make_run(tmp_path, seed=1, overrides=newer)
    make_run(tmp_path, seed=1, overrides={"optim.momentum": 0.9})
    assert [(group.label, len(group.runs)) for group in group_runs(load_runs([tmp_path]))] == [
        ("plain momentum=0", 2),
        ("plain momentum=0.9", 1),
    ]
