"""Tests of teachers that are a BiLSTM on the features of a frozen encoder."""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from distill.builtin.students import albert, bilstm, distilbert
from distill.builtin.teachers.pretrained import Pretrained
from transformers import BertForTokenClassification, BertModel, PreTrainedTokenizerBase

import distill as d
from distill.core.contracts import ENCODER_FEATURES
from distill.core.errors import OptionError, UserError
from distill.kinds import Classification, Embedding, MaskedLM, TokenClassification
from distill.models.architectures.modeling_bilstm import FEATURES, FeatureBilstmForTokenClassification, feature_layers
from distill.models.forward import run_model
from distill.models.loading import Start
from distill.teachers.computation import BilstmSettings, Features
from distill.teachers.output_cache import OutputCache
from tests.conftest import sentences, toy_bert
from tests.teachers.conftest import CPU

CITIES = ("boston", "denver", "dallas", "chicago")
TRAINER = d.TrainerSettings(learning_rate=1e-2, batch_size=8, max_epochs=1, precision="32-true")


def rows(count: int) -> tuple[list[list[str]], list[list[str]]]:
    words = [["to", CITIES[number % 4], *["now"] * (number % 3)] for number in range(count)]
    return words, [["O", "B-city", *["O"] * (len(sentence) - 2)] for sentence in words]


def tagging() -> TokenClassification:
    return TokenClassification(train=rows(48), dev=rows(8), max_length=16)


def features_of(name: str, **sizes: Any) -> Features:
    return Features(name, BilstmSettings(trainer=TRAINER, **{"hidden_dim": 8, **sizes}))


def toy_start(tokenizer: PreTrainedTokenizerBase, *, layers: int = 4) -> Start:
    torch.manual_seed(0)
    config = toy_bert(len(tokenizer), layers=layers).config
    return Start(BertForTokenClassification(config).eval(), tokenizer, fits=False)


def test_the_features_are_those_of_the_paper() -> None:
    assert {name: feature_layers(name, 12) for name in FEATURES} == {
        "last": (12,), "second_to_last": (11,), "sum_last_4": (9, 10, 11, 12), "concat_last_4": (9, 10, 11, 12),
        "sum_all": tuple(range(1, 13)), "input_embeddings": (0,),
    }  # fmt: skip
    with pytest.raises(ValueError, match="got an encoder of 3 layers for concat_last_4, expected at least 4"):
        feature_layers("concat_last_4", 3)


@pytest.mark.parametrize("name", FEATURES)
def test_the_bilstm_reads_the_hidden_states_of_the_encoder(
    name: str, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    start = toy_start(tokenizer)
    model = features_of(name).wrap(start, tagging(), "toy").model
    assert isinstance(model, FeatureBilstmForTokenClassification)
    ids = torch.randint(5, 100, (2, 6), generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[1] * 6, [1] * 4 + [0] * 2])
    states = start.model.bert(ids, mask, output_hidden_states=True).hidden_states
    chosen = [states[layer] for layer in feature_layers(name, 4)]
    weights = torch.tensor([3.0, 1, 2, 0])[: len(chosen)]
    if name.startswith("sum"):
        model.head.layer_weights.data.copy_(weights)
        expected = sum(weight * layer for weight, layer in zip(weights.softmax(dim=0), chosen, strict=True))
    else:
        expected = torch.cat(chosen, dim=-1)
    inputs: list[torch.Tensor] = []
    model.head.layers[0].register_forward_hook(lambda module, given, output: inputs.append(given[0]))
    output = model(ids, mask, output_hidden_states=True)
    torch.testing.assert_close(inputs[0][mask.bool()], expected[mask.bool()])
    torch.testing.assert_close(output.hidden_states, states)
    model.save_pretrained(tmp_path)
    again = transformers.AutoModelForTokenClassification.from_pretrained(tmp_path).eval()
    torch.testing.assert_close(again(ids, mask).logits, output.logits)
    assert "def select_features" in (tmp_path / "modeling_bilstm.py").read_text()


