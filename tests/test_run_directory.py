"""Run directories: their names, locks, results and metrics."""

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from residual_lab.config import Config, compose
from residual_lab.errors import LabError
from residual_lab.run_directory import RunDirectory, config_hash, read_metrics


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return compose([f"run.dir={tmp_path}/runs"])


@pytest.mark.parametrize(
    "override",
    [
        "seed=1",
        "model.layers=4",
        "residual=laurel_rw",
        "residual.granularity=branch",
        "data.sequence_length=128",
        "budget.tokens=4096",
        "optim.lr=1e-3",
        "optim.optimizer=sgd",
        "evaluation.every_steps=7",
        "hardware.accumulate=2",
        "debug.overfit=true",
    ],
)
def test_hash_changes_with_what_can_change_the_result(override: str) -> None:
    assert config_hash(compose([override])) != config_hash(compose())


@pytest.mark.parametrize(
    "override",
    [
        "run.dir=elsewhere",
        "run.checkpoint_every_steps=3",
        "logger.group=g",
        "data.cache_dir=cache",
        "data.workers=1",
    ],
)
def test_hash_ignores_what_cannot(override: str) -> None:
    assert config_hash(compose([override])) == config_hash(compose())


def test_a_key_at_its_default_does_not_enter_the_hash() -> None:
    """So that a key which a later version adds leaves the names of earlier runs as they are."""
    config = compose()
    without = config.model_copy(update={"debug": type(config.debug)()})
    assert config_hash(without) == config_hash(config)
    dumped = config.model_dump(mode="json")
    del dumped["model"]["share"], dumped["optim"]["decay_fraction"], dumped["measure"]
    assert config_hash(Config.model_validate(dumped)) == config_hash(config)


def test_hash_covers_the_code_of_a_users_connection(tmp_path: Path) -> None:
    """Editing the file makes another run; moving it does not."""
    code = "from residual_lab.residuals.plain import Plain\n\n\nclass Mine(Plain):\n    pass\n"
    first, moved, edited = (tmp_path / f"{name}.py" for name in ("first", "moved", "edited"))
    for file, text in ((first, code), (moved, code), (edited, code + "    x = 1\n")):
        file.write_text(text)
    hashes = [
        config_hash(compose(["residual.name=mine", f"residual.connection={file}:Mine"]))
        for file in (first, moved, edited)
    ]
    assert hashes[0] == hashes[1] != hashes[2]


def test_hash_does_not_depend_on_the_folder_that_the_command_is_given_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = config_hash(compose())
    monkeypatch.chdir(tmp_path)
    assert config_hash(compose()) == before


def test_create_writes_the_whole_configuration_under_its_name(config: Config) -> None:
    run = RunDirectory.create(config)
    expected = f"desk-plain-python_source-s0-{config_hash(config)[:8]}"
    assert run.path == Path(config.run.dir) / expected
    assert [p.name for p in run.path.iterdir()] == ["config.yaml"]
    assert RunDirectory.open(run.path).config == config
    assert run.status == "unfinished"


def test_seeds_never_share_a_directory(tmp_path: Path) -> None:
    """F24: so no seed resumes from another's checkpoint."""
    paths = {RunDirectory.path_of(compose([f"seed={s}", f"run.dir={tmp_path}"])) for s in range(3)}
    assert len(paths) == 3


def test_many_may_create_the_same_directory_at_once(config: Config) -> None:
    """F5: one whole directory, however many start in the same moment."""
    with ThreadPoolExecutor(8) as pool:
        runs = list(pool.map(lambda _: RunDirectory.create(config), range(16)))
    assert len({run.path for run in runs}) == 1
    assert [p.name for p in Path(config.run.dir).iterdir()] == [runs[0].path.name]


def test_an_unfinished_run_takes_over_the_logger_and_a_finished_one_does_not(
    config: Config, tmp_path: Path
) -> None:
    RunDirectory.create(config)
    changed = compose([f"run.dir={tmp_path}/runs", "logger.group=other"])
    run = RunDirectory.create(changed)
    assert RunDirectory.open(run.path).config.logger.group == "other"
    run.write_result({"status": "finished"})
    RunDirectory.create(config)
    assert RunDirectory.open(run.path).config.logger.group == "other"


