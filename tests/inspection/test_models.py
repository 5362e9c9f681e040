"""Tests of what is read from models: attention, masked heads, attributions, gaps, relations and spans."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerBase

from distill.core.errors import UserError
from distill.inspection import inspection
from distill.inspection.probes import Cloze, attribute, fill_gaps, probe_data, read_clozes, read_spans
from distill.inspection.subjects import LEVELS, Subject, create_subject, look
from distill.models.surgery.layers import list_parts
from tests.conftest import toy_bert

ALL = inspection.Questions(masked_rows=0, probes=False, attributions=False)


def test_models_are_looked_at_without_their_dropout(
    subjects: list[Subject], tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    teacher, _ = subjects
    expected = look(teacher, "dev", np.arange(6), heads=False)
    model, untrained = toy_bert(len(tokenizer)).train(), toy_bert(len(tokenizer)).train()
    assert model.config.hidden_dropout_prob > 0
    data = teacher.task.read(tmp_path / "cache")
    created = create_subject("teacher", tmp_path, model, tokenizer, teacher.task, data, tmp_path / "cache")
    for subject in (created, created.before(untrained)):
        for own, other in zip(look(subject, "dev", np.arange(6), heads=False).states, expected.states, strict=True):
            np.testing.assert_allclose(own, other, atol=1e-5)


def test_a_masked_head_is_one_whose_weights_are_zero(tokenizer: PreTrainedTokenizerBase) -> None:
    model, zeroed = toy_bert(len(tokenizer)).eval(), toy_bert(len(tokenizer)).eval()
    assert inspection.heads_of(model) == [4, 4, 4, 4]
    with torch.no_grad():  # The head's columns of the layer that reads all heads.
        list_parts(zeroed)[2]["attention.dense"].weight[:, 8:16] = 0
    batch = dict(tokenizer(["good film", "bad"], padding=True, return_tensors="pt"))
    with torch.no_grad():
        whole, expected = model(**batch).logits, zeroed(**batch).logits
        with inspection.masked_head(model, 3, 2):
            masked = model(**batch).logits
        assert torch.equal(model(**batch).logits, whole)
    torch.testing.assert_close(masked, expected)
    assert not torch.allclose(masked, whole)


ENCODERS = {
    "bert": transformers.BertConfig(hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=16),
    "distilbert": transformers.DistilBertConfig(dim=32, n_layers=3, n_heads=4, hidden_dim=16),
    "shared": transformers.AlbertConfig(
        hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=16, embedding_size=8
    ),
}


@pytest.mark.parametrize(
    ("layout", "limit"), [("bert", 0), ("bert", 3_000), ("bert", 2**30), ("distilbert", 2**30), ("shared", 2**30)]
)
def test_the_score_without_each_head(
    layout: str, limit: int, tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lower layers are not run again, as far as their outputs are kept, and the scores are those of whole passes."""
    monkeypatch.setattr("distill.inspection.inspection.KEPT_BYTES", limit)
    torch.manual_seed(0)
    model = transformers.AutoModelForSequenceClassification.from_config(ENCODERS[layout]).eval()
    batches = [tokenizer([text] * 2, return_tensors="pt") for text in ("good film", "bad", "a good bad film")]
    calls: list[int] = []

    def score() -> float:
        return sum(float(model(**batch).logits[0, 0]) for batch in batches)

    linear = list_parts(model)[0]["attention.query"].register_forward_hook(lambda *_: calls.append(1))
    found = inspection.score_without_heads(model, score)
    linear.remove()
    expected = []
    for layer in range(1, 4):
        for head in range(1, 5):
            with inspection.masked_head(model, layer, head), torch.no_grad():
                expected.append(score())
    assert np.ravel(found).tolist() == pytest.approx(expected, abs=1e-6)
    assert len(set(expected)) == (4 if layout == "shared" else 12)
    runs, all_kept = 4 * 3 * 3, 4 * 3 + 2 * 3  # Of the first layer: four heads of three layers, in three batches.
    if layout == "shared":
        assert len(calls) == 3 * runs
    else:
        assert len(calls) in {0: [runs], 3_000: range(all_kept + 1, runs), 2**30: [all_kept]}[limit]
    assert not any("forward" in vars(module) for module in model.modules())


def test_the_shown_attention_is_that_of_transformers(subjects: list[Subject]) -> None:
    found = inspection.inspect_models(subjects[:1], ALL)
    subject, [looked] = subjects[0], found.models
    assert len(looked.views) == len(found.sentences) == 8
    for sentence, view in zip(found.sentences, looked.views, strict=True):
        ids = subject.tokenizer(sentence, return_tensors="pt")
        with torch.no_grad():
            attentions = subject.model(**ids, output_attentions=True).attentions
        assert view.tokens == subject.tokenizer.convert_ids_to_tokens(ids["input_ids"][0])
        expected = torch.cat(attentions).numpy()
        assert np.abs(view.weights / LEVELS - expected).max() <= 0.5 / LEVELS + 1e-6


