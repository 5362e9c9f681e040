"""Tests of decoders that label texts: the last token, padding, separators, refusals, and a whole run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from distill.builtin.students.layers import from_teacher
from distill.builtin.teachers.new import NewModel
from transformers import PreTrainedConfig, PreTrainedTokenizerBase, XLNetConfig

from distill.core.errors import UserError
from distill.models.forward import check_reads_both_sides, run_model
from distill.models.loading import load_directory
from distill.models.sentence_files import separate_texts
from distill.models.vectors import VectorSettings, pool
from distill.models.yes_no import load_yes_no
from distill.text.vocabulary import train_bytes
from tests.conftest import sentences

HEAD = "AutoModelForSequenceClassification"
SIZES = {
    "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 64,
    "max_position_embeddings": 64,
}  # fmt: skip
FAMILIES: dict[str, Callable[..., PreTrainedConfig]] = {
    "gpt2": lambda **special: transformers.GPT2Config(n_embd=32, n_layer=4, n_head=4, n_positions=64, **special),
    "llama": lambda **special: transformers.LlamaConfig(**SIZES, **special),
    "opt": lambda **special: transformers.OPTConfig(
        **SIZES, ffn_dim=64, word_embed_proj_dim=32, **special | {"pad_token_id": None}
    ),
}


GROUPED = SIZES | {"num_key_value_heads": 2}
TEACHERS: dict[str, Callable[..., PreTrainedConfig]] = {
    "qwen3": lambda **special: transformers.Qwen3Config(**GROUPED, head_dim=8, **special),
    "gemma3": lambda **special: transformers.Gemma3TextConfig(
        **GROUPED, head_dim=8, sliding_window=8, layer_types=["sliding_attention", "full_attention"] * 2, **special
    ),
    "mistral": lambda **special: transformers.MistralConfig(**GROUPED, **special),
    "phi3": lambda **special: transformers.Phi3Config(**GROUPED, **special),
}


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    """A byte-level tokenizer without a padding token."""
    tokenizer = train_bytes([text for text, _ in sentences(64)], 300, 64)
    tokenizer.pad_token = None
    return tokenizer


@pytest.fixture(scope="module", params=FAMILIES)
def directory(
    request: pytest.FixtureRequest, tokenizer: PreTrainedTokenizerBase, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A causal language model with random weights."""
    path = tmp_path_factory.mktemp(request.param)
    torch.manual_seed(0)
    end = tokenizer.eos_token_id
    config = FAMILIES[request.param](vocab_size=len(tokenizer), bos_token_id=end, eos_token_id=end)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def load(directory: Path, labels: tuple[str, ...] = ("bad", "good")) -> Any:
    return load_directory(directory, HEAD, labels, trust_remote_code=False)