@pytest.mark.parametrize("text", [None, "seed: [", "seed: 0\n", "nonsense"])
def test_open_refuses_what_is_no_run_directory(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(LabError, match=str(tmp_path)) as caught:
        RunDirectory.open(tmp_path)
    assert "\n" not in str(caught.value)


def edit(run: RunDirectory, old: str, new: str) -> None:
    file = run.path / "config.yaml"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def test_a_configuration_edited_by_hand_is_refused_in_one_line(config: Config) -> None:
    """The name would speak of another run; what cannot change a result may be edited."""
    run = RunDirectory.create(config)
    edit(run, "checkpoint_every_steps: 100", "checkpoint_every_steps: 7")
    assert RunDirectory.open(run.path).config.run.checkpoint_every_steps == 7
    edit(run, f"seed: {config.seed}", "seed: 77")
    for attempt in (lambda: RunDirectory.open(run.path), lambda: RunDirectory.create(config)):
        with pytest.raises(LabError, match=r"config\.yaml.* is not the one") as caught:
            attempt()
        assert "\n" not in str(caught.value)


def test_a_run_under_another_name_still_opens(config: Config, tmp_path: Path) -> None:
    run = RunDirectory.create(config)
    moved = run.path.rename(tmp_path / "the-good-one")
    assert RunDirectory.open(moved).config == config


@pytest.mark.parametrize("text", ["{", "[]", "{}", None])
def test_a_result_that_cannot_be_read_is_refused_in_one_line(
    config: Config, text: str | None
) -> None:
    """It may be that of a finished run: nothing is trained over it."""
    run = RunDirectory.create(config)
    file = run.path / "result.json"
    if text is None:
        file.mkdir()
    else:
        file.write_text(text)
    with pytest.raises(LabError, match=r"result\.json: cannot be read") as caught:
        _ = run.status
    assert "\n" not in str(caught.value)


def test_a_run_that_may_not_be_written_to_is_refused_in_one_line(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDirectory.create(config)
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda *_: False)
        with pytest.raises(LabError, match="cannot be written to"), run.lock():
            pass
    (run.path / ".lock").mkdir()
    with pytest.raises(LabError, match="cannot be written to"), run.lock():
        pass


def test_create_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LabError, match=r"run\.dir="):
        RunDirectory.create(compose([f"run.dir={tmp_path}/file"]))


@pytest.mark.parametrize("status", ["finished", "failed", "diverged"])
def test_status_is_the_results(config: Config, status: str) -> None:
    run = RunDirectory.create(config)
    run.write_result({"status": status, "val_loss": 1.5})
    assert run.status == status
    assert run.result == {"status": status, "val_loss": 1.5}


def test_a_result_that_cannot_be_written_leaves_the_old_one(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDirectory.create(config)
    run.write_result({"status": "failed"})

    def full(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="disk full"):
        run.write_result({"status": "finished"})
    assert run.result == {"status": "failed"}
    assert sorted(p.name for p in run.path.iterdir()) == ["config.yaml", "result.json"]


HOLD = """
import sys
from residual_lab.run_directory import RunDirectory
with RunDirectory.open(sys.argv[1]).lock():
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_lock_keeps_others_out_and_dies_with_its_holder(config: Config) -> None:
    """F5: of two that start the same run, one runs and the other is refused."""
    run = RunDirectory.create(config)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(run.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
    assert run.status == "in use"
    with pytest.raises(LabError, match=f"in use by process {holder.pid}"), run.lock():
        pass
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    assert run.status == "unfinished"
    with run.lock():
        assert run.status == "in use"
    assert run.status == "unfinished"


def rows(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_metrics_of_a_resumed_run_are_one_curve(tmp_path: Path) -> None:
    def train(step: int, loss: float) -> str:
        return json.dumps({"step": step, "tokens": step, "train_loss": loss})

    def validation(step: int, loss: float) -> str:
        return json.dumps({"step": step, "tokens": step, "val_loss": loss})

    path = rows(
        tmp_path / "metrics.jsonl",
        train(1, 5.0),
        train(2, 4.0),
        validation(2, 4.5),
        train(3, 3.0),
        train(2, 4.1),  # resumed from step 1
        validation(2, 4.6),
        train(3, 3.1),
        "",
    )
    found = [(r["step"], r.get("train_loss"), r.get("val_loss")) for r in read_metrics(path)]
    assert sorted(found, key=str) == sorted(
        [(1, 5.0, None), (2, 4.1, None), (2, None, 4.6), (3, 3.1, None)], key=str
    )
    assert [step for step, *_ in found] == [1, 2, 2, 3]


def test_rows_that_a_kill_cut_short_are_dropped(tmp_path: Path) -> None:
    path = rows(tmp_path / "m", '{"step": 1, "train_loss": 2}', '{"step": 2, "tr')
    assert [row["step"] for row in read_metrics(path)] == [1]
    # the resumed process appended to the torn line
    path = rows(tmp_path / "m", '{"step": 1, "tr{"step": 1, "train_loss": 3}', "")
    assert read_metrics(path) == [{"step": 1, "train_loss": 3}]


def test_other_broken_lines_are_an_error(tmp_path: Path) -> None:
    path = rows(tmp_path / "m", '{"step": 1, "train_loss": 2}', "nonsense", '{"step": 2}', "")
    with pytest.raises(LabError, match="line 2"):
        read_metrics(path)


def test_no_metrics_yet(tmp_path: Path) -> None:
    assert read_metrics(tmp_path / "metrics.jsonl") == []
