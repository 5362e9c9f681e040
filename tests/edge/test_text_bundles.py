"""Tests of bundles that write text: equal to `generate` of transformers, on the command line, and on bad input."""

import functools
import io
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedModel

from distill.core.errors import UserError
from distill.core.files import hash_file, write_json
from distill.edge.__main__ import main
from distill.edge.bundle import Bundle
from distill.edge.bundle_files import encoder_file
from distill.edge.sampling import GenerationOptions, GenerationSettings
from distill.export.onnx import export_generator
from tests.edge.conftest import Output, Patch, Write
from tests.export.test_generator import VOCABULARY, make_model

START, END, STOP = 1, 2, "</s>"
KINDS = {"gpt2": "continuation", "t5": "seq2seq", "bart": "seq2seq"}
SETTINGS: dict[str, Any] = {
    "eos": [END], "pad": 0, "start": START, "max_new_tokens": 20, "positions": 48, "forced_bos": None,
    "forced_eos": None, "length_penalty": 1.0, "early_stopping": False,
}  # fmt: skip


def make_tokenizer(kind: str) -> Tokenizer:
    """Returns a tokenizer of one token for each word `w0`, `w1` and so on; sources end with the end token."""
    words = {f"w{token}": token for token in range(VOCABULARY) if token != END} | {STOP: END}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w3"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if kind != "gpt2":
        tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {STOP}", special_tokens=[(STOP, END)])
    tokenizer.add_special_tokens([STOP])
    return tokenizer


