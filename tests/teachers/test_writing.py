"""Tests of what a teacher writes: texts for the sources of train, and continuations of their beginnings."""

import json
import multiprocessing
import os
import random
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.core.errors import OptionError, UserError
from distill.data.splits import LabelledData
from distill.kinds import CausalLM
from distill.kinds.masked_lm import TextData
from distill.kinds.seq2seq import pair_split
from distill.models.decoding import continue_prompts
from distill.teachers import writing
from distill.teachers.prepared import PreparedTeacher
from distill.text.sequences import Sequences, SequenceSettings, count_prompt
from distill.text.vocabulary import train_bytes
from tests.conftest import write_corpus
from tests.teachers.conftest import make_prepared

WORDS = 40


@pytest.fixture(scope="module")
def words() -> PreTrainedTokenizerBase:
    """A vocabulary of the numbers below 40."""
    vocabulary = {name: number for number, name in enumerate(["<pad>", "</s>", "<unk>", *map(str, range(WORDS))])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>", model_max_length=64
    )


@pytest.fixture(scope="module")
def t5(words: PreTrainedTokenizerBase) -> PreTrainedModel:
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=len(words), d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0,
        pad_token_id=0, eos_token_id=1, initializer_factor=5.0,
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config).eval()


def make_gpt2(tokenizer: PreTrainedTokenizerBase, initializer_range: float) -> PreTrainedModel:
    torch.manual_seed(0)
    end = tokenizer.eos_token_id
    config = transformers.GPT2Config(
        vocab_size=len(tokenizer), n_embd=16, n_layer=1, n_head=2, n_positions=32, eos_token_id=end, bos_token_id=end,
        initializer_range=initializer_range,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config).eval()


def make_sources(number: int) -> list[str]:
    draw = random.Random(0)
    texts = [" ".join(str(draw.randrange(WORDS)) for _ in range(draw.randint(1, 6))) for _ in range(4 * number)]
    return list(dict.fromkeys(texts))[:number]


def writer(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, beams: int = 2) -> writing.BeamWriter:
    return writing.BeamWriter(model, tokenizer, beams, max_source=16, max_target=4)


# Texts for sources


def test_beams_are_those_of_transformers(t5: PreTrainedModel, words: PreTrainedTokenizerBase) -> None:
    written = writer(t5, words, beams=3)(["1 2 3", "4"])
    for source, texts in zip(["1 2 3", "4"], written, strict=True):
        ids = t5.generate(
            **words([source], return_tensors="pt").to("cpu"), num_beams=3, num_return_sequences=3, max_new_tokens=4
        )
        assert texts == words.batch_decode(ids, skip_special_tokens=True)


def test_a_decoder_continues_its_source(words: PreTrainedTokenizerBase) -> None:
    model = make_gpt2(words, 0.02)
    both = writer(model, words)(["1 2 3 4", "5"])
    assert both[1] == writer(model, words)(["5"])[0]  # The padding on the left changes nothing.
    assert not both[0][0].startswith("1 2 3 4")


