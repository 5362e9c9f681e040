"""Tests of explanations by leaving words out."""

import json
from pathlib import Path

import pytest

from distill.core.errors import UserError
from distill.edge import Bundle, __main__
from tests.edge.conftest import Write


@pytest.fixture
def bundle(write: Write) -> Path:
    return write()


def test_the_effect_of_a_word_is_the_difference_of_two_predictions(bundle: Path) -> None:
    found, loaded = Bundle(bundle).explain("good, bad film"), Bundle(bundle)
    whole = loaded.predict("good, bad film")
    assert (found["label"], found["probability"]) == (whole["label"], whole["probability"])
    without = {"good": ", bad film", ",": "good bad film", "bad": "good,  film", "film": "good, bad"}
    assert [word["word"] for word in found["words"]] == list(without)
    for word in found["words"]:
        other = loaded.predict(without[word["word"]])["probabilities"][found["label"]]
        assert word["effect"] == pytest.approx(found["probability"] - other, abs=1e-6)
        assert "good, bad film"[word["start"] : word["end"]] == word["word"]
    assert loaded.explain("")["words"] == []


def test_the_command_writes_the_largest_effect_first(bundle: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert __main__.main([str(bundle), "--explain", "good bad film", " "]) == 0
    first, second = capfdbinary.readouterr().out.decode().splitlines()
    label, probability, effects = first.split("\t")
    assert second == ""
    assert label == Bundle(bundle).explain("good bad film")["label"]
    sizes = [abs(float(effect.rpartition(":")[2])) for effect in effects.split(" ")]
    assert len(sizes) == 3
    assert sizes == sorted(sizes, reverse=True)
    assert __main__.main([str(bundle), "--explain", "--json", "good bad film"]) == 0
    found = json.loads(capfdbinary.readouterr().out)
    assert found == Bundle(bundle).explain("good bad film")
    assert f"{found['probability']:.4f}" == probability


def test_a_bundle_without_classes_of_texts_is_refused(write: Write) -> None:
    with pytest.raises(UserError, match="a token_classification bundle has no words to explain: expected one that"):
        Bundle(write("tags")).explain("good film")
