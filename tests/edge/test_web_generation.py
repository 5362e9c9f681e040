"""Tests of texts that a page writes, in headless Chromium, and of transformers.js in Node with the exported files."""

import functools
import itertools
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from transformers import PreTrainedModel

from distill.edge import Bundle, web
from tests.edge.conftest import NODE_MODULES, needs_browser, needs_libraries, open_page
from tests.edge.test_text_bundles import END, START, write_text_bundle
from tests.edge.test_web import WORDS, byte_level, run_node
from tests.export.test_generator import draw_model

SIZES = {
    "gpt2": {"n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": 48, "bos_token_id": START},
    "t5": {"num_layers": 2, "num_decoder_layers": 3, "num_heads": 2, "d_model": 32, "d_kv": 8, "d_ff": 40},
    "bart": {
        "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
        "d_model": 32, "encoder_ffn_dim": 40, "decoder_ffn_dim": 40, "max_position_embeddings": 48,
    },
}  # fmt: skip
PROMPTS = [
    "a lovely film",
    "caf\u00e9 \u4f60\u597d, \U0001f600!",
    "it's",
    "a dull  mess\nand more",
    "x y z",
    "wonderful acting , ",
]


def make_tokenizer(kind: str) -> Tokenizer:
    """Returns a vocabulary of bytes, whose tokens are often parts of a character; sources have special tokens."""
    tokenizer: Tokenizer = byte_level([*WORDS, *PROMPTS]).backend_tokenizer
    if kind == "gpt2":
        content = json.loads(tokenizer.to_str())
        content["post_processor"] = {
            "type": "ByteLevel",
            "add_prefix_space": True,
            "trim_offsets": False,
            "use_regex": True,
        }
        tokenizer = Tokenizer.from_str(json.dumps(content))
    return tokenizer


