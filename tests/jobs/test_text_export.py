"""Students that write text, exported by whole jobs at toy size."""

import json
import random
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from distill.edge import Bundle
from tests.conftest import write_corpus
from tests.jobs.runs import Run, capture_runs, run_command

COMMON = (
    "trainer.batch_size=16", "trainer.max_epochs=1", "trainer.learning_rate=3e-3", "trainer.precision=32-true",
    "trainer.accelerator=cpu",
)  # fmt: skip
EXPORT = ("benchmark.enabled=false", "export.max_drop=0.05")
pytestmark = pytest.mark.xdist_group("test_text_export.causal")


def write_tokenizer(directory: Path, texts: list[str], *, start: bool) -> None:
    """Writes a tokenizer of bytes that ends each text, and begins it too if `start`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<pad>", "<s>", "</s>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )  # fmt: skip
    tokenizer.train_from_iterator(texts, trainer)
    single = "<s> $A </s>" if start else "$A </s>"
    tokenizer.post_processor = processors.TemplateProcessing(
        single=single, pair=f"{single} $B:1 </s>:1", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    ).save_pretrained(directory)


def write_pairs(directory: Path) -> list[str]:
    """Writes digits with the same digits in order; returns all texts."""
    directory.mkdir()
    drawn, texts = random.Random(0), []
    for name, number in {"train": 96, "dev": 48}.items():
        rows = []
        for _ in range(number):
            digits = [str(drawn.randrange(10)) for _ in range(drawn.randrange(3, 7))]
            rows.append({"source": " ".join(digits), "target": " ".join(sorted(digits))})
        (directory / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        texts += [text for row in rows for text in row.values()]
    return texts


def make_teacher(directory: Path, kind: str, texts: list[str]) -> None:
    """Writes an encoder-decoder with random weights and its tokenizer."""
    common = {"vocab_size": 512, "pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 0}
    settings: dict[str, Any] = {
        "t5": {"num_layers": 4, "num_heads": 2, "d_model": 128, "d_kv": 32, "d_ff": 64, "num_decoder_layers": 4},
        "bart": {
            "encoder_layers": 4, "decoder_layers": 4, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
            "d_model": 128, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": 64,
            "bos_token_id": 1, "forced_eos_token_id": 2,
        },
    }[kind]  # fmt: skip
    config = transformers.AutoConfig.for_model(kind, **common, **settings)
    torch.manual_seed(0)
    transformers.AutoModelForSeq2SeqLM.from_config(config).save_pretrained(directory)
    write_tokenizer(directory, texts, start=kind == "bart")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A folder with a cache and pairs of texts, and the texts."""
    root = tmp_path_factory.mktemp("pairs")
    return root, write_pairs(root / "data")


def run_in(root: Path, output: Path, *options: str) -> int:
    """Runs the command in this process."""
    return run_command(*options, f"cache_dir={root / 'cache'}", f"output_dir={output}")


@pytest.fixture(scope="module")
def causal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle of a causal student, whose table of embeddings is large enough to be quantized."""
    root = tmp_path_factory.mktemp("causal")
    (root / "corpus").mkdir()
    write_corpus(root / "corpus")
    options = (
        *COMMON, "task=clm", f"task.data_dir={root / 'corpus'}", "task.max_length=16", "task.dev_fraction=0.4",
    )  # fmt: skip
    made = ("+teacher=gpt2_tiny", "teacher.vocabulary=400", "teacher.hidden_size=192")
    assert run_in(root, root / "teachers", *options, "job=pretrain", *made) == 0
    [teacher] = (root / "teachers").rglob("teacher/model")
    student = (
        "+teacher=pretrained",
        f"teacher.path={teacher}",
        "+student=layers",
        "objective=causal_language_model",
        *EXPORT,
    )
    assert run_in(root, root / "students", *options, *student) == 0
    [path] = (root / "students").rglob("run.json")
    return path.parent


def test_int8_file_has_the_table_of_embeddings_once(causal: Path) -> None:
    model = onnx.load(str(causal / "bundle" / "model.int8.onnx"))
    vocabulary = len(transformers.AutoTokenizer.from_pretrained(causal / "student"))
    tables = [tensor for tensor in model.graph.initializer if vocabulary in tensor.dims and len(tensor.dims) == 2]
    assert [(list(tensor.dims), tensor.data_type) for tensor in tables] == [([192, vocabulary], onnx.TensorProto.INT8)]
    [prediction] = Bundle(causal / "bundle", model="int8").generate_all(["Good"], max_new_tokens=2)
    assert len(prediction["tokens"]) == 2


def test_logits_are_computed_for_as_many_texts_as_fit_into_memory(
    causal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = Bundle(causal / "bundle", model="fp32")
    texts, batches = ["Good morning, all of you.", "It is late.", "A film."], []
    expected, run = bundle.item_logits(texts), bundle.session.run

    def count(names: Any, inputs: Any) -> Any:
        batches.append(len(inputs["input_ids"]))
        return run(names, inputs)

    monkeypatch.setattr(bundle.session, "run", count)
    monkeypatch.setattr("distill.edge.bundle.MOST_LOGITS", 1)
    for found, logits in zip(bundle.item_logits(texts), expected, strict=True):
        np.testing.assert_allclose(found, logits, atol=1e-4)
    assert batches == [1, 1, 1]


def test_openvino_is_refused_for_a_model_that_writes_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run: Run = capture_runs(partial(run_in, tmp_path), tmp_path, capsys)
    code, text, _ = run("task=clm", "+teacher=gpt2_tiny", "+student=layers", "export.formats=[fp32,openvino]")
    assert code == 2
    assert "export.formats=[fp32, openvino], expected none of openvino, because OpenVINO does not run the caches" in (
        " ".join(text.split())
    )