def test_a_student_of_layers_follows_the_encoder(tokenizer: PreTrainedTokenizerBase) -> None:
    teacher = features_of("last").wrap(toy_start(tokenizer), tagging(), "toy").model
    student = distilbert.from_teacher(teacher, layers=[0, 3])
    assert type(student).__name__ == "DistilBertForTokenClassification"
    tensors = dict(teacher.named_parameters())
    last = "distilbert.transformer.layer.1.ffn.lin2.weight"
    assert student.inherited[last] == "encoder.encoder.layer.3.output.dense.weight"
    for name, copied in student.inherited.items():
        if "position" not in name:  # A token-type row is added to them.
            torch.testing.assert_close(student.get_parameter(name), tensors[copied])
    assert not [name for name in student.inherited if "classifier" in name]
    assert student.config.id2label == teacher.config.id2label
    assert bilstm.from_teacher(teacher, task=tagging()).embeddings.weight.shape == (len(tokenizer), 32)
    shared = albert.from_teacher(teacher, embedding_dim=8)
    assert type(shared).__name__ == "AlbertForTokenClassification"
    name = "albert.encoder.albert_layer_groups.0.albert_layers.0.ffn.weight"
    assert shared.inherited[name] == "encoder.encoder.layer.3.intermediate.dense.weight"
    assert torch.equal(shared.get_parameter(name), tensors[shared.inherited[name]])
    assert not [name for name in shared.inherited if "classifier" in name]


