"""Tests of the continuations that a teacher writes for the beginnings of training texts."""

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from distill.builtin.teachers.vocabulary import train_bytes
from transformers import GenerationConfig, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerBase

from distill.core.errors import UserError
from distill.kinds import CausalLM
from distill.kinds.autoregressive import CausalText
from distill.models.decoding import continue_prompts
from distill.teachers.prepared import PreparedTeacher
from distill.teachers.writing import (
    ContinuationWriter,
    TargetSettings,
    continue_texts,
    open_texts,
    read_tokens,
    show_tokens,
)
from distill.text.sequences import Sequences, check_prompt, count_prompt
from tests.conftest import write_corpus


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("corpus")
    write_corpus(root)
    return root


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return train_bytes(["one two three", "a letter of some words"] * 3, 280, 64)


@pytest.fixture(scope="module")
def teacher(tokenizer: PreTrainedTokenizerBase) -> PreparedTeacher:
    torch.manual_seed(0)
    end = tokenizer.eos_token_id
    config = GPT2Config(
        vocab_size=len(tokenizer), n_embd=16, n_layer=1, n_head=2, n_positions=32, eos_token_id=end, bos_token_id=end,
        initializer_range=0.5,
    )  # fmt: skip
    model = GPT2LMHeadModel(config).eval()
    return PreparedTeacher(
        requested="a", resolved="a", substituted=False, origin="a test", tokenizer=tokenizer, load=lambda: model,
        precision="float32", weights="w", device=torch.device("cpu"), seconds=0.0, model=model,
    )  # fmt: skip


def read(
    corpus: Path, tokenizer: PreTrainedTokenizerBase, cache: Path, **options: Any
) -> tuple[CausalText, dict[str, Any]]:
    task = CausalLM(data=corpus, max_length=16, dev_fraction=0.2, **options)
    data = task.read(cache)
    return data, dict(task.encode(data, tokenizer, cache))


@pytest.mark.parametrize("prompt", [5, 0.5])
def test_texts_keep_their_prompts_and_go_on_as_the_teacher_does(
    prompt: int | float, corpus: Path, tokenizer: PreTrainedTokenizerBase, teacher: PreparedTeacher, tmp_path: Path
) -> None:
    data, examples = read(corpus, tokenizer, tmp_path, prompt=prompt, packing="doc_sentences")
    settings = TargetSettings(beams=1)
    continued = continue_texts(data, examples, teacher, settings, cache_dir=tmp_path, dry_run=False)
    train, own = cast(Sequences, continued["train"]), cast(Sequences, examples["train"])
    assert continued["dev"] is examples["dev"]
    assert train.digest != own.digest
    longer = [tokens for tokens in own.list_tokens() if len(tokens) > 5 or prompt != 5]
    assert len(train) == len(longer) > 3
    for before, after in list(zip(longer, train.list_tokens(), strict=True))[::5]:
        size = int(count_prompt(np.array([len(before)]), prompt)[0])
        assert before[:size].tolist() == after[:size].tolist()
        [[best]] = continue_prompts(teacher.running(), [before[:size].tolist()], [len(before) - size])
        assert after[size:].tolist() == best
    batch = train[[0, 1]]
    assert batch["prompt_tokens"].tolist() == count_prompt(train.lengths[:2], prompt).tolist()


