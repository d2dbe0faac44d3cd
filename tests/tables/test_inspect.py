"""``residual-lab inspect`` as it is typed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from residual_lab.commands.inspect import main
from residual_lab.errors import LabError
from tests.tables.inspected_runs import inspect_made, make_inspected
from tests.tables.synthetic_runs import make_run


def test_one_run_gets_its_pictures_inside(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = {"model.layers": 4}
    run = inspect_made(make_run(tmp_path, "laurel_rw", overrides=overrides), alpha=[1, 2, 3, 4])
    assert main([str(run), "format=json"]) == 0
    captured = capsys.readouterr()
    table = json.loads(captured.out)
    assert [row.get("alpha") for row in table["rows"]] == [None, 1, 2, 3, 4]
    names = {f"{name}.{end}" for name in ("learned_weights", "cosine") for end in ("png", "svg")}
    assert {path.name for path in (run / "pictures").iterdir()} == names
    assert set(captured.err.split()) == {str(run / "pictures" / name) for name in names}


def test_several_runs_are_drawn_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Into the current folder, or where out= says; unfinished runs are left out."""
    make_inspected(tmp_path / "runs")
    for path in (tmp_path / "runs").glob("*dca_k*"):
        inspect_made(path)
    make_run(tmp_path / "runs", "rezero", status=None)
    monkeypatch.chdir(tmp_path)
    assert main(["runs", "format=md"]) == 0
    assert "rezero" not in capsys.readouterr().out
    assert main(["runs", "format=md", "out=elsewhere"]) == 0
    names = sorted(path.name for path in Path("pictures").glob("*.png"))
    assert names == ["cosine.png", "learned_weights.png", "weights_denseformer.png"]
    for path in Path("pictures").iterdir():
        assert path.read_bytes() == Path("elsewhere", path.name).read_bytes()


def test_what_cannot_be_inspected_is_refused(tmp_path: Path) -> None:
    without = [make_run(tmp_path / "without", seed=seed) for seed in range(2)]
    unfinished = make_run(tmp_path / "unfinished", status=None)
    with pytest.raises(LabError) as caught:
        main([str(tmp_path / "without")])
    assert len(caught.value.problems) == 2
    assert str(without[0]) in str(caught.value)
    with pytest.raises(LabError, match="no finished run"):
        main([str(unfinished)])
    with pytest.raises(LabError, match=r"ou=x: no such option; did you mean out\?"):
        main([str(unfinished), "ou=x"])
    with pytest.raises(LabError, match="out=: empty"):
        main([str(inspect_made(without[0])), "format=csv", "out="])


def test_it_imports_no_torch(tmp_path: Path) -> None:
    make_inspected(tmp_path / "runs", seeds=1)
    for path in (tmp_path / "runs").glob("*dca_k*"):
        inspect_made(path)
    code = (
        "import sys; from residual_lab.commands.inspect import main; "
        f"status = main([{str(tmp_path / 'runs')!r}, 'out={tmp_path / 'pictures'}']); "
        "sys.exit('torch' if 'torch' in sys.modules else status)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