def make_model(kind: str, classes: int) -> PreTrainedModel:
    return draw_model(
        kind, vocab_size=classes, eos_token_id=END, pad_token_id=1, decoder_start_token_id=START,
        forced_eos_token_id=None, **SIZES[kind],
    )  # fmt: skip


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A function that returns the bundle of a kind of model with more classes than tokens, written once."""

    @functools.cache
    def write(kind: str, spare: int = 7) -> Bundle:
        directory = tmp_path_factory.mktemp(kind)
        tokenizer = make_tokenizer(kind)
        model = make_model(kind, tokenizer.get_vocab_size() + spare)
        write_text_bundle(directory, kind, model=model, tokenizer=tokenizer)
        model.config.save_pretrained(directory)
        return Bundle(directory)

    return write


WRITE = """async ([prompt, options]) => {
  const pieces = [], texts = window.bundle.write(prompt, options);
  for (;;) {
    const { done, value } = await texts.next();
    if (done) return { ...value, pieces };
    pieces.push(value);
  }
}"""


@pytest.mark.slow
@needs_libraries
@needs_browser
@pytest.mark.xdist_group("browser")
@pytest.mark.parametrize("kind", SIZES)
def test_a_page_writes_the_greedy_tokens_of_python_in_whole_characters(
    kind: str, browser: Any, serve: Any, tmp_path: Path, written: Any
) -> None:
    bundle = written(kind)
    is_single = kind == "bart"
    page_file = web.write_page(
        bundle, tmp_path / ("page.html" if is_single else "page"), libraries=NODE_MODULES, single_file=is_single
    )
    page = open_page(browser, page_file.as_uri() if is_single else serve(tmp_path / "page"))
    [first] = bundle.generate_all(PROMPTS[:1])
    for prompt, stop in [*itertools.product(PROMPTS, [[]]), (PROMPTS[0], [first["text"][5:8], "never"])]:
        result = page.evaluate(WRITE, [prompt, {"stop": stop}])
        [expected] = bundle.generate_all([prompt], stop=stop)
        assert {key: result[key] for key in ("text", "tokens", "finish")} == expected, prompt
        assert result["pieces"] == list(bundle.generate(prompt, stop=stop))
    page.close()


@needs_libraries
@needs_browser
@pytest.mark.xdist_group("browser")
@pytest.mark.parametrize("kind", ["gpt2", "t5"])
def test_a_page_searches_by_beams_and_penalizes_repeated_tokens_as_python_does(
    kind: str, browser: Any, serve: Any, tmp_path: Path, written: Any
) -> None:
    bundle = written(kind)
    web.write_page(bundle, tmp_path / "page", libraries=NODE_MODULES)
    page = open_page(browser, serve(tmp_path / "page"))
    [greedy] = bundle.generate_all(PROMPTS[:1])
    for prompt, options in itertools.product(
        PROMPTS[:2], [{"beams": 3}, {"repetition_penalty": 2.5}, {"beams": 2, "repetition_penalty": 1.5}]
    ):
        [expected] = bundle.generate_all([prompt], **options)
        names = {"beams": "beams", "repetition_penalty": "repetitionPenalty"}
        result = page.evaluate(WRITE, [prompt, {names[name]: value for name, value in options.items()}])
        assert {key: result[key] for key in ("text", "tokens", "finish")} == {
            key: expected[key] for key in ("text", "tokens", "finish")
        }, (prompt, options)
        assert result.get("score") == pytest.approx(expected.get("score"), rel=1e-4)
        assert "beams" not in options or len(result["pieces"]) == 1
    page.fill("#texts", PROMPTS[0])
    page.click("summary")
    page.fill("#beams", "3")
    page.fill("#repetitionPenalty", "1.5")
    page.click("#button")
    page.wait_for_selector(".result .note:not(:empty)")
    [expected] = bundle.generate_all(PROMPTS[:1], beams=3, repetition_penalty=1.5)
    assert page.text_content(".result .written:not(.text)") == expected["text"] != greedy["text"]
    page.close()


@needs_libraries
@needs_browser
@pytest.mark.xdist_group("browser")
def test_a_page_samples_stops_and_refuses_options(browser: Any, serve: Any, tmp_path: Path, written: Any) -> None:
    bundle = written("gpt2")
    web.write_page(bundle, tmp_path / "page", libraries=NODE_MODULES)
    page = open_page(browser, serve(tmp_path / "page"))
    [greedy] = bundle.generate_all(["a film"])

    def write(**options: Any) -> Any:
        return page.evaluate(WRITE, ["a film", options])

    for only_best in ({"topK": 1}, {"topP": 1e-9}, {"temperature": 1e-9}):
        assert write(**{"temperature": 5, **only_best})["tokens"] == greedy["tokens"]
    sampled = [write(temperature=5, seed=seed)["tokens"] for seed in (7, 7, 8, 7 + 2**32)]
    assert sampled[0] == sampled[1]
    assert len({tuple(tokens) for tokens in sampled}) == 3
    for options, message in (
        ({"temperature": 0}, "temperature is 0, expected a number above 0"),
        ({"temperature": 1, "topP": 1.5}, "topP is 1.5, expected a number above 0 and at most 1"),
        ({"maxNewTokens": 0}, "maxNewTokens is 0, expected a whole number of at least 1"),
        ({"seed": 3}, "seed needs a temperature, by which tokens are sampled"),
        ({"beams": 0}, "beams is 0, expected a whole number from 1 to 64"),
        ({"beams": 65}, "beams is 65, expected a whole number from 1 to 64"),
        ({"beams": 1.5}, "beams is 1.5, expected a whole number from 1 to 64"),
        ({"beams": 2, "temperature": 1}, "beams is 2 and temperature is 1, expected one of the two"),
        ({"repetitionPenalty": 0}, "repetitionPenalty is 0, expected a number above 0"),
    ):
        with pytest.raises(Exception, match=message):
            write(**options)
    with pytest.raises(Exception, match="The text has 5[0-9]+ tokens, and the model reads 48"):
        page.evaluate(WRITE, ["film " * 500, {}])
    for side in ("left", "right"):
        cut = page.evaluate(WRITE, ["a film and more " * 50, {"truncate": side}])
        [expected] = bundle.generate_all(["a film and more " * 50], truncate=side)
        assert (cut["tokens"], cut["isCut"]) == (expected["tokens"], expected["truncated"])
    page.close()


@needs_libraries
@needs_browser
@pytest.mark.xdist_group("browser")
@pytest.mark.parametrize(
    "kind",
    [
        "gpt2",
    ],
)
def test_the_form_of_a_page_streams_and_its_button_stops(
    kind: str, browser: Any, serve: Any, tmp_path: Path, written: Any
) -> None:
    bundle = written(kind)
    web.write_page(bundle, tmp_path / "page", libraries=NODE_MODULES)
    page = open_page(browser, serve(tmp_path / "page"))
    page.fill("#texts", "a lovely film")
    page.click("summary")
    page.fill("#maxNewTokens", "3")
    page.click("#button")
    page.wait_for_selector(".result .note:not(:empty)")
    [expected] = bundle.generate_all(["a lovely film"], max_new_tokens=3)
    assert page.text_content(".result .written:not(.text)") == expected["text"]
    assert page.inner_text(".result .note") in ("The most tokens were reached.", "The model ended the text.")
    page.fill("#temperature", "none")
    page.click("#button")
    page.wait_for_selector(".error")
    assert page.inner_text("#status").startswith("temperature is NaN, expected a number above 0")
    # A text without an end, which only the button ends.
    page.fill("#temperature", "")
    page.evaluate(
        "() => { Object.assign(window.bundle.description.generation, { eos: [], positions: null });"
        "const run = window.bundle.session.run.bind(window.bundle.session); let last;"
        "window.bundle.session.run = async (feed, names) => (last = feed.input_ids.dims[1] > 1 || !last"
        " ? await run(feed, names) : last); }"
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
@pytest.mark.parametrize("kind", SIZES)
def test_transformers_js_writes_the_greedy_tokens_of_python_with_the_files(
    kind: str, tmp_path: Path, written: Any
) -> None:
    bundle = written(kind, spare=0)  # transformers.js writes tokens without text, too.
    directory = tmp_path / "model"
    (directory / "onnx").mkdir(parents=True)
    decoder = bundle.directory / "model.fp32.onnx"
    shutil.copyfile(decoder, directory / "onnx" / ("model.onnx" if kind == "gpt2" else "decoder_model_merged.onnx"))
    if kind != "gpt2":
        shutil.copyfile(decoder.with_name("model.fp32.encoder.onnx"), directory / "onnx" / "encoder_model.onnx")
    for name in ("config.json", "tokenizer.json"):
        shutil.copyfile(bundle.directory / name, directory / name)
    (directory / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizer"}))
    script = NODE_MODULES.parent / f"{tmp_path.name}-{os.getpid()}.mjs"
    script.write_text(TRANSFORMERS_JS)
    try:
        lines, error = run_node(script, f"{tmp_path}/", kind, *PROMPTS)
    finally:
        script.unlink()
    expected = [text["tokens"] for text in bundle.generate_all(PROMPTS)]
    assert [json.loads(line) for line in lines] == expected, error
