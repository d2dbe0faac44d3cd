"""What stands under a comparison: data, hardware, versions, protocol and units."""

from pathlib import Path

from residual_lab.tables import compare, load_runs
from tests.tables.synthetic_runs import make_run


def test_notes_tell_how_the_numbers_came_about(tmp_path: Path) -> None:
    make_run(tmp_path)
    make_run(
        tmp_path, "laurel_rw", data_fingerprint="beef", git={"commit": "f" * 40, "dirty": True}
    )
    notes = "\n".join(compare(load_runs([tmp_path])).notes)
    for part in (
        "model desk; budget 1,228,800 tokens in 300 optimizer steps",
        "fingerprint beef and f00d. It changed between runs",
        "Hardware: a processor; precision 32-true; peak memory is cpu live tensors",
        "torch 2.13.0; commit 0123456789ab and ffffffffffff with uncommitted changes",
        "The first 5 steps are warm-up",
        "window of 10 steps",
    ):
        assert part in notes


def test_two_settings_of_one_corpus_did_not_change(tmp_path: Path) -> None:
    """Each has the fingerprint of its own, and is compared within itself."""
    for target, fingerprint in (("identity", "e9aa"), ("random", "e2d0")):
        data = {"data": {"name": "linear_map", "source": "synthetic", "target": target}}
        for name in ("plain", "laurel_rw"):
            make_run(tmp_path, name, overrides=data, data_fingerprint=fingerprint)
    notes = compare(load_runs([tmp_path])).notes
    assert "Data: linear_map, fingerprint e2d0 and e9aa." in notes


def test_the_precision_is_what_auto_came_to(tmp_path: Path) -> None:
    asked = {"hardware": {"precision": "auto"}}
    make_run(tmp_path, overrides=asked, precision="bf16-mixed")
    notes = " ".join(compare(load_runs([tmp_path])).notes)
    assert "precision bf16-mixed" in notes


def test_losses_and_budgets_are_named_by_what_they_count(tmp_path: Path) -> None:
    make_run(tmp_path / "text")
    data = {"data": {"name": "linear_map", "source": "synthetic", "width": 100}}
    make_run(tmp_path / "toy", overrides=data)
    make_run(tmp_path / "images", overrides={"data": {"name": "digits", "source": "digits"}})
    text, toy, images = (
        " ".join(compare(load_runs([tmp_path / name])).notes) for name in ("text", "toy", "images")
    )
    assert "1,228,800 images in" in images and "Loss is nats per image" in images
    assert "1,228,800 tokens in" in text and "Loss is nats per token" in text
    assert "1,228,800 examples in" in toy and "Loss is the squared error" in toy
    assert "nats" not in toy
