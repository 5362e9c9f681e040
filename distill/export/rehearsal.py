"""Exports a model of a family that is not known to be exportable, before it is trained."""

import copy
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.core.console import print_line
from distill.core.errors import UserError, find_cause, first_line
from distill.core.files import is_full_disk
from distill.edge.bundle_files import session
from distill.edge.decoder import TARGET
from distill.edge.text_decoders import open_model
from distill.export.onnx import export_model
from distill.models.architectures import modeling_local
from distill.models.architectures.modeling_narrow import family_of
from distill.models.forward import POSITIONS, exported_inputs, predicts_tokens, run_exported, takes_choices

# Every `model_type` whose files equal torch at every length, as tests of parity show.
KNOWN = frozenset({
    "albert", "bert", "camembert", "deberta", "deberta-v2", "distilbert", "distill_bilm", "distill_bilstm",
    "distill_cnn", "distill_feature_bilstm", "distill_mask_predict", "distill_shared_albert", "distill_static",
    "distill_tfidf",
    "bart", "electra", "gpt2", "gpt_neox", "llama", "modernbert", "mpnet", "opt", "qwen2", "qwen3", "roberta", "t5",
    "xlm-roberta",
    *(config.model_type for config in modeling_local.CONFIGS.values()),
})  # fmt: skip
SHAPES = ((1, 3), (3, 17))  # Batch and length; the exporter reads others.
TOLERANCE = 1e-3  # Of the largest output, because those of a new head are small.


def rehearse_export(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, name: str, max_length: int, generates: bool = False
) -> None:
    """Raises UserError for a model of another family than `KNOWN` whose file cannot be written, or differs from it.

    Args:
        name: of the student.
        max_length: tokens of the longest text.
        generates: whether it writes text.
    """
    is_known = (family_of(model.config) or model.config.model_type) in KNOWN
    picks_tokens = model.config.is_encoder_decoder and not generates  # By their values, as the head of a BART.
    if is_known and not picks_tokens:
        return
    kind = f"student {name} ({type(model).__name__})"
    print_line(
        f"Student: {kind} is exported once before the training, because its family is not known to be exportable"
    )
    other = "a teacher of another family, such as T5 or BART"
    other = other if generates else "+student=bilstm, which follows a teacher of any family"
    advice = f"set export.enabled=false, or take {other}"
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "model.onnx"
        try:
            export_model(model, path, tokenizer=tokenizer, generates=generates)
            compare, shapes = _compare_texts if generates else _compare, ((2, max_length), *SHAPES)
            difference = compare(copy.deepcopy(model).eval(), path, tokenizer, shapes)
        except Exception as error:  # Of any library.
            if is_full_disk(error):
                raise
            raise UserError(f"{kind} cannot be exported to ONNX ({first_line(find_cause(error))}): {advice}") from error
    if difference > TOLERANCE:
        raise UserError(
            f"{kind} has other outputs in ONNX than in torch, by up to {difference:.2g} of the largest: {advice}"
        )


def _measure_difference(found: np.ndarray, expected: np.ndarray, is_read: np.ndarray) -> float:
    """Returns the largest difference of outputs that are read, as a share of the largest output."""
    difference = np.abs(found - expected)[is_read].max()
    return float(difference / max(np.abs(expected).max(), 1e-6))


@torch.no_grad()
def _compare(
    model: PreTrainedModel, path: Path, tokenizer: PreTrainedTokenizerBase, shapes: Sequence[tuple[int, int]]
) -> float:
    """Returns the largest difference of an output of the file and of the model, as a share of the largest output."""
    file, names, random, largest = session(path, 1), exported_inputs(model, tokenizer), np.random.default_rng(0), 0.0
    for batch, length in shapes:
        shape = (batch, 2, length) if takes_choices(model) else (batch, length)
        inputs = _draw_inputs(random, tokenizer, shape)
        feed = {name: inputs[name] for name in names if name in inputs}
        if predicts_tokens(model):
            feed[POSITIONS] = np.flatnonzero(inputs["attention_mask"][0])
        expected = run_exported(model, {name: torch.from_numpy(values) for name, values in feed.items()}).numpy()
        every = np.ones(expected.shape[:1], dtype=bool)
        is_read = inputs["attention_mask"].astype(bool) if expected.ndim > len(shape) else every  # Some for each token.
        largest = max(largest, _measure_difference(file.run(["logits"], feed)[0], expected, is_read))
    return largest


def _draw_inputs(
    random: np.random.Generator, tokenizer: PreTrainedTokenizerBase, shape: tuple[int, ...]
) -> dict[str, np.ndarray]:
    """Returns random texts between the special tokens of the tokenizer, the last one of them padded on its side.

    Nobody reads the outputs of padding. They depend on the attention's kernel where a token of it sees padding alone,
    as in a Gemma 3 that reads both sides of a window.
    """
    length, mask = shape[-1], np.ones(shape, dtype=np.int64)
    padding = slice(1 + length // 2, None) if tokenizer.padding_side == "right" else slice(None, length // 2)
    mask[-1, ..., padding] = 0
    special = set(tokenizer.all_special_ids)
    ids = random.choice([index for index in range(len(tokenizer)) if index not in special], shape)
    frame = tokenizer("a", return_special_tokens_mask=True)
    for row, shown in zip(ids.reshape(-1, length), mask.reshape(-1, length).astype(bool), strict=True):
        row[~shown] = tokenizer.pad_token_id
        places = np.flatnonzero(shown)
        for end in (0, -1):
            if frame["special_tokens_mask"][end]:
                row[places[end]] = frame["input_ids"][end]
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros(shape, dtype=np.int64)}


@torch.no_grad()
def _compare_texts(
    model: PreTrainedModel, path: Path, tokenizer: PreTrainedTokenizerBase, shapes: Sequence[tuple[int, int]]
) -> float:
    """Returns the difference as `_compare` does, of a model that writes text, whose targets are as long as sources."""
    file, random, largest = open_model(path, 1), np.random.default_rng(0), 0.0
    names = {value.name for value in file.get_inputs()}
    for batch, length in shapes:
        ids, mask = random.integers(0, len(tokenizer), (batch, length)), np.ones((batch, length), dtype=np.int64)
        mask[batch - 1, 1 + length // 2 :] = 0
        inputs = {"input_ids": ids, "attention_mask": mask, TARGET: ids[:, ::-1].copy()}
        feed = {name: values for name, values in inputs.items() if name in names}
        expected = model(**{name: torch.from_numpy(values) for name, values in feed.items()}).logits.numpy()
        is_read = np.ones_like(mask, dtype=bool) if TARGET in names else mask.astype(bool)
        largest = max(largest, _measure_difference(file.run(["logits"], feed)[0], expected, is_read))
    return largest
