"""Tests of Mask-Predict: the rounds of a bundle against a plain loop in torch, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerBase

from distill.core.files import hash_file, write_json
from distill.edge.__main__ import main
from distill.edge.bundle import Bundle
from distill.edge.decoder import MaskedTokens
from distill.edge.text_decoders import refine_masks
from distill.export.onnx import export_onnx
from tests.edge.conftest import write_mask_bundle

TEXTS = [
    "a [MASK] [MASK] and [MASK] [MASK] film",
    "[MASK] [MASK] [MASK] [MASK] [MASK] [MASK] [MASK]",
    "wonderful [MASK] , a joy",
    "[MASK] acting [MASK] [MASK] bore [MASK] every [MASK]",
]


@pytest.fixture(scope="module")
def model(tokenizer: PreTrainedTokenizerBase) -> BertForMaskedLM:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=48,
        max_position_embeddings=32, initializer_range=0.3,
    )  # fmt: skip
    model = BertForMaskedLM(config).eval()
    # Else all masks of a text have the same token.
    model.bert.embeddings.position_embeddings.weight.data.mul_(4)
    return model


@pytest.fixture(scope="module")
def directory(
    tmp_path_factory: pytest.TempPathFactory, model: BertForMaskedLM, tokenizer: PreTrainedTokenizerBase
) -> Path:
    """A bundle of the model."""
    directory = tmp_path_factory.mktemp("masks")
    inputs = ["input_ids", "attention_mask", "token_type_ids"]
    write_mask_bundle(directory, tokenizer, max_length=32, inputs=inputs, padding=dict.fromkeys(inputs, 0))
    export_onnx(model, directory / "model.onnx")
    content = json.loads((directory / "bundle.json").read_text())
    content["files"]["model.onnx"] = hash_file(directory / "model.onnx")
    write_json(directory / "bundle.json", content)
    return directory


def refine_in_torch(
    model: BertForMaskedLM, tokenizer: PreTrainedTokenizerBase, text: str, rounds: int
) -> tuple[list[int], list[float]]:
    """Returns the tokens of the masks and their probabilities, of a text by itself."""
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    places = (ids[0] == tokenizer.mask_token_id).nonzero()[:, 0]
    tokens, probabilities = torch.zeros_like(places), torch.zeros(len(places))
    for number in range(rounds):
        masked = probabilities.argsort(stable=True)[: len(places) * (rounds - number) // rounds]
        ids[0, places] = tokens
        ids[0, places[masked]] = tokenizer.mask_token_id
        with torch.no_grad():
            best = model(input_ids=ids).logits[0, places].softmax(-1).max(-1)
        tokens[masked], probabilities[masked] = best.indices[masked], best.values[masked]
    return tokens.tolist(), probabilities.tolist()


@pytest.mark.parametrize("rounds", [1, 4])
def test_rounds_equal_a_loop_in_torch(
    directory: Path, model: BertForMaskedLM, tokenizer: PreTrainedTokenizerBase, rounds: int
) -> None:
    predictions = Bundle(directory).predict(TEXTS, rounds=rounds, batch_size=3)
    for text, prediction in zip(TEXTS, predictions, strict=True):
        tokens, probabilities = refine_in_torch(model, tokenizer, text, rounds)
        pieces = [mask["pieces"][0] for mask in prediction["masks"]]
        assert [tokenizer.convert_tokens_to_ids(of["piece"]) for of in pieces] == [
            tokenizer.convert_tokens_to_ids(tokenizer.decode([token])) for token in tokens
        ]
        np.testing.assert_allclose([of["probability"] for of in pieces], probabilities, rtol=1e-3)


def test_one_round_is_the_prediction_and_more_change_it(directory: Path) -> None:
    bundle = Bundle(directory)
    assert bundle.predict(TEXTS, rounds=1) == bundle.predict(TEXTS)
    [filled, refined] = [[of["text"] for of in bundle.predict(TEXTS, rounds=rounds)] for rounds in (1, 4)]
    assert filled[1] != refined[1]
    assert filled[2] == refined[2]  # A single mask has no others to be predicted from.
    assert bundle.predict(TEXTS[0], rounds=4)["text"] == refined[0]


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


def test_the_command_refines(directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = Bundle(directory).predict(TEXTS[1], rounds=4)["text"]
    assert main([str(directory), TEXTS[1], "--rounds", "4"]) == 0
    assert capsys.readouterr().out.startswith(expected)
    assert main([str(directory), "a film", "--rounds", "4"]) == 2
    assert "got 'a film' without a mask, expected [MASK] at each place to fill" in capsys.readouterr().err
    assert main([str(directory), TEXTS[1], "--rounds", "0"]) == 2
    assert capsys.readouterr().err == "error: got rounds=0, expected a whole number of at least 1\n"
    assert main([str(directory), "--evaluate", str(tmp_path / "dev.tsv"), "--rounds", "4"]) == 2
    assert "got --evaluate and --rounds 4: the metrics are of one round, leave it out" in capsys.readouterr().err