def test_the_logits_are_those_of_the_last_token_whatever_is_padded(directory: Path) -> None:
    start = load(directory)
    assert start.tokenizer.pad_token == "<|endoftext|>"
    assert start.model.config.pad_token_id == start.tokenizer.pad_token_id
    texts = ["a", "a lovely film of wit", ""]
    batch = start.tokenizer(texts, padding=True, return_tensors="pt")
    for model in (start.model, from_teacher(start.model, layers=range(4)).eval()):
        with torch.no_grad():
            logits = run_model(model, batch).logits
            for text, row in zip(texts, logits, strict=True):
                alone = start.tokenizer(text, return_tensors="pt")
                states = model.base_model(**alone).last_hidden_state[0, -1]
                torch.testing.assert_close(row, model.score(states), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("family", TEACHERS)
def test_a_decoder_as_a_teacher_has_the_logits_of_transformers_in_any_batch(
    family: str, side: str, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    end = tokenizer.eos_token_id
    special = {"bos_token_id": end, "eos_token_id": end, "pad_token_id": None}
    config = TEACHERS[family](vocab_size=len(tokenizer), id2label={0: "bad", 1: "good"}, **special)
    transformers.AutoModelForSequenceClassification.from_config(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    start = load(tmp_path)
    assert start.fits
    start.tokenizer.padding_side = side
    original = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    texts = ["a", "a lovely film of wit, and of " * 3, "stale"]
    batch = start.tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        logits = run_model(start.model, batch).logits
        expected = [original(**start.tokenizer(text, return_tensors="pt")).logits[0] for text in texts]
    torch.testing.assert_close(logits, torch.stack(expected), atol=1e-5, rtol=1e-4)


def test_texts_of_a_pair_are_apart_and_an_empty_text_has_a_token(directory: Path, tmp_path: Path) -> None:
    start = load(directory)
    end = "<|endoftext|>"
    assert start.tokenizer("a", "a").tokens() == [end, "a", end, "a"]
    assert start.tokenizer("").tokens() == [end]
    start.model.save_pretrained(tmp_path)
    start.tokenizer.save_pretrained(tmp_path)
    again = load(tmp_path)  # Its head is as good as trained.
    assert again.fits
    assert again.tokenizer("a", "a").tokens() == [end, "a", end, "a"]


def test_a_decoder_without_padding_gives_vectors(directory: Path) -> None:
    start = load_directory(directory, "AutoModel", None, trust_remote_code=False)
    assert start.tokenizer.pad_token == "<|endoftext|>"
    texts = ["a", "a lovely film of wit"]
    batch = start.tokenizer(texts, padding=True, return_tensors="pt")
    settings = VectorSettings(pooling="mean", normalize=False)
    with torch.no_grad():
        vectors = pool(start.model(**batch).last_hidden_state, batch["attention_mask"], settings)
        alone = start.model(**start.tokenizer(texts[:1], return_tensors="pt")).last_hidden_state.mean(dim=1)
    torch.testing.assert_close(vectors[:1], alone, atol=1e-5, rtol=1e-4)


def test_a_trained_head_reads_texts_as_it_has_learned_them(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    end = tokenizer.eos_token_id
    config = FAMILIES["gpt2"](
        vocab_size=len(tokenizer), bos_token_id=end, eos_token_id=end, id2label={0: "bad", 1: "good"}
    )
    transformers.AutoModelForSequenceClassification.from_config(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    assert load(tmp_path).tokenizer("a", "a").tokens() == ["a", "a"]


def test_a_tokenizer_with_special_tokens_keeps_them() -> None:
    separated = train_bytes(["a b"], 260, 16)
    separate_texts(separated)
    before = separated.backend_tokenizer.to_str()
    separate_texts(separated)
    assert separated.backend_tokenizer.to_str() == before


@pytest.mark.parametrize(
    ("auto_class", "asked"), [("AutoModelForTokenClassification", "tags"), ("AutoModelForQuestionAnswering", "answers")]
)
def test_a_decoder_is_refused_for_tags_and_answers(directory: Path, auto_class: str, asked: str) -> None:
    expected = f"a decoder, which reads the tokens before each token alone, and {asked} depend on those behind it too"
    with pytest.raises(UserError, match=expected):
        load_directory(directory, auto_class, ["a", "b"], trust_remote_code=False)
    with pytest.raises(UserError, match=f"teacher new has a model of type llama, {expected}"):
        NewModel(family="llama", positions=64).load(auto_class, ["a", "b"], ["some text"])


def test_encoders_and_xlnet_read_both_sides() -> None:
    for config in (transformers.BertConfig(), XLNetConfig(), transformers.ModernBertConfig()):
        check_reads_both_sides(config, "AutoModelForTokenClassification", "it")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    for split, count in (("train", 64), ("dev", 24)):
        rows = [f"{text}\t{label}" for text, label in sentences(count)]
        (root / f"{split}.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n", encoding="utf-8")
    return root


PROMPT = "judge: <Query>: {query}\n<Document>: {document}\nanswer:"


@pytest.mark.parametrize("padding_side", ["left", "right"])
def test_a_yes_or_a_no_behind_a_prompt_is_the_score_of_a_document(
    padding_side: str, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    end = tokenizer.eos_token_id
    config = TEACHERS["qwen3"](vocab_size=len(tokenizer), bos_token_id=end, eos_token_id=end, pad_token_id=None)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    start = load_yes_no(tmp_path, ("y", "n"), PROMPT, "score")
    start.tokenizer.padding_side = padding_side
    pairs = [("a film", "a lovely film of wit"), ("stale", "a"), ("of wit and of", "stale")]
    batch = start.tokenizer(*map(list, zip(*pairs, strict=True)), padding=True, return_tensors="pt")
    language_model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        logits = run_model(start.model, batch).logits
        for (query, document), row in zip(pairs, logits, strict=True):
            text = PROMPT.format(query=query, document=document)
            last = language_model(**tokenizer(text, return_tensors="pt")).logits[0, -1]
            expected = last[tokenizer.encode("y")[0]] - last[tokenizer.encode("n")[0]]
            torch.testing.assert_close(row[0], expected, atol=1e-5, rtol=1e-4)
    with pytest.raises(UserError, match="teacher.answers: 'yes and no' is . tokens of this model, expected one"):
        load_yes_no(tmp_path, ("yes and no", "n"), PROMPT, "score")
    with pytest.raises(UserError, match="needs {query} and then {document}, once each"):
        load_yes_no(tmp_path, ("y", "n"), "{document} for {query}", "score")