def test_a_pass_has_scores_states_and_heads_in_the_order_of_the_examples(subjects: list[Subject]) -> None:
    subject, rows = subjects[0], np.arange(24)
    seen = look(subject, "dev", rows)
    assert seen.scores.example_id.tolist() == rows.tolist()
    assert [of.shape for of in seen.states] == [(24, 32)] * 5
    assert len(seen.heads) == 16
    text = subject.data.splits["dev"].texts[5]
    with torch.no_grad():
        output = subject.model(**subject.tokenizer(text, return_tensors="pt"), output_hidden_states=True)
    np.testing.assert_allclose(seen.states[2][5], output.hidden_states[2][0].mean(dim=0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(seen.scores.columns["logits"][5], output.logits[0], rtol=1e-4, atol=1e-5)


SIZES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "max_position_embeddings": 64, "initializer_range": 0.3,
}  # fmt: skip
FAMILIES = {
    "bert": lambda **ids: transformers.BertConfig(**SIZES, **ids),
    # It counts positions by the tokens that are no padding, which the baseline consists of.
    "roberta": lambda **ids: transformers.RobertaConfig(**SIZES, **ids),
    "bart": lambda **ids: transformers.BartConfig(
        d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
        encoder_ffn_dim=32, decoder_ffn_dim=32, init_std=0.3, scale_embedding=True, **ids,
    ),
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_attributions_add_up_to_the_difference_from_the_baseline(
    family: str, tokenizer: PreTrainedTokenizerBase
) -> None:
    """The baseline has the embedding of padding for each word, at the positions of the text."""
    pytest.importorskip("captum")
    torch.manual_seed(1)
    config = FAMILIES[family](
        vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.sep_token_id
    )
    model = transformers.AutoModelForSequenceClassification.from_config(config).eval()
    batch = dict(tokenizer("good film", return_tensors="pt"))
    found = attribute(model, tokenizer, batch)
    table = (model.get_encoder() if family == "bart" else model).get_input_embeddings()
    is_word = ~torch.isin(batch["input_ids"][0], torch.tensor(tokenizer.all_special_ids))

    def score(change: Callable[[torch.Tensor], object]) -> torch.Tensor:
        """Returns the logits where the embeddings of the words `[n, H]` are changed in place."""

        def hook(module: object, inputs: object, output: torch.Tensor) -> torch.Tensor:
            output = output.clone()
            words = output[0, : len(is_word)][is_word]
            change(words)
            output[0, : len(is_word)][is_word] = words
            return output

        handle = table.register_forward_hook(hook)
        with torch.no_grad():
            logits = model(**batch).logits[0]
        handle.remove()
        return logits  # type: ignore[no-any-return]

    with torch.no_grad():
        padding = table(torch.tensor(tokenizer.pad_token_id))
    whole, base = score(lambda words: None), score(lambda words: words.copy_(padding.expand_as(words)))
    chosen = int(whole.argmax())
    difference = float(whole[chosen] - base[chosen])
    assert "".join(found.words) == "goodfilm"
    assert abs(difference) > 0.01
    assert sum(found.integrated) == pytest.approx(difference, abs=0.01)
    assert found.missing < 0.01
    # Gradient times input is the slope along the embeddings.
    more, less = score(lambda words: words.mul_(1.01)), score(lambda words: words.mul_(0.99))
    assert sum(found.product) == pytest.approx(float(more[chosen] - less[chosen]) / 0.02, abs=0.01)


def test_a_gap_is_filled_by_a_masked_model(tokenizer: PreTrainedTokenizerBase) -> None:
    masked = transformers.BertForMaskedLM(toy_bert(len(tokenizer), layers=1, width=16).config).eval()
    word, other = [word for word in tokenizer.get_vocab() if word.isalpha() and len(word) > 2][:2]
    with torch.no_grad():
        masked.cls.predictions.decoder.bias.zero_()[tokenizer.convert_tokens_to_ids(word)] = 50
    clozes = [Cloze("toy", f"{other} ___ {other}", word, other), Cloze("toy", "a ___", "xyzzyqwv", other)]
    [filled] = fill_gaps(masked, tokenizer, clozes)
    assert (filled.rank, filled.best, filled.prefers) == (1, word, True)
    assert filled.probability > 0.99
    assert filled.cloze == clozes[0]


def test_a_causal_model_is_asked_for_the_word_with_the_blank_before_it() -> None:
    vocabulary = {"<unk>": 0, "it": 1, "good": 2, "Ġgood": 3, "bad": 4, "Ġbad": 5}
    model = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    model.pre_tokenizer = ByteLevel(add_prefix_space=False)
    causal = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=6, n_embd=16, n_layer=1, n_head=2)).eval()
    with torch.no_grad():
        causal.transformer.ln_f.weight.zero_()
        causal.transformer.ln_f.bias.fill_(1.0)
        causal.lm_head.weight.copy_(torch.tensor([0.0, 0, 1, 4, 2, 3])[:, None].expand(6, 16))
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=model, unk_token="<unk>")
    [filled, foiled] = fill_gaps(causal, fast, [Cloze("", "it ___", "good", "bad"), Cloze("", "it ___", "bad", "good")])
    assert (filled.rank, filled.prefers) == (1, True)
    assert (foiled.rank, foiled.prefers) == (2, False)


