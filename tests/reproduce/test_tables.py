"""The papers' tables: each row of each composes at each scale and has the printed count."""

import re
from collections.abc import Iterator
from itertools import combinations

import pytest
import torch

from residual_lab import build_model, compose
from residual_lab.config import Config
from residual_lab.errors import LabError
from residual_lab.reproduce.paper import paper_difference, printed
from residual_lab.reproduce.printed import Printed
from residual_lab.reproduce.table_file import SCALES, Row, TableFile, load_table, table_names
from residual_lab.run_directory import config_hash
from tests.reproduce.conftest import Compose

TABLES = {
    "laurel": [
        *("c4_ablation", "controls", "history", "naive_scaling", "rank", "rank_resnet"),
        "resnet50",
    ],
    "denseformer": [
        *("delayed", "dilation_batch128", "grid", "main", "pg19", "same_time"),
        *("sequence_512", "sparsity", "width"),
    ],
    "deepcrossattention": [
        *("ablation", "c4_scaling", "depth", "k", "low_rank_toy", "model_input"),
        *("related_c4", "related_lm1b", "retrofit", "vit", "width"),
    ],
    "gating": ["he2016"],
}
NAMES = [f"{paper}/{table}" for paper, tables in TABLES.items() for table in tables]

DESK = (
    *("model=desk_small", "data.sequence_length=128", "data.validation_tokens=32768"),
    *("data.test_tokens=131072", "budget.tokens=819200", "budget.batch_tokens=1024"),
    *("evaluation.every_steps=160", "hardware=cpu", "hardware.threads=1"),
)
# Twice the tokens where that leaves a table at an hour and a half on two cores.
LONG = tuple(o.replace("=819200", "=1638400") for o in DESK)
LONG_TABLES = (
    *(f"laurel/{name}" for name in ("c4_ablation", "history", "naive_scaling", "rank")),
    *("deepcrossattention/ablation", "deepcrossattention/k", "deepcrossattention/model_input"),
    *("deepcrossattention/related_c4", "deepcrossattention/related_lm1b"),
    "denseformer/sparsity",
)
SMALL_BATCH = tuple(o.replace("=1638400", "=614400").replace("=1024", "=384") for o in LONG)

IMAGES = ("laurel/resnet50", "laurel/rank_resnet", "deepcrossattention/vit", "gating/he2016")

# Printed counts that no options give; the rows' notes say why.
UNKNOWN_COUNTS = {
    ("laurel/c4_ablation", "LAuReL-RW+LR+PA"),
    ("laurel/naive_scaling", "Baseline-40"),
    ("laurel/naive_scaling", "Baseline-41"),
    ("laurel/naive_scaling", "LAuReL-40"),
}
# LAuReL's tables and DeepCrossAttention's of LM1B cut counts off; the others round them.
CUT_OFF = ("laurel/", *(f"deepcrossattention/{name}" for name in ("ablation", "related_lm1b")))


def rows(key: str = "") -> Iterator[tuple[TableFile, Row]]:
    for name in table_names():
        table = load_table(name)
        yield from ((table, row) for row in table.rows if not key or key in row.paper)


def test_the_tables_are_those_of_the_papers() -> None:
    assert table_names() == sorted(NAMES)


def test_printed_percentages_are_accuracies_between_0_and_1() -> None:
    table = load_table("laurel/resnet50")
    bare = table.row("LAuReL-RW").model_copy(update={"paper": {"test_accuracy": "75.10"}})
    assert (printed(bare, table.metric) or ("", None))[1].value == pytest.approx(0.7510)
    name, number = printed(table.row("LAuReL-RW"), table.metric) or ("", None)
    assert (name, number and (number.value, number.error)) == (
        "test_accuracy",
        (pytest.approx(0.7510), pytest.approx(0.0010)),
    )
    gap = paper_difference(table, table.row("LAuReL-RW"))
    assert gap is not None and gap.value == pytest.approx(0.0015)
    assert gap.error == pytest.approx(0.0001 * (1**2 + 10**2) ** 0.5)


@pytest.mark.parametrize("name", table_names())
def test_a_papers_batch_is_on_as_many_devices_as_it_had(name: str, composed: Compose) -> None:
    """Otherwise the memory of a device is counted for the whole batch."""
    table = load_table(name)
    stated = re.match(r"\d+(?= (?:TPU|A100))", table.scales["paper"].on)
    hardware = composed(table.overrides_of(table.rows[0], "paper")).hardware
    if stated is not None:
        assert hardware.devices != "auto"
        assert hardware.devices * hardware.nodes == int(stated[0])


