"""Tests of a new model of any family."""

from typing import Any

import pytest
import torch
from distill.builtin.teachers.new import NewModel

from distill.core.errors import OptionError, UserError
from distill.jobs import execution
from distill.models import compatibility
from tests.jobs.test_config import compose_config

TEXTS = ["the quick brown fox jumps over the lazy dog"] * 10
SIZES: dict[str, Any] = {"layers": 2, "hidden_size": 16, "heads": 2, "vocabulary": 100, "positions": 32}
MASKED = "AutoModelForMaskedLM"


@pytest.mark.parametrize(
    ("family", "options", "auto_class"),
    [
        ("bert", {}, "AutoModelForSequenceClassification"),
        ("albert", {"sizes": {"embedding_size": 8, "num_hidden_groups": 2}}, "AutoModelForPreTraining"),
        ("mpnet", {}, MASKED),
        ("distilbert", {"sizes": {"hidden_dim": 32}}, MASKED),
        ("deberta-v2", {}, MASKED),
        ("gpt2", {"pieces": "bytes", "vocabulary": 270}, "AutoModelForCausalLM"),
    ],
)
def test_a_family_has_the_sizes_that_are_given(family: str, options: dict[str, Any], auto_class: str) -> None:
    teacher = NewModel(family=family, **SIZES | options)
    start = teacher.load(auto_class, ["a", "b"] if auto_class.endswith("Classification") else None, TEXTS)
    config = start.model.config
    assert (config.num_hidden_layers, config.hidden_size, config.num_attention_heads) == (2, 16, 2)
    assert all(getattr(config, name) == value for name, value in options.get("sizes", {}).items())
    assert config.vocab_size == len(start.tokenizer)
    assert not start.fits
    assert compatibility.longest(start.model, start.tokenizer) == 32
    ids = torch.full((1, 32), 7)
    with torch.no_grad():
        start.model(input_ids=ids, attention_mask=torch.ones_like(ids))
    rates = {module.p for module in start.model.modules() if isinstance(module, torch.nn.Dropout)}
    assert 0.1 in rates
    assert teacher.resolved() == f"new ({family.upper()}, 2 layers of 16, trained on the spot)"


def test_the_command_takes_further_entries_of_the_configuration() -> None:
    config = compose_config("+teacher=new", "teacher.family=albert", "teacher.sizes={embedding_size: 16}")
    teacher = execution.build_single_source(config).weights
    assert isinstance(teacher, NewModel)
    assert (teacher.name, teacher.configure().embedding_size) == ("albert", 16)


def test_the_same_seed_gives_the_same_weights() -> None:
    one, two, other = (
        NewModel(family="roberta", **SIZES, seed=seed).load(MASKED, None, TEXTS).model.state_dict()
        for seed in (0, 0, 1)
    )
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert any(not torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("family", "brt", "=brt, expected a model_type of transformers, such as bert, albert"),
        ("sizes", {"embeding_size": 8}, r".embeding_size=8, expected an entry of the config\w+ of b"),
        ("layers", 0, "=0, expected a whole number of at least 1"),
        ("dropout", 1.0, "=1.0, expected a share from 0 to below 1"),
        ("pieces", "letters", "=letters, expected words or bytes"),
    ],
)
def test_options_that_a_family_does_not_have_are_refused(name: str, value: Any, expected: str) -> None:
    with pytest.raises(OptionError, match=f"got teacher.{name}{expected}"):
        NewModel(**{name: value})


def test_a_head_and_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(OptionError, match="got teacher.positions=512, expected null, because t5 has none"):
        NewModel(family="t5")
    with pytest.raises(
        UserError, match=r"teacher new \(gpt2\) has no AutoModelForMaskedLM: take a task that its family"
    ):
        NewModel(family="gpt2").load(MASKED, None, TEXTS)
    with pytest.raises(UserError, match=r"teacher new \(bert\) cannot be made: The hidden size \(256\) is not a mult"):
        NewModel(heads=3).load(MASKED, None, TEXTS)
