"""The bench on two tiny configurations: what it reports, not how fast they are."""

import json
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch

from residual_lab import compose
from residual_lab.cli import main
from residual_lab.costs.bench import Subject
from residual_lab.costs.bound import Rates, Work, _BytesMoved, work_of_step
from residual_lab.errors import LabError
from residual_lab.measure.flops import flops_per_token
from residual_lab.training.hardware import resolve_hardware

CPU = torch.device("cpu")
TINY = ("model.layers=2", "model.width=32", "data.sequence_length=16", "hardware=cpu")


@pytest.fixture(scope="module")
def benched(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any]]:
    """The table and the rounds of one bench, both as JSON."""
    folder = tmp_path_factory.mktemp("bench")
    files = [f"out={folder}/table.json", f"rounds_out={folder}/rounds.json"]
    threads = ["threads=1", "residual=plain,laurel_lr"]
    assert main(["bench", *TINY, *threads, "batch=2", "rounds=3", *files]) == 0
    table, rounds = (json.loads((folder / f"{n}.json").read_text()) for n in ("table", "rounds"))
    return table, rounds


def test_the_table_is_there_although_the_rounds_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(path: Path, text: str) -> None:
        raise LabError(f"{path}: cannot be written (No space left on device)")

    monkeypatch.setattr("residual_lab.costs.bench_table.write_output", full)
    further = ["residual=plain", "threads=1", "rounds=2", "format=md", "rounds_out=rounds.json"]
    assert main(["bench", *TINY, *further]) == 2
    captured = capsys.readouterr()
    assert "| plain |" in captured.out
    assert captured.err == "rounds.json: cannot be written (No space left on device)\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["threads=1,2"], "threads=1,2: one process has one number of them; bench each by itself"),
        (["clock=sun"], "clock=sun: must be wall or cpu"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *TINY, *arguments]) == 2
    assert capsys.readouterr().err == f"{said}\n"


def test_a_bound_is_of_float32_alone(capsys: pytest.CaptureFixture[str]) -> None:
    further = ["threads=1", "residual=plain", "batch=1", "rounds=2", "format=json"]
    bounds = []
    for precision in ("32-true", "bf16-mixed"):
        assert main(["bench", *TINY, *further, f"precision={precision}"]) == 0
        bounds.append(json.loads(capsys.readouterr().out)["rows"][0]["bound"]["value"])
    assert bounds == [1, None]


def test_the_first_is_the_base_and_the_ratios_are_those_of_the_rounds(
    benched: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    table, rounds = benched
    plain, laurel = table["rows"]
    assert (plain["configuration"], laurel["configuration"]) == ("plain", "laurel_lr")
    for kind in ("training", "forward", "decoding"):
        times = {label: found["seconds"][kind] for label, found in rounds["configurations"].items()}
        ratios = [a / b for a, b in zip(times["laurel_lr"], times["plain"], strict=True)]
        assert plain[f"{kind}_ratio"]["value"] == 1
        assert laurel[f"{kind}_ratio"]["value"] == pytest.approx(median(ratios))
        assert laurel[f"{kind}_ratio"]["rounds"] == 3
        assert laurel[f"{kind}_s"] == pytest.approx(median(times["laurel_lr"]))


def test_what_a_low_rank_map_adds_is_in_the_work_and_in_the_memory(
    benched: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    plain, laurel = benched[0]["rows"]
    rank, tokens = 1, 2 * 16  # width / 24
    added = 2 * 2 * rank * 32
    assert laurel["params"] - plain["params"] == added
    assert laurel["bound"]["flops"] - plain["bound"]["flops"] == 6 * added * tokens
    assert laurel["bound"]["value"] > plain["bound"]["value"] == 1
    assert laurel["peak_memory_bytes"] > plain["peak_memory_bytes"] > 12 * plain["params"]


def test_a_decoding_step_gives_what_the_whole_forward_gives() -> None:
    subject = Subject(resolve_hardware(compose([*TINY, "residual=laurel_pa"])), 2, CPU)
    subject.step(subject.batch)
    work = subject.work()["decoding"]
    for _ in range(2):  # the cache must not grow from one step to the next
        expected = subject.model(subject.batch)[:, -1:]
        torch.testing.assert_close(work(), expected, rtol=1e-4, atol=1e-5)


def test_shared_layers_are_not_decoded() -> None:
    shared = resolve_hardware(compose([*TINY, "model.share=2"]))
    assert "decoding" not in Subject(shared, 2, CPU).work()


def test_bytes_are_what_is_read_and_written() -> None:
    a, b = torch.zeros(10, 20), torch.zeros(20)
    with _BytesMoved() as moved:
        _ = a.T[3:].unflatten(0, (1, 17))  # views
        _ = a + b
        a.mul_(2)
    assert moved.total == 4 * ((200 + 20 + 200) + (200 + 200))


def test_work_of_a_step_is_that_of_its_tokens() -> None:
    config = compose([*TINY, "residual=laurel_lr"])
    assert work_of_step(config, 3).flops == flops_per_token(config) * 3 * 16


def test_the_bound_adds_what_is_more_at_the_speed_that_was_measured() -> None:
    rates = Rates(flops_per_s=100, bytes_per_s=10)
    found = rates.least_ratio(Work(1200, 50), Work(1000, 40), base_seconds=20)
    assert found == pytest.approx(1 + (200 / 100 + 10 / 10) / 20)


def test_configurations_on_different_devices_are_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["bench", "hardware.accelerator=cpu,gpu"]) == 2
    assert "compare on one device" in capsys.readouterr().err
