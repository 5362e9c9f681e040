"""Tests of bundles that fill masks, with a model whose predictions can be worked out by hand."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerBase

from distill.core.errors import UserError
from distill.edge.__main__ import main
from distill.edge.bundle import Bundle
from distill.edge.decoder import Example, MaskedTokens, fill_masks
from distill.edge.text_decoders import refine_masks
from tests.edge.conftest import TEXTS, Output, Write


@pytest.fixture
def directory(write: Write) -> Path:
    return write("masks")


def best(prediction: dict[str, Any]) -> list[str]:
    return [mask["pieces"][0]["piece"] for mask in prediction["masks"]]


def test_each_mask_has_its_pieces_and_the_text_is_filled(directory: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    [prediction] = Bundle(directory).predict(["A  lovely [MASK], a film[MASK]"])
    assert prediction["text"] == "A  lovely lovely, a filmfilm"
    first, second = prediction["masks"]
    assert (first["start"], first["end"], second["start"], second["end"]) == (10, 16, 24, 30)
    size, top = len(tokenizer), math.exp(10)
    assert first["pieces"] == [
        {"piece": "lovely", "probability": pytest.approx(top / (top + size - 1))},
        {"piece": tokenizer.convert_ids_to_tokens(0), "probability": pytest.approx(1 / (top + size - 1))},
    ]


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_and_batches_leave_the_masks_where_they_are(write: Write, side: str) -> None:
    texts = ["film [MASK]", "a lovely and moving [MASK] , a [MASK]", "lovely [MASK] [MASK] film"]
    for batch_size in (1, 2, 32):
        predictions = Bundle(write("masks", padding_side=side)).predict(texts, batch_size=batch_size)
        assert [best(prediction) for prediction in predictions] == [["film"], ["moving", "a"], ["lovely", "[MASK]"]]


def test_the_number_of_pieces_is_that_of_the_record_or_of_the_bundle(
    directory: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    records = ["a [MASK]", {"text": "a [MASK]", "top_k": 1}, {"text": "a [MASK]"}]
    counts = [len(each["masks"][0]["pieces"]) for each in Bundle(directory, top_k=4).predict(records)]
    assert counts == [4, 1, 4]
    for top_k in (0, len(tokenizer) + 1):
        with pytest.raises(UserError, match=f"got top_k={top_k}, expected a whole number from 1 to {len(tokenizer)}"):
            Bundle(directory, top_k=top_k)


def test_a_mask_that_is_cut_off_stays_in_the_text(directory: Path) -> None:
    text = "a [MASK]" + " film" * 20
    [prediction] = Bundle(directory).predict([f"{text} [MASK]"])
    assert prediction["truncated"]
    assert prediction["text"] == f"a a{' film' * 20} [MASK]"
    with pytest.raises(UserError, match="record 1: its masks are beyond the 16 tokens that the bundle reads: shorten"):
        Bundle(directory).predict(["film " * 20 + "[MASK]"])


def test_a_text_that_has_no_input_is_named_by_itself(directory: Path, capsys: Output) -> None:
    text = "film " * 20 + "[MASK]"
    assert main([str(directory), "a [MASK]", "", text]) == 2
    assert capsys.readouterr().err.startswith(f"error: got '{text[:40]}")
    rows = "text\tlabel\na [MASK]\ta\n" + f"{text}\ta\n"
    (directory / "dev.tsv").write_text(rows)
    assert main([str(directory), "--evaluate", str(directory / "dev.tsv")]) == 2
    assert "dev.tsv, line 3: its masks are beyond the 16 tokens" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ("a film", "got 'a film' without a mask, expected [MASK] at each place to fill"),
        ("", "got '' without a mask"),
        (["a [MASK]"], 'expected a text or {"text": ..., "top_k": ...}'),
        ({"text": "a [MASK]", "top_k": 0}, "got top_k=0, expected a whole number from 1 to "),
        ({"text": "a [MASK]", "top_k": True}, "got top_k=True, expected a whole number"),
        ("\ud800 [MASK]", "is a lone surrogate"),
    ],
)
def test_a_record_of_another_form_is_refused(directory: Path, record: Any, message: str) -> None:
    with pytest.raises(UserError) as caught:
        Bundle(directory).predict([record])
    assert message in str(caught.value)


def test_a_damaged_decoding_and_another_bundle_are_refused(write: Write) -> None:
    for decoding, message in (
        ({"top_k": 2}, "mask_token None, expected a token of tokenizer.json"),
        ({"mask_token": "<mask>", "top_k": 2}, "mask_token '<mask>', expected a token"),
        ({"mask_token": "[MASK]", "top_k": "2"}, "top_k '2', expected a whole number"),
    ):
        with pytest.raises(UserError, match=f"is damaged: decoding has {message}"):
            Bundle(write("masks", decoding=decoding))
    with pytest.raises(UserError, match="got top_k=3, and .* is of a classification, which fills no masks: leave it"):
        Bundle(write(), top_k=3)


def test_the_command_fills_masks(directory: Path, capsys: Output) -> None:
    share = math.exp(10) / (math.exp(10) + Bundle(directory).tokenizer.get_vocab_size() - 1)
    assert main([str(directory), "a lovely [MASK]", "--top-k", "1"]) == 0
    assert capsys.readouterr().out == f"a lovely lovely\tlovely {share:.4f}\ta lovely [MASK]\n"
    assert main([str(directory), '{"text": "film [MASK]", "top_k": 1}', "--jsonl"]) == 0
    assert json.loads(capsys.readouterr().out)["text"] == "film film"
    for arguments, message in (
        (["a film"], "text 1: got 'a film' without a mask, expected [MASK] at each place to fill"),
        (["film [MASK]", "--rounds", "0"], "got rounds=0, expected a whole number of at least 1"),
        (["--evaluate", "dev.tsv", "--rounds", "4"], "got --evaluate and --rounds 4: the metrics are of one round, le"),
    ):
        assert main([str(directory), *arguments]) == 2
        assert capsys.readouterr().err.startswith(f"error: {message}")


def test_the_accuracy_is_the_share_of_all_masks(directory: Path, tmp_path: Path, capsys: Output) -> None:
    rows = [{"text": "film [MASK]", "label": "film"}, {"text": "a [MASK] film [MASK]", "label": ["lovely", "film"]}]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert main([str(directory), "--evaluate", str(tmp_path / "rows.jsonl"), "--json"]) == 0
    # The masks are filled with the tokens before them: film, and a and film.
    assert json.loads(capsys.readouterr().out)["metrics"] == {"accuracy": pytest.approx(2 / 3)}


def byte_level() -> Tokenizer:
    """A byte-level tokenizer such as RoBERTa's, whose mask takes the space before it."""
    words = ["<s>", "</s>", "a", "Ġ", "f", "Ġf", "s", "Ġa"]
    tokenizer = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, [("Ġ", "f"), ("Ġ", "a")]))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True), "<s>", "</s>"])
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0), trim_offsets=True)
    return tokenizer