def test_the_sentences_that_come_with_the_program() -> None:
    clozes = read_clozes()
    assert len(clozes) >= 40
    assert all(cloze.text.count("___") == 1 and cloze.answer != cloze.foil for cloze in clozes)


def parsed(path: Path, *rows: tuple[str, int, str], times: int = 1) -> Path:
    """Writes a sentence of words with their heads, counted from 1, and relations."""
    lines = [
        "\t".join([str(number), word, "_", "_", "_", "_", str(head), relation, "_", "_"])
        for number, (word, head, relation) in enumerate(rows, start=1)
    ]
    path.write_text("\n\n".join(["# sent_id = 1\n" + "\n".join(lines)] * times) + "\n", encoding="utf-8")
    return path


def test_a_planted_syntactic_head_is_found(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = parsed(tmp_path / "a.conllu", ("good", 3, "amod"), ("bad", 3, "amod"), ("film", 0, "root"), times=15)
    sentences = inspection.read_parsed(path)
    assert len(sentences) == 15
    assert (sentences[0].heads, sentences[0].relations) == ([2, 2, -1], ["amod", "amod", "root"])

    def planted(model: object, batch: dict[str, torch.Tensor], needs: object) -> SimpleNamespace:
        """Returns attention whose second head of two looks at the last word."""
        length = batch["input_ids"].shape[1]
        weights = torch.stack([torch.eye(length), torch.zeros(length, length)])[None]
        weights[0, 1, :, length - 2] = 1
        return SimpleNamespace(attentions=(weights,))

    monkeypatch.setattr("distill.inspection.inspection.run_model", planted)
    best, *_ = inspection.find_syntactic_heads(toy_bert(len(tokenizer), layers=1).eval(), tokenizer, sentences)
    assert (best.relation, best.direction, best.layer, best.head, best.number) == ("amod", "to head", 1, 2, 30)
    assert best.accuracy == 1.0
    assert (best.baseline, best.offset) == (0.5, 2)


def test_a_file_that_is_no_conllu_is_refused(tmp_path: Path) -> None:
    path, rest = tmp_path / "a.conllu", "amod\t_\t_\n\n"
    for text, message in (
        ("1\tgood\t_\n", "line 1: got 3 columns, expected the 10 of CoNLL-U"),
        ("", "has no sentences: expected CoNLL-U"),
        (f"1\tgood\t_\t_\t_\t_\tx\t{rest}", "got no number of a head, expected one in column 7"),
        (f"1\tgood\t_\t_\t_\t_\t5\t{rest}", "got a head that is no word of the sentence"),
    ):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(UserError, match=message):
            inspection.read_parsed(path)


def write_spans(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_spans_are_the_means_of_their_pieces(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    rows = [
        {"text": f"good film bad {'a' * (row // 2)}", "span1": [0, 9], "span2": [10, 13], "label": "xy"[row % 2]}
        for row in range(20)
    ]
    model = toy_bert(len(tokenizer), layers=1).eval()
    probed, cut = probe_data(model, tokenizer, read_spans(write_spans(tmp_path / "a.jsonl", *rows)))
    assert cut == 0
    assert probed.control is None
    assert probed.texts is not None
    assert np.bincount(probed.texts).tolist().count(2) == 7  # Both rows of a text are on one side.
    assert (len(probed.labels), len(probed.test_labels)) == (14, 6)
    encoded = tokenizer(rows[0]["text"], return_offsets_mapping=True, return_tensors="pt")
    offsets = encoded.pop("offset_mapping")[0].tolist()
    with torch.no_grad():
        states = model(**encoded, output_hidden_states=True).hidden_states[1][0]
    places = [
        [place for place, (start, end) in enumerate(offsets) if first <= start < end <= last]
        for first, last in ([0, 9], [10, 13])
    ]
    expected = torch.cat([states[of].mean(dim=0) for of in places])
    np.testing.assert_allclose(probed.train[1][0], expected, rtol=1e-4, atol=1e-6)


def test_a_file_without_spans_is_refused(tmp_path: Path) -> None:
    path, spans = tmp_path / "a.jsonl", {"span1": [0, 1], "label": "x"}
    cases: list[tuple[list[object], str]] = [
        ([{"text": "a b", "label": "x"}], r'line 1: expected {"text"'),
        ([{"text": "a b", **spans, "span2": [2, 9]}], r"line 1: got the span \[2, 9\] of a text of 3"),
        ([{"text": "a b", **spans, "span2": [2, 3]}], "has no two labels of spans"),
        ([], "has no two labels of spans"),
    ]
    for rows, message in cases:
        with pytest.raises(UserError, match=message):
            read_spans(write_spans(path, *rows))
