"""Tests of the metrics by length: the lengths of whole texts, the groups, and the metric of each of them."""

import copy
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedTokenizerBase

from distill.chain.breakdowns import (
    ENDS,
    LEAST,
    break_down_scores_by_length,
    find_groups,
    measure_examples,
    score_cuts,
    score_groups,
)
from distill.chain.student_setup import describe_cut, warn_of_long_texts
from distill.core.contracts import Scores
from distill.data.splits import LabelledData
from distill.kinds import Classification, QuestionAnswering
from distill.training.hyperparameters import TrainerSettings
from tests.edge.conftest import write_toy_bundle

SHORT, LONG = "a , a", "a , a " * 100


def read(lengths: list[int], labels: Sequence[int | str], **options: Any) -> LabelledData:
    """Returns data whose dev has texts of so many words, which are tokens each."""
    texts = [" ".join(["a"] * length) for length in lengths]
    return Classification(text="text", train=(["a", "b"], sorted(set(labels))), dev=(texts, labels), **options).read(
        Path()
    )


def score(data: LabelledData, predictions: list[int]) -> Scores:
    logits = np.eye(2, dtype=np.float32)[predictions]
    return Scores({"logits": logits}, data.splits["dev"].labels, np.arange(len(predictions)))


def test_the_lengths_are_those_of_all_texts_of_an_example_without_a_cut(tokenizer: PreTrainedTokenizerBase) -> None:
    cutting = copy.deepcopy(tokenizer)
    cutting.backend_tokenizer.enable_truncation(8)  # As its last call may have left it.
    columns = {"question": [SHORT, LONG], "choices": [["a", "a ,"], ["a"]]}
    assert measure_examples(columns, cutting).tolist() == [3 + 3, 300 + 1]


@pytest.mark.parametrize(
    ("lengths", "groups"),
    [
        ([30] * 50, [(30, 30)]),
        ([30] * LEAST + [600] * LEAST, [(30, 128), (129, 600)]),
        # Fewer than `LEAST` examples join longer ones, the last ones shorter ones.
        ([30] * (LEAST - 1) + [600] * LEAST + [3000], [(30, 3000)]),
        ([30] * (LEAST - 1) + [600] * LEAST + [3000] * LEAST, [(30, 1024), (1025, 3000)]),
        ([128] * LEAST + [129] * LEAST, [(128, 128), (129, 129)]),
        ([30] * 3, []),
        ([20_000] * LEAST + [30] * LEAST, [(30, 128), (129, 20_000)]),
    ],
)
def test_groups_have_enough_examples_and_all_of_them(lengths: list[int], groups: list[tuple[int, int]]) -> None:
    found = find_groups(np.array(lengths))
    assert found == groups
    assert not found or sum(first <= length <= last for length in lengths for first, last in found) == len(lengths)


def test_each_model_has_the_metric_of_each_group(tokenizer: PreTrainedTokenizerBase) -> None:
    lengths, labels = [3, 200] * LEAST, [0, 1] * LEAST
    data = read(lengths, labels)
    student = score(data, [0] * (2 * LEAST))  # Right for the short ones alone.
    teacher = score(data, labels)
    # In another order, as a model may have been evaluated.
    by_length = break_down_scores_by_length({"teacher": {"dev": teacher}, "student": {"dev": student}}, data, tokenizer)
    assert by_length == {
        "dev": {
            "teacher": {
                "3 to 128": {"number": LEAST, "accuracy": 1.0}, "129 to 200": {"number": LEAST, "accuracy": 1.0},
            },
            "student": {
                "3 to 128": {"number": LEAST, "accuracy": 1.0}, "129 to 200": {"number": LEAST, "accuracy": 0.0},
            },
        }
    }  # fmt: skip


def test_a_split_of_one_group_is_left_out(tokenizer: PreTrainedTokenizerBase) -> None:
    data = read([3, ENDS[0]] * LEAST, [0, 1] * LEAST)
    scores = {"dev": score(data, [0] * (2 * LEAST))}
    assert break_down_scores_by_length({"student": scores}, data, tokenizer) == {}