def test_a_piece_that_continues_a_word_is_joined_to_it(tokenizer: PreTrainedTokenizerBase) -> None:
    wordpiece, tail = tokenizer.backend_tokenizer, next(of for of in tokenizer.get_vocab() if of.startswith("##"))
    for backend, mask, text, piece, expected in (
        (byte_level(), "<mask>", "a <mask> s", "Ġf", "a f s"), (byte_level(), "<mask>", "a <mask> s", "s", "as s"),
        (byte_level(), "<mask>", "a<mask>", "Ġf", "af"), (byte_level(), "<mask>", "<mask> a", "f", "f a"),
        (wordpiece, "[MASK]", "a film [MASK] .", tail, f"a film{tail.removeprefix('##')} ."),
    ):  # fmt: skip
        tokens = MaskedTokens.find(backend.encode(text), text, backend.token_to_id(mask))
        assert [text[start:end] for start, end in tokens.spans] == [mask]
        assert fill_masks(backend, text, tokens, [backend.token_to_id(piece)]) == expected


def test_rows_beyond_the_tokenizer_take_no_share(directory: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    """The embeddings of a model may be padded to a multiple of 64. Nothing trained the logits of these rows."""
    decoder, size = Bundle(directory).decoder, len(tokenizer)
    logits = np.concatenate([np.zeros((1, size)), np.full((1, 64), 9.0)], axis=1)
    logits[0, 7] = 1.0
    tokens = MaskedTokens([5], [0], [1], [0])
    [mask] = decoder.decode(Example("", tokens=tokens), [(tokens, logits)])["masks"]
    assert mask["pieces"][0]["probability"] == pytest.approx(math.e / (math.e + size - 1))


def test_each_round_masks_fewer_tokens_and_those_of_the_lowest_probability() -> None:
    row = MaskedTokens([9] * 5, [0] * 5, [1] * 5, [0, 1, 2, 4])
    # Logits at [positions, 3 tokens and one beyond the vocabulary], with another token in each round.
    first = np.array([[3.0, 0, 0, 9], [1, 0, 0, 9], [2, 0, 0, 9], [0.5, 0, 0, 9]])
    seen: list[tuple[list[int], list[int]]] = []

    def predict(rows: object) -> list[np.ndarray]:
        [masked] = rows  # type: ignore[misc]
        seen.append((list(masked.ids), list(masked.positions)))
        return [np.array([[0, 5.0 + len(seen), 0, 9]] * len(masked.positions))]

    [logits] = refine_masks([row], [first], predict, rounds=4, mask_id=7, tokens=3)
    assert seen == [
        ([0, 7, 7, 9, 7], [1, 2, 4]),  # 3 of 4: the first keeps its token, 0, with a logit of 3.
        ([7, 7, 1, 9, 1], [0, 1]),  # 2 of 4: it is the least certain, and the second the first of those with 6.
        ([1, 1, 7, 9, 1], [2]),  # 1 of 4: those have 7 now.
    ]
    assert logits[:, 1].tolist() == [7, 7, 8, 6]


def test_further_rounds_read_what_was_filled(write: Write, tokenizer: PreTrainedTokenizerBase) -> None:
    """A mask has the token before it, and is less certain of a mask: of three masks one more is known in each round."""
    graph = f"""toy ({TEXTS}, int64[tokens] positions) => (float[tokens, {len(tokenizer)}] logits)
        <int64[1] flat = {{-1}}, int64[1] last = {{1}}, int64 one = {{1}}, int64 size = {{{len(tokenizer)}}},
         int64 mask = {{{tokenizer.mask_token_id}}}, float[2] values = {{0, 1}}, float low = {{5}},
         float high = {{10}}> {{
            tokens = Reshape(input_ids, flat)
            before = Sub(positions, one)
            best = Gather(tokens, before)
            is_mask = Equal(best, mask)
            certainty = Where(is_mask, low, high)
            column = Unsqueeze(certainty, last)
            chosen = OneHot(best, size, values)
            logits = Mul(chosen, column)
            unused = Identity(attention_mask)
        }}"""
    bundle, text = Bundle(write("masks", graph=graph)), "film [MASK] [MASK] [MASK]"
    filled = {rounds: best(bundle.predict([text], rounds=rounds)[0]) for rounds in (1, 2, 3)}
    assert filled == {1: ["film", "[MASK]", "[MASK]"], 2: ["film", "film", "[MASK]"], 3: ["film", "film", "film"]}