def test_an_unknown_table_is_refused_with_the_nearest() -> None:
    with pytest.raises(LabError, match=r"laurel/c4_ablaton: .*; did you mean laurel/c4_ablation\?"):
        load_table("laurel/c4_ablaton")
    with pytest.raises(LabError, match=r"c4_ablation: no such table.* laurel/c4_ablation"):
        load_table("c4_ablation")


@pytest.mark.parametrize("name", NAMES)
def test_every_row_composes_at_every_scale(name: str, composed: Compose) -> None:
    table = load_table(name)
    for scale in SCALES:
        configs = {row.name: composed(table.overrides_of(row, scale)) for row in table.rows}
        begun = {row.name for row in table.rows if row.after is None}
        for one, other in combinations(sorted(begun), 2):
            assert config_hash(configs[one]) != config_hash(configs[other]), (scale, one, other)
        _same_data_and_recipe(configs[table.baseline], configs)


def _same_data_and_recipe(baseline: Config, configs: dict[str, Config]) -> None:
    for name, config in configs.items():
        assert config.data.name == baseline.data.name, name
        assert config.optim.name == baseline.optim.name, name


@pytest.mark.parametrize(
    "name", ["laurel/c4_ablation", "denseformer/grid", "deepcrossattention/retrofit"]
)
def test_composing_is_what_a_run_does(name: str, composed: Compose) -> None:
    table = load_table(name)
    for scale in SCALES:
        overrides = table.overrides_of(table.rows[-1], scale)
        assert composed(overrides) == compose(overrides)


def test_rows_that_tables_share_are_the_same_runs(composed: Compose) -> None:
    special = {
        "denseformer/dilation_batch128": SMALL_BATCH,
        "deepcrossattention/low_rank_toy": (),
        **dict.fromkeys(IMAGES, ()),
        **dict.fromkeys(LONG_TABLES, LONG),
    }
    for name in NAMES:
        table = load_table(name)
        expected = special.get(name, DESK)
        if expected:
            assert table.overrides + table.scales["desk"].overrides == expected, name
    shared = [
        ("denseformer/main", "Transformer, 48 blocks"),
        *(("denseformer/delayed", "Transformer"), ("laurel/controls", "Baseline")),
    ]
    shared_and_long = [
        ("denseformer/sparsity", "Transformer"),
        *(("deepcrossattention/ablation", "Transformer"), ("deepcrossattention/k", "Transformer")),
        ("laurel/c4_ablation", "Baseline-24"),
    ]
    for rows_of_one in (shared, shared_and_long):
        tables = [(load_table(name), row) for name, row in rows_of_one]
        runs = [composed(table.overrides_of(table.row(row), "desk")) for table, row in tables]
        assert len({config_hash(run) for run in runs}) == 1


def test_printed_shares_of_added_parameters(composed: Compose) -> None:
    """Of ResNet-50: the layer exactly; the variants, placed we do not know where, by the notes."""
    table, shares = load_table("laurel/resnet50"), {}
    counts = {}
    for row in table.rows:
        with torch.device("meta"):
            model = build_model(composed(table.overrides_of(row, "paper")))
        counts[row.name] = sum(parameter.numel() for parameter in model.parameters())
        shares[row.name] = 100 * (counts[row.name] / counts["Baseline"] - 1)
    matches = {
        row.name: Printed.of(row.paper["added_parameters"]).matches(shares[row.name])
        for row in table.rows
    }
    assert matches == {
        "Baseline": "rounded",
        "Baseline + 1 layer": "rounded",
        **dict.fromkeys(("LAuReL-RW", "LAuReL-RW+LR", "LAuReL-RW+LR+PA")),
    }
    low_rank = counts["LAuReL-RW+LR"] - counts["LAuReL-RW"]
    note = table.row("LAuReL-RW+LR").note or ""
    assert f"{low_rank:,} parameters or {shares['LAuReL-RW+LR']:.2f}%" in note
    assert f"{shares['LAuReL-RW+LR+PA']:.2f}%" in (table.row("LAuReL-RW+LR+PA").note or "")


@pytest.mark.parametrize(("table", "row"), [*rows("params")], ids=lambda x: x.name)
def test_printed_parameter_counts(table: TableFile, row: Row, composed: Compose) -> None:
    """To the last printed digit, on a device without memory."""
    with torch.device("meta"):
        model = build_model(composed(table.overrides_of(row, "paper")))
    count = sum(parameter.numel() for parameter in model.parameters())
    number = Printed.of(row.paper["params"])
    if (table.name, row.name) in UNKNOWN_COUNTS:
        assert number.matches(count) is None and row.note is not None
        return
    digits = count / number.last_digit
    if table.name.startswith(CUT_OFF) and row.name != "Hyper-Connections":  # see its note
        digits = int(digits)
    assert round(digits) == round(number.value / number.last_digit)
    assert number.matches(count) is not None