def test_files_are_scored_on_texts_that_are_cut(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    """The bundle calls a text of more than four tokens long, two of which are special."""
    write_toy_bundle(tmp_path, tokenizer, max_length=16)
    data = read([1, 1, 3, 9, 20], ["short", "short", "long", "long", "long"])
    right = {"dev": score(data, data.splits["dev"].labels.tolist())}
    cuts = score_cuts({"int8": tmp_path / "model.onnx"}, {"int8": right}, data, [8, 3], split="dev")
    assert cuts == {
        "dev": {
            "int8": {
                "3": {"accuracy": 0.4, "truncated": 3},  # All texts are short.
                "8": {"accuracy": 1.0, "truncated": 2},
                "16": {"accuracy": 1.0, "truncated": 1},  # As it was scored before.
            }
        }
    }
    assert list(cuts["dev"]["int8"]) == ["3", "8", "16"]


def test_a_text_of_a_hundred_thousand_tokens_is_cut_for_a_training_and_measured_whole(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    texts = ["a , a " * 40_000, "a"]
    task = Classification(text="text", train=(texts, [0, 1]), dev=(texts, [0, 1]), max_length=16)
    data = task.read(tmp_path)
    examples = task.encode(data, tokenizer, tmp_path)["train"]
    assert (examples.truncated, examples.lengths.tolist()) == (1, [16, 3])
    assert measure_examples(data.splits["dev"].text_columns(), tokenizer).tolist() == [120_000, 1]


@pytest.mark.parametrize(
    ("longest", "advice"),
    [
        (10**9, "task.max_length=16 cuts fewer, and takes longer"),
        (8, "task.max_length=8 cuts fewer, and takes longer"),
        (4, "the teacher reads no more: +teacher=pretrained with teacher.positions=16 makes it do so"),
    ],
)
def test_the_summary_names_the_share_of_texts_that_are_cut_and_what_to_type(
    longest: int, advice: str, tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    texts = ["a a a"] * 2 + ["a"] * 4
    task = Classification(text="text", train=(texts, [0, 1] * 3), dev=(texts, [0, 1] * 3), max_length=4)
    examples = task.encode(task.read(tmp_path), tokenizer, tmp_path)
    described = describe_cut(examples, 4, longest=longest)
    assert described == f"33% are longer than task.max_length=4, and their rest is cut off; {advice}"


def test_the_summary_does_not_name_a_few_texts_that_are_cut(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    texts = ["a a a"] + ["a"] * 99
    task = Classification(text="text", train=(texts, [0, 1] * 50), dev=(texts, [0, 1] * 50), max_length=4)
    assert describe_cut(task.encode(task.read(tmp_path), tokenizer, tmp_path), 4, longest=512) is None


@pytest.mark.parametrize(
    ("options", "notice"),
    [
        (
            {"batch_size": 32, "accumulate": 2},
            "a micro-batch has up to 64,000 tokens, 32 texts of up to 2,000: trainer.batch_size=16 "
            "trainer.accumulate=4 needs less memory for as large a step",
        ),
        ({"batch_size": 16}, ""),
        ({"batch_size": None, "batch_tokens": 64_000}, ""),
    ],
)
def test_large_batches_of_long_texts_name_what_needs_less_memory(
    options: dict[str, Any], notice: str, capsys: pytest.CaptureFixture[str]
) -> None:
    examples: Any = SimpleNamespace(lengths=np.array([3, 2000]))
    loader: Any = SimpleNamespace(dataset=examples, batch_sampler=object())
    warn_of_long_texts(loader, TrainerSettings(max_epochs=1, learning_rate=1e-4, **options))
    assert " ".join(capsys.readouterr().out.split()).removeprefix("Notice: ") == notice


def needs_both_classes(y_true: np.ndarray, y_score: np.ndarray) -> float:
    if len(set(y_true.tolist())) < 2:
        raise ValueError("one class")
    return float(y_score.mean())


def test_a_group_without_a_value_of_the_metric_has_its_number_alone() -> None:
    data = read([3] * 4, [0, 0, 1, 1], metrics=[needs_both_classes])
    scores = score(data, [0, 1, 1, 1])
    groups = score_groups(data.scoring, scores, np.array([3, 3, 4, 5]), [(3, 3), (4, 5)])
    assert groups == {"3 to 3": {"number": 2}, "4 to 5": {"number": 2}}
    groups = score_groups(data.scoring, scores, np.array([3, 4, 4, 4]), [(3, 3), (4, 4)])
    assert groups["4 to 4"]["needs_both_classes"] > 0.5


def test_windows_of_a_question_belong_to_its_row(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    rows = [
        {"question": f"what is {number}", "context": context, "answers": {"text": [","], "answer_start": [2]}}
        for number, context in enumerate([LONG, SHORT, LONG])
    ]
    task = QuestionAnswering(train=rows[:1], dev=rows, test=rows[1:], max_length=64, doc_stride=16)
    data = task.read(tmp_path)
    examples = task.encode(data, tokenizer, tmp_path)
    for split, questions in (("dev", 3), ("test", 2)):
        batch = examples[split][range(len(examples[split]))]
        items = task.select(batch)
        windows = Scores({"question": items["question"][items.row].numpy()}, np.empty(0), items.example_id().numpy())
        rows_of_windows = data.scoring.rows(windows)
        assert np.unique(rows_of_windows).tolist() == list(range(questions))
        assert len(rows_of_windows) > 2 * questions
