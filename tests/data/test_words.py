"""Tests of the estimate of what words say of the labels of a table."""

import random
import subprocess
import sys

import pytest

from distill.data import words
from distill.data.words import estimate


def test_an_estimate_is_about_texts_that_a_model_has_not_seen() -> None:
    texts = [f"{word} film {number}" for number in range(60) for word in ("good", "bad", "bad")]
    found = estimate(texts, ["yes", "no", "no"] * 60)
    assert (found["rows"], found["majority"], found["accuracy"]) == (180, 2 / 3, 1.0)
    assert found["interval"] == pytest.approx((0.979, 1.0), abs=1e-3)
    draw = random.Random(0)
    noise = [f"{draw.random()} {draw.random()}" for _ in range(100)]
    labels = draw.choices("xy", k=100)
    assert estimate(noise * 3, labels * 3)["accuracy"] < 0.7  # A text is in no other fold.
    assert estimate(["!", "?", "a"], ["x", "x", "y"])["accuracy"] == pytest.approx(2 / 3)
    assert estimate(["one two"], ["x"])["rows"] == 1


def test_an_estimate_reads_a_part_of_a_large_table_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "CHARACTERS", 2000)
    assert 50 < estimate(["good film", "bad film"] * 200, ["x", "y"] * 200)["rows"] <= 250
    program = "import sys, distill.data.words as w; w.estimate(['a b'], ['x']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