@pytest.fixture(scope="module")
def prepared(tokenizer: PreTrainedTokenizerBase, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A task, a teacher on features that was trained for six epochs, and the sentences that its encoder read."""
    root, task, read = tmp_path_factory.mktemp("features"), tagging(), list[int]()
    encoder = toy_bert(len(tokenizer), initializer_range=0.3).bert
    forward = BertModel.forward

    @functools.wraps(forward)  # The inputs of a model are read from its signature.
    def count(self: BertModel, input_ids: torch.Tensor, *args: Any, **options: Any) -> Any:
        read.append(len(input_ids))
        return forward(self, input_ids, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BertModel, "forward", count)
        teacher = d.Teacher(encoder, tokenizer, cache_dir=root / "cache")
        options: dict[str, Any] = {"learning_rate": 1e-2, "batch_size": 8, "max_epochs": 6, "evaluations": 1}
        teacher.fit(task, features="concat_last_4", bilstm={"hidden_dim": 16, "layers": 1}, **options)
    return root, task, teacher, sum(read)


def test_the_encoder_reads_every_sentence_once_in_all_epochs(prepared: Any) -> None:
    *_, read = prepared
    assert 48 + 8 <= read < 48 + 8 + 8, "besides the data, the encoder reads a few texts when it is loaded"


def test_cached_features_give_the_logits_of_the_whole_model(prepared: Any) -> None:
    root, task, teacher, _ = prepared
    [directory] = (root / "cache" / "teachers").iterdir()
    model = transformers.AutoModelForTokenClassification.from_pretrained(directory).eval()
    examples = task.encode(task.read(root), transformers.AutoTokenizer.from_pretrained(directory), None)
    before = {path: path.stat().st_mtime_ns for path in (root / "cache" / "outputs").rglob("*.safetensors")}
    head, featured = teacher.source.features.prepare_training(
        model, task, examples, fingerprint=teacher.source.weights.fingerprint(), precision="float32", device=CPU,
        cache=OutputCache(), directory=root / "cache" / "outputs",
    )  # fmt: skip
    assert before == {path: path.stat().st_mtime_ns for path in (root / "cache" / "outputs").rglob("*.safetensors")}
    batch = featured["dev"][[5, 0, 2]]
    assert batch[ENCODER_FEATURES].shape == (*batch["input_ids"].shape, 4 * 32)
    mask = batch["attention_mask"].bool()
    with torch.no_grad():
        from_cache = run_model(head, batch).logits[mask]
        whole = run_model(model, {**examples["dev"][[5, 0, 2]]}).logits[mask]
    torch.testing.assert_close(from_cache, whole, atol=0.02, rtol=0.01)  # The cache has float16.


def test_a_saved_teacher_on_features_fits_the_task(prepared: Any) -> None:
    root, task, *_ = prepared
    [directory] = (root / "cache" / "teachers").iterdir()
    start = Pretrained(name="toy", path=str(directory)).load(task.info.auto_class, ("O", "B-city"), [])
    assert start.fits, start.reason
    assert start.notices == []
    # Another number of labels needs a new head on the same encoder.
    other = Pretrained(name="toy", path=str(directory)).load(task.info.auto_class, ("O", "B-city", "B-day"), [])
    assert not other.fits
    assert other.model.head.classifier.out_features == 3


def test_a_student_is_distilled_from_the_features_teacher(prepared: Any, capsys: pytest.CaptureFixture[str]) -> None:
    root, task, teacher, _ = prepared
    result = d.distill(
        teacher, d.students.bilstm(hidden_dim=16), task, trainer=TRAINER, directory=root / "run",
        objective=d.Objective(soft=d.SoftTargets(), cosine=d.Cosine()), export=d.ExportSettings(enabled=False),
    )  # fmt: skip
    assert "Teacher: trained before, read from" in capsys.readouterr().out
    record = result.record["teacher"]
    assert record["features"] == {
        "name": "concat_last_4", "layers": 1, "hidden_dim": 16, "dropout": 0.1, "pooling": "max",
    }  # fmt: skip
    assert record["resolved"].endswith("(concat_last_4 of the frozen encoder, 1 x 16 BiLSTM)")
    assert record["metrics"]["f1"] > 0.8


def test_texts_and_pairs_have_features_too(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    texts, labels = zip(*sentences(48), strict=True)
    data = {"first": list(texts), "second": list(texts[::-1]), "label": list(labels)}
    task = Classification(text=["first", "second"], label="label", train=data, dev=data, max_length=64)
    teacher = d.Teacher(toy_bert(len(tokenizer)).bert, tokenizer, cache_dir=tmp_path)
    teacher.fit(task, features="sum_last_4", bilstm={"hidden_dim": 8}, max_epochs=1, batch_size=16)
    [directory] = (tmp_path / "teachers").iterdir()
    model = transformers.AutoModelForSequenceClassification.from_pretrained(directory)
    assert model.config.bilstm.pair
    assert model.head.pre_classifier.in_features == 4 * 16
    assert np.abs(model.head.layer_weights.detach().numpy()).max() > 0, "the weights of the sum were not trained"


def test_features_that_cannot_be_are_refused(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    texts = {"train": {"text": ["a"]}, "dev": {"sentence1": ["a"], "sentence2": ["b"], "score": [1.0]}}
    checks: list[tuple[dict[str, Any], str]] = [
        ({"task": MaskedLM()}, "teacher.features=last is for labels of texts or words .* task mlm is masked_lm"),
        ({"task": Embedding(**texts)}, "and task embedding is embedding: leave it out"),
        ({"is_new": True}, "is for a pre-trained encoder, and this teacher begins with random weights"),
        (
            {"cache": OutputCache(enabled=False)},
            "got teacher.cache.enabled=false, expected auto or true because featur",
        ),
    ]
    for options, expected in checks:
        given = {"task": tagging(), "cache": OutputCache(), "is_new": False, **options}
        with pytest.raises(UserError, match=expected):
            features_of("last").check(given.pop("task"), given.pop("cache"), **given)
    with pytest.raises(OptionError, match="got teacher.features=first, expected null or one of last, second_to_last, "):
        features_of("first")
    start = toy_start(tokenizer, layers=2)
    wrapped = features_of("last").wrap(start, tagging(), "toy")
    for name, of, expected in (
        ("sum_last_4", start, "sum_last_4: got an encoder of 2 layers for sum_last_4, expected at least 4: t"),
        ("last", wrapped, "teacher toy is a BiLSTM on features already: leave teacher.features out"),
    ):
        with pytest.raises(UserError, match=expected):
            features_of(name).wrap(of, tagging(), "toy")
    examples = tagging().encode(tagging().read(tmp_path), tokenizer, None)
    with pytest.raises(UserError, match="features teacher.features=last would take .* raise it, or take last, which"):
        features_of("last").prepare_training(
            wrapped.model, tagging(), examples, fingerprint="", precision="float32", device=CPU,
            cache=OutputCache(max_gb=1e-9), directory=tmp_path,
        )  # fmt: skip
