"""Tests of the writing of texts, with a model in numpy whose next tokens can be worked out by hand."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models

from distill.core.errors import UserError
from distill.edge.generation import CachedModel, CachedRows, Generator, Writing
from distill.edge.sampling import GenerationOptions, GenerationSettings
from distill.edge.text_decoders import WholeTexts
from tests.edge.conftest import Patch

SIZE = 29  # Tokens of the vocabulary: letters, a space, a stop, and the end.
LETTERS = "abcdefghijklmnopqrstuvwxyz .$"
END = SIZE - 1


@dataclass(frozen=True)
class Value:
    """An input or an output of a session."""

    name: str
    shape: list[Any]


class Adder:
    """A causal model whose next token is the sum of all tokens so far, and of their number, modulo the vocabulary.

    Its caches have the tokens, so that a wrong row, mask or position changes the sum.
    """

    def __init__(self, classes: int = SIZE, *, keeps_logits: bool = False) -> None:
        self.classes, self.keeps_logits = classes, keeps_logits
        self.passes: list[tuple[int, ...]] = []

    def get_inputs(self) -> Sequence[Value]:
        names = ["input_ids", "attention_mask", "position_ids", *(["num_logits_to_keep"] if self.keeps_logits else [])]
        caches = [f"past_key_values.0.{half}" for half in ("key", "value")]
        return [Value(name, []) for name in names] + [Value(name, ["batch", 1, "past", 1]) for name in caches]

    def get_outputs(self) -> Sequence[Value]:
        return [Value("logits", ["batch", "length", self.classes])]

    def run(self, names: Sequence[str], inputs: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        tokens, mask = inputs["input_ids"], inputs["attention_mask"]
        self.passes.append(tokens.shape)
        past = inputs["past_key_values.0.key"]
        seen = np.concatenate([past, tokens[:, None, :, None].astype(np.float32)], axis=2)
        assert seen.shape[2] == mask.shape[1]
        sums = (seen[:, 0, :, 0] * mask).cumsum(axis=1)[:, -tokens.shape[1] :]
        following = (sums + inputs["position_ids"] + 1).astype(int) % SIZE
        logits = np.full((*tokens.shape, self.classes), 20.0, dtype=np.float32)
        logits[..., :SIZE] = 10.0 * np.eye(SIZE, dtype=np.float32)[following]
        outputs = {"logits": logits, "present.0.key": seen, "present.0.value": seen}
        return [outputs[name] for name in names]


def write_by_hand(prompt: str, count: int) -> str:
    """Returns what `Adder` writes after a prompt: at most `count` letters, and none from the end token on."""
    tokens = [LETTERS.index(letter) for letter in prompt]
    for _ in range(count):
        tokens.append((sum(tokens) + len(tokens)) % SIZE)
    return "".join(LETTERS[token] for token in tokens[len(prompt) :]).partition("$")[0]


@pytest.fixture
def letters() -> Tokenizer:
    """A tokenizer of one token for each letter."""
    tokenizer = Tokenizer(models.BPE({letter: number for number, letter in enumerate(LETTERS)}, []))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(["$"])
    return tokenizer


def make_generator(tokenizer: Tokenizer, model: Adder | None = None, **changes: Any) -> Generator:
    values = {"eos": [END], "start": None, "max_new_tokens": 12, "positions": None} | changes
    return Generator(CachedModel(model or Adder()), tokenizer, GenerationSettings.read(values))


def finish(generator: Generator) -> None:
    """Steps until every text has ended."""
    while generator.running:
        generator.step()


def test_greedy_texts_of_one_batch_are_those_of_each_prompt_alone(letters: Tokenizer) -> None:
    prompts = ["a", "hello there", "cats", "zz"]
    generator = make_generator(letters)
    writings = generator.start(prompts, GenerationOptions(max_new_tokens=9))
    finish(generator)
    assert [writing.text for writing in writings] == [write_by_hand(prompt, 9) for prompt in prompts]


def test_texts_join_between_steps_and_may_be_dropped(letters: Tokenizer) -> None:
    model = Adder()
    generator = make_generator(letters, model)
    options = GenerationOptions(max_new_tokens=8)
    [first, second] = generator.start(["hello", "a dog"], options)
    generator.step()
    [third] = generator.start(["a much longer prompt"], options)
    generator.step()
    assert model.passes[-1] == (3, 1)
    generator.drop(second)
    generator.drop(second)
    generator.step()
    assert model.passes[-1] == (2, 1)
    assert generator.running == [first, third]
    [fourth] = generator.start(["b"], options)
    finish(generator)
    expected = [write_by_hand(prompt, 8) for prompt in ("hello", "a much longer prompt", "b")]
    assert [writing.text for writing in (first, third, fourth)] == expected
    assert (len(second.tokens), second.finish) == (3, None)


def test_the_caches_have_no_places_of_rows_that_left(letters: Tokenizer) -> None:
    rows = CachedRows(CachedModel(Adder()))
    rows.append([[1] * 20, [2, 3]])
    rows.select([1])
    assert rows.mask.shape == (1, 2)
    assert rows.caches["past_key_values.0.key"].shape == (1, 1, 2, 1)
    assert rows.lengths.tolist() == [2]


def test_the_positions_of_a_text_that_is_padded_on_the_left_begin_at_its_first_token() -> None:
    inputs = {"input_ids": np.array([[0, 0, 3, 4]]), "attention_mask": np.array([[0, 0, 1, 1]])}
    [logits] = WholeTexts(Adder(), None).run(["logits"], inputs)  # type: ignore[arg-type]
    assert logits[0, 2:].argmax(axis=1).tolist() == [3 + 1, 3 + 4 + 2]


@pytest.mark.parametrize("keeps_logits", [False, True])
def test_a_long_prompt_is_read_in_passes_of_bounded_logits(
    letters: Tokenizer, monkeypatch: Patch, keeps_logits: bool
) -> None:
    monkeypatch.setattr("distill.edge.generation.MOST_LOGITS", 2 * 5 * SIZE)
    model = Adder(keeps_logits=keeps_logits)
    generator = make_generator(letters, model)
    writings = generator.start(["a sentence of words", "word"], GenerationOptions(max_new_tokens=3))
    assert model.passes == ([(2, 19)] if keeps_logits else [(2, 5), (2, 5), (2, 5), (2, 4)])
    finish(generator)
    assert [writing.text for writing in writings] == [
        write_by_hand("a sentence of words", 3), write_by_hand("word", 3)
    ]  # fmt: skip


def test_a_text_ends_at_the_end_token_at_its_length_or_at_a_stop_string(letters: Tokenizer) -> None:
    whole = write_by_hand("cats", 9)
    ends: list[tuple[Any, str, str]] = [
        (GenerationOptions(max_new_tokens=4), whole[:4], "length"),
        (GenerationOptions(max_new_tokens=9, stop=whole[3:5]), whole[:3], "stop"),
        (GenerationOptions(max_new_tokens=9, stop=["zzz", whole[2:6], whole[3:4]]), whole[:3], "stop"),
        (GenerationOptions(max_new_tokens=9, stop=["never reached"]), whole, "length"),
    ]
    for options, text, how in ends:
        generator = make_generator(letters)
        [writing] = generator.start(["cats"], options)
        finish(generator)
        assert (writing.text, writing.finish) == (text, how)


def test_the_end_token_is_among_the_tokens_and_not_in_the_text(letters: Tokenizer) -> None:
    # 25 + 1 + 1 + 1 = 28 is the end.
    generator = make_generator(letters)
    [writing] = generator.start(["zb"], GenerationOptions())
    assert (writing.tokens, writing.text, writing.finish) == ([END], "", "eos")
    assert generator.running == []


def test_classes_beyond_the_tokenizer_are_never_written(letters: Tokenizer) -> None:
    generator = make_generator(letters, Adder(classes=64))
    [writing] = generator.start(["hello"], GenerationOptions(max_new_tokens=6))
    finish(generator)
    assert writing.text == write_by_hand("hello", 6)


def test_pieces_are_read_as_they_come_and_a_possible_stop_is_held(letters: Tokenizer) -> None:
    whole = write_by_hand("hello", 6)
    generator = make_generator(letters)
    [writing] = generator.start(["hello"], GenerationOptions(max_new_tokens=6, stop=whole[1:3] + "$"))
    pieces = [writing.read()]
    while generator.running:
        generator.step()
        pieces.append(writing.read())
    assert pieces == [whole[0], "", "", whole[1:4], whole[4], whole[5]]
    assert writing.read() == ""


def test_a_prompt_of_more_tokens_than_positions_is_refused_or_cut(letters: Tokenizer) -> None:
    generator = make_generator(letters, positions=10)
    with pytest.raises(UserError, match="got 3, expected a text"):
        generator.start([3], GenerationOptions())  # type: ignore[list-item]
    message = r"got 'hello to you' of 12 tokens, and the model has 10 positions: shorten it, or give truncate=left"
    with pytest.raises(UserError, match=message):
        generator.start(["a", "hello to you"], GenerationOptions())
    assert generator.running == []
    for side, options, prompt in (
        ("left", {"max_new_tokens": 3}, "o to you"), ("right", {"max_new_tokens": 4}, "hello t"),
        ("left", {}, "o you"),
    ):  # fmt: skip
        cut = make_generator(letters, positions=10, eos=[])
        [writing] = cut.start(["hello to you"], GenerationOptions(truncate=side, **options))
        finish(cut)
        most = min(10 - len(prompt) + 1, options.get("max_new_tokens", 12))
        assert len(writing.tokens) == most
        assert writing.text == write_by_hand(prompt, most)


def test_a_text_ends_at_the_last_position(letters: Tokenizer) -> None:
    generator = make_generator(letters, positions=8, eos=[])
    [writing] = generator.start(["hello"], GenerationOptions(max_new_tokens=100))
    finish(generator)
    assert (len(writing.tokens), writing.finish) == (4, "length")


def test_an_empty_prompt_begins_with_the_start_or_the_end_token(letters: Tokenizer) -> None:
    for changes, begin in (({"start": 3}, "d"), ({}, "$")):
        generator = make_generator(letters, **changes)
        [writing] = generator.start([""], GenerationOptions(max_new_tokens=5))
        finish(generator)
        assert writing.text == write_by_hand(begin, 5)
    with pytest.raises(UserError, match="got '' as a prompt, and the model has no token that begins a text: give it"):
        make_generator(letters, eos=[]).start([""], GenerationOptions())


def test_logits_that_are_not_finite_are_refused_and_no_row_stays(letters: Tokenizer) -> None:
    class Broken(Adder):
        def run(self, names: Sequence[str], inputs: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
            outputs = super().run(names, inputs)
            outputs[0][inputs["input_ids"] == 0] = np.nan
            return outputs

    generator = make_generator(letters, Broken())
    [good] = generator.start(["hello"], GenerationOptions(max_new_tokens=2))
    with pytest.raises(UserError, match="the model has logits that are not finite"):
        generator.start(["ba"], GenerationOptions())
    assert generator.running == [good]
    generator.step()
    assert good.text == write_by_hand("hello", 2)


def test_sampled_texts_repeat_by_their_seed_whatever_runs_beside_them(letters: Tokenizer) -> None:
    options = GenerationOptions(max_new_tokens=20, temperature=8.0, seed=7)

    def write(prompts: Sequence[str], numbers: Sequence[int]) -> list[Writing]:
        generator = make_generator(letters, eos=[])
        writings = generator.start(prompts, options, numbers=numbers)
        finish(generator)
        return writings

    both = [writing.text for writing in write(["hello", "hello"], [0, 1])]
    assert both[0] != both[1]
    assert [write(["hello"], [number])[0].text for number in (0, 1)] == both


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"eos": 3}, "generation has eos 3, expected a list of tokens"),
        ({"start": -1}, "generation has start -1, expected a token or null"),
        ({"max_new_tokens": 0}, "generation has max_new_tokens 0, expected a whole number of at least 1"),
        ({"positions": "many"}, "generation has positions 'many', expected a whole number of at least 1, or null"),
        ({"forced_eos": True}, "generation has forced_eos True, expected a token or null"),
        ({"length_penalty": float("nan")}, "generation has length_penalty nan, expected a number"),
        ({"early_stopping": "often"}, "generation has early_stopping 'often', expected true, false or never"),
    ],
)
def test_settings_that_are_damaged_are_refused(values: dict[str, Any], message: str) -> None:
    valid = {"eos": [], "start": None, "max_new_tokens": 5, "positions": None}
    assert GenerationSettings.read(valid) == GenerationSettings((), None, 5, None)
    with pytest.raises(UserError, match=message):
        GenerationSettings.read(valid | values)
