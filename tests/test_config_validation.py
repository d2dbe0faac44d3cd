"""A bad configuration stops before any work: every problem at once, a line each."""

from pathlib import Path

import pytest

from residual_lab.config import compose
from residual_lab.errors import ConfigError


def problems(overrides: list[str], **where: str | Path) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        compose(overrides, **where)  # type: ignore[arg-type]
    assert all("\n" not in line for line in caught.value.problems)
    return caught.value.problems


GPT2 = "model=gpt2_124m"
IMAGES = "model=resnet_desk optim=resnet"
TOY = "model=low_rank_linear data=linear_map optim=sgd"

# override(s), what the only line starts with, what else it says
ONE_PROBLEM = [
    ("lr=abc", "lr=abc: no such key", ["did you mean optim.lr?"]),
    ("optim.lr=abc", "optim.lr=abc: must be a number > 0", []),
    ("optim.lr=null", "optim.lr=null: must be a number > 0", []),
    ("optim.lr=0", "optim.lr=0: must be a number > 0", []),
    ("optim.lr=.nan", "optim.lr=.nan: must be a number > 0", []),
    ("optim.lr=true", "optim.lr=true: must be a number > 0", []),
    ("optim.lrr=1", "optim.lrr=1: no such key", ["did you mean optim.lr?"]),
    ("+optim.lrr=1", "optim.lrr=1: no such key", ["did you mean optim.lr?", "weight_decay"]),
    ("++optim.lrr=1", "optim.lrr=1: no such key", ["did you mean optim.lr?"]),
    ("+optim.lr=1", "+optim.lr=1: optim.lr is there already", []),
    ("~optim.lr", "optim.lr: missing", ["a number > 0"]),
    ("model.layers=2.5", "model.layers=2.5: must be a whole number > 0", []),
    ("model.layers=true", "model.layers=true: must be a whole number > 0", []),
    ("model.mlp=gleu", "model.mlp=gleu: must be one of gelu, relu, swiglu", ["mean gelu?"]),
    ("model.bias=maybe", "model.bias=maybe: must be true or false", []),
    ("hardware.devices=some", "hardware.devices=some: must be a whole number > 0 or auto", []),
    ("optim.betas=[0.9]", "optim.betas=[0.9]: must be a list of 2", []),
    ("optim.betas=[0.9,2]", "optim.betas=[0.9, 2]: must be a list of 2", ["< 1"]),
    ("optim.betas=[0.9,1]", "optim.betas=[0.9, 1]: must be a list of 2", ["< 1"]),
    ("seed=-1", "seed=-1: must be a whole number ≥ 0", []),
    (
        "residual=laurel_rv",
        "residual=laurel_rv: no such choice",
        ["did you mean laurel_rw", "plain"],
    ),
    ("modle=desk", "modle=desk: no such key", ["did you mean model?"]),
    ("model=3", "model=3: ", ["string"]),
    ("seed=0,1", "seed=0,1: several values", ["-m"]),
    ("a b=c", "a b=c: not an override", ["KEY=VALUE"]),
    ("seed", "seed: not an override", ["KEY=VALUE"]),
    ("optim.lr=${nope}", "optim.lr: ", ["nope"]),
    ("model.name=???", "model.name: missing", []),
    ("model.heads=3", "model.heads=3: must divide the attention width 128", ["2 or 4"]),
    ("model.heads=128", "model.heads=128: rotary positions need an even width", []),
    ("model.share=3", "model.share=3: must divide model.layers=8", ["2 or 4"]),
    ("data.vocabulary=4096 model.vocabulary=2048", "data.vocabulary=4096", ["model.vocabulary"]),
    ("data=text", "data.path=null", ["give data.path=PATH"]),
    ("data=text data.path=/absent/x", "data.path=/absent/x: there is no such", []),
    ("data=c4 data.repository=null", "data.repository=null", []),
    (
        "data.source=hub data.repository=a/b",
        "data.source=hub: data.name=python_source",
        ["data=text"],
    ),
    ("data.path=.", "data.path=", ["data=text"]),
    ("budget.steps=3", "budget.steps=3: budget.tokens=1228800 is given too", ["null"]),
    ("budget.tokens=null", "budget.tokens=null: give budget.tokens=N or budget.steps=N", []),
    ("budget.tokens=5000", "budget.tokens=5000: must be a multiple of", ["4096 or 6144"]),
    ("budget.tokens=100", "budget.tokens=100: must be a multiple of", ["nearest: 2048"]),
    ("budget.batch_tokens=1000 budget.tokens=2000", "budget.batch_tokens=1000", ["768 or 1024"]),
    ("hardware.accumulate=3", "hardware.accumulate=3: the 8 sequences of a step", ["3 × 1"]),
    ("hardware.devices=3", "hardware.accumulate=1: the 8 sequences", ["1 × 3"]),
    (f"{GPT2} data.sequence_length=2048", "data.sequence_length=2048: longer than", ["1024"]),
    (f"{GPT2} model.max_sequence_length=null", "model.max_sequence_length=null", ["256"]),
    ("+model.family=decodr", "model.family=decodr: must be one of decoder, low_rank_linear", []),
    ("data.source=pyton", "data.source=pyton: must be one of python, files", ["mean python?"]),
    ("optim.momentum=1", "optim.momentum=1: must be a number ≥ 0 and < 1", []),
    ("model=low_rank_linear", "model.family=low_rank_linear: reads vectors", ["data=linear_map"]),
    ("data=linear_map model.vocabulary=9", "model.family=decoder: reads text, not data.source", []),
    ("data=linear_map", "model.family=decoder: reads text", ["another model"]),
    (f"{TOY} data.width=8", "data.width=8: must be model.width=100", []),
    (f"{TOY} model.rank=0", "model.rank=0: must be a whole number > 0", []),
    (f"{TOY} data.target=randon", "data.target=randon: must be one of identity", ["mean random?"]),
    (f"{TOY} +model.heads=2", "model.heads=2: no such key", ["rank"]),
    (f"{TOY} residual=dca", "residual.connection=deepcross", ["has no attention"]),
    (f"{TOY} residual=value_residual", "residual.connection=value_res", ["has no attention"]),
    (f"{TOY} residual=rezero", "residual.granularity=branch: a layer of", ["must be layer"]),
    (
        f"{IMAGES} data=digits model.zero_gamma=true model.relu=before_convolutions",
        "model.zero_gamma=true: ",
        ["must be false", "model.relu=after_addition"],
    ),
    (f"{IMAGES} data=digits model.channels=3", "model.channels=3: must be data.channels=1", []),
    (f"{IMAGES} data=digits model.classes=5", "model.classes=5: must be at least data.cla", []),
    (
        f"{IMAGES} data=digits data.randaugment=2",
        "data.randaugment=2: ",
        ["must be 0", "data.channels=3"],
    ),
    (
        f"{IMAGES} data=digits data.randaugment=16",
        "data.randaugment=16: must be a whole number",
        ["≤ 15"],
    ),
    (
        f"{IMAGES} data=digits data.randaugment_magnitude=0",
        "data.randaugment_magnitude=0: must be",
        ["≥ 1"],
    ),
    (
        f"{IMAGES} data=digits data.randaugment_magnitude=30",
        "data.randaugment_magnitude=30: ",
        ["≤ 29"],
    ),
    (
        f"{IMAGES} data=cifar10 data.path=. data.label_field=img",
        "data.label_field=img: ",
        ["fine_label and coarse_label"],
    ),
    (
        f"{IMAGES} data=cifar100 data.path=. data.label_field=coarse_label",
        "data.classes=100: ",
        ["has 20"],
    ),
    ("residual.connection=absent:X", "residual.connection=absent:X", []),
    ("residual.connection=plain:Absent", "residual.connection=plain:Absent", []),
    ("residual.granularity=stage", "residual.granularity=stage: must be one of layer, branch", []),
    ("+residual.rank=3", "residual.rank=3: no such key", []),
    ("residual=laurel_lr residual.rank=x", "residual.rank=x: must be a whole number > 0", []),
    ("residual=laurel_lr residual.rnk=2", "residual.rnk=2: no such key", ["mean residual.rank?"]),
    ("residual=laurel_lr +residual.rnk=2", "residual.rnk=2: no such key", ["mean residual.rank?"]),
    ("residual=laurel_rw residual.bound=tanh", "residual.bound=tanh: must be one of", ["softmax"]),
    ("residual=laurel_rw residual.vector=2", "residual.vector=2: must be true or false", []),
]


