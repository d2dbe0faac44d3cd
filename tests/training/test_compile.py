"""F27, F34: compiled training, with a compiler that only traces, against uncompiled."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from residual_lab import build_model
from residual_lab.run_directory import RunDirectory

from .conftest import Lab, final_weights
from .test_resume import stopped_at

OPTIONS = ["model.dropout=0", "budget.steps=3"]


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Compile with aot_eager: dynamo and autograd trace as for real, no C++ compiler runs."""
    seen: list[str] = []
    compile_for_real = torch.compile

    def aot_eager(function: Callable[..., Any], **options: Any) -> Any:
        seen.append(getattr(function, "__name__", str(function)))
        return compile_for_real(function, backend="aot_eager")

    torch.compiler.reset()
    monkeypatch.setattr(torch, "compile", aot_eager)
    yield seen
    torch.compiler.reset()


@pytest.mark.parametrize(
    "checkpoint_layers", ["true", pytest.param("false", marks=pytest.mark.slow)]
)
def test_compiled_is_the_same_and_its_keys_load(
    lab: Lab, graphs: list[str], checkpoint_layers: str
) -> None:
    plain = lab.trained(*OPTIONS)
    compiled = lab.trained(
        *OPTIONS, "hardware.compile=true", f"hardware.checkpoint_layers={checkpoint_layers}"
    )
    assert graphs == ["loss"]
    # While the tracker watches, torch runs the model uncompiled: no number rather than its peak.
    assert compiled.result is not None
    assert compiled.result["peak_memory_bytes"] == {"kind": "not measured", "value": None}
    weights, expected = final_weights(compiled), final_weights(plain)
    assert weights.keys() == expected.keys() == build_model(plain.config).state_dict().keys()
    for name, weight in weights.items():
        torch.testing.assert_close(weight, expected[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("compiled_first", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_compiled_and_uncompiled_resume_each_other(
    lab: Lab, graphs: list[str], compiled_first: bool
) -> None:
    run = stopped_at(lab, 5, "model.dropout=0", f"hardware.compile={compiled_first}")
    # Another configuration would be refused under a name with this one's hash.
    path = run.path.rename(run.path.parent / "moved") / "config.yaml"
    before, after = (f"compile: {str(x).lower()}" for x in (compiled_first, not compiled_first))
    path.write_text(path.read_text().replace(before, after))
    run = RunDirectory.open(path.parent)
    lab.execute(run)
    straight = final_weights(lab.trained("hardware.accumulate=2", "model.dropout=0"))
    for name, weight in final_weights(run).items():
        torch.testing.assert_close(weight, straight[name], rtol=1e-4, atol=1e-5)
    assert graphs == ["loss"]
