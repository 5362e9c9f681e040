"""Tests that a training of the rows that batches read ends with the weights of one of the whole table."""

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import DistilBertForMaskedLM

from distill.core.errors import OptionError, UserError
from distill.models.architectures.modeling_bilstm import BilstmConfig, BilstmForSequenceClassification
from distill.models.wrappers import share_encoder
from distill.training.fitting import CompactEmbedding, choose_rows, compact_embeddings
from tests.conftest import SETTINGS, MakeToy, Toy, equal, last_state, record_steps, weights
from tests.training.test_checkpoints import equal_trainings, stop_at

TABLE = "student.distilbert.embeddings.word_embeddings.weight"
DECAY: dict[str, Any] = {"weight_decay": 3.0}  # Times the learning rate of 3e-3: 1% in a step.
AVERAGED: dict[str, Any] = {**DECAY, "ema": 0.7, "soup": 3, "patience": 5, "evaluations": 2, "max_epochs": 3}


def table_of(toy: Toy) -> nn.Embedding:
    table = toy.module.student.get_input_embeddings()
    assert isinstance(table, nn.Embedding)
    return table


def unread(toy: Toy) -> np.ndarray:
    """Returns the ids that no batch of train reads."""
    pieces = toy.loaders["train"].dataset.pieces()
    return np.setdiff1d(np.arange(table_of(toy).num_embeddings), pieces)


def record_tables(toy: Toy) -> list[type]:
    """Returns a list that fills with the type of the table in every step."""
    seen: list[type] = []
    original = toy.module.training_step

    def training_step(*arguments: Any) -> None:
        seen.append(type(table_of(toy)))
        original(*arguments)

    toy.module.training_step = training_step  # type: ignore[method-assign]
    return seen


def assert_close(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        torch.testing.assert_close(tensor, second[name], rtol=0, atol=2e-6, msg=name)


@pytest.mark.parametrize(
    "options",
    [
        {**DECAY, "clip": 0.1, "schedule": "cosine", "warmup": 0.5},
        {**DECAY, "clip": 0.0, "schedule": "constant", "accumulate": 2},
        {**DECAY, "embeddings_learning_rate": 1e-2},
        {**DECAY, "frozen_embeddings": 0.3},
        AVERAGED,
    ],
    ids=["clipped", "unclipped", "rate_of_tables", "frozen", "averaged"],
)
def test_weights_are_those_of_a_training_of_the_whole_table(make_toy: MakeToy, options: dict[str, Any]):
    compact, whole = make_toy(**options), make_toy(**options, compact_embeddings=False)
    rest, start = unread(compact), table_of(compact).weight.detach().clone()
    seen = record_tables(compact)
    assert compact.fit().soup == whole.fit().soup
    assert set(seen) == {CompactEmbedding}
    assert_close(weights(compact.module), weights(whole.module))
    assert_close(last_state(compact), last_state(whole))
    assert len(rest) > 50
    decays = options.get("embeddings_learning_rate") is None
    assert ((last_state(compact)[TABLE] - start)[rest].abs().max() > 5e-3) == decays


def test_checkpoints_and_the_student_have_the_whole_table(make_toy: MakeToy):
    toy = make_toy(**DECAY)
    table = table_of(toy)
    toy.fit()
    assert table_of(toy) is table
    best = torch.load(toy.directory / "checkpoints" / "best.ckpt", weights_only=True)["state_dict"]
    assert best[TABLE].shape == table.weight.shape
    optimizer = torch.load(toy.directory / "checkpoints" / "last.ckpt", weights_only=True)["optimizer_states"][0]
    rows = len(table.weight) - len(unread(toy)) + 1
    assert rows in {len(state["exp_avg"]) for state in optimizer["state"].values()}


@pytest.mark.parametrize("options", [DECAY], ids=["plain"])
def test_a_resumed_training_is_the_same(make_toy: MakeToy, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]):
    whole, stopped = make_toy(**options), make_toy(**options)
    whole.fit()
    stop_at(stopped, 5, monkeypatch)
    resumed = make_toy(directory=stopped.directory, **options)
    steps = record_steps(resumed)
    resumed.fit(resume=True)
    assert len(steps) < 4 * whole.settings.max_epochs
    assert equal_trainings(resumed, whole)


def test_a_training_of_the_whole_table_is_not_resumed_as_another_one(
    make_toy: MakeToy, monkeypatch: pytest.MonkeyPatch
):
    stopped = make_toy(compact_embeddings=False)
    stop_at(stopped, 5, monkeypatch)
    with pytest.raises(UserError, match="belongs to another training with different compact_embeddings: run"):
        make_toy(directory=stopped.directory).fit(resume=True)


