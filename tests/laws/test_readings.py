"""Laws of two tokenizers: a teacher that reads by another one says the same of examples, words and characters."""

import copy
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from transformers import BertTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from distill.core.contracts import IGNORED, POOLED, Items, Outputs
from distill.kinds import QuestionAnswering, TokenClassification
from distill.losses import HardLabels, Objective, SoftTargets
from distill.teachers.reading import match_splits
from distill.text.vocabulary import train_word_pieces
from tests.laws.conftest import MakeCell
from tests.laws.test_batches import CHOSEN
from tests.laws.toys import LABELLED


def permute(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> tuple[PreTrainedModel, BertTokenizer]:
    """Returns a copy of a model that reads the same pieces by other ids, and its tokenizer."""
    order = list(range(len(tokenizer)))
    random.Random(0).shuffle(order)
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    content["model"]["vocab"] = {piece: order[id] for piece, id in content["model"]["vocab"].items()}
    for added in content["added_tokens"]:
        added["id"] = order[added["id"]]
    for special in content["post_processor"]["special_tokens"].values():
        special["ids"] = [order[id] for id in special["ids"]]
    twin = copy.deepcopy(model)
    table = twin.get_input_embeddings()
    assert isinstance(table, torch.nn.Embedding)
    with torch.no_grad():
        table.weight[torch.tensor(order)] = table.weight[: len(order)].clone()
    table.padding_idx = order[tokenizer.pad_token_id]
    special = {
        f"{name}_token": str(getattr(tokenizer, f"{name}_token")) for name in ("pad", "unk", "cls", "sep", "mask")
    }
    own = BertTokenizer(tokenizer_object=Tokenizer.from_str(json.dumps(content)), **special)
    return twin, own


@pytest.mark.parametrize("kind", LABELLED)
def test_a_teacher_with_permuted_ids_has_the_outputs_of_the_teacher(cell: MakeCell, kind: str, tmp_path: Any) -> None:
    of = cell(kind, "distilbert")
    twin, tokenizer = permute(of.teacher, of.tokenizer)
    assert tokenizer.get_vocab() != of.tokenizer.get_vocab()
    examples, readings = match_splits(of.task, of.examples, of.task.encode(of.data, tokenizer, tmp_path))
    batch = examples["train"][CHOSEN]
    items = of.task.select(batch)
    assert items.taught is None
    with torch.no_grad():
        usual = of.task.run(of.teacher, batch, items, frozenset({POOLED})).at(items)
        other = readings[examples["train"].digest].run(twin, batch, items, frozenset({POOLED})).at(items)
    expected, found = usual.logits, other.logits
    if items.valid is not None:
        expected, found = expected[items.valid], found[items.valid]
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(other.pooled, usual.pooled, atol=1e-6, rtol=1e-6)
    assert other.hidden_states is None


def test_words_that_one_of_both_cuts_off_teach_nothing(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    """The teacher reads two of four words, and the student all of them."""
    words, tags = ["to", "New", "York", "now"], ["O", "B-city", "I-city", "O"]
    task = TokenClassification(train=([words], [tags]), dev=([words], [tags]))
    data = task.read(tmp_path)
    pieces = train_word_pieces([" ".join(words)] * 4, 200)
    short = task.with_max_length(len(pieces(words, is_split_into_words=True)["input_ids"][:4]))
    student, teacher = task.encode(data, tokenizer, None), short.encode(data, pieces, None)
    examples, _ = match_splits(short, student, teacher)
    batch = examples["train"][[0]]
    items = task.select(batch)
    read = int((teacher["train"][[0]]["labels"] != IGNORED).sum())
    assert 0 < read < len(words)
    assert items.taught is not None
    assert items.taught.tolist() == [number < read for number in range(len(words))]
    objective = Objective(soft=SoftTargets(), hard=HardLabels())
    assert objective.counts(items).tolist() == [read, len(words)]
    logits = torch.randn(len(words), 3)
    other = logits.clone()
    other[read:, 0] += 5
    losses = [objective.totals(Outputs(logits=logits), Outputs(logits=of), items)[0] for of in (logits, other)]
    assert losses == [pytest.approx(0, abs=1e-6)] * 2


def test_an_answer_goes_to_the_token_that_holds_its_character() -> None:
    """The teacher's tokens are `Tur`, `ing`, `wrote`, the student's `Turing`, `wr`, `ote`, each behind a first one."""
    task = QuestionAnswering(max_length=16, doc_stride=2)

    def window(starts: list[int], ends: list[int]) -> Items:
        batch = {
            "start_characters": torch.tensor([starts]), "end_characters": torch.tensor([ends]),
            "attention_mask": torch.ones(1, len(starts), dtype=torch.long), "start_positions": torch.tensor([0]),
            "end_positions": torch.tensor([0]), "example_id": torch.tensor([0]),
        }  # fmt: skip
        return task.select(batch)

    teacher, student = window([-1, 0, 3, 7], [-1, 3, 6, 12]), window([-1, 0, 7, 9], [-1, 6, 9, 12])
    logits = torch.tensor([[0.0, 2.0, 1.0, -1.0], [0.5, 1.0, 3.0, 0.0]])
    found = task.align(Outputs(logits=logits), teacher, student).logits
    assert found is not None
    torch.testing.assert_close(found[0], torch.tensor([0.0, np.logaddexp(2, 1), -1.0, -1.0]).float())
    torch.testing.assert_close(found[1], torch.tensor([0.5, np.logaddexp(1, 3), 0.0, 0.0]).float())
    narrow = window([-1, 0], [-1, 6])  # What it does not show is no answer.
    found = task.align(Outputs(logits=logits), teacher, narrow).logits
    assert found is not None
    torch.testing.assert_close(found[0], torch.tensor([np.logaddexp(0, -1), np.logaddexp(2, 1)]).float())
