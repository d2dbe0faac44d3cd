"""``residual-lab table`` as it is typed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from residual_lab.commands.table import main
from residual_lab.errors import LabError
from tests.tables.synthetic_runs import make_run


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for seed in range(2):
        make_run(tmp_path / "runs", seed=seed, val_loss=3.5 + 0.01 * seed)
        make_run(tmp_path / "runs", "laurel_rw", seed, val_loss=3.4 + 0.02 * seed)
    return tmp_path / "runs"


def test_labels_and_rows_are_the_same_in_every_process(tmp_path: Path) -> None:
    """Sets of strings come in another order in each."""
    for residual in ("plain", "laurel_rw"):
        for layers, lr, batch in ((8, 1e-3, 4096), (9, 2e-3, 8192)):
            keys = {"model.layers": layers, "optim.lr": lr, "budget.batch_tokens": batch}
            make_run(tmp_path / "runs", residual, overrides=keys)
    main = "import sys; from residual_lab.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", main, "table", "runs", "format=csv"]
    tables = [
        subprocess.run(
            command,
            cwd=tmp_path,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    ]
    assert b"plain" in tables[0] and len(set(tables)) == 1


def test_the_command_is_printed_under_the_table(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(runs), "format=json", "baseline=laurel_rw", "metric=test_loss"]
    assert main(arguments) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["notes"][-1] == f"Command: residual-lab table {' '.join(arguments)}"
    assert [row["row"] for row in found["rows"]] == ["laurel_rw", "plain"]
    assert "test_loss" in list(found["columns"])[2]


def test_table_and_pictures_go_to_files_and_a_rerun_changes_nothing(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(runs), f"out={tmp_path / 'table.md'}", f"plots={tmp_path / 'plots'}"]
    assert main(arguments) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"wrote {tmp_path / 'table.md'}\n")
    files = [tmp_path / "table.md", *sorted((tmp_path / "plots").iterdir())]
    assert len(files) == 7
    before = [file.read_bytes() for file in files]
    assert main(arguments) == 0
    assert [file.read_bytes() for file in files] == before


def test_pictures_over_keys_are_drawn_where_they_are_asked_for(runs: Path, tmp_path: Path) -> None:
    plots, grid = tmp_path / "plots", "grid=model.width,model.layers"
    assert main([str(runs), "format=csv", f"plots={plots}", "axis=model.width", grid]) == 0
    assert {"axis.png", "grid.png"} < {path.name for path in plots.iterdir()}


def test_an_unreadable_run_is_told_and_the_others_are_shown(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = make_run(runs, "laurel_lr")
    (bad / "result.json").write_text("{")
    assert main([str(runs), "format=md"]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith(f"{bad}: this run cannot be read")
    assert captured.err.count("\n") == 1
    assert "| laurel_rw |" in captured.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{runs}", "baselin=plain"], "baselin=plain: no such option; did you mean baseline"),
        (["{runs}", "--format"], "no such option"),
        (["{runs}/nowhere"], "no such folder"),
        (["format=md"], "RUNS: name run directories"),
        (["{runs}", "format=html"], "format=html: no such format"),
        (["{runs}", "format="], "format=: no such format"),
        (["{runs}", "out="], "out=: empty"),
        (["{runs}", "axis=model.width"], "name a folder for them with plots=DIR"),
        (["{runs}", "plots={runs}", "grid=model.width"], "grid=model.width: name two keys"),
        (["{runs}", "plots={runs}", "axis=model.widht"], "did you mean model.width"),
        (["{runs}", "out={runs}/t.docx"], r"t\.docx: no known ending .*\.md, \.csv, \.tex, \.json"),
    ],
)
def test_mistakes_are_refused(runs: Path, arguments: list[str], message: str) -> None:
    with pytest.raises(LabError, match=message):
        main([argument.format(runs=runs) for argument in arguments])


def test_a_key_that_no_row_has_is_refused_before_anything_is_written(
    runs: Path, tmp_path: Path
) -> None:
    out, plots = tmp_path / "table.md", tmp_path / "plots"
    said = "model.layer: no row has such a key; did you mean model.layers"
    for key in ("axis=model.layer", "grid=model.layers,model.layer"):
        with pytest.raises(LabError, match=said):
            main([str(runs), f"out={out}", f"plots={plots}", key])
    assert not out.exists() and not plots.exists()


def test_a_folder_without_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="no runs there"):
        main([str(tmp_path)])


def test_a_folder_may_have_an_equals_sign_in_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "lr=0.1")
    assert main([str(tmp_path / "lr=0.1"), "format=csv"]) == 0
    assert "plain" in capsys.readouterr().out


def test_tables_import_no_torch_and_no_matplotlib(runs: Path) -> None:
    code = (
        "import sys; from residual_lab.commands.table import main; "
        f"status = main([{str(runs)!r}, 'format=csv']); "
        "heavy = {'torch', 'lightning', 'hydra', 'matplotlib'} & set(sys.modules); "
        "sys.exit(f'imported {heavy}' if heavy else status)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