def test_rows_of_another_start_are_loaded_as_they_are():
    torch.manual_seed(0)
    table, other = nn.Embedding(6, 3), nn.Embedding(6, 3)
    compact = CompactEmbedding(table, np.array([1, 4]))
    compact.load_state_dict(other.state_dict())
    assert torch.equal(compact.whole(), other.weight)
    assert torch.equal(compact.weight[-1], torch.ones(3))


def test_every_piece_is_read_in_evaluation_mode():
    torch.manual_seed(0)
    table = nn.Embedding(6, 3, padding_idx=4)
    compact = CompactEmbedding(table, np.array([1, 4]))
    assert compact.padding_idx == 1
    with torch.no_grad():
        compact.weight.mul_(0.5)
    ids = torch.arange(6).view(2, 3)
    assert torch.equal(compact.eval()(ids), 0.5 * table(ids))
    assert torch.equal(compact.train()(ids[:, 1:2]), 0.5 * table(ids[:, 1:2]))
    with pytest.raises(IndexError):
        compact(ids)


# The rows that are trained


def describe(toy: Toy, **options: Any) -> str:
    return choose_rows(toy.module, toy.loaders["train"], replace(toy.settings, **options)).describe()


def test_the_rows_that_are_trained_are_described_with_the_reason_why_all_are(
    make_toy: MakeToy, monkeypatch: pytest.MonkeyPatch
):
    toy = make_toy()
    total, examples = table_of(toy).num_embeddings, toy.loaders["train"].dataset
    rows = total - len(unread(toy))
    assert describe(toy) == f"{rows} of {total} rows are trained, the others decay: no batch reads them"
    every = f"all {total} rows are trained: "
    assert describe(toy, compact_embeddings=False) == f"{every}compact_embeddings=false"
    assert describe(toy, strategy="fsdp", devices=2) == f"{every}strategy=fsdp shards the whole table"
    monkeypatch.setattr(examples, "pieces", lambda: np.arange(total))
    assert describe(toy) == f"{every}the batches read them"
    monkeypatch.setattr(examples, "pieces", lambda: None)
    assert describe(toy) == f"{every}masking, targets or a stream read pieces that are not known before"


def test_a_table_that_the_output_layer_shares_is_trained_whole(make_toy: MakeToy):
    toy = make_toy()
    toy.module.student = DistilBertForMaskedLM(toy.module.student.config)
    assert describe(toy).endswith("rows are trained: the output layer or another module has the same weights")


def test_the_student_may_add_its_own_special_pieces(make_toy: MakeToy):
    toy = make_toy()
    toy.module.student.config.sep_token_id = other = int(unread(toy)[-1])
    pieces = choose_rows(toy.module, toy.loaders["train"], toy.settings).pieces
    assert pieces is not None
    assert other in pieces


@pytest.mark.parametrize("frozen", [False, True])
def test_a_student_without_a_trained_table_has_no_row_in_the_plan(make_toy: MakeToy, frozen: bool):
    toy = make_toy()
    if frozen:
        table_of(toy).requires_grad_(False)
    else:
        toy.module.student = BilstmForSequenceClassification(BilstmConfig(vocab_size=None, pad_token_id=0))
    assert describe(toy) == ""
    assert not choose_rows(toy.module, toy.loaders["train"], toy.settings).describe()


def test_heads_that_share_an_encoder_share_the_compact_table(make_toy: MakeToy):
    toy = make_toy()
    heads = {name: copy.deepcopy(toy.module.student) for name in ("a", "b")}
    toy.module.student = student = share_encoder(heads, name="toy")
    rows = choose_rows(toy.module, toy.loaders["train"], toy.settings)
    names = ("encoder", "heads.a.distilbert", "heads.b.distilbert")
    before = weights(toy.module)
    with compact_embeddings(toy.module, rows):
        tables = {id(student.get_submodule(f"{name}.embeddings.word_embeddings")) for name in names}
        assert len(tables) == 1
        assert isinstance(student.get_submodule(f"{names[2]}.embeddings.word_embeddings"), CompactEmbedding)
        assert equal(weights(toy.module), before)
        toy.module.load_state_dict(before)
    assert equal(weights(toy.module), before)


@pytest.mark.parametrize("value", [True, "always"])
def test_other_values_of_the_option_are_refused(value: Any):
    with pytest.raises(OptionError, match="compact_embeddings=.*expected auto or false"):
        replace(SETTINGS, compact_embeddings=value)


def test_the_option_does_not_change_the_key_of_a_cached_training():
    assert replace(SETTINGS, compact_embeddings=False).key() == SETTINGS.key()
