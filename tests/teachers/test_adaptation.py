"""Tests of a teacher that is adapted to a text before its fine-tuning: cached, counted, recorded and refused."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from distill.builtin.teachers.new import NewModel
from distill.builtin.teachers.pretrained import Pretrained
from transformers import PreTrainedTokenizerBase

from distill import api
from distill.core.errors import UserError
from distill.data.splits import Pool, text_split
from distill.kinds import Classification, MaskedLM
from distill.teachers.source import Adaptation, TeacherSource, check_source
from distill.teachers.stages import AdaptedWeights
from distill.training.module import DistillationModule
from tests.conftest import SETTINGS, write_corpus
from tests.teachers.conftest import fingerprint_of, prepare

SHORT = replace(SETTINGS, max_epochs=None, max_steps=3)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Thirty files of short sentences, in each of which are three words that break into pieces."""
    directory = write_corpus(tmp_path_factory.mktemp("corpus"))
    for file in directory.iterdir():
        file.write_text(f"{file.read_text()}\nThe coldness, the warmness and the dullness of a film.")
    return directory


def adaptation(corpus: Path | None, **options: Any) -> Adaptation:
    given: dict[str, Any] = {"add_words": 3, "trainer": SHORT, "max_length": 16, "dev_fraction": 0.2}
    name = {"name": "task"} if corpus is None else {"data_dir": str(corpus)}
    return Adaptation(**given | name | options)


def refuse(*arguments: Any) -> None:
    raise RuntimeError("trained again")


@pytest.fixture
def short(task: Classification) -> Classification:
    return Classification(name="toy", text=["sentence"], max_length=32, data_dir=task.rows.source.data_dir)


@pytest.fixture
def source(encoder_dir: Path, corpus: Path) -> TeacherSource:
    weights = Pretrained(name="toy", path=str(encoder_dir))
    return TeacherSource(weights, SHORT, adaptation=adaptation(corpus))


