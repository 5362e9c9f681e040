"""Tests of vectors of texts: pooling, rows, terms and metrics by hand, and a bundle."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from distill.builtin.students import pretrained
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import BertConfig, BertForMaskedLM, BertModel, PreTrainedModel, PreTrainedTokenizerBase

import distill as d
from distill.chain.student_setup import describe_student, warn_of_parts
from distill.core.contracts import PAIR_CLASSES, VECTOR_SETTINGS, Examples, Items, Outputs, Scores
from distill.core.errors import OptionError, UserError
from distill.edge.bundle_files import session
from distill.edge.decode import Vectors
from distill.export.onnx import export_onnx
from distill.kinds import Embedding
from distill.losses.term import EncoderSize
from distill.models.compatibility import check_data
from distill.models.forward import configure, run_model
from distill.models.loading import load_directory
from distill.models.vectors import pool, write_modules
from distill.teachers import preparation as teaching
from distill.teachers.prepared import compare_with_constant
from distill.teachers.signal import teacher_logits
from distill.text.vocabulary import train_word_pieces
from distill.training.module import NOTHING
from tests.conftest import BAD, GOOD, toy_bert
from tests.conftest import SETTINGS as RATES

Columns = dict[str, list[Any]]
WORDS = " ".join((*GOOD, *BAD)).replace(",", "").split()


def pairs(count: int, *, seed: int = 0) -> Columns:
    """Returns pairs of six words each; the score is the number of words that they share from the beginning on."""
    random = np.random.default_rng(seed)
    rows: Columns = {"sentence1": [], "sentence2": [], "score": []}
    for _ in range(count):
        first, other = (list(random.choice(WORDS, 6)) for _ in range(2))
        shared = int(random.integers(0, 7))
        rows["sentence1"].append(" ".join(first))
        rows["sentence2"].append(" ".join([*first[:shared], *other[shared:]]))
        rows["score"].append(float(shared))
    return rows


def without(rows: Columns, *names: str) -> Columns:
    return {name: values for name, values in rows.items() if name not in names}


@pytest.fixture(scope="module")
def task() -> Embedding:
    return Embedding(train=pairs(64), dev=pairs(32, seed=1), max_length=24)


def toy_encoder(vocabulary: int, **options: Any) -> PreTrainedModel:
    model: PreTrainedModel = toy_bert(vocabulary, **options).bert
    return model.eval()


# Pooling


@pytest.mark.parametrize(("pooling", "expected"), [("mean", [2.0, 3.0]), ("cls", [1.0, 4.0]), ("max", [3.0, 4.0])])
@pytest.mark.parametrize("left", [False, True])
def test_pooling_matches_values_by_hand_whatever_the_padding_is(
    pooling: str, expected: list[float], left: bool
) -> None:
    tokens, padding = [[1.0, 4.0], [3.0, 2.0]], [[9.0, 9.0], [-9.0, 9.0]]
    states = torch.tensor([padding + tokens if left else tokens + padding])
    mask = torch.tensor([[0, 0, 1, 1] if left else [1, 1, 0, 0]])
    plain = pool(states, mask, {"pooling": pooling, "normalize": False})
    assert plain.tolist() == [expected]
    unit = pool(states, mask, {"pooling": pooling, "normalize": True})
    torch.testing.assert_close(unit, plain / plain.norm())


@pytest.mark.parametrize("pooling", ["cls", "max"])  # The mean is that of the bundle below.
def test_an_exported_encoder_has_the_vectors_of_torch(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path, pooling: str
) -> None:
    model = toy_encoder(len(tokenizer), layers=0)
    configure(model, {VECTOR_SETTINGS: {"pooling": pooling, "normalize": pooling != "max"}})
    export_onnx(model, tmp_path / "model.onnx", tokenizer=tokenizer)
    graph = session(tmp_path / "model.onnx")
    for rows, length in ((1, 1), (3, 7), (3, 24)):
        ids = torch.randint(5, len(tokenizer), (rows, length), generator=torch.Generator().manual_seed(rows))
        mask = torch.ones_like(ids)
        mask[-1, (length + 1) // 2 :] = 0
        batch = {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}
        with torch.no_grad():
            expected = run_model(model, batch).logits
        feed = {name.name: batch[name.name].numpy() for name in graph.get_inputs()}
        np.testing.assert_allclose(graph.run(["logits"], feed)[0], expected, atol=2e-5)


# Encoders


def test_a_pretrained_student_has_copied_no_pooler_that_it_has_lost(encoder_dir: Path) -> None:
    teacher = load_directory(encoder_dir, "AutoModel", None, trust_remote_code=False).model
    student = pretrained.from_teacher(teacher, path=str(encoder_dir))
    assert student.pooler is not None
    configure(student, Embedding(train=pairs(2), dev=pairs(2)).info.model_settings)
    assert "tensors copied, 0 new" in describe_student(teacher, student)


def test_the_files_of_sentence_transformers_name_the_pooling(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    model = toy_encoder(len(tokenizer))
    write_modules(model, tmp_path)
    assert list(tmp_path.iterdir()) == []  # It has no vectors yet.
    configure(model, Embedding(train=pairs(2), dev=pairs(2), pooling="cls", max_length=48).info.model_settings)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    write_modules(model, tmp_path)
    modules = json.loads((tmp_path / "modules.json").read_text())
    assert [module["path"] for module in modules] == ["", "1_Pooling", "2_Normalize"]
    assert all((tmp_path / module["path"]).is_dir() for module in modules)
    assert json.loads((tmp_path / "sentence_bert_config.json").read_text())["max_seq_length"] == 48
    flags = json.loads((tmp_path / "1_Pooling" / "config.json").read_text())
    assert flags.pop("word_embedding_dimension") == 32
    assert [name for name, value in flags.items() if value] == ["pooling_mode_cls_token"]
    encoder = load_directory(tmp_path, "AutoModel", None, trust_remote_code=False).model
    assert configure(encoder, Embedding(train=pairs(2), dev=pairs(2)).info.model_settings) == []
    [notice] = configure(encoder, Embedding(train=pairs(2), dev=pairs(2), pooling="mean").info.model_settings)
    assert notice == (
        "the teacher was trained with cls pooling, and task.pooling is mean: set task.pooling=cls for the vectors that "
        "it was trained for"
    )
    (tmp_path / "1_Pooling" / "config.json").write_text("[]")
    with pytest.raises(UserError, match=r"1_Pooling/config.json is damaged"):
        load_directory(tmp_path, "AutoModel", None, trust_remote_code=False)


# Rows


def test_rows_are_texts_with_a_score_and_in_train_also_texts_alone(capsys: pytest.CaptureFixture[str]) -> None:
    data = Embedding(train={"text": ["one", "two"]}, dev=pairs(4)).read(Path())
    assert data.splits["train"]["texts"] == [["one"], ["two"]]
    assert np.isnan(data.splits["train"].labels).all()
    assert data.splits["dev"].labels.tolist() == pairs(4)["score"]
    assert (data.labels, list(data.labelled_texts())) == ((), ["one", "two"])
    assert "has no column sentence1, sentence2: only text is read" in " ".join(capsys.readouterr().out.split())
    rows = {"sentence1": ["a", "b"], "sentence2": ["c", None], "score": [1.0, 2.0]}
    assert Embedding(train=rows, dev=pairs(4)).read(Path()).splits["train"]["texts"] == [["a", "c"], ["b"]]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"dev": without(pairs(4), "sentence2")}, "the split dev has no column sentence2: it has sentence1, score; na"),
        ({"dev": pairs(1) | {"sentence2": [" "]}}, "the split dev, example 1: column sentence2 is empty, expected tex"),
        ({"train": {"sentence1": ["a", ""]}}, "the split train, example 2: column sentence1 is empty, expected text"),
        ({"train": {"sentence1": [""], "sentence2": ["a"]}}, "the split train, example 1: column sentence1 is empty"),
        ({"train": {"title": ["a"]}}, "the split train has no column sentence1, sentence2: it has title; name yours"),
        ({"train": pairs(2) | {"score": ["high"] * 2}}, "the split train has one class only .high., expected at"),
        ({"train": {"sentence1": [3]}}, "the split train, example 1: column sentence1 is 3, expected text"),
    ],
)
def test_rows_that_cannot_be_read_are_named(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        Embedding(**{"train": pairs(4), "dev": pairs(4), **changes}).read(Path())


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {"text": ["one", "two", "three"]},
            "got text=.*three.*, expected the two columns of a pair; train_text names others",
        ),
        ({"metrics": ["f1"]}, "expected a list of some of spearman, pearson"),
        ({"normalize": "yes"}, "got normalize=yes, expected true or false"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(OptionError, match=expected):
        Embedding(train=pairs(4), dev=pairs(4), **options)


def test_labels_of_train_are_scores_classes_or_none(tokenizer: PreTrainedTokenizerBase) -> None:
    nli = {"premise": ["a", "b", "c"], "hypothesis": ["d", "e", "f"], "label": ["no", "yes", "no"]}
    options: dict[str, Any] = {"dev": pairs(4), "train_text": ["premise", "hypothesis"], "train_label": "label"}
    task = Embedding(train=nli, **options)
    data = task.read(Path())
    assert (data.classes, data.splits["train"].labels.tolist()) == (("no", "yes"), [0.0, 1.0, 0.0])
    assert [type(term) for term in data.terms.values()] == [d.PairClassification]
    assert data.terms["classes"].classes == 2
    batches = task.encode(data, tokenizer, None)
    assert batches["train"][[0, 1]][PAIR_CLASSES].tolist() == [0.0, 1.0]
    scores = pairs(4)["score"]
    expected = (np.array(scores) - min(scores)) / (max(scores) - min(scores))
    np.testing.assert_allclose(batches["dev"][[0, 1, 2, 3]]["labels"], expected, atol=1e-6)
    task = Embedding(train=nli | {"label": [1, 0, 1]}, classes=["no", "yes"], **options)
    assert task.read(Path()).splits["train"].labels.tolist() == [1.0, 0.0, 1.0]
    # A teacher is fine-tuned on classes otherwise than on scores.
    scored = Embedding(train=nli | {"label": [1, 0, 1]}, **options)
    assert scored.read(Path()).sha256 != task.read(Path()).sha256
    task = Embedding(train=pairs(4), dev=pairs(4))
    assert [type(term) for term in task.read(Path()).terms.values()] == [d.CosineRegression]
    triplets = {"anchor": ["a", "b"], "positive": ["c", "d"], "negative": ["e", "f"]}
    task = Embedding(train=triplets, dev=pairs(4), train_text=["anchor", "positive", "negative"])
    data = task.read(Path())
    assert data.splits["train"]["texts"] == [["a", "c", "e"], ["b", "d", "f"]]
    assert [type(term) for term in data.terms.values()] == [d.MultipleNegatives]
    with pytest.raises(UserError, match="example 2: label 'high' is no number"):
        Embedding(train=pairs(2) | {"score": ["1", "high"]}, dev=pairs(4)).read(Path())


NLI = {
    "premise": ["p", "p", "q", "p", "p", "r"], "hypothesis": ["e1", "c1", "e2", "e3", "n1", "c2"],
    "label": ["entailment", "contradiction", "entailment", "entailment", "neutral", "contradiction"],
}  # fmt: skip


def test_pairs_of_two_classes_become_groups_of_three_texts() -> None:
    options: dict[str, Any] = {
        "dev": pairs(4), "train_text": ["premise", "hypothesis"], "train_label": "label",
        "triples": ["entailment", "contradiction"],
    }  # fmt: skip
    data = Embedding(train=NLI, **options).read(Path())
    assert data.splits["train"]["texts"] == [
        ["p", "e1", "c1"],
        ["p", "e3", "c1"],
    ]  # `q` and `r` have pairs of one class.
    assert [type(term) for term in data.terms.values()] == [d.MultipleNegatives]
    assert data.classes == ()
    assert data.sha256 != Embedding(train=NLI, **options | {"triples": None}).read(Path()).sha256
    for triples, expected in (
        (["entailment", "no"], r"task.triples=\[entailment,no\]: .* has no class no, expected two of contradiction, "),
        (["neutral", "contradiction"], None),
    ):
        task = Embedding(train=NLI, **options | {"triples": triples})
        if expected is None:
            assert task.read(Path()).splits["train"]["texts"] == [["p", "n1", "c1"]]
        else:
            with pytest.raises(UserError, match=expected):
                task.read(Path())
    with pytest.raises(UserError, match="no first text of .* has pairs of both classes: leave it out"):
        Embedding(
            train={name: of[-2:] for name, of in NLI.items()}, **options | {"triples": ["neutral", "contradiction"]}
        ).read(Path())
    with pytest.raises(UserError, match="has no class entailment, and its pairs have no classes in words"):
        Embedding(train=pairs(4), dev=pairs(4), triples=["entailment", "contradiction"]).read(Path())
    with pytest.raises(OptionError, match="triples"):
        Embedding(train=NLI, **options | {"triples": ["entailment"]})


def test_a_language_model_that_is_not_to_be_fine_tuned_is_an_encoder_as_it_is(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    config = toy_bert(len(tokenizer)).config
    BertForMaskedLM(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    start = load_directory(tmp_path, "AutoModel", None, trust_remote_code=False)
    assert not start.fits
    taken = teaching._take_encoder(start, Embedding(train=pairs(4), dev=pairs(4)))
    assert taken.fits
    assert taken.notices[-1] == (
        "the teacher is taken as it is: its head is that of a BertForMaskedLM, and the task needs a BertModel"
    )
    lacking = replace(start, fresh=["encoder.layer.0.output.dense.weight"])
    assert not teaching._take_encoder(lacking, Embedding(train=pairs(4), dev=pairs(4))).fits


def test_some_rows_of_train_may_lack_their_label(tokenizer: PreTrainedTokenizerBase) -> None:
    rows = {"sentence1": list("abc"), "sentence2": ["d", "", "f"], "score": [3.0, None, None]}
    task = Embedding(train=rows, dev=pairs(4))
    data = task.read(Path())
    assert [len(group) for group in data.splits["train"]["texts"]] == [2, 1, 2]
    np.testing.assert_array_equal(data.splits["train"].labels, [3.0, np.nan, np.nan])
    classes = Embedding(train=rows | {"score": ["no", "", "yes"]}, dev=pairs(4)).read(Path())
    assert classes.classes == ("no", "yes")
    np.testing.assert_array_equal(classes.splits["train"].labels, [0.0, np.nan, 1.0])


def test_a_term_does_not_take_classes_for_scores_nor_scores_for_classes(tokenizer: PreTrainedTokenizerBase) -> None:
    nli = {"sentence1": list("abc"), "sentence2": list("def"), "score": ["no", "yes", "no"]}
    for train, fits, other in (
        (nli, d.PairClassification(classes=2), d.CosineRegression()),
        (pairs(8), d.CosineRegression(), d.PairClassification()),
    ):
        task = Embedding(train=train, dev=pairs(4))
        examples = task.encode(task.read(Path()), tokenizer, None)["train"]
        check_data(d.Objective(fits=fits), task, examples)
        for term in (other, d.MultipleNegatives()):
            with pytest.raises(UserError, match="the term other learns from .*, and train of task embedding has none"):
                check_data(d.Objective(other=term), task, examples)


@pytest.mark.parametrize(
    ("train", "dev", "expected", "notice"),
    [
        ([0.0, 1.0], [0.0, 5.0], [0.0, 1.0], "train has scores 0 to 1 and dev 0 to 5, which are read as two scales: "),
        ([1.0, 1.0], [1.0, 5.0], [1.0, 1.0], "two scales: those of train from 0 to 1 and those of dev from 1 to 5"),
        ([-1.0, 0.5], [0.0, 5.0], [0.0, 0.75], "two scales: those of train from -1 to 1 and those of dev from 0 to 5"),
        ([0.0, 5.0], [0.0, 1.0], [0.0, 1.0], "two scales: those of train from 0 to 5 and those of dev from 0 to 1"),
        ([5.0, 5.0], [0.0, 1.0], [1.0, 1.0], "two scales"),
        ([0.0, 2.0], [0.0, 5.0], [0.0, 0.4], "train has scores 0 to 2 and dev 0 to 5, which are read as one scale, fr"),
        ([0.25, 0.5], [0.0, 1.0], [0.25, 0.5], "one scale, from 0 to 1"),
        ([1.0, 4.0], [0.0, 5.0], [0.2, 0.8], None),
        ([5.0, 5.0], [0.0, 5.0], [1.0, 1.0], "one scale, from 0 to 5"),
    ],
)
def test_scores_of_another_range_are_read_on_a_scale_that_is_named(
    train: list[float],
    dev: list[float],
    expected: list[float],
    notice: str | None,
    tokenizer: PreTrainedTokenizerBase,
    capsys: pytest.CaptureFixture[str],
) -> None:
    task = Embedding(train=pairs(2) | {"score": train}, dev=pairs(2, seed=1) | {"score": dev})
    batches = task.encode(task.read(Path()), tokenizer, None)
    np.testing.assert_allclose(batches["train"][[0, 1]]["labels"], expected)
    np.testing.assert_allclose(batches["dev"][[0, 1]]["labels"], [0.0 if max(dev) > 1 else dev[0], 1.0])
    printed = capsys.readouterr().out
    assert notice in printed if notice else "scale" not in printed


def test_unlabelled_texts_are_encoded_alone(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    known = pairs(8)
    (tmp_path / "more.txt").write_text("\n".join(["one film", "another film", known["sentence2"][3], "one film"]))
    task = Embedding(train=known, dev=pairs(4, seed=1), unlabelled=tmp_path / "more.txt")
    data = task.read(tmp_path)
    assert data.pool.rows["texts"] == [["one film"], ["another film"]]
    assert data.pool.removed == {"empty": 0, "dev": 0, "train": 1, "doubled": 1}
    train = task.encode(data, tokenizer, None)["train"]
    assert isinstance(train, Examples)
    assert train.sequences[[0, 8]].tolist() == [2, 1]
    assert train.lengths[8] == train.tokens[8] == len(tokenizer("one film").input_ids)
    batch = train[[8, 0]]
    items = task.select(batch)
    assert items.row.tolist() == [0, 1, 1]
    assert items.labelled.tolist() == [False, True, True]
    assert len(batch["input_ids"]) == 3


# Items, terms and cached vectors


def items_of(labels: list[float], counts: list[int], *, classes: list[float] | None = None) -> Items:
    """Returns the items of examples with these labels, or classes of pairs, and numbers of texts."""
    valid = torch.arange(max(counts)) < torch.tensor(counts)[:, None]
    batch = {"valid": valid, "labels": torch.tensor(labels), "example_id": torch.arange(len(counts))}
    batch |= {} if classes is None else {PAIR_CLASSES: torch.tensor(classes)}
    return Embedding(train=pairs(2), dev=pairs(2)).select(batch)


def test_the_distance_of_vectors_by_hand() -> None:
    items = items_of([1.0, 2.0], [1, 1])
    student = torch.tensor([[1.0, 0.0], [0.0, 1.0]], requires_grad=True)
    teacher = torch.tensor([[1.0, 0.0], [3.0, 0.0]])
    total, count = d.EmbeddingMSE()(Outputs(student), Outputs(teacher), items)
    assert (float(total.detach()), int(count)) == (10.0, 2)
    total.backward()
    assert student.grad.tolist() == [[0.0, 0.0], [-6.0, 2.0]]


def test_vectors_of_other_widths_need_a_projection() -> None:
    term, items = d.EmbeddingMSE(), items_of([1.0], [2])
    term.connect(EncoderSize(2, 1), EncoderSize(3, 1))
    with torch.no_grad():
        term.map.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]))
    total, _ = term(Outputs(torch.tensor([[1.0, 0.0], [0.0, 2.0]])), Outputs(torch.zeros(2, 3)), items)
    assert float(total) == 2 + 8
    with pytest.raises(OptionError, match="got projection=svd, expected learned, pca or null"):
        d.EmbeddingMSE(projection="svd")  # type: ignore[arg-type]
    expected = (
        "objective custom: the term mse compares vectors 3 wide \\(teacher\\) and 2 wide \\(student\\) without a "
        "projection: set projection=learned, or projection=pca for a narrower student, or take a student of the "
        "teacher's width"
    )
    with pytest.raises(UserError, match=expected):
        d.Objective(mse=d.EmbeddingMSE(projection=None)).check_sizes(EncoderSize(2, 1), EncoderSize(3, 1))
    with pytest.raises(UserError, match="2 wide .* 3 wide .* and projection=pca makes the teacher's narrower: set pro"):
        d.Objective(mse=d.EmbeddingMSE(projection="pca")).check_sizes(EncoderSize(3, 1), EncoderSize(2, 1))


def test_principal_components_of_the_teacher_by_hand() -> None:
    """The vectors vary by 4 along (0, 0.6, 0.8) and by 1 along the first axis around a mean that is not zero."""
    term, items = d.EmbeddingMSE(projection="pca"), items_of([1.0], [2])
    term.connect(EncoderSize(1, 1), EncoderSize(3, 1))
    assert term.fits_teacher
    vectors = torch.tensor([[1.0, 6.0, 8.0], [3.0, 6.0, 8.0], [2.0, 8.4, 11.2], [2.0, 3.6, 4.8]])
    objective = d.Objective(mse=term)
    objective.fit([vectors[:3], vectors[3:]])
    assert term.components is not None
    torch.testing.assert_close(term.components, torch.tensor([[0.0, 0.6, 0.8]]))
    assert list(objective.state_dict()) == ["terms.mse.components"]  # A resumed training has the same ones.
    # The teacher's vectors become 10 and 14: they are not centred.
    student = torch.tensor([[9.0], [12.0]], requires_grad=True)
    total, count = term(Outputs(student), Outputs(vectors[[0, 2]]), items)
    assert (float(total.detach()), int(count)) == (pytest.approx(1 + 4), 2)
    same = d.EmbeddingMSE(projection="pca")
    same.connect(EncoderSize(3, 1), EncoderSize(3, 1))
    assert (same.components, same.fits_teacher) == (None, False)


def test_components_are_fitted_to_the_labelled_texts_of_train() -> None:
    texts = ["a b", "c", "b a c", "a"]
    task = Embedding(
        train=(list(zip(texts, texts[::-1], strict=True)), [0.0, 1.0, 2.0, 3.0]),
        dev=([("a", "c"), ("c", "b")], [1.0, 2.0]), unlabelled=["c c c c"],
    )  # fmt: skip
    tokenizer = train_word_pieces(texts * 4, 60)
    examples = task.encode(task.read(Path("nowhere")), tokenizer, None)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    model = BertModel(config).eval()
    configure(model, task.info.model_settings)
    teacher: Any = SimpleNamespace(running=lambda: model, device=torch.device("cpu"), readings={})
    every = torch.cat(teacher_logits(teacher, task, examples["train"], NOTHING, most=100))
    assert every.shape == (8, 8)  # Two texts of each pair, and none of the pool.
    few = torch.cat(teacher_logits(teacher, task, examples["train"], NOTHING, most=2))
    assert few.shape == (4, 8)  # The first and the last pair, which have the same texts.
    torch.testing.assert_close(few[[0, 1]].sort(dim=0).values, few[[2, 3]].sort(dim=0).values, atol=1e-5, rtol=1e-4)


def test_the_similarities_of_a_batch_by_hand() -> None:
    """Of three texts there are three pairs; the student has cosines 0, 1, 0 and the teacher 1, 1, 1."""
    items = items_of([0.0, 0.0], [1, 2])
    student = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 0.0]], requires_grad=True)
    total, count = d.PairwiseSimilarity()(Outputs(student), Outputs(torch.ones(3, 5)), items)
    assert float(total) == pytest.approx(2.0)
    assert int(count) == 3
    total.backward()
    assert student.grad.isfinite().all()
    alone = items_of([0.0], [1])
    total, count = d.PairwiseSimilarity()(Outputs(student[:1]), Outputs(torch.ones(1, 5)), alone)
    assert (float(total.detach()), int(count)) == (0.0, 0)


def test_cosine_regression_by_hand() -> None:
    """The pair with the score 0.5 has a right angle, and the single text and the pair without a score do not count."""
    items = items_of([0.5, 0.9, float("nan")], [2, 1, 2])
    vectors = torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0], [1.0, 0.0], [1.0, 0.0]], requires_grad=True)
    total, count = d.CosineRegression()(Outputs(vectors), Outputs(), items)
    assert (float(total.detach()), int(count)) == (0.25, 1)
    total.backward()
    assert vectors.grad[:2].any()
    assert not vectors.grad[2:].any()


def test_the_classes_of_pairs_by_hand() -> None:
    term, items = d.PairClassification(classes=2), items_of([np.nan, np.nan], [2, 2], classes=[1.0, 0.0])
    term.connect(EncoderSize(1, 1), EncoderSize(1, 1))
    with torch.no_grad():
        term.layer.weight.copy_(torch.tensor([[0.0, 0.0, 0.0], [1.0, 10.0, 100.0]]))
        term.layer.bias.zero_()
    total, count = term(Outputs(torch.tensor([[0.1], [0.2], [0.3], [0.3]])), Outputs(), items)
    logits = torch.tensor([[0.0, 0.1 + 2.0 + 10.0], [0.0, 0.3 + 3.0]])  # [u; v; |u - v|]
    torch.testing.assert_close(total, F.cross_entropy(logits, torch.tensor([1, 0]), reduction="sum"))
    assert int(count) == 2
    with pytest.raises(UserError, match="a pair has class 2, and the term has the classes 0 to 1: set its classes to"):
        term(Outputs(torch.ones(2, 1)), Outputs(), items_of([np.nan], [2], classes=[2.0]))


def test_triplets_by_hand() -> None:
    """The distances are 3 and 1 in the first group, and in the second 0 and 5, which is far enough."""
    items = items_of([float("nan")] * 3, [3, 3, 2])
    vectors = torch.tensor([[0.0], [3.0], [1.0], [2.0], [2.0], [7.0], [0.0], [9.0]], requires_grad=True)
    total, count = d.Triplet(margin=0.5)(Outputs(vectors), Outputs(), items)
    assert (float(total.detach()), int(count)) == (2.5, 2)
    total.backward()
    assert vectors.grad.isfinite().all()
    assert vectors.grad.flatten().tolist() == [0.0, 1.0, -1.0, 0.0, 0.0, 0.0, 0.0, 0.0]


def test_multiple_negatives_by_hand() -> None:
    """The third text of the second group is a negative for both anchors; the group with a score is left out."""
    nan = float("nan")
    items = items_of([nan, nan, 1.0, nan], [2, 3, 2, 1])
    vectors = torch.tensor([[1.0, 0], [2, 0], [0, 1], [1, 1], [0, -1], [1, 0], [1, 0], [1, 0]], requires_grad=True)
    total, count = d.MultipleNegatives(scale=2.0)(Outputs(vectors), Outputs(), items)
    half = 0.5**0.5  # The candidates are (2, 0), (1, 1) and (0, -1).
    logits = 2 * torch.tensor([[1.0, half, 0.0], [0.0, half, -1.0]])
    torch.testing.assert_close(total, F.cross_entropy(logits, torch.tensor([0, 1]), reduction="sum"))
    assert int(count) == 2
    total.backward()
    assert not vectors.grad[5:].any()


LABELLED = [d.CosineRegression(), d.PairClassification(), d.Triplet(), d.MultipleNegatives()]


@pytest.mark.parametrize("term", LABELLED, ids=lambda term: type(term).__name__)
def test_a_batch_without_examples_for_a_term_gives_zero(term: d.Term) -> None:
    term.connect(EncoderSize(4, 1), EncoderSize(4, 1))
    vectors = torch.ones(2, 4, requires_grad=True)
    total, count = term(Outputs(vectors), Outputs(), items_of([1.0, 1.0], [1, 1]))
    assert (float(total.detach()), int(count)) == (0.0, 0)
    total.backward()
    assert not vectors.grad.any()


def test_a_notice_says_that_a_step_in_parts_compares_fewer_examples(capsys: pytest.CaptureFixture[str]) -> None:
    objective = d.Objective(mse=d.EmbeddingMSE(), similarity=d.PairwiseSimilarity())
    warn_of_parts(objective, replace(RATES, accumulate=1))
    warn_of_parts(d.Objective(mse=d.EmbeddingMSE()), replace(RATES, accumulate=4))
    assert capsys.readouterr().out == ""
    warn_of_parts(objective, replace(RATES, accumulate=4))
    assert "a step is 4 micro-batches, and the term similarity compares examples of one micro-batch" in " ".join(
        capsys.readouterr().out.split()
    )


def test_terms_on_classes_are_unsuited_and_terms_on_hidden_states_suit(task: Embedding) -> None:
    objective = d.Objective(
        soft=d.SoftTargets(), mse=d.LogitMSE(), cosine=d.Cosine(), relations=d.MiniLMv2(), vectors=d.EmbeddingMSE()
    )
    assert objective.unsuited(likelihood=task.info.likelihood, classes_are_tokens=False) == ["soft", "mse"]
    assert d.Objective(vectors=d.EmbeddingMSE()).unsuited(likelihood="softmax", classes_are_tokens=False) == ["vectors"]


# Scores


def test_metrics_match_values_by_hand_in_any_order(task: Embedding) -> None:
    """The cosines of the three pairs are 1, 0 and -1."""
    data = task.read(Path())
    scoring = data.scoring
    first, second = [[2.0, 0.0], [1.0, 0.0], [1.0, 1.0]], [[1.0, 0.0], [0.0, 3.0], [-1.0, -1.0]]
    vectors = np.array([row for pair in zip(first, second, strict=True) for row in pair], dtype=np.float32)
    labels = np.repeat([1.0, 0.5, 0.0], 2)  # Of scores from 0 to 6.
    scores = Scores({"logits": vectors}, labels, np.repeat([0, 1, 2], 2))
    expected = {"spearman": 1.0, "pearson": float(np.corrcoef([1, 0, -1], [6, 3, 0])[0, 1])}
    assert scoring.metrics(scores) == pytest.approx(expected)
    order = np.array([4, 5, 0, 1, 2, 3])
    assert scoring.metrics(scores.select(order)) == pytest.approx(expected)
    condensed = scoring.condense(scores)
    assert {name: column.shape for name, column in condensed.columns.items()} == {"cosine": (6,)}
    assert scoring.metrics(condensed) == scoring.metrics(scores)
    assert compare_with_constant(scoring, {"dev": scores}).weakness is None
    table = scoring.tabulate(scores, data, examples=3)
    assert (table["label"], table["probability"]) == ([6.0, 3.0, 0.0], [None] * 3)
    assert table["prediction"] == pytest.approx([1.0, 0.0, -1.0])
    other = Scores({"logits": vectors * [1.0, 1.2]}, labels, scores.example_id)
    assert scoring.agreement(scores, scores) == 1.0
    assert scoring.probability_diff(scores, scores) == 0.0
    turned = Scores(
        {"logits": np.where([[1], [1], [1], [0], [1], [1]], vectors, [[1.0, 1.0]])}, labels, scores.example_id
    )
    assert scoring.agreement(turned, scores) == pytest.approx(2 / 3)
    assert scoring.probability_diff(turned, scores) == pytest.approx(np.sqrt(0.5) / 2)
    assert scoring.metrics(other)["spearman"] == pytest.approx(1.0)
    same = Scores({"logits": np.ones((6, 2))}, labels, scores.example_id)
    assert compare_with_constant(scoring, {"dev": same}).weakness == (
        "is no better than a constant prediction on the 3 examples of dev: spearman 0.000 against 0.000 of "
        '"always the same vector"'
    )


# Bundles


def test_the_bundle_encodes_as_the_saved_student_does(golden_run: Callable[[str], Path]) -> None:
    """The student is an ordinary encoder, pooled here by hand."""
    run = golden_run("vectors")
    start = load_directory(run / "student", "AutoModel", None, trust_remote_code=False)
    model = start.model.eval()
    texts = [GOOD[0], f"{BAD[0]} {GOOD[1]}", "film"]
    batch = start.tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        states = model(**batch).last_hidden_state
    mask = batch["attention_mask"].unsqueeze(-1)
    expected = F.normalize((states * mask).sum(dim=1) / mask.sum(dim=1), dim=-1)
    bundle = d.Bundle(run / "bundle", model="fp32")
    vectors = bundle.encode(texts)
    assert (vectors.shape, vectors.dtype) == ((3, 32), np.float32)
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    np.testing.assert_allclose(bundle.encode(texts, batch_size=1), vectors, atol=1e-5)
    predictions = bundle.predict([texts[0], texts[:2]])
    assert np.array(predictions[0]["vector"], dtype=np.float32).tolist() == vectors[0].tolist()
    np.testing.assert_allclose(predictions[1]["vector"], vectors[:2], atol=1e-6)
    assert bundle.encode([]).shape == (0, 32)
    for wrong, expected_text in (
        ("a text", "expected a list of records"),
        ([""], "and no empty text"),
        ([3], "expected"),
    ):
        with pytest.raises(UserError, match=expected_text):
            bundle.encode(wrong)  # type: ignore[arg-type]


def test_a_baseline_without_labels_is_refused(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    teacher = d.Teacher(toy_encoder(len(tokenizer), layers=1), tokenizer, cache_dir=tmp_path)
    texts = Embedding(train={"text": ["one", "two"]}, dev=pairs(4), max_length=24)
    with pytest.raises(UserError, match="the training texts of task embedding are single and have no labels, from whi"):
        d.distill(teacher, d.students.distilbert(), texts, baseline=True, directory=tmp_path)


# Records of a bundle


def test_a_record_is_a_text_or_a_list_of_texts() -> None:
    decoder = Vectors([], False, {}, Tokenizer(WordLevel()))
    assert decoder.read("a film").sequences() == ["a film"]
    assert decoder.read(["a film", "a bore"]).sequences() == ["a film", "a bore"]
    vectors = np.array([[0.1, -2.0]], dtype=np.float32)
    prediction = decoder.decode(decoder.read("a film"), [(None, vectors)])
    assert prediction == {"vector": [0.100000001, -2.0]}
    assert decoder.format(prediction) == "0.1 -2"
    for record in ({"text": "a"}, [], ["a", 3], " ", [["a"]]):
        with pytest.raises(UserError, match="expected a text or a list of texts, and no empty text"):
            decoder.read(record)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="expected Unicode"):
        decoder.read("\ud800")
