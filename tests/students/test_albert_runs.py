"""Slow tests of the ALBERT student: exported files, in which shared weights stand once, and whole runs."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import transformers
from distill.builtin.students import albert
from onnx import numpy_helper
from transformers import PreTrainedTokenizerBase

import distill as d
from distill.edge.bundle_files import session
from distill.export.onnx import export_onnx
from distill.export.quantization import RecipeInput, write_dynamic
from distill.models.compatibility import count_parameters
from tests.conftest import LOOSE, toy_bert

CITIES = ("boston", "denver", "dallas")


def count_weights(file: Path) -> int:
    """Returns the bytes of the constants of a graph."""
    return sum(numpy_helper.to_array(tensor).nbytes for tensor in onnx.load(str(file)).graph.initializer)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"share": "attention"}], ids=str)
def test_shared_weights_stand_once_in_exported_files_which_equal_torch(options: Any, tmp_path: Path) -> None:
    teacher = toy_bert(1000, layers=3, width=128, initializer_range=0.1)
    student = albert.from_teacher(teacher, embedding_dim=64, depth=3, **options).eval()
    with torch.no_grad():
        for parameter in student.parameters():
            parameter += 0.01 * torch.randn_like(parameter)  # Equal tensors, such as norms, would be stored once.
    files = {name: tmp_path / f"{name}.onnx" for name in ("fp32", "int8")}
    export_onnx(student, files["fp32"])
    write_dynamic(RecipeInput(files["fp32"], 7), files["int8"])
    parameters = count_parameters(student)
    assert 4 * parameters <= count_weights(files["fp32"]) < 4 * parameters + 4000  # Positions and shapes.
    assert parameters < count_weights(files["int8"]) < 1.25 * parameters  # Small tables and biases stay in float.
    fp32 = session(files["fp32"], 1)
    for rows, length in ((1, 1), (3, 7), (2, 64), (1, 80)):
        random = np.random.default_rng(length)
        mask = np.ones((rows, length), dtype=np.int64)
        mask[-1, max(1, length // 2) :] = 0
        inputs = {
            "input_ids": random.integers(5, 1000, (rows, length)), "attention_mask": mask,
            "token_type_ids": random.integers(0, 2, (rows, length)),
        }  # fmt: skip
        with torch.no_grad():
            expected = student(**{name: torch.from_numpy(values) for name, values in inputs.items()}).logits.numpy()
        np.testing.assert_allclose(fp32.run(None, inputs)[0], expected, atol=1e-5)


def tagging() -> Any:
    texts = [["fly", *["we"] * (number % 5), "to", CITIES[number % 3]] for number in range(48)]
    rows = [{"tokens": words, "tags": ["O"] * (len(words) - 1) + ["B-city"]} for words in texts]
    return d.tasks.TokenClassification(train=rows, dev=rows[:12], max_length=24)


@pytest.mark.slow
@pytest.mark.parametrize("share", ["all", "attention"])
def test_a_whole_run_of_a_roberta_whose_tokenizer_pads_on_the_left(
    share: str, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    """Its positions go with the tokens, and those of an ALBERT do not."""
    side = tokenizer.padding_side
    tokenizer.padding_side = tokenizer.init_kwargs["padding_side"] = "left"
    try:
        tokenizer.save_pretrained(tmp_path / "tokenizer")
    finally:
        tokenizer.padding_side = tokenizer.init_kwargs["padding_side"] = side
    left = transformers.AutoTokenizer.from_pretrained(tmp_path / "tokenizer")
    assert left.padding_side == "left"
    torch.manual_seed(0)
    config = transformers.RobertaConfig(
        vocab_size=len(left), hidden_size=32, num_hidden_layers=4, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=42, type_vocab_size=1, pad_token_id=left.pad_token_id, initializer_range=0.1,
        id2label={0: "O", 1: "B-city"}, label2id={"O": 0, "B-city": 1},
    )  # fmt: skip
    teacher = d.Teacher(
        transformers.RobertaForTokenClassification(config), left, accept_weak=True, cache_dir=tmp_path / "cache"
    )
    objective = d.Objective(
        soft=d.SoftTargets(), hard=d.HardLabels(), hidden=d.HiddenStateMSE(), relations=d.MiniLMv2(relation_heads=4)
    )
    result = d.distill(
        teacher, d.students.albert(share=share, embedding_dim=16), tagging(),
        objective=objective,
        trainer=d.TrainerSettings(learning_rate=3e-3, batch_size=8, max_epochs=8, precision="32-true", ema=0.9, soup=2),
        benchmark=d.BenchmarkSettings(enabled=False, batches=[1], lengths=[8]), export=LOOSE, baseline=False,
        directory=tmp_path / "run",
    )  # fmt: skip
    record = result.record
    assert record["student"]["metrics"]["f1"] > 0.9
    assert record["export"]["fp32"]["agreement"] == 1.0
    student = transformers.AutoModelForTokenClassification.from_pretrained(result.directory / "student")
    assert record["student"]["parameters"] == count_parameters(student)
    assert transformers.AutoTokenizer.from_pretrained(result.directory / "student").padding_side == "right"
    records = [{"tokens": ["we", "fly", "to", "boston"]}]
    for model in ("fp32", "int8"):
        [found] = d.Bundle(result.directory / "bundle", model=model).predict(records)
        assert [entity["text"] for entity in found["entities"]] == ["boston"]
