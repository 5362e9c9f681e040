"""Tests of the texts that a teacher writes for the sources of train: once, whole, also after kills."""

import json
import multiprocessing
import os
import random
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GenerationConfig,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

from distill.core.errors import OptionError, UserError
from distill.data.splits import LabelledData
from distill.kinds.seq2seq import pair_split
from distill.teachers import writing
from distill.teachers.writing import (
    SOURCES,
    BeamWriter,
    TargetSettings,
    Writer,
    WrittenTexts,
    check_writes,
    open_texts,
    replace_targets,
)

WORDS = 40


@pytest.fixture(scope="module")
def words() -> PreTrainedTokenizerBase:
    """A vocabulary of the numbers below 40."""
    vocabulary = {name: number for number, name in enumerate(["<pad>", "</s>", "<unk>", *map(str, range(WORDS))])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>", model_max_length=64
    )


@pytest.fixture(scope="module")
def t5(words: PreTrainedTokenizerBase) -> PreTrainedModel:
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=len(words), d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0,
        pad_token_id=0, eos_token_id=1, initializer_factor=5.0,
    )  # fmt: skip
    return T5ForConditionalGeneration(config).eval()


def make_sources(number: int) -> list[str]:
    draw = random.Random(0)
    texts = [" ".join(str(draw.randrange(WORDS)) for _ in range(draw.randint(1, 6))) for _ in range(4 * number)]
    return list(dict.fromkeys(texts))[:number]


def writer(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, beams: int = 2) -> BeamWriter:
    return BeamWriter(model, tokenizer, beams, max_source=16, max_target=4)


def test_beams_are_those_of_transformers(t5: PreTrainedModel, words: PreTrainedTokenizerBase) -> None:
    written = writer(t5, words, beams=3)(["1 2 3", "4"])
    for source, texts in zip(["1 2 3", "4"], written, strict=True):
        ids = t5.generate(
            **words([source], return_tensors="pt").to("cpu"), num_beams=3, num_return_sequences=3, max_new_tokens=4
        )
        assert texts == words.batch_decode(ids, skip_special_tokens=True)


def test_a_decoder_continues_its_source(words: PreTrainedTokenizerBase) -> None:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(words), n_embd=16, n_layer=1, n_head=2, n_positions=32, eos_token_id=1, bos_token_id=1
    )
    model = GPT2LMHeadModel(config).eval()
    both = writer(model, words)(["1 2 3 4", "5"])
    assert both[1] == writer(model, words)(["5"])[0]  # The padding on the left changes nothing.
    assert not both[0][0].startswith("1 2 3 4")