def test_an_adapted_teacher_is_fine_tuned_and_both_are_cached(
    source: TeacherSource, short: Classification, tokenizer: PreTrainedTokenizerBase, tmp_path: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    first = prepare(source, short, tmp_path)
    printed = " ".join(capsys.readouterr().out.split())
    assert "is adapted to corpus" in printed
    assert re.search(r"3 words become pieces: \d\.\d+ -> \d\.\d+ pieces a word", printed)
    assert first.origin == "fine-tuned"
    assert len(first.tokenizer) == first.model.config.vocab_size == len(tokenizer) + 3
    record = first.record()["adapted"]
    assert record["words"] == 3
    assert record["steps"] == 3
    assert record["pieces_per_word"]["after"] < record["pieces_per_word"]["before"]
    assert record["metrics"]["loss"] > 0
    # The head is new, and the encoder is not the one before.
    encoder = source.weights.load("AutoModel", None, []).model
    changed = first.model.base_model.encoder.layer[0].attention.self.query.weight
    assert not torch.equal(changed, encoder.encoder.layer[0].attention.self.query.weight)
    # Neither training is made again, and the record stays, also without the adapted weights.
    monkeypatch.setattr(DistillationModule, "training_step", refuse)
    again = prepare(source, short, tmp_path)
    assert again.origin == "kept"
    assert again.record()["adapted"] == record
    assert again.fingerprint == first.fingerprint
    other = replace(source, finetune=replace(SHORT, max_steps=4))
    with pytest.raises(RuntimeError, match="trained again"):  # The fine-tuning alone.
        prepare(other, short, tmp_path)
    assert "adapted before, read from" in " ".join(capsys.readouterr().out.split())


def test_a_dry_run_counts_the_adaptation_and_trains_nothing(
    source: TeacherSource, short: Classification, tokenizer: PreTrainedTokenizerBase, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    seen: list[int] = []
    teacher = prepare(
        source, short, tmp_path, dry_run=True, rehearse=lambda model, tokens, examples: seen.append(len(tokens))
    )
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert sum(bool(re.match(r"3 steps of \d+ examples, .*, about .*, once", line)) for line in lines) == 2
    assert teacher.origin == "not fine-tuned in a dry run"
    assert teacher.record()["adapted"] is None
    assert seen == [len(tokenizer) + 3] == [len(teacher.tokenizer)]
    assert not list(tmp_path.glob("teachers/*"))


def test_the_text_of_a_task_is_that_of_train_and_of_the_unlabelled_rows(
    short: Classification, encoder_dir: Path, tmp_path: Path
) -> None:
    splits = short.read(tmp_path)
    chosen = adaptation(None, add_words=0)
    weights = AdaptedWeights(Pretrained(name="toy", path=str(encoder_dir)), chosen, splits, tmp_path)
    texts = [document.text for document in weights.text.corpus.read_documents()]
    assert texts == list(dict.fromkeys(splits.splits["train"].texts))
    assert not set(texts) & (set(splits.splits["dev"].texts) - set(splits.splits["train"].texts))
    assert str(chosen) == "the training texts of the task"
    data = replace(splits, pool=Pool(rows=text_split(["A text without a label."])))
    weights = AdaptedWeights(Pretrained(name="toy", path=str(encoder_dir)), chosen, data, tmp_path)
    with_pool = [document.text for document in weights.text.corpus.read_documents()]
    assert with_pool == [*texts, "A text without a label."]


def test_the_fingerprint_depends_on_everything_that_the_adaptation_does(
    source: TeacherSource, short: Classification, corpus: Path, tmp_path: Path
) -> None:
    splits = short.read(tmp_path)
    options: list[dict[str, Any]] = [
        {}, {"add_words": 2}, {"max_length": 17}, {"trainer": replace(SHORT, max_steps=4)}, {"clean": "web"},
        {"documents": "line"}, {"seed": 1},
    ]  # fmt: skip
    keys = [
        AdaptedWeights(source.weights, adaptation(corpus, **one), splits, tmp_path).fingerprint() for one in options
    ]
    keys.append(AdaptedWeights(source.weights, adaptation(None), splits, tmp_path).fingerprint())
    assert len(set(keys)) == len(keys)
    assert AdaptedWeights(source.weights, adaptation(corpus), splits, tmp_path).fingerprint() == keys[0]
    other = fingerprint_of(replace(source, adaptation=None), short, splits, tmp_path)
    assert fingerprint_of(source, short, splits, tmp_path) != other


def test_what_cannot_be_adapted_is_refused(source: TeacherSource, short: Classification) -> None:
    message = (
        r"^adapt=domain changes the encoder under a teacher's head, and teacher.finetune=false keeps the head as it "
    )
    with pytest.raises(UserError, match=message):
        check_source(replace(source, finetune=None), short)
    with pytest.raises(
        UserError, match=r"^adapt=domain is for a teacher that is fine-tuned on labels, and task=mlm is "
    ):
        check_source(source, MaskedLM(builtin=True))
    new = replace(source, weights=NewModel(name="bert_tiny"))
    with pytest.raises(UserError, match=r"^adapt=domain begins with a trained model, and this teacher has random wei"):
        check_source(new, short)


def test_options_of_the_text_are_named_as_those_of_the_adaptation(
    source: TeacherSource, short: Classification, corpus: Path, tmp_path: Path
) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, "^adapt=domain has no text: set adapt.data_dir=DIR with"),
        ({"name": "task"}, "^adapt=task reads the training texts of the task: leave adapt.data_dir out"),
        ({"name": "other"}, "^got name=other, expected domain or task$"),
        ({"packing": "tight"}, "^got adapt.packing=tight, expected one of full_sentences"),
    ]
    for options, message in cases:
        with pytest.raises(UserError, match=message):
            Adaptation(**options, **({"data_dir": str(corpus)} if options else {}))
    with pytest.raises(UserError, match=r"^adapt.data_dir=nowhere does not exist, expected a text file or a folder"):
        AdaptedWeights(source.weights, adaptation(Path("nowhere")), short.read(tmp_path), tmp_path)


def test_a_text_in_another_script_is_refused(source: TeacherSource, short: Classification, tmp_path: Path) -> None:
    line = "\u03b5\u03bd \u03b1\u03c1\u03c7\u03b7 \u03b7\u03bd \u03bf \u03bb\u03bf\u03b3\u03bf\u03c2 "
    text = tmp_path / "greek.txt"
    text.write_text("\n".join(line * 8 + line[:number] for number in range(30)))
    foreign = replace(source, adaptation=adaptation(text, add_words=0, documents="line"))
    expected = (
        r"^\d+% of the pieces of the text are unknown to the vocabulary, expected at most 50%: give a text in the"
    )
    with pytest.raises(UserError, match=expected):
        prepare(foreign, short, tmp_path)


def test_a_teacher_of_python_is_adapted_when_it_is_fitted(
    encoder_dir: Path, corpus: Path, short: Classification, tmp_path: Path
) -> None:
    teacher = api.Teacher.from_pretrained(encoder_dir, cache_dir=tmp_path)
    teacher.fit(short, adaptation=adaptation(corpus), max_steps=2, max_epochs=None, batch_size=8)
    [entry] = tmp_path.glob("teachers/*-domain-text-*")
    assert json.loads((entry / "distill.json").read_text())["words"] == 3
    assert teacher.source_for(short).adaptation is not None
    other = Classification(name="other", text=["sentence"], data_dir=short.rows.source.data_dir)
    assert teacher.source_for(other).adaptation is None