def write_text_bundle(
    directory: Path, kind: str, *, file: Path | None = None, model: PreTrainedModel | None = None,
    tokenizer: Tokenizer | None = None, decoding: dict[str, Any] | None = None, **settings: Any,
) -> None:  # fmt: skip
    """Writes the bundle of a model, with random weights if none is given.

    `file` is one of the same kind that was written before.
    """
    path = directory / "model.fp32.onnx"
    if file is None:
        export_generator(model or make_model(kind), path)
    else:
        for source, link in ((file, path), (encoder_file(file), encoder_file(path))):
            if source.is_file():
                link.symlink_to(source)
    (tokenizer or make_tokenizer(kind)).save(str(directory / "tokenizer.json"))
    names = ["input_ids", "attention_mask"]
    files = [one for one in (path, encoder_file(path), directory / "tokenizer.json") if one.is_file()]
    content = {
        "format": 1, "kind": "causal_lm" if kind == "gpt2" else "seq2seq", "decoder": KINDS[kind],
        "decoding": decoding or {},
        "labels": [], "pair": False, "max_length": 32, "truncation_side": "right", "doc_stride": None, "inputs": names,
        "padding": dict.fromkeys(names, 0), "padding_side": "right", "models": {"fp32": path.name},
        "recommended": "fp32", "metrics": {}, "gates": {}, "thresholds": {}, "targets": {}, "batch_sizes": {},
        "generation": SETTINGS | ({"positions": None} if kind == "t5" else {}) | settings,
        "files": {one.name: hash_file(one) for one in files},
    }  # fmt: skip
    write_json(directory / "bundle.json", content)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A function that returns the bundle of a kind of model, written once."""

    @functools.cache
    def write(kind: str) -> Path:
        directory = tmp_path_factory.mktemp(kind)
        write_text_bundle(directory, kind)
        return directory

    return write


@pytest.fixture
def causal(written: Any) -> Path:
    """The bundle of a GPT-2."""
    directory: Path = written("gpt2")
    return directory


def draw_prompts(count: int, *, most: int = 20) -> list[list[int]]:
    """Returns random tokens, other than those for the start and the end of a text."""
    random = np.random.default_rng(0)
    return [random.integers(4, VOCABULARY, random.integers(1, most)).tolist() for _ in range(count)]


def to_text(tokens: list[int]) -> str:
    return " ".join(f"w{token}" for token in tokens)


def generate(model: PreTrainedModel, prompt: list[int], **options: Any) -> tuple[list[int], float | None, list[float]]:
    """Returns the new tokens of `generate`, the score of a beam, and the gap of the two best logits of each step."""
    is_causal = not model.config.is_encoder_decoder
    tokens = torch.tensor([prompt if is_causal else [*prompt, END]])
    # The cache of transformers 5.23 has as many layers as the encoder of a T5, whose decoder may have more.
    extra = {} if is_causal else {"decoder_start_token_id": START, "use_cache": False}
    output = model.generate(
        tokens, attention_mask=torch.ones_like(tokens), do_sample=False, pad_token_id=0,
        output_scores=True, output_logits=True, return_dict_in_generate=True,
        **{"eos_token_id": END, "max_new_tokens": 20, "forced_eos_token_id": None, "bos_token_id": None}
        | extra | options,
    )  # fmt: skip
    best = [step[0].topk(2).values for step in output.logits]
    score = float(output.sequences_scores[0]) if options.get("num_beams", 1) > 1 else None
    return output.sequences[0, len(prompt) if is_causal else 1 :].tolist(), score, [float(a - b) for a, b in best]


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_tokens_are_those_of_transformers(kind: str, written: Any) -> None:
    prompts, bundle = draw_prompts(40), Bundle(written(kind), threads=1)
    texts = bundle.generate_all(map(to_text, prompts), max_new_tokens=10, batch_size=20)
    compared = 0
    for prompt, text in zip(prompts, texts, strict=True):
        expected, _, margins = generate(make_model(kind), prompt, max_new_tokens=10)
        clear = next((number for number, margin in enumerate(margins) if margin < 1e-4), len(expected))
        assert text["tokens"][:clear] == expected[:clear]
        compared += clear
    assert compared > 360
    assert len({tuple(text["tokens"]) for text in texts}) > 5


# Options, settings of the bundle, and the options of `generate` that have other names or are settings.
BEAMS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "four": ({"beams": 4}, {}, {}),
    "long": ({"beams": 3}, {"length_penalty": 2.0}, {"length_penalty": 2.0}),
    "early": (
        {"beams": 3}, {"early_stopping": True, "length_penalty": -1.0},
        {"early_stopping": True, "length_penalty": -1.0},
    ),
    "never": (
        {"beams": 2}, {"early_stopping": "never", "length_penalty": 0.5},
        {"early_stopping": "never", "length_penalty": 0.5},
    ),
    "forced": (
        {"beams": 4}, {"forced_bos": 9, "forced_eos": END}, {"forced_bos_token_id": 9, "forced_eos_token_id": END}
    ),
    "penalty": ({"beams": 3, "repetition_penalty": 1.4}, {}, {"repetition_penalty": 1.4}),
}  # fmt: skip


# Only the first token of a decoder is forced.
@pytest.mark.parametrize(
    ("kind", "case"), [(kind, case) for kind in KINDS for case in BEAMS if (kind, case) != ("gpt2", "forced")]
)
def test_beams_and_their_scores_are_those_of_transformers(kind: str, case: str, written: Any, tmp_path: Path) -> None:
    options, settings, theirs = BEAMS[case]
    write_text_bundle(tmp_path, kind, file=written(kind) / "model.fp32.onnx", **settings)
    prompts = draw_prompts(8)
    texts = Bundle(tmp_path, threads=1).generate_all(map(to_text, prompts), max_new_tokens=8, **options)
    for prompt, text in zip(prompts, texts, strict=True):
        expected, score, _ = generate(make_model(kind), prompt, max_new_tokens=8, num_beams=options["beams"], **theirs)
        assert text["tokens"] == expected
        assert text["score"] == pytest.approx(score, rel=1e-3, abs=1e-4)


def change_rules(tokens: list[int], *, start: int) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Returns settings and the options of `generate` that change a text of these tokens, which begins after `start`."""
    first, second, third, *_ = tokens
    ends, forced = [END, first, third], {"forced_bos": first, "begin_suppress_tokens": [second]}
    own = {
        "ends": {"eos": [END, second]},
        "ngram": {"no_repeat_ngram_size": 2},
        "words": {"bad_words_ids": [[first], [second, third], [END]]},
        "suppressed": {"suppress_tokens": [second, 10**6]},
        "begun": {"begin_suppress_tokens": [first]},
        "length": {"eos": ends, "min_length": start + 3},
        "new": {"eos": ends, "min_new_tokens": 2},
        "repetition": {"repetition_penalty": 1.7},
        "all": {"eos": ends, "min_length": start + 2, "no_repeat_ngram_size": 1, "suppress_tokens": [third],
                "repetition_penalty": 1.2, "renormalizes": True, "length_penalty": 2.0},
        **({"forced": forced, "last": {"forced_eos": [END, 5]}} if start == 1 else {}),
    }  # fmt: skip
    theirs = {
        "eos": "eos_token_id", "forced_bos": "forced_bos_token_id", "forced_eos": "forced_eos_token_id",
        "renormalizes": "renormalize_logits",
    }  # fmt: skip
    return {
        case: (settings, {theirs.get(name, name): value for name, value in settings.items()})
        for case, settings in own.items()
    }


