"""Tests that training, the exported file and the device give a model the same inputs."""

import copy
from pathlib import Path

import numpy as np
import pytest
from distill.builtin.students.distilbert import from_teacher
from transformers import PreTrainedTokenizerBase

from distill.data.batches import evaluation_loaders
from distill.edge.bundle import Bundle
from distill.edge.bundle_files import session
from distill.export.bundle_writer import write_bundle
from distill.kinds import Classification
from distill.models.forward import input_names
from distill.training.module import evaluate
from tests.conftest import LABELS, LOOSE, sentences, toy_bert


def without(tokenizer: PreTrainedTokenizerBase, *names: str) -> PreTrainedTokenizerBase:
    changed = copy.deepcopy(tokenizer)
    changed.model_input_names = [name for name in tokenizer.model_input_names if name not in names]
    return changed


def test_the_inputs_are_those_that_the_tokenizer_makes(tokenizer: PreTrainedTokenizerBase) -> None:
    bert = toy_bert(len(tokenizer), layers=1)
    everything = ["input_ids", "attention_mask", "token_type_ids"]
    assert input_names(bert) == input_names(bert, tokenizer) == everything
    assert input_names(bert, without(tokenizer, "token_type_ids")) == everything[:2]
    # Every batch has a mask.
    assert input_names(bert, without(tokenizer, "attention_mask")) == everything
    assert input_names(from_teacher(bert), tokenizer) == everything[:2]


@pytest.mark.parametrize(
    "absent",
    [
        (),
        ("token_type_ids",),
    ],
    ids=str,
)
def test_a_bundle_for_pairs_gives_the_logits_of_training(
    absent: tuple[str, ...], tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    tokenizer = without(tokenizer, *absent)
    texts = [text for text, _ in sentences(24)]
    rows = (list(zip(texts, texts[::-1], strict=True)), [LABELS[index % 2] for index in range(24)])
    task = Classification(name="toy", text=["one", "two"], max_length=64, train=rows, dev=rows)
    splits = task.read(tmp_path)
    bert = toy_bert(len(tokenizer), layers=1).eval()  # Itself, because a DistilBERT has no token types.
    loaders = evaluation_loaders(task.encode(splits, tokenizer, None))
    scores = {"dev": evaluate(bert, task, splits.scoring, loaders["dev"]).by_example()}
    write_bundle(tmp_path, model=bert, tokenizer=tokenizer, task=task, splits=splits, scores=scores, settings=LOOSE)
    names = [value.name for value in session(tmp_path / "model.onnx").get_inputs()]
    assert ("token_type_ids" in names) == ("token_type_ids" not in absent)
    logits = np.concatenate(Bundle(tmp_path, model="fp32").item_logits(splits.splits["dev"].records()))
    np.testing.assert_allclose(logits, scores["dev"].columns["logits"], atol=1e-5)