def test_files_are_written_once_and_kept_by_fingerprint(
    t5: PreTrainedModel, words: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    sources, write = make_sources(SOURCES + 5), writer(t5, words)
    texts = open_texts([*sources, sources[0]], write, fingerprint="one", cache_dir=tmp_path)
    assert texts.missing_sources == texts.sources == len(sources)
    texts.write(write)
    again = open_texts(sources, write, fingerprint="one", cache_dir=tmp_path)
    assert again.missing() == []
    assert list(again.by_source()) == sorted(sources, key=len)
    assert again.estimate_seconds(write) == 0
    assert open_texts(sources, write, fingerprint="two", cache_dir=tmp_path).missing_sources == len(sources)
    assert open_texts(sources, writer(t5, words, 3), fingerprint="one", cache_dir=tmp_path).missing_sources


@dataclass
class OnDevice:
    """A writer of which only the key is needed."""

    device: torch.device
    options: tuple[object, ...] = ()

    @property
    def model(self) -> Any:
        return self

    def __call__(self, sources: Sequence[str]) -> list[list[str]]:
        raise NotImplementedError


def test_everything_that_texts_depend_on_is_in_their_place(
    t5: PreTrainedModel, words: PreTrainedTokenizerBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def place(write: Writer, sources: Sequence[str] = ("1 2", "3")) -> Path:
        return open_texts(sources, write, fingerprint="one", cache_dir=tmp_path).directory

    first = writer(t5, words)
    drawn = replace(first, temperature=1.0)
    different = [
        first, replace(first, beams=3), replace(first, max_source=15), replace(first, max_target=5),
        drawn, replace(drawn, temperature=0.5), replace(drawn, seed=1), replace(drawn, max_target=5),
        *(OnDevice(torch.device(name)) for name in ("cpu", "meta")),
    ]  # fmt: skip
    places = [place(write) for write in different]
    places += [place(first, ("1 2", "4")), place(first, ("3", "1 2"))]
    assert place(replace(first, seed=1)) == place(first, ("1 2", "3", "1 2")) == places[0]
    before = t5.generation_config
    monkeypatch.setattr(t5, "generation_config", GenerationConfig(**{**before.to_dict(), "length_penalty": 0.5}))
    places.append(place(first))
    monkeypatch.setattr(t5, "generation_config", before)
    monkeypatch.setattr(writing, "library_versions", lambda: ("other",))
    places.append(place(first))
    assert len(set(places)) == len(places)


def test_damaged_files_are_written_again(tmp_path: Path) -> None:
    sources = make_sources(SOURCES * 2)
    WrittenTexts(tmp_path, sources).write(lambda few: [[f"{source} a"] for source in few])
    path = tmp_path / "00001.json"
    content = json.loads(path.read_text())
    content["texts"][0] = ["another"]
    path.write_text(json.dumps(content))
    (tmp_path / "00000.json").write_text('{"sha256": "cut o')
    texts = WrittenTexts(tmp_path, sources)
    assert texts.damaged == [tmp_path / "00000.json", path]
    with pytest.raises(ValueError, match="2 files of .* are missing"):
        texts.by_source()
    texts.write(lambda few: [[f"{source} a"] for source in few])
    assert WrittenTexts(tmp_path, sources).by_source() == {source: [f"{source} a"] for source in sources}


def _write_in_child(directory: Path, sources: list[str], write: BeamWriter, events: Connection) -> None:
    torch.set_num_threads(1)

    def report(few: list[str]) -> list[list[str]]:
        events.send(few)
        texts = write(few)
        events.send(None)  # Before the file is written.
        return texts

    WrittenTexts(directory, sources).write(report)  # type: ignore[arg-type]
    events.send("done")


@pytest.mark.skipif(os.name != "posix", reason="processes are killed by SIGKILL")
def test_none_is_lost_and_none_written_twice_after_kills(
    t5: PreTrainedModel, words: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    sources, write, draw = make_sources(300), writer(t5, words), random.Random(1)
    whole = WrittenTexts(tmp_path / "whole", sources)
    whole.write(write)
    directory, context, kills, is_done = tmp_path / "killed", multiprocessing.get_context("fork"), 0, False
    while not is_done:
        kept = {name: (directory / name).read_bytes() for name in _names(directory)}
        present = {source for name in kept for source in json.loads(kept[name])["sources"]}
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_write_in_child, args=(directory, sources, write, sender))
        process.start()
        sender.close()
        for _ in range(draw.randint(1, 5)):
            event = receiver.recv()
            is_done = event == "done"
            if is_done:
                break
            assert event is None or not present & set(event)  # What is there is not written a second time.
        process.kill()
        process.join()
        kills += process.exitcode == -signal.SIGKILL and not is_done
        assert {name: (directory / name).read_bytes() for name in kept} == kept
    assert kills >= 3
    found = WrittenTexts(directory, sources)
    assert not found.damaged
    assert found.by_source() == whole.by_source()
    rows = [source for name in _names(directory) for source in json.loads((directory / name).read_text())["sources"]]
    assert sorted(rows) == sorted(sources)


def _names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("*.json"))


def test_the_most_likely_or_the_nearest_text_is_kept() -> None:
    beams, references = [["a b", "the cat sat"], ["x", "y"]], ["the cat sat down", "y"]
    assert TargetSettings(beams=2).choose(beams, references) == ["a b", "x"]
    assert TargetSettings(beams=2, keep="nearest").choose(beams, references) == ["the cat sat", "y"]
    assert TargetSettings(beams=2, keep="nearest", nearest_by="bleu").choose(beams, references) == ["the cat sat", "y"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beams": 0}, "got beams=0, expected a whole number of at least 1"),
        ({"beams": -3}, "got beams=-3, expected a whole number of at least 1"),
        ({"keep": "best"}, "got keep=best, expected "),
        ({"keep": 2}, "got keep=2, expected "),
    ],
)
def test_wrong_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        TargetSettings(**options)  # type: ignore[arg-type]


def test_an_encoder_cannot_write() -> None:
    config = BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
    with pytest.raises(UserError, match="teacher.beams=4 needs a model that writes text, and teacher b is a BertFor"):
        check_writes(BertForMaskedLM(config), "teacher b", "teacher.beams=4")


def test_empty_texts_are_left_out() -> None:
    data = LabelledData((), {"train": pair_split(["1", "2"], [["a"], ["b"]])}, "digest")
    assert replace_targets(data, ["", "c"]).splits["train"]["target"] == ["c"]
    with pytest.raises(UserError, match="the teacher's texts are all empty"):
        replace_targets(data, ["", ""])