@pytest.mark.parametrize("kind", KINDS)
def test_rules_of_a_bundle_are_those_of_transformers(kind: str, written: Any) -> None:
    model, bundle, changed = make_model(kind), Bundle(written(kind), threads=1), dict[str, int]()
    for prompt in draw_prompts(2, most=6):
        plain, _, _ = generate(model, prompt, max_new_tokens=7)
        for case, (settings, theirs) in change_rules(plain, start=len(prompt) if kind == "gpt2" else 1).items():
            generator = bundle.generator()
            generator.settings = GenerationSettings.read(bundle.manifest["generation"] | settings)
            for beams in (1, 3):
                expected, score, _ = generate(model, prompt, max_new_tokens=7, num_beams=beams, **theirs)
                [text] = generator.start([to_text(prompt)], GenerationOptions(max_new_tokens=7, beams=beams))
                while generator.running:
                    generator.step()
                assert text.tokens == expected, (case, beams, prompt)
                assert text.score == pytest.approx(score, rel=1e-3, abs=1e-4)
                changed[case] = changed.get(case, 0) + (beams == 1 and expected != plain)
    assert all(changed.values()), changed


def test_a_call_without_beams_has_those_of_the_bundle(written: Any, tmp_path: Path) -> None:
    file, [prompt] = written("gpt2") / "model.fp32.onnx", draw_prompts(1)
    write_text_bundle(tmp_path, "gpt2", file=file, beams=3, repetition_penalty=1.5)
    bundle = Bundle(tmp_path, threads=1)
    expected, score, _ = generate(make_model("gpt2"), prompt, num_beams=3, repetition_penalty=1.5)
    [text] = bundle.generate_all([to_text(prompt)])
    assert (text["tokens"], text["score"]) == (expected, pytest.approx(score, rel=1e-3))
    [greedy] = bundle.generate_all([to_text(prompt)], beams=1, repetition_penalty=1)
    assert greedy["tokens"] == generate(make_model("gpt2"), prompt)[0] != expected
    assert "score" not in bundle.generate_all([to_text(prompt)], temperature=1.0, seed=3)[0]


def test_a_prefix_is_put_before_a_source_and_into_no_empty_one(written: Any, tmp_path: Path) -> None:
    file = written("t5") / "model.fp32.onnx"
    write_text_bundle(tmp_path, "t5", file=file, decoding={"prefix": "w7 w8 "})
    whole, own = Bundle(written("t5"), threads=1), Bundle(tmp_path, threads=1)
    sources = list(map(to_text, draw_prompts(3)))
    expected = whole.generate_all([f"w7 w8 {source}" for source in sources])
    assert own.generate_all(sources) == own.predict(sources) == expected != whole.generate_all(sources)
    with pytest.raises(UserError, match="got ' ', expected a source with text"):
        own.generate(" ")


def test_a_seed_repeats_the_texts_in_any_batch(causal: Path) -> None:
    bundle, prompts = Bundle(causal, threads=1), list(map(to_text, draw_prompts(6)))
    options: dict[str, Any] = {"temperature": 2.0, "top_k": 20, "top_p": 0.95, "seed": 4, "max_new_tokens": 5}
    texts = bundle.generate_all(prompts, **options)
    assert bundle.generate_all(prompts, batch_size=1, **options) == texts
    assert "".join(bundle.generate(prompts[0], **options)) == texts[0]["text"]
    assert bundle.generate_all(prompts, **options | {"seed": 5}) != texts


def test_another_bundle_and_a_damaged_one_write_no_text(
    written: Any, write: Write, tmp_path: Path, capsys: Output
) -> None:
    encoder, message = write(), "is of a classification and writes no text: call predict instead"
    with pytest.raises(UserError, match=message):
        Bundle(encoder).generate("a film")
    assert main([str(encoder), "generate", "a film"]) == 2
    assert message in capsys.readouterr().err
    for settings, message in (
        ({"start": None}, "is damaged: generation has start null, expected the token that the decoder begins with"),
        ({"eos": None}, "is damaged: generation has eos None, expected a list of tokens"),
        ({}, "is incomplete: model.fp32.encoder.onnx is missing"),
    ):
        directory = tmp_path / "-".join(["damaged", *settings])
        directory.mkdir()
        write_text_bundle(directory, "t5", file=written("t5") / "model.fp32.onnx", **settings)
        if not settings:
            (directory / "model.fp32.encoder.onnx").unlink()
        with pytest.raises(UserError, match=message):
            Bundle(directory)


