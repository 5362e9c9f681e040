"""Tests of texts that a page writes, in Node and in Chromium, and of transformers.js with the exported files."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoConfig

from distill.edge import Bundle, web
from tests.edge.conftest import NODE_MODULES, needs_browser, needs_libraries, open_page
from tests.edge.test_text_bundles import END, START, write_text_bundle
from tests.edge.test_web import call_pages, run_node
from tests.export.test_generator import VOCABULARY, make_model

PROMPTS = [
    "a lovely film",
    "caf\u00e9 \u4f60\u597d, \U0001f600!",
    "it's",
    "a dull  mess\nand more",
    "x y z",
    "acting , ",
]
SPARE = 7  # Classes of a model beyond its tokenizer.


def make_tokenizer(kind: str, tokens: int) -> Tokenizer:
    """Returns a vocabulary of bytes, which are often parts of a character; sources end with the end token."""
    letters = [letter for text in PROMPTS for letter in pre_tokenizers.ByteLevel().pre_tokenize_str(text)]
    alphabet = dict.fromkeys([*"".join(word for word, _ in letters), *sorted(pre_tokenizers.ByteLevel.alphabet())])
    names = ["<pad>", "<s>", "</s>", *alphabet][:tokens]
    tokenizer = Tokenizer(models.BPE({name: number for number, name in enumerate(names)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if kind != "gpt2":
        tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", END)])
    tokenizer.add_special_tokens(names[:3])
    return tokenizer


def write_bundle(directory: Path, kind: str, tokens: int = VOCABULARY - SPARE) -> Bundle:
    write_text_bundle(directory, kind, tokenizer=make_tokenizer(kind, tokens))
    return Bundle(directory)


# Options of a text in a page, and in Python.
OPTIONS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"beams": 3}, {"beams": 3}),
    ({"repetitionPenalty": 2.5}, {"repetition_penalty": 2.5}),
    ({"beams": 2, "repetitionPenalty": 1.5, "maxNewTokens": 9},
     {"beams": 2, "repetition_penalty": 1.5, "max_new_tokens": 9}),
]  # fmt: skip
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"temperature": 0}, "temperature is 0, expected a number above 0"),
    ({"temperature": 1, "topP": 1.5}, "topP is 1.5, expected a number above 0 and at most 1"),
    ({"maxNewTokens": 0}, "maxNewTokens is 0, expected a whole number of at least 1"),
    ({"seed": 3}, "seed needs a temperature, by which tokens are sampled"),
    ({"beams": 65}, "beams is 65, expected a whole number from 1 to 64"),
    ({"beams": 2, "temperature": 1}, "beams is 2 and temperature is 1, expected one of the two"),
    ({"repetitionPenalty": 0}, "repetitionPenalty is 0, expected a number above 0"),
]


@needs_libraries
@pytest.mark.parametrize("kind", ["gpt2", "t5"])
def test_the_code_of_a_page_writes_the_texts_of_python(kind: str, tmp_path: Path) -> None:
    (tmp_path / "bundle").mkdir()
    bundle, prompt, long = write_bundle(tmp_path / "bundle", kind), PROMPTS[0], "a film and more " * 50
    web.write_page(bundle, tmp_path / "page", libraries=NODE_MODULES)
    greedy = bundle.generate_all(PROMPTS)
    stop = [greedy[0]["text"][5:8], "never"]
    only_best = [{"temperature": 5, **one} for one in ({"topK": 1}, {"topP": 1e-9}, {"temperature": 1e-9})]
    seeds = [{"temperature": 5, "seed": seed} for seed in (7, 7, 8, 7 + 2**32)]
    given = [{"stop": stop}, *(own for own, _ in OPTIONS), *only_best, *seeds, *(own for own, _ in REFUSED)]
    calls = [["writeAll", text, {}] for text in PROMPTS] + [["pieces", text, {}] for text in PROMPTS]
    calls += [["writeAll", prompt, own] for own in given]
    sides = ["left", "right"] if kind == "gpt2" else []  # Only a GPT-2 has positions.
    calls += [["writeAll", long, {"truncate": side}] for side in sides]
    calls += [["writeAll", long, {}]] * len(sides)
    found = call_pages([(tmp_path / "page", calls)])

    def check(expected: dict[str, Any]) -> None:
        text = next(found)
        assert {name: text.get(name) for name in ("text", "tokens", "finish")} == {
            name: expected[name] for name in ("text", "tokens", "finish")
        }  # fmt: skip
        assert text.get("score") == pytest.approx(expected.get("score"), rel=1e-4)
        assert text["isCut"] == expected.get("truncated", False)

    for expected in greedy:
        check(expected)
    for text in PROMPTS:
        assert next(found) == list(bundle.generate(text))
    check(*bundle.generate_all([prompt], stop=stop))
    for _, own in OPTIONS:
        check(*bundle.generate_all([prompt], **own))
    for _ in only_best:
        check(greedy[0])
    sampled = [tuple(next(found)["tokens"]) for _ in seeds]
    assert sampled[0] == sampled[1]
    assert len(set(sampled)) == 3
    for _, message in REFUSED:
        assert next(found)["error"].startswith(message)
    for side in sides:
        check(*bundle.generate_all([long], truncate=side))
    assert all(of["error"].endswith("and the model reads 48.") for of in found)


@needs_libraries
@needs_browser
@pytest.mark.xdist_group("browser")
def test_the_form_of_a_page_streams_and_its_button_stops(browser: Any, serve: Any, tmp_path: Path) -> None:
    (tmp_path / "bundle").mkdir()
    bundle, prompt = write_bundle(tmp_path / "bundle", "gpt2"), "a lovely film"
    web.write_page(bundle, tmp_path / "page", libraries=NODE_MODULES)
    page = open_page(browser, serve(tmp_path / "page"))
    page.fill("#texts", prompt)
    page.click("summary")
    for name, value in (("maxNewTokens", "3"), ("beams", "3"), ("repetitionPenalty", "1.5")):
        page.fill(f"#{name}", value)
    page.click("#button")
    page.wait_for_selector(".result .note:not(:empty)")
    [expected] = bundle.generate_all([prompt], max_new_tokens=3, beams=3, repetition_penalty=1.5)
    assert page.text_content(".result .written:not(.text)") == expected["text"]
    assert page.inner_text(".result .note") in ("The most tokens were reached.", "The model ended the text.")
    page.fill("#beams", "")
    page.fill("#repetitionPenalty", "")
    page.fill("#temperature", "none")
    page.click("#button")
    page.wait_for_selector(".error")
    assert page.inner_text("#status").startswith("temperature is NaN, expected a number above 0")
    # A text without an end, which only the button ends.
    page.fill("#temperature", "")
    page.evaluate(
        "(letter) => { Object.assign(window.bundle.description.generation, { eos: [], positions: null });"
        "const run = window.bundle.session.run.bind(window.bundle.session); let last;"
        "window.bundle.session.run = async (feed, names) => {"
        " last ??= await run(feed, names); last.logits.data.fill(0).fill(1, letter, letter + 1); return last; } }",
        bundle.tokenizer.token_to_id("a"),
    )
    page.fill("#maxNewTokens", "1000000000")
    page.click("#button")
    page.wait_for_function("document.querySelector('.result .written:not(.text)').textContent.length > 50")
    page.click("#stopping")
    page.wait_for_selector("#button:enabled")
    assert page.inner_text(".result .note") == "Stopped."
    assert page.is_disabled("#stopping")
    page.close()


TRANSFORMERS_JS = """
import { env, AutoTokenizer, AutoModelForCausalLM, AutoModelForSeq2SeqLM } from "@huggingface/transformers";
const [root, kind, ...prompts] = process.argv.slice(2);
Object.assign(env, { localModelPath: root, allowRemoteModels: false, useFSCache: false });
const tokenizer = await AutoTokenizer.from_pretrained("model");
const Model = kind === "gpt2" ? AutoModelForCausalLM : AutoModelForSeq2SeqLM;
const model = await Model.from_pretrained("model", { dtype: "fp32" });
for (const prompt of prompts) {
  const inputs = tokenizer(prompt);
  const tokens = await model.generate({ ...inputs, max_new_tokens: 20, do_sample: false });
  console.log(JSON.stringify(tokens.tolist()[0].map(Number).slice(kind === "gpt2" ? inputs.input_ids.dims[1] : 1)));
}
"""


@pytest.mark.slow
@pytest.mark.skipif(
    not (NODE_MODULES / "@huggingface" / "transformers").is_dir(),
    reason="needs transformers.js, which .ci/run installs",
)
@pytest.mark.parametrize("kind", ["gpt2", "t5"])
def test_transformers_js_writes_the_greedy_tokens_of_python_with_the_files(kind: str, tmp_path: Path) -> None:
    directory = tmp_path / "model"
    (directory / "onnx").mkdir(parents=True)
    bundle = write_bundle(directory, kind, VOCABULARY)  # transformers.js writes tokens without text, too.
    decoder = directory / "model.fp32.onnx"
    shutil.copyfile(decoder, directory / "onnx" / ("model.onnx" if kind == "gpt2" else "decoder_model_merged.onnx"))
    if kind != "gpt2":
        shutil.copyfile(decoder.with_name("model.fp32.encoder.onnx"), directory / "onnx" / "encoder_model.onnx")
    tokens = {"bos_token_id": START, "eos_token_id": END, "pad_token_id": 0, "decoder_start_token_id": START}
    AutoConfig.for_model(**make_model(kind).config.to_dict() | tokens).save_pretrained(directory)
    (directory / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizer"}))
    script = NODE_MODULES.parent / f"{tmp_path.name}-{os.getpid()}.mjs"
    script.write_text(TRANSFORMERS_JS)
    try:
        lines, error = run_node(script, f"{tmp_path}/", kind, *PROMPTS)
    finally:
        script.unlink()
    expected = [text["tokens"] for text in bundle.generate_all(PROMPTS)]
    assert [json.loads(line) for line in lines] == expected, error