def test_continuations_are_written_once_and_sampled_by_their_seed(
    corpus: Path, tokenizer: PreTrainedTokenizerBase, teacher: PreparedTeacher, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    data, examples = read(corpus, tokenizer, tmp_path)

    def write(cache: str, seed: int, *, dry_run: bool = False) -> list[list[int]]:
        settings = TargetSettings(beams=1, sampling_temperature=1.5, sampling_seed=seed)
        splits = continue_texts(data, examples, teacher, settings, cache_dir=tmp_path / cache, dry_run=dry_run)
        return [tokens.tolist() for tokens in cast(Sequences, splits["train"]).list_tokens()]

    own = [tokens.tolist() for tokens in cast(Sequences, examples["train"]).list_tokens()]
    assert write("a", 7, dry_run=True) == own
    number = len({show_tokens(tokens) for tokens in own})
    assert f"the teacher continues each of {number} of {number} texts once, about " in " ".join(
        capsys.readouterr().out.split()
    )
    first = write("a", 7)
    assert "the teacher continues each" in " ".join(capsys.readouterr().out.split())
    assert write("a", 7) == first
    assert "continues" not in capsys.readouterr().out
    assert write("b", 7) == first
    assert write("b", 8) != first != own


def test_a_writing_that_was_killed_draws_the_texts_of_one_without_a_break(teacher: PreparedTeacher) -> None:
    settings = TargetSettings(beams=1, sampling_temperature=1.5)
    write = ContinuationWriter(teacher.running(), 2, settings)
    sources = ["5 6 7 8 9", "9 8 7 6 5"]
    state = torch.get_rng_state()
    first = write(sources)
    write(["4 4 4"])
    assert write(sources) == first
    assert torch.equal(torch.get_rng_state(), state)  # The training draws its own numbers.


def test_the_files_of_continuations_are_those_of_their_prompt_and_settings(
    teacher: PreparedTeacher, tmp_path: Path
) -> None:
    """The sources are whole sequences, so that the prompt alone tells which of their tokens are continued."""
    model = teacher.running()

    def place(prompt: int | float, sources: tuple[str, ...] = ("5 6 7 8 9",), weights: str = "w", **search: Any) -> str:
        writer = ContinuationWriter(model, prompt, TargetSettings(**{"beams": 1, **search}))
        return open_texts(sources, writer, fingerprint=weights, cache_dir=tmp_path).directory.name

    drawn: dict[str, Any] = {"sampling_temperature": 1.5, "sampling_seed": 0}
    places = [
        place(2), place(3), place(0.5), place(2, ("5 6 7 8",)), place(2, weights="v"), place(2, beams=2),
        place(2, **drawn), place(2, **drawn | {"sampling_temperature": 1.0}), place(2, **drawn | {"sampling_seed": 1}),
        place(3, **drawn), place(2, **drawn, beams=2),
    ]  # fmt: skip
    assert place(2, sampling_seed=1) == places[0]  # A search draws nothing.
    before = model.generation_config
    model.generation_config = GenerationConfig(**{**before.to_dict(), "no_repeat_ngram_size": 2})
    places.append(place(2))
    model.generation_config = GenerationConfig(**{**before.to_dict(), "eos_token_id": 3})
    places.append(place(2))
    model.generation_config = before
    assert len(set(places)) == len(places)
    assert place(2) == places[0]


@pytest.mark.parametrize(
    ("lengths", "prompt", "expected"),
    [([1, 4, 10], 3, [1, 3, 3]), ([1, 2, 4, 10], 0.9, [1, 1, 3, 9]), ([8], 0.01, [1])],
)
def test_prompts_are_counted(lengths: list[int], prompt: int | float, expected: list[int]) -> None:
    assert count_prompt(np.array(lengths), prompt).tolist() == expected


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (0, "got task.prompt=0, expected a whole number of tokens of at least 1, or a share between 0 and 1"),
        (-2, "got task.prompt=-2, expected a whole"),
        (1.5, "got task.prompt=1.5, expected a whole"),
        (float("nan"), "got task.prompt=nan, expected a whole"),
        (True, "got task.prompt=True, expected a whole"),
        ("half", "got task.prompt=half, expected a whole"),
        (16, "got task.prompt=16 and task.max_length=16: expected a prompt of fewer tokens"),
    ],
)
def test_prompts_out_of_range(prompt: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_prompt(prompt, 16)


def test_tokens_are_the_same_after_a_file() -> None:
    assert read_tokens(show_tokens(np.array([3, 0, 70_000]))) == [3, 0, 70_000]


def test_texts_that_cannot_be_continued_are_refused(
    corpus: Path, tokenizer: PreTrainedTokenizerBase, teacher: PreparedTeacher, tmp_path: Path
) -> None:
    settings = TargetSettings(beams=2)
    data, examples = read(corpus, tokenizer, tmp_path, streaming=True)
    with pytest.raises(UserError, match="teacher.beams=2 writes every text once before the training, and task"):
        continue_texts(data, examples, teacher, settings, cache_dir=tmp_path, dry_run=False)
    (tmp_path / "short").mkdir()
    (tmp_path / "short" / "a.txt").write_text("\n".join(f"abcd {number}" for number in range(30)), encoding="utf-8")
    data, examples = read(
        tmp_path / "short", tokenizer, tmp_path, prompt=12, packing="sentence", documents="line"
    )  # fmt: skip
    with pytest.raises(UserError, match="no sequence has more tokens than task.prompt=12"):
        continue_texts(data, examples, teacher, settings, cache_dir=tmp_path, dry_run=False)