def test_files_are_written_once_and_those_that_are_damaged_again(
    t5: PreTrainedModel, words: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    sources, write = make_sources(2 * writing.SOURCES), writer(t5, words)
    texts = writing.open_texts([*sources, sources[0]], write, fingerprint="one", cache_dir=tmp_path)
    assert texts.missing_sources == texts.sources == len(sources)
    texts.write(write)
    again = writing.open_texts(sources, write, fingerprint="one", cache_dir=tmp_path)
    whole = again.by_source()
    assert list(whole) == sorted(sources, key=len)
    assert (again.missing(), again.estimate_seconds(write)) == ([], 0)
    path = again.directory / "00001.json"
    content = json.loads(path.read_text())
    content["texts"][0] = ["another"]
    path.write_text(json.dumps(content))
    (again.directory / "00000.json").write_text('{"sha256": "cut o')
    texts = writing.WrittenTexts(again.directory, sources)
    assert texts.damaged == [again.directory / "00000.json", path]
    with pytest.raises(ValueError, match="2 files of .* are missing"):
        texts.by_source()
    texts.write(write)
    assert writing.WrittenTexts(again.directory, sources).by_source() == whole


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
    def place(write: writing.Writer, sources: Sequence[str] = ("1 2", "3"), fingerprint: str = "one") -> Path:
        return writing.open_texts(sources, write, fingerprint=fingerprint, cache_dir=tmp_path).directory

    first = writer(t5, words)
    drawn = replace(first, temperature=1.0)
    different = [
        first, replace(first, beams=3), replace(first, max_source=15), replace(first, max_target=5),
        drawn, replace(drawn, temperature=0.5), replace(drawn, seed=1), replace(drawn, max_target=5),
        *(OnDevice(torch.device(name)) for name in ("cpu", "meta")),
    ]  # fmt: skip
    places = [place(write) for write in different]
    places += [place(first, ("1 2", "4")), place(first, ("3", "1 2")), place(first, fingerprint="two")]
    assert place(replace(first, seed=1)) == place(first, ("1 2", "3", "1 2")) == places[0]
    before = t5.generation_config
    monkeypatch.setattr(
        t5, "generation_config", transformers.GenerationConfig(**{**before.to_dict(), "length_penalty": 0.5})
    )
    places.append(place(first))
    monkeypatch.setattr(t5, "generation_config", before)
    monkeypatch.setattr(writing, "library_versions", lambda: ("other",))
    places.append(place(first))
    assert len(set(places)) == len(places)


def _write_in_child(directory: Path, sources: list[str], write: writing.BeamWriter, events: Connection) -> None:
    torch.set_num_threads(1)

    def report(few: list[str]) -> list[list[str]]:
        events.send(few)
        texts = write(few)
        events.send(None)  # Before the file is written.
        return texts

    writing.WrittenTexts(directory, sources).write(report)  # type: ignore[arg-type]
    events.send("done")


@pytest.mark.skipif(os.name != "posix", reason="processes are killed by SIGKILL")
def test_none_is_lost_and_none_written_twice_after_kills(
    t5: PreTrainedModel, words: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    sources, write, draw = make_sources(300), writer(t5, words), random.Random(1)
    whole = writing.WrittenTexts(tmp_path / "whole", sources)
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
    found = writing.WrittenTexts(directory, sources)
    assert not found.damaged
    assert found.by_source() == whole.by_source()
    rows = [source for name in _names(directory) for source in json.loads((directory / name).read_text())["sources"]]
    assert sorted(rows) == sorted(sources)


def _names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("*.json"))


def test_the_most_likely_or_the_nearest_text_is_kept() -> None:
    beams, references = [["a b", "the cat sat"], ["x", "y"]], ["the cat sat down", "y"]
    assert writing.TargetSettings(beams=2).choose(beams, references) == ["a b", "x"]
    for metric in ({}, {"nearest_by": "bleu"}):
        assert writing.TargetSettings(beams=2, keep="nearest", **metric).choose(beams, references) == [
            "the cat sat",
            "y",
        ]
    with pytest.raises(OptionError, match="got teacher.beams=0, expected a whole number of at least 1"):
        writing.TargetSettings(beams=0)
    with pytest.raises(OptionError, match="got teacher.keep=best, expected "):
        writing.TargetSettings(keep="best")  # type: ignore[arg-type]


def test_an_encoder_cannot_write() -> None:
    config = transformers.BertConfig(
        vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8
    )
    with pytest.raises(UserError, match="teacher.beams=4 needs a model that writes text, and teacher b is a BertFor"):
        writing.check_writes(transformers.BertForMaskedLM(config), "teacher b", "teacher.beams=4")


def test_empty_texts_are_left_out() -> None:
    data = LabelledData((), {"train": pair_split(["1", "2"], [["a"], ["b"]])}, "digest")
    assert writing.replace_targets(data, ["", "c"]).splits["train"]["target"] == ["c"]
    with pytest.raises(UserError, match="the teacher's texts are all empty"):
        writing.replace_targets(data, ["", ""])


# Continuations


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def letters() -> PreTrainedTokenizerBase:
    return train_bytes(["one two three", "a letter of some words"] * 3, 280, 64)


@pytest.fixture(scope="module")
def decoder(letters: PreTrainedTokenizerBase) -> PreparedTeacher:
    model = make_gpt2(letters, 0.5)
    return make_prepared(model, letters)


def read(
    corpus: Path, tokenizer: PreTrainedTokenizerBase, cache: Path, **options: Any
) -> tuple[TextData, dict[str, Any]]:
    task = CausalLM(data=corpus, max_length=16, dev_fraction=0.2, **options)
    data = task.read(cache)
    return data, dict(task.encode(data, tokenizer, cache))


@pytest.mark.parametrize("prompt", [5, 0.5])
def test_texts_keep_their_prompts_and_go_on_as_the_teacher_does(
    prompt: int | float, corpus: Path, letters: PreTrainedTokenizerBase, decoder: PreparedTeacher, tmp_path: Path
) -> None:
    data, examples = read(corpus, letters, tmp_path, prompt=prompt, packing="doc_sentences")
    settings = writing.TargetSettings(beams=1)
    continued = writing.continue_texts(data, examples, decoder, settings, cache_dir=tmp_path, dry_run=False)
    train, own = cast(Sequences, continued["train"]), cast(Sequences, examples["train"])
    assert continued["dev"] is examples["dev"]
    assert train.digest != own.digest
    longer = [tokens for tokens in own.list_tokens() if len(tokens) > 5 or prompt != 5]
    assert len(train) == len(longer) > 3
    for before, after in list(zip(longer, train.list_tokens(), strict=True))[::15]:
        size = int(count_prompt(np.array([len(before)]), prompt)[0])
        assert before[:size].tolist() == after[:size].tolist()
        [[best]] = continue_prompts(decoder.running(), [before[:size].tolist()], [len(before) - size])
        assert after[size:].tolist() == best
    batch = train[[0, 1]]
    assert batch["prompt_tokens"].tolist() == count_prompt(train.lengths[:2], prompt).tolist()


def test_continuations_are_written_once_and_sampled_by_their_seed(
    corpus: Path, letters: PreTrainedTokenizerBase, decoder: PreparedTeacher, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    data, examples = read(corpus, letters, tmp_path)

    def write(cache: str, seed: int, *, dry_run: bool = False) -> list[list[int]]:
        settings = writing.TargetSettings(beams=1, sampling_temperature=1.5, sampling_seed=seed)
        splits = writing.continue_texts(data, examples, decoder, settings, cache_dir=tmp_path / cache, dry_run=dry_run)
        return [tokens.tolist() for tokens in cast(Sequences, splits["train"]).list_tokens()]

    own = [tokens.tolist() for tokens in cast(Sequences, examples["train"]).list_tokens()]
    number = len({writing.show_tokens(tokens) for tokens in own})
    told = f"the teacher continues each of {number} of {number} texts once, about "
    assert write("a", 7, dry_run=True) == own
    assert told in " ".join(capsys.readouterr().out.split())
    first = write("a", 7)
    assert told in " ".join(capsys.readouterr().out.split())
    assert write("a", 7) == first
    assert "continues" not in capsys.readouterr().out
    assert write("b", 8) != first != own


def test_a_writing_that_was_killed_draws_the_texts_of_one_without_a_break(decoder: PreparedTeacher) -> None:
    write = writing.ContinuationWriter(decoder.running(), 2, writing.TargetSettings(beams=1, sampling_temperature=1.5))
    sources = ["5 6 7 8 9", "9 8 7 6 5"]
    state = torch.get_rng_state()
    first = write(sources)
    write(["4 4 4"])
    assert write(sources) == first
    assert torch.equal(torch.get_rng_state(), state)  # The training draws its own numbers.


def test_the_files_of_continuations_are_those_of_their_prompt_and_settings(
    decoder: PreparedTeacher, tmp_path: Path
) -> None:
    """The sources are whole sequences, so that the prompt alone tells which of their tokens are continued."""
    model = decoder.running()

    def place(prompt: int | float, **search: Any) -> str:
        write = writing.ContinuationWriter(model, prompt, writing.TargetSettings(**{"beams": 1, **search}))
        return writing.open_texts(["5 6 7 8 9"], write, fingerprint="w", cache_dir=tmp_path).directory.name

    drawn: dict[str, Any] = {"sampling_temperature": 1.5, "sampling_seed": 0}
    places = [
        place(2), place(3), place(0.5), place(2, beams=2), place(2, **drawn),
        place(2, **drawn | {"sampling_temperature": 1.0}), place(2, **drawn | {"sampling_seed": 1}),
        place(3, **drawn), place(2, **drawn, beams=2),
    ]  # fmt: skip
    assert len(set(places)) == len(places)
    assert place(2, sampling_seed=1) == places[0]  # A search draws nothing.


def test_prompts_are_counted_and_checked() -> None:
    for lengths, prompt, expected in (([1, 4, 10], 3, [1, 3, 3]), ([1, 2, 4, 10], 0.9, [1, 1, 3, 9]), ([8], 0.01, [1])):
        assert count_prompt(np.array(lengths), prompt).tolist() == expected
    wrong: list[Any] = [0, -2, 1.5, float("nan"), "true", "half"]
    expected = "expected a whole number of tokens of at least 1, or a share between 0 and 1"
    for prompt in wrong:
        message = f"got task.prompt='?{prompt}'?, {expected}"
        with pytest.raises(ValueError, match=message):
            SequenceSettings(mask=None, max_length=16, prompt=prompt)
    with pytest.raises(ValueError, match="got task.prompt=16 and task.max_length=16: expected a prompt of fewer"):
        SequenceSettings(mask=None, max_length=16, prompt=16)
    assert writing.read_tokens(writing.show_tokens(np.array([3, 0, 70_000]))) == [3, 0, 70_000]


def test_texts_that_cannot_be_continued_are_refused(
    corpus: Path, letters: PreTrainedTokenizerBase, decoder: PreparedTeacher, tmp_path: Path
) -> None:
    (tmp_path / "short.txt").write_text("\n".join(f"abcd {number}" for number in range(30)), encoding="utf-8")
    short = {"prompt": 12, "packing": "sentence", "documents": "line"}
    for path, options, message in (
        (corpus, {"streaming": True}, "teacher.beams=2 writes every text once before the training, and task"),
        (tmp_path / "short.txt", short, "no sequence has more tokens than task.prompt=12"),
    ):
        data, examples = read(path, letters, tmp_path, **options)
        with pytest.raises(UserError, match=message):
            writing.continue_texts(
                data, examples, decoder, writing.TargetSettings(beams=2), cache_dir=tmp_path, dry_run=False
            )
