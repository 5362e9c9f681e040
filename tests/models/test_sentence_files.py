"""Tests of directories of sentence-transformers: every step from a text to its vector is taken, or refused by name."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import BertTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from distill.core.contracts import VECTOR_SETTINGS
from distill.core.errors import UserError
from distill.models.loading import Start, check_directory, load_directory
from tests.conftest import toy_bert

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "find", "a", "film", "Film", ":")
TRANSFORMER, POOLING, NORMALIZE = (
    {"path": path, "type": f"sentence_transformers.models.{path.rpartition('_')[2] or 'Transformer'}"}
    for path in ("", "1_Pooling", "2_Normalize")
)
DENSE = {"path": "2_Dense", "type": "sentence_transformers.base.modules.dense.Dense"}
LSTM = {"path": "2_LSTM", "type": "sentence_transformers.models.LSTM"}
PROMPTS = {"prompts": {"query": "find a : ", "document": ""}, "default_prompt_name": "query"}
Write = Callable[..., Path]


@pytest.fixture
def cased() -> PreTrainedTokenizerBase:
    """A tokenizer of the class that makes its own normalizer when it is loaded."""
    return BertTokenizer(vocab={word: index for index, word in enumerate(WORDS)}, do_lower_case=False)


@pytest.fixture
def write(cased: PreTrainedTokenizerBase, tmp_path: Path) -> Write:
    """Writes an encoder with the files of sentence-transformers beside it."""

    def write_directory(modules: Any = (TRANSFORMER, POOLING), pooling: Any = None, **files: Any) -> Path:
        torch.manual_seed(0)
        toy_bert(len(cased), layers=1, initializer_range=0.5).bert.save_pretrained(tmp_path)
        cased.save_pretrained(tmp_path)
        for folder in ("1_Pooling", "2_Dense"):
            (tmp_path / folder).mkdir()
        content: dict[str, Any] = {"modules": modules, "1_Pooling/config": pooling or {"pooling_mode": "mean"}, **files}
        for name, value in content.items():
            if value is not None:
                (tmp_path / f"{name}.json").write_text(json.dumps(value))
        return tmp_path

    return write_directory


def load(directory: Path, auto_class: str = "AutoModel") -> Start:
    return load_directory(directory, auto_class, None, trust_remote_code=False)


def ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[str]:
    return list(tokenizer.convert_ids_to_tokens(tokenizer(text)["input_ids"]))


def reload(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, directory: Path) -> PreTrainedTokenizerBase:
    """Returns the tokenizer as it is loaded from the files of a student."""
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    reloaded: PreTrainedTokenizerBase = transformers.AutoTokenizer.from_pretrained(directory)
    return reloaded


def test_the_default_prompt_begins_every_text_also_after_saving(write: Write, tmp_path: Path) -> None:
    directory = write(config_sentence_transformers=PROMPTS)
    start = load(directory)
    assert start.notices == [f"texts begin with the prompt 'find a : ' of {directory} (query)"]
    expected = ["[CLS]", "find", "a", ":", "film", "[SEP]"]
    assert ids(start.tokenizer, "film") == expected
    reloaded = reload(start.model, start.tokenizer, tmp_path / "student")
    assert ids(reloaded, "film") == expected
    assert (reloaded.model_input_names, reloaded.pad_token_id) == (start.tokenizer.model_input_names, 0)


def test_prompts_that_are_no_default_are_named_and_empty_ones_are_not(write: Write) -> None:
    directory = write(config_sentence_transformers={**PROMPTS, "default_prompt_name": None})
    start = load(directory)
    assert start.notices == [
        f"{directory} has prompts (query 'find a : '): query begin the texts of a retrieval set, and others have none"
    ]
    assert ids(start.tokenizer, "film") == ["[CLS]", "film", "[SEP]"]
    (directory / "config_sentence_transformers.json").write_text('{"prompts": {"query": "", "document": ""}}')
    assert load(directory).notices == []


def test_texts_are_lower_cased_and_cut_as_the_files_say_also_after_saving(write: Write, tmp_path: Path) -> None:
    directory = write(sentence_bert_config={"max_seq_length": 9, "do_lower_case": True})
    start = load(directory)
    assert start.notices == [f"texts are lower-cased as by {directory} (do_lower_case)"]
    assert ids(start.tokenizer, "Film") == ["[CLS]", "film", "[SEP]"]
    assert ids(reload(start.model, start.tokenizer, tmp_path / "student"), "Film") == ["[CLS]", "film", "[SEP]"]
    assert start.tokenizer.model_max_length == 9  # By which a longer task.max_length is refused.
    assert ids(load(directory, "AutoModelForMaskedLM").tokenizer, "Film") == ["[CLS]", "Film", "[SEP]"]


def test_the_prompt_is_lower_cased_too(write: Write) -> None:
    prompts = {"prompts": {"query": "Film "}, "default_prompt_name": "query"}
    directory = write(config_sentence_transformers=prompts, sentence_bert_config={"do_lower_case": True})
    assert ids(load(directory).tokenizer, "Film") == ["[CLS]", "film", "film", "[SEP]"]


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        ({"pooling_mode": "cls"}, "cls"),
        ({"pooling_mode": ["max"]}, "max"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_mean_tokens": False}, "mean"),  # As sentence-transformers takes it.
        ({"pooling_mode": "lasttoken"}, "lasttoken"),
        ({"pooling_mode": ["mean", "max"]}, "mean+max"),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_weightedmean_tokens": True}, "mean+weightedmean"),
    ],
)
@pytest.mark.parametrize("modules", [(TRANSFORMER, POOLING, NORMALIZE), None])
def test_the_pooling_is_that_of_the_files(write: Write, modules: Any, pooling: dict[str, Any], expected: str) -> None:
    start = load(write(modules, pooling))
    assert (getattr(start.model.config, VECTOR_SETTINGS)["pooling"], start.notices) == (expected, [])


@pytest.mark.parametrize(
    ("function", "modules", "is_named"),
    [
        ("dot", (TRANSFORMER, POOLING), True),
        ("dot", (TRANSFORMER, POOLING, NORMALIZE), False),  # The same as the cosine.
        ("euclidean", (TRANSFORMER, POOLING, NORMALIZE), True),
        ("cosine", (TRANSFORMER, POOLING), False),
    ],
)
def test_a_model_for_another_similarity_is_named(write: Write, function: str, modules: Any, is_named: bool) -> None:
    directory = write(modules, config_sentence_transformers={"similarity_fn_name": function})
    notice = f"{directory} compares vectors by {function} (similarity_fn_name), and cosines are compared here"
    assert load(directory).notices == ([notice] if is_named else [])


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"modules": [TRANSFORMER, POOLING, LSTM]}, r"by 2_LSTM \(LSTM\), which cannot be computed"),
        ({"modules": [TRANSFORMER, POOLING, DENSE]}, "2_Dense/config.json is damaged: it has in_features=None"),
        (
            {
                "modules": [TRANSFORMER, POOLING, DENSE],
                "pooling": {"embedding_dimension": 32},
                "2_Dense/config": {"in_features": 16, "out_features": 8},
            },
            "2_Dense/config.json reads vectors 16 wide, and those before it are 32 wide",
        ),
        (
            {
                "modules": [TRANSFORMER, POOLING, DENSE],
                "2_Dense/config": {"in_features": 32, "out_features": 8, "activation_function": "my.Swish"},
            },
            "has the activation my.Swish, expected one of Identity, Tanh",
        ),
        (
            {"modules": [TRANSFORMER, POOLING, DENSE], "2_Dense/config": {"in_features": 32, "out_features": 8}},
            "2_Dense/model.safetensors is missing: save the model again",
        ),
        ({"modules": [{"path": "", "type": "custom_st.Transformer"}, POOLING]}, r"\(custom_st.Transformer\)"),
        (
            {"modules": [TRANSFORMER]},
            r"has the modules Transformer in modules.json, expected Transformer, Pooling, and",
        ),
        ({"modules": [TRANSFORMER, NORMALIZE, POOLING]}, "has the modules Transformer, Normalize, Pooling in modules"),
        ({"modules": [{**TRANSFORMER, "path": "0_BERT"}, POOLING]}, "keeps its model in 0_BERT, as old versions of"),
        ({"modules": {"a": 1}}, "modules.json is damaged: string indices"),
        ({"modules": [{"idx": 0}]}, "modules.json is damaged: 'type'"),
        ({"pooling": {"pooling_mode": ["mean", "median"]}}, r"was trained with mean\+median pooling .*, expected mean"),
        ({"pooling": ["mean"]}, "1_Pooling/config.json is damaged: it holds a list, expected an object"),
        (
            {"pooling": {"pooling_mode": "mean", "include_prompt": False}, "config_sentence_transformers": PROMPTS},
            "leaves its prompt 'find a : ' out of the pooling",
        ),
        (
            {"config_sentence_transformers": {"prompts": {}, "default_prompt_name": "query"}},
            "config_sentence_transformers.json names the prompt query, and has none",
        ),
    ],
)
def test_steps_that_cannot_be_taken_are_refused_by_name(write: Write, files: dict[str, Any], message: str) -> None:
    directory = write(**files)
    with pytest.raises(UserError, match=message):
        load(directory)


def test_a_folder_of_a_module_is_read_without_modules_json(write: Write) -> None:
    directory = write(None)
    (directory / "2_LSTM").mkdir()
    (directory / "2_LSTM" / "config.json").write_text("{}")
    with pytest.raises(UserError, match=r"computes its vectors by 2_LSTM \(LSTM\)"):
        load(directory)
    assert load(directory, "AutoModelForMaskedLM").reason.startswith("its head is")  # It reads no vectors.


def test_an_old_directory_without_a_model_of_its_own_is_explained(tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text(json.dumps([{**TRANSFORMER, "path": "0_BERT"}, POOLING]))
    with pytest.raises(
        UserError, match="keeps its model in 0_BERT, as old versions of sentence-transformers did: load"
    ):
        check_directory(tmp_path, "teacher.path=x")