@pytest.mark.parametrize(("overrides", "start", "parts"), ONE_PROBLEM)
def test_one_problem_one_line(overrides: str, start: str, parts: list[str]) -> None:
    """F35: keys mistyped with and without a +, wrong types and wrong values."""
    given = [overrides] if overrides == "a b=c" else overrides.split()
    (line,) = problems(given)
    assert line.startswith(start)
    assert not [part for part in parts if part not in line]


def test_all_problems_at_once_whoever_finds_them() -> None:
    bad = ["lr=1", "sed=2", "x", "residual=laurel_rv", "model.layers=2.5", "optim.lr=a"]
    bad.append("budget.tokens=5000")
    # model.heads is judged only once its section is right
    found = problems([*bad, "model.heads=3"])
    assert sorted(line.split(":")[0] for line in found) == sorted(bad)


def test_the_connections_own_rules_are_checked_before_any_work() -> None:
    (line,) = problems(["residual=laurel_pa", "residual.low_rank=shared", "residual.k=0"])
    assert line.startswith("residual.low_rank=shared")


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A folder of a user's own groups."""
    (tmp_path / "optim").mkdir()
    return tmp_path


def test_values_in_a_users_yaml_are_checked_like_overrides(own: Path) -> None:
    (own / "optim/mine.yaml").write_text("name: mine\nlr: fast\nwarmup: 3\n")
    lines = problems(["optim=mine"], config_dir=own)
    assert [line.split(":")[0] for line in lines] == ["optim.lr=fast", "optim.warmup=3"]
    assert "did you mean optim.warmup_steps?" in lines[1]


