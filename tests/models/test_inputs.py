"""Tests that training, the exported file and the device give a model the same inputs."""

import copy

from distill.builtin.students.distilbert import from_teacher
from transformers import PreTrainedTokenizerBase

from distill.models.forward import input_names
from tests.conftest import toy_bert


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
