"""Tests of the seconds of a pass over dev."""

from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.core.contracts import Examples
from distill.export import latency
from distill.kinds import Classification, MultipleChoice

TEXTS = ["good", "good bad good bad good", "bad good", "good bad good bad good bad good bad good bad good bad"]


def test_each_example_is_read_once_alone_and_in_its_own_length(
    teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = {"text": TEXTS * 2, "label": [0, 1] * len(TEXTS)}
    task = Classification(text="text", label="label", train=rows, dev=rows)
    dev = task.encode(task.read(Path()), tokenizer, None)["dev"]
    assert isinstance(dev, Examples)
    clock, shapes = [0.0], list[tuple[int, ...]]()

    def create(name: str, model: PreTrainedModel, inputs: list[str]) -> latency.Candidate:
        def run(feed: latency.Inputs) -> Any:
            assert feed["attention_mask"].all()
            shapes.append(feed["input_ids"].shape)
            clock[0] += 1.0

        return latency.Candidate(name, "torch", inputs, 0, run, lambda: 1)

    monkeypatch.setattr(latency, "torch_candidate", create)
    monkeypatch.setattr(latency.time, "perf_counter", lambda: clock[0])
    found = latency.time_dev_pass({"student": (teacher, {})}, dev, tokenizer=tokenizer, threads=1)
    lengths = [len(tokenizer(text)["input_ids"]) for text in TEXTS] * 2
    assert found == [
        {"model": "student", "format": "torch", "seconds": 8.0, "examples": 8, "tokens": sum(lengths), "threads": 1}
    ]
    # Each of the four turns begins with a warm-up, which is not counted.
    expected = [length for start in range(0, 8, 2) for length in (lengths[start], *lengths[start : start + 2])]
    assert shapes == [(1, length) for length in expected]


def test_choices_are_read_in_the_length_of_the_longest_one(tokenizer: PreTrainedTokenizerBase) -> None:
    choices = ["a", "bad a good"]
    rows = {"question": ["good"], "choices": [choices], "answer": [0]}
    task = MultipleChoice(train=rows, dev=rows)
    dev = task.encode(task.read(Path()), tokenizer, None)["dev"]
    assert isinstance(dev, Examples)
    [feed] = latency._read_feeds(dev, len(tokenizer))
    short, long = (len(tokenizer("good", choice)["input_ids"]) for choice in choices)
    assert feed["attention_mask"].tolist() == [[1] * short + [0] * (long - short), [1] * long]
