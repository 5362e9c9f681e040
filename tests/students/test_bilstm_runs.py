"""Whole runs of the BiLSTM student, from its training to its bundle, for answers in a text and for vectors."""

from typing import Any

import pytest
import torch
import transformers
from distill.builtin.students import bilstm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import distill as d
from distill.core.contracts import Task
from distill.core.errors import UserError
from distill.models.compatibility import check_sizes
from tests.conftest import sentences, toy_bert

CITIES = ("boston", "denver", "dallas")
# The embeddings, 32 wide as the teacher's, are as wide as the states, so that terms can map them to the teacher's.
SIZES = {"hidden_dim": 16, "layers": 2}


def answering() -> Task:
    rows = []
    for number in range(24):
        context, city = f"{'we fly ' * (1 + number % 4)}to {CITIES[number % 3]} today", CITIES[number % 3]
        answers = {"text": [city], "answer_start": [context.index(city)]}
        rows.append({"id": str(number), "question": "which city", "context": context, "answers": answers})
    return d.tasks.QuestionAnswering(train=rows, dev=rows[:8], max_length=24, doc_stride=4)


def vectors() -> Task:
    texts = [text for text, _ in sentences(24)]
    pairs = {"sentence1": texts, "sentence2": texts[::-1], "score": [float(n % 5) for n in range(24)]}
    return d.tasks.Embedding(train=pairs, dev={name: column[:8] for name, column in pairs.items()}, max_length=32)


CASES = {
    "answers": (answering, "BertForQuestionAnswering", [{"question": "which city", "context": "we fly to boston"}]),
    "vectors": (vectors, "BertModel", ["a lovely film"]),
}


@pytest.fixture(scope="module", params=["answers", pytest.param("vectors", marks=pytest.mark.slow)])
def run(request: pytest.FixtureRequest, tokenizer: PreTrainedTokenizerBase, tmp_path_factory: Any) -> Any:
    """The result of a distillation from a random teacher, with a term that maps layers, and records for its bundle."""
    make_task, head, records = CASES[request.param]
    task, root = make_task(), tmp_path_factory.mktemp(request.param)
    config = toy_bert(len(tokenizer), layers=2).config
    labels = task.read(root).labels
    if labels:
        config.id2label = dict(enumerate(labels))
        config.label2id = {label: index for index, label in enumerate(labels)}
    torch.manual_seed(0)
    teacher = d.Teacher(getattr(transformers, head)(config), tokenizer, accept_weak=True, cache_dir=root / "cache")
    soft: d.Term = d.EmbeddingMSE() if request.param == "vectors" else d.SoftTargets()
    result = d.distill(
        teacher, d.students.bilstm(**SIZES), task,
        objective=d.Objective(soft=soft, hidden=d.HiddenStateMSE(), cosine=d.Cosine()),
        trainer=d.TrainerSettings(learning_rate=1e-3, batch_size=8, max_epochs=1, precision="32-true"),
        export=d.ExportSettings(recipes=["dynamic"]), directory=root / "run",
        benchmark=d.BenchmarkSettings(enabled=False, batches=[1], lengths=[8]),
    )  # fmt: skip
    return task, result, records


def test_a_run_exports_the_student_that_torch_has_trained(run: Any) -> None:
    task, result, records = run
    assert result.record["export"]["fp32"]["agreement"] == 1.0
    assert result.record["export"]["fp32"]["metrics"] == pytest.approx(result.metrics, abs=1e-6)
    assert result.record["attempts"], "nothing was quantized"
    student = getattr(transformers, task.info.auto_class).from_pretrained(result.directory / "student")
    assert student.config.model_type == "distill_bilstm"
    for model in ("fp32", "int8"):
        assert len(d.Bundle(result.directory / "bundle", model=model).predict(records)) == 1


def test_states_of_several_widths_are_no_layers_to_map(teacher: PreTrainedModel) -> None:
    student = bilstm.from_teacher(teacher, task=d.tasks.Classification(text="sentence"), hidden_dim=8)
    with pytest.raises(UserError, match=r"which the student \(BilstmForSequenceClassification\) does not give"):
        check_sizes(d.Objective(hidden=d.HiddenStateMSE()), teacher=teacher, student=student)
