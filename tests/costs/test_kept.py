"""What connections keep for backward, against what their formulas say."""

import json
from pathlib import Path

import pytest

from residual_lab import compose
from residual_lab.cli import main
from residual_lab.costs.kept import KeptByPlain

SMALL = ("model.layers=10", "model.width=48", "model.heads=2")
GATED = '''
import torch
from residual_lab.residuals import Connection


class Gated(Connection):
    """x' = x + σ(x) ⊙ f(x)"""

    def forward(self, x, layers):
        for layer in layers:
            x = x + torch.sigmoid(x) * layer(x)
        return x
'''


@pytest.mark.parametrize(
    ("residual", "parameters", "kept"),
    [
        ("plain", 0, 0),
        ("laurel_rw", 20, 0),  # the increment is recovered, the stream is there anyway
        ("laurel_lr", 2 * 2 * 48 * 10, 2 / 48),  # x A, of rank 2
        ("denseformer", 65, 1),  # X_i beside Y_i
    ],
)
def test_costs_of_known_formulas(residual: str, parameters: int, kept: float) -> None:
    plain = KeptByPlain(compose([*SMALL, "residual=plain"]))
    found = plain.costs_of(compose([*SMALL, f"residual={residual}"]))
    assert found == (parameters, pytest.approx(kept, abs=1e-9))


def test_both_factors_of_an_ordinary_product_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "gated.py"
    file.write_text(GATED)
    config = compose([*SMALL, f"residual.connection='{file}:Gated'"])
    assert KeptByPlain(compose(SMALL)).costs_of(config) == (0, 2)


def test_a_list_for_a_model_counts_and_says_what_does_not_go_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    group = tmp_path / "residual"
    group.mkdir()
    own = "connection: laurel:Laurel\nlow_rank: current\n"
    (group / "mine.yaml").write_text(f"# mine\nname: mine\n{own}rank: 3\n")
    (group / "wrong.yaml").write_text(f"# wrong\nname: wrong\n{own}rank: 0\n")
    monkeypatch.setattr("residual_lab.commands.list.conf_directory", lambda: tmp_path / "none")
    arguments = ["list", "residuals", "model=desk", *SMALL, "--config-dir", str(tmp_path)]
    assert main([*arguments, "format=json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    mine, wrong = shown["rows"]
    assert mine["added_parameters"] == 2 * 3 * 48 * 10
    assert mine["kept_activations"] == pytest.approx(3 / 48)
    assert wrong["added_parameters"] is None
    assert any(note.startswith("wrong: residual.rank=0") for note in shown["notes"])