def test_a_yaml_that_cannot_be_read_is_named_with_its_line(own: Path) -> None:
    (own / "optim/mine.yaml").write_text("name: [mine\nlr: 1\n")
    (line,) = problems(["optim=mine"], config_dir=own)
    assert line.startswith("optim=mine: ")
    assert "mine.yaml" in line and "line 2" in line


def test_choices_of_a_users_folder_are_suggested(own: Path) -> None:
    (own / "optim/mine.yaml").write_text("name: mine\nlr: 1\n")
    (line,) = problems(["optim=mime"], config_dir=own)
    assert "did you mean mine?" in line


def test_missing_folder_and_missing_primary_configuration(tmp_path: Path) -> None:
    (line,) = problems([], config_dir=tmp_path / "absent")
    assert line.startswith("--config-dir=") and "absent" in line
    (line,) = problems([], config_name="absent")
    assert "absent" in line


def test_a_section_that_is_not_one(own: Path) -> None:
    (own / "optim/mine.yaml").write_text("- 1\n")
    (line,) = problems(["optim=mine"], config_dir=own)
    assert line.startswith("optim=[1]: must be a section with the keys name, optimizer, lr")


OWN_CONNECTION = """
from residual_lab.residuals import Connection

class Mine(Connection):
    def __init__(self, depth: int, width: int, *, gate: float, lags: list[int] | None = None):
        super().__init__(depth, width)
"""


def test_options_of_a_users_connection_are_typed_by_its_constructor(own: Path) -> None:
    (own / "mine.py").write_text(OWN_CONNECTION)
    connection = f"residual.connection={own}/mine.py:Mine"
    assert problems([connection]) == ("residual.gate: missing; must be a number",)
    lines = problems([connection, "+residual.gate=open", "+residual.lags=[1,x]"])
    assert [line.split(": must be ")[0] for line in lines] == [
        "residual.gate=open",
        "residual.lags=[1, 'x']",
    ]
    config = compose([connection, "+residual.gate=0.5", "+residual.lags=[1,2]"])
    assert config.residual.options == {"gate": 0.5, "lags": [1, 2]}
