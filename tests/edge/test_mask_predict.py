"""Tests of targets whose masks are filled on a device: by hand, against loops in torch, and on bad input."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from distill.core.errors import UserError
from distill.edge.__main__ import main
from distill.edge.bundle import Bundle
from distill.edge.text_decoders import MaskPredictor, TargetFrame, choose_masked, likely_lengths
from distill.export.onnx import export_mask_predictor
from distill.models.architectures.modeling_mask_predict import MaskPredictForConditionalGeneration
from tests.edge.conftest import Output, Patch, Write
from tests.mask_predict import END, MASK, START, make_model, make_tokenizer, write_fill_bundle

SOURCES = ["w1 w2 w3 w4 w5", "w9", "w3 w3 w8 w20 w21 w22 w23", "w7 w6"]


@pytest.fixture(scope="module")
def model() -> MaskPredictForConditionalGeneration:
    return make_model(layers=1)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory, model: MaskPredictForConditionalGeneration) -> Path:
    directory = tmp_path_factory.mktemp("filled")
    export_mask_predictor(model, directory / "model.onnx")
    write_fill_bundle(directory, directory)
    return directory


def test_the_likeliest_lengths_are_those_of_the_largest_logits() -> None:
    logits = np.array([9.0, 1, 3, 2, 3, 8])  # Of the lengths 0 to 5.
    assert likely_lengths(logits, 3, most=4) == [2, 4, 3]
    assert likely_lengths(logits, 1, most=5) == [5]
    assert likely_lengths(logits, 9, most=3) == [2, 3, 1]


class _Encoder:
    """Gives each source the logits of lengths of its first token."""

    def __init__(self, logits: Mapping[int, Sequence[float]]) -> None:
        self.logits = logits

    def run(self, names: Sequence[str], inputs: Mapping[str, Any]) -> list[Any]:
        ids = inputs["input_ids"]
        return [ids[..., None].astype(np.float32), np.array([self.logits[row[0]] for row in ids])]


class _Decoder:
    """Predicts by hand, and keeps the targets that it read."""

    def __init__(self) -> None:
        self.seen: list[list[int]] = []

    def run(self, names: Sequence[str], inputs: Mapping[str, Any]) -> list[Any]:
        ids, mask = inputs["input_ids"], inputs["attention_mask"]
        self.seen += [row[is_read == 1].tolist() for row, is_read in zip(ids, mask, strict=True)]
        rows, places = np.divmod(inputs["positions"], ids.shape[1])
        assert (ids[rows, places] == 7).all()
        # A mask has the token of its place, more certain in a later place, and where the token before it is known.
        logits = np.zeros((len(places), 8))
        known = (places > 0) & (ids[rows, places - 1] != 7)
        logits[np.arange(len(places)), places] = places + 2.0 * known
        return [logits]


def test_targets_are_filled_as_by_hand() -> None:
    decoder = _Decoder()
    encoder = _Encoder({3: [0, 0, 1, 3], 4: [0, 5, 0, 0]})
    predictor = MaskPredictor(encoder, decoder, TargetFrame((), (), 7, 3), 6)  # type: ignore[arg-type]
    first, second = predictor.write([[3, 5], [4]], rounds=2, lengths=1)
    assert decoder.seen == [
        [7, 7, 7], [7],  # The likeliest lengths, 3 and 1, both all masks.
        [7, 1, 2],  # Of 3 masks one is predicted again, that with a logit of 0; of 1 mask none.
    ]  # fmt: skip
    assert (first.tokens, second.tokens) == ([0, 1, 2], [0])
    # Logits of 0, 1 and 2, beside five tokens of 0; the last two of the eight belong to no token.
    log_probabilities = [-np.log(6), 1 - np.log(np.e + 5), 2 - np.log(np.e**2 + 5)]
    assert first.score == pytest.approx(np.mean(log_probabilities))
    assert second.score == pytest.approx(-np.log(6))


def test_of_several_lengths_the_text_with_the_best_mean_is_taken() -> None:
    encoder = _Encoder({3: [0, 5, 4, 3]})
    frame = TargetFrame((), (), 7, 3)
    # The likeliest length is 1, whose mean is the lowest: later tokens are more certain here.
    for lengths, expected in ((1, [0]), (2, [0, 1]), (3, [0, 1, 2])):
        predictor = MaskPredictor(encoder, _Decoder(), frame, 6)  # type: ignore[arg-type]
        [filled] = predictor.write([[3]], rounds=1, lengths=lengths)
        assert filled.tokens == expected


def test_special_tokens_stay_around_the_masks() -> None:
    decoder = _Decoder()
    predictor = MaskPredictor(_Encoder({3: [0, 0, 9]}), decoder, TargetFrame((1, 2), (4,), 7, 5), 6)  # type: ignore[arg-type]
    [filled] = predictor.write([[3]], rounds=1, lengths=1)
    assert decoder.seen == [[1, 2, 7, 7, 4]]
    assert filled.tokens == [2, 3]


def test_targets_are_filled_in_parts_that_fit_into_memory(directory: Path, monkeypatch: Patch) -> None:
    expected = Bundle(directory).predict(SOURCES, rounds=3, lengths=4)
    monkeypatch.setattr("distill.edge.text_decoders.MOST_LOGITS", 1)
    for found, other in zip(Bundle(directory).predict(SOURCES, rounds=3, lengths=4), expected, strict=True):
        assert found == other | {"score": pytest.approx(other["score"], abs=1e-5)}


def test_the_number_of_masks_is_uniform_and_their_places_follow_from_the_tokens() -> None:
    tokens = [11, 12, 13, 14]
    places = [choose_masked(tokens, visit) for visit in range(2000)]
    assert places[7] == choose_masked(tokens, 7) != places[8]
    counts = np.bincount([len(of) for of in places], minlength=5)
    assert counts[0] == 0
    assert counts[1:].min() > 2000 / 4 - 4 * (2000 * 3 / 16) ** 0.5  # Four standard deviations.
    assert set(places[0]) <= {0, 1, 2, 3}
    assert all(of == sorted(set(of)) for of in places)
    assert choose_masked([5]) == [0]
    assert choose_masked([]) == []


def test_logits_of_targets_with_masks_equal_torch(directory: Path, model: MaskPredictForConditionalGeneration) -> None:
    records = [
        {"source": source, "target": " ".join(f"w{word}" for word in range(length))}
        for source, length in zip(SOURCES, (3, 10, 1, 14), strict=True)  # The last one is cut to 10.
    ]
    found = Bundle(directory).item_logits(records, batch_size=3)
    tokenizer = make_tokenizer()
    for record, logits in zip(records, found, strict=True):
        ids = tokenizer(record["target"], add_special_tokens=False)["input_ids"][:10]
        places = choose_masked(ids)
        target = torch.tensor([[START, *ids, END]])
        target[0, [1 + place for place in places]] = MASK
        inputs = tokenizer(record["source"], return_tensors="pt")
        with torch.no_grad():
            expected = model(
                input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], decoder_input_ids=target
            ).logits[0, [1 + place for place in places]]
        np.testing.assert_allclose(logits, expected.numpy(), atol=1e-4)


def test_a_long_source_is_cut_or_refused(directory: Path) -> None:
    long = " ".join(["w1"] * 20)
    prediction = Bundle(directory).predict(long)
    assert prediction["truncated"] is True
    assert prediction["text"] == Bundle(directory).predict(" ".join(["w1"] * 14))["text"]
    with pytest.raises(UserError, match="record 1: it has more tokens than the 16 that the bundle reads"):
        Bundle(directory).predict(long, truncate=False)


def test_values_of_a_bundle_or_a_call_are_checked(tmp_path: Path, directory: Path, write: Write) -> None:
    for name, value in (("rounds", 0), ("rounds", True), ("lengths", 1.5)):
        with pytest.raises(UserError, match=f"got {name}={value}, expected a whole number of at least 1"):
            Bundle(directory).predict(SOURCES, **{name: value})  # type: ignore[call-overload]
    for name, message in (("lengths", "predicts no lengths"), ("rounds", "fills no masks: use 1")):
        with pytest.raises(UserError, match=f"got {name}=2, and .* is of a classification, which {message}"):
            Bundle(write()).predict(["a film"], **{name: 2})  # type: ignore[call-overload]
    for decoding, expected in (
        ({"before": 1}, "decoding has before 1, expected a list of tokens"),
        ({"mask": None}, "decoding has mask None, expected a whole number"),
        ({"max_target": 2}, "decoding has max_target 2, expected more than its special tokens"),
        ({"rounds": 0}, "decoding has rounds 0, expected a whole number of at least 1"),
    ):
        write_fill_bundle(tmp_path, directory, **decoding)
        with pytest.raises(UserError, match=f"is damaged: {expected}"):
            Bundle(tmp_path)
    write_fill_bundle(tmp_path, directory, rounds=3, lengths=4)
    own, plain = Bundle(tmp_path), Bundle(directory)
    assert own.predict(SOURCES) == plain.predict(SOURCES, rounds=3, lengths=4) != plain.predict(SOURCES)


def test_the_command_fills(directory: Path, tmp_path: Path, capsys: Output) -> None:
    expected = Bundle(directory).predict(SOURCES[0], rounds=4, lengths=3)
    assert main([str(directory), SOURCES[0], "--rounds", "4", "--lengths", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == {"text": expected["text"], "tokens": expected["tokens"], "score": pytest.approx(expected["score"])}
    assert main([str(directory), SOURCES[0], "--rounds", "4", "--lengths", "3"]) == 0
    assert capsys.readouterr().out == f"{expected['text']}\t{SOURCES[0]}\n"
    assert main([str(directory), SOURCES[0], "--lengths", "0"]) == 2
    assert capsys.readouterr().err == "error: got lengths=0, expected a whole number of at least 1\n"
    assert main([str(directory), "--evaluate", str(tmp_path / "dev.tsv"), "--lengths", "2"]) == 2
    assert "got --evaluate and --lengths 2: no metrics are of a length, leave it out" in capsys.readouterr().err
    assert main([str(directory), "--evaluate", str(tmp_path / "dev.tsv")]) == 2
    assert "writes text, which has no labels: run.json has its loss" in capsys.readouterr().err