def test_prompts_beyond_the_positions_are_refused_or_cut(causal: Path, written: Any) -> None:
    long = to_text(draw_prompts(1, most=2)[0] * 60)
    for kind in ("gpt2", "bart"):
        bundle = Bundle(written(kind), threads=1)
        tokens = 60 if kind == "gpt2" else 61
        with pytest.raises(UserError, match=f"of {tokens} tokens, and the model has 48 positions: shorten it, or give"):
            bundle.generate_all(["w5", long])
        [cut] = bundle.generate_all([long], truncate="left", max_new_tokens=4)
        assert cut["truncated"]
        assert len(cut["tokens"]) <= 4
    assert "truncated" not in Bundle(written("t5"), threads=1).generate_all([long], max_new_tokens=2)[0]


def test_the_command_writes_a_line_for_each_prompt(causal: Path, capsys: Output, monkeypatch: Patch) -> None:
    prompts, most = list(map(to_text, draw_prompts(3))), ("--max-new-tokens", "5")
    expected = Bundle(causal).generate_all(prompts, max_new_tokens=5)
    lines = [f"{text['text']}\t{prompt}" for text, prompt in zip(expected, prompts, strict=True)]
    assert main([str(causal), "generate", *prompts, *most]) == 0
    assert capsys.readouterr().out.splitlines() == lines
    assert main([str(causal), "generate", "--json", *most, *prompts]) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert records == [{"prompt": prompt, **text} for text, prompt in zip(expected, prompts, strict=True)]
    assert main([str(causal), "generate", prompts[0], "--stream", *most]) == 0
    assert capsys.readouterr().out == f"{expected[0]['text']}\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(f"{prompts[0]}\n\n{prompts[1]}\n".encode())))
    assert main([str(causal), "generate", *most]) == 0
    assert capsys.readouterr().out == f"{lines[0]}\n\n{lines[1]}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["generate", "w5", "--beams", "0"], "got beams=0, expected a whole number from 1 to 64"),
        (["generate", "w5", "--temperature", "1", "--top-p", "2"], "got top_p=2.0, expected a number above 0"),
        (["w5", "--temperature", "1"], "got --temperature, which is for texts that a bundle writes: BUNDLE generate"),
    ],
)
def test_options_of_the_command_that_cannot_be_are_refused(
    causal: Path, capsys: Output, arguments: list[str], message: str
) -> None:
    assert main([str(causal), *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_texts_of_an_encoder_decoder_join_between_steps_and_leave_no_source_behind(kind: str, written: Any) -> None:
    bundle, options = Bundle(written(kind), threads=1), GenerationOptions(max_new_tokens=12)
    sources = ["w9 w8", "w5 w6 w7 w11 w12 w13", "w20", "w4 w4 w30 w31"]
    generator = bundle.generator()
    generator.settings = replace(generator.settings, eos=())  # Every text has all of its tokens.
    expected = []
    for source in sources:
        [alone] = generator.start([source], options)
        while generator.running:
            generator.step()
        expected.append(alone.tokens)
    [first] = generator.start(sources[:1], options)
    for _ in range(3):
        generator.step()
    [second, third] = generator.start(sources[1:3], options)
    for _ in range(2):
        generator.step()
    [last] = generator.start(sources[3:], options)
    [batch] = generator._batches  # One pass reads all of them.
    assert (len(batch.rows), batch.rows.states.shape[1]) == (4, 7)
    generator.step()
    generator.drop(second)
    assert (len(batch.rows), batch.rows.states.shape[1], batch.rows.source_mask.shape) == (3, 5, (3, 5))
    while generator.running:
        generator.step()
    assert [text.tokens for text in (first, third, last)] == [expected[0], *expected[2:]]
    assert second.tokens == expected[1][: len(second.tokens)]


def test_a_beam_search_joins_texts_that_are_sampled(written: Any) -> None:
    bundle = Bundle(written("bart"), threads=1)
    beams, sampled = GenerationOptions(beams=3), GenerationOptions(temperature=0.7, seed=3)
    generator = bundle.generator()
    [first] = generator.start(["w9 w8 w7"], sampled)
    generator.step()
    [second] = generator.start(["w5"], beams)
    while generator.running:
        generator.step()
    [alone] = bundle.generate_all(["w5"], beams=3)
    assert (second.text, second.tokens) == (alone["text"], alone["tokens"])
    [alone] = bundle.generate_all(["w9 w8 w7"], temperature=0.7, seed=3)
    assert first.tokens == alone["tokens"]
