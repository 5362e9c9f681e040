"""Tests of the whole chain of every family: a toy teacher with its own kind of tokenizer becomes a file on a device.

A family is one line of `ROWS`. pytest -m slow -n 0 tests/models/test_family_chain.py
"""

import itertools
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

import distill.builtin  # noqa: F401  so that the auto classes know every student
from distill.edge.bundle_files import session
from distill.models.architectures.modeling_bilm import BilmConfig
from distill.models.forward import input_names, output_logits
from distill.training.module import DistillationModule
from tests.conftest import LOOSE_OPTIONS, run_here, sentences
from tests.models.test_families import FAMILIES, SIZES, family_tokenizer

pytestmark = pytest.mark.slow
LONGEST = 80
BATCHES, LENGTHS = (1, 3), (1, 7, 15, 16, 17, 64, LONGEST)  # Around the window of ModernBERT and DeBERTa's buckets.
TEXTS = [text for text, _ in sentences(9)] + ["", "film", " ".join(["a dull film"] * 60)]
OPTIONS = (
    "task=sst2", "task.max_length=40", "augment=none", "benchmark.enabled=false", "teacher.accept_weak=true",
    "teacher.finetune.max_epochs=1", "teacher.finetune.learning_rate=3e-4", "trainer.max_epochs=2",
    "trainer.batch_size=16", "trainer.learning_rate=3e-4", "trainer.checkpoint_steps=3", "export.recipes=[dynamic]",
    *LOOSE_OPTIONS,
)  # fmt: skip
DEVICE = """
import json, sys
sys.modules["torch"] = sys.modules["transformers"] = None  # An import of them fails.
from distill.edge import Bundle
print(json.dumps({name: Bundle(sys.argv[1], model=name).predict(json.loads(sys.argv[2])) for name in ("fp32", "int8")}))
"""


def train_word_pieces(special: list[str], unknown: str) -> dict[str, int]:
    tokenizer = Tokenizer(models.WordPiece(unk_token=unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator([text for text, _ in sentences(64)], trainer)
    return tokenizer.get_vocab()


def train_sentence_pieces(special: list[str], unknown: str) -> list[tuple[str, float]]:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=120, special_tokens=special, unk_token=unknown, show_progress=False)
    tokenizer.train_from_iterator([text for text, _ in sentences(64)], trainer)
    return [(piece, score) for piece, score in json.loads(tokenizer.to_str())["model"]["vocab"]]


def make_word_pieces(tokenizer_class: Callable[..., PreTrainedTokenizerBase]) -> PreTrainedTokenizerBase:
    """Returns a tokenizer of a class with WordPiece, whose padding is 1, as MPNet counts positions from."""
    own = tokenizer_class()
    special = [own.cls_token, own.pad_token, own.sep_token, own.unk_token, own.mask_token]
    return tokenizer_class(vocab=train_word_pieces(special, own.unk_token), model_max_length=LONGEST)


def make_sentence_pieces(tokenizer_class: Callable[..., PreTrainedTokenizerBase]) -> PreTrainedTokenizerBase:
    """Returns a tokenizer of a class with SentencePiece's unigrams, whose special tokens stand in its own order."""
    own = tokenizer_class()
    special = sorted({*own.all_special_tokens}, key=own.convert_tokens_to_ids)
    return tokenizer_class(vocab=train_sentence_pieces(special, own.unk_token), model_max_length=LONGEST)


@dataclass(frozen=True)
class Row:
    """A family: its configuration at toy size, its tokenizer, and the options of the run that are its own.

    Attributes:
        teacher: name of the teacher's YAML; by default that of the row.
        sizes: options of the configuration, for families whose sizes have other names.
        refused: what the run says before it trains anything, for a family that lacks something.
    """

    config: tuple[type[PreTrainedConfig], dict[str, Any]]
    tokenizer: Callable[[], PreTrainedTokenizerBase]
    student: str = "distilbert"
    teacher: str = ""
    options: tuple[str, ...] = field(default=())
    sizes: dict[str, Any] = field(default_factory=lambda: SIZES | {"max_position_embeddings": LONGEST})
    refused: str = ""


DISTILBERT = (
    transformers.DistilBertConfig,
    {"n_layers": 4, "dim": 32, "n_heads": 4, "hidden_dim": 64, "num_hidden_layers": 4},
)
ROWS: dict[str, Row] = {
    "bert_large": Row(FAMILIES["bert_large"], lambda: make_word_pieces(transformers.BertTokenizer)),
    "distilbert": Row(DISTILBERT, lambda: make_word_pieces(transformers.DistilBertTokenizer), teacher="pretrained"),
    "roberta_base": Row(FAMILIES["roberta_base"], lambda: family_tokenizer("roberta_base")),
    "xlm_roberta_base": Row(
        FAMILIES["xlm_roberta_base"], lambda: make_sentence_pieces(transformers.XLMRobertaTokenizer)
    ),
    "electra_base": Row(FAMILIES["electra_base"], lambda: make_word_pieces(transformers.ElectraTokenizer)),
    "albert_base": Row(
        FAMILIES["albert_base"], lambda: make_sentence_pieces(transformers.AlbertTokenizer), student="bilstm",
        options=("student.hidden_dim=16", "objective=logit_mse"),
    ),
    "mpnet_base": Row(FAMILIES["mpnet_base"], lambda: make_word_pieces(transformers.MPNetTokenizer)),
    "deberta_v3_small": Row(
        FAMILIES["deberta_v3_small"], lambda: make_sentence_pieces(transformers.DebertaV2Tokenizer)
    ),
    "modernbert_base": Row(FAMILIES["modernbert_base"], lambda: family_tokenizer("modernbert_base")),
    "longformer": Row(
        (transformers.LongformerConfig, {"max_position_embeddings": 82, "attention_window": 4}),
        lambda: family_tokenizer("roberta_base"), teacher="pretrained",
        refused="student distilbert (LongformerForSequenceClassification) cannot be exported to ONNX, because its",
    ),
    "longformer_local": Row(
        (transformers.LongformerConfig, {"max_position_embeddings": 82, "attention_window": 4}),
        lambda: family_tokenizer("roberta_base"), teacher="pretrained", options=("student.attention=local",),
    ),
    "local": Row(
        FAMILIES["bert_large"], lambda: make_word_pieces(transformers.BertTokenizer), teacher="pretrained",
        options=("student.attention=local", "student.window=8"),
    ),
    "chunked": Row(
        FAMILIES["bert_large"], lambda: make_word_pieces(transformers.BertTokenizer), teacher="pretrained",
        options=("student.chunk=16", "student.chunk_overlap=2", "student.chunk_pooling=learned"),
    ),
    "albert_student": Row(
        FAMILIES["albert_base"], lambda: make_sentence_pieces(transformers.AlbertTokenizer), student="albert",
        teacher="albert_base", options=("student.embedding_dim=16",),
    ),
    "shared_albert": Row(
        FAMILIES["bert_large"], lambda: make_word_pieces(transformers.BertTokenizer), student="albert",
        teacher="pretrained", options=("student.embedding_dim=16", "student.share=attention", "student.groups=2"),
    ),
    "narrow": Row(
        FAMILIES["bert_large"], lambda: make_word_pieces(transformers.BertTokenizer), teacher="pretrained",
        options=("student.heads=[1,3]", "student.ffn=[24,16]", "student.embedding_dim=16"),
    ),
    "bilm": Row(
        (BilmConfig, {"hidden_dim": 16, "num_hidden_layers": 2}),
        lambda: make_word_pieces(transformers.BertTokenizer), sizes={}, options=("objective=logit_mse",),
    ),
}  # fmt: skip


def save_teacher(row: Row, directory: Path) -> None:
    """Saves the encoder with random weights that are large enough for differences to show, and its tokenizer."""
    tokenizer, (config_class, own) = row.tokenizer(), row.config
    torch.manual_seed(0)
    options = row.sizes | {"pad_token_id": tokenizer.pad_token_id} | own
    encoder = transformers.AutoModel.from_config(config_class(vocab_size=len(tokenizer), **options))
    for parameter in encoder.parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(4)
    encoder.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


@dataclass(frozen=True)
class Chain:
    """A finished run of a family: its directory and record, and the command."""

    name: str
    directory: Path
    record: dict[str, Any]
    command: tuple[str, ...]


@pytest.fixture(scope="module", params=ROWS)
def chain(request: pytest.FixtureRequest, data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Chain:
    row, root = ROWS[request.param], tmp_path_factory.mktemp(request.param)
    save_teacher(row, root / "teacher")
    command = (
        f"+teacher={row.teacher or request.param}", f"teacher.path={root / 'teacher'}", f"+student={row.student}",
        f"task.data_dir={data_dir}", f"cache_dir={root / 'cache'}", *OPTIONS, *row.options,
    )  # fmt: skip
    done = run_here(*command, f"output_dir={root / 'runs'}", cwd=root)
    if row.refused:
        assert (done.returncode, row.refused in done.stderr, "def forward" in done.stderr) == (2, True, False)
        pytest.skip("it is refused by name")
    assert done.returncode == 0, done.stderr
    [path] = (root / "runs").rglob("run.json")
    return Chain(request.param, path.parent, json.loads(path.read_text()), command)


def load_student(chain: Chain) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    path = chain.directory / "student"
    model = transformers.AutoModelForSequenceClassification.from_pretrained(path, dtype=torch.float32)
    return model.eval(), transformers.AutoTokenizer.from_pretrained(path)


def compute_logits(model: PreTrainedModel, batch: dict[str, torch.Tensor]) -> np.ndarray:
    inputs = {name: batch[name] for name in input_names(model) if name in batch}
    with torch.no_grad():
        return output_logits(model, model(**inputs), inputs["attention_mask"]).numpy()


def test_the_teacher_is_trained_and_the_card_names_the_family(chain: Chain) -> None:
    assert (chain.record["status"], chain.record["teacher"]["origin"]) == ("finished", "fine-tuned")
    family = ROWS[chain.name].teacher or chain.name
    for card in (chain.directory / "bundle" / "README.md", chain.directory / "student" / "README.md"):
        assert family in card.read_text(encoding="utf-8")


def test_the_files_equal_torch_at_every_length(chain: Chain) -> None:
    model, tokenizer = load_student(chain)
    manifest = json.loads((chain.directory / "bundle" / "bundle.json").read_text())
    file = session(chain.directory / "bundle" / "model.onnx", 1)
    random = np.random.default_rng(0)
    spread = []
    for batch_size, length in itertools.product(BATCHES, LENGTHS):
        ids = random.integers(5, len(tokenizer), (batch_size, length))
        counts = np.array([max(1, length // (row + 1)) for row in range(batch_size)])
        mask = (np.arange(length) < counts[:, None]).astype(np.int64)
        batch = {
            "input_ids": np.where(mask, ids, tokenizer.pad_token_id), "attention_mask": mask,
            "token_type_ids": np.zeros_like(mask),
        }  # fmt: skip
        feed = {name: batch[name] for name in manifest["inputs"]}
        expected = compute_logits(model, {name: torch.from_numpy(values) for name, values in feed.items()})
        np.testing.assert_allclose(file.run(["logits"], feed)[0], expected, atol=1e-4, rtol=1e-4)
        spread.append(expected[0])
    assert np.ptp(spread, axis=0).max() > 3e-3


def test_a_device_without_torch_predicts_what_the_student_does(chain: Chain) -> None:
    model, tokenizer = load_student(chain)
    done = subprocess.run(
        [sys.executable, "-c", DEVICE, str(chain.directory / "bundle"), json.dumps(TEXTS)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    predictions = json.loads(done.stdout)
    for text, fp32, int8 in zip(TEXTS, predictions["fp32"], predictions["int8"], strict=True):
        batch = tokenizer([text], truncation=True, max_length=40, return_tensors="pt")
        expected = torch.from_numpy(compute_logits(model, batch)).softmax(-1)[0].numpy()
        np.testing.assert_allclose(list(fp32["probabilities"].values()), expected, atol=1e-4)
        np.testing.assert_allclose(list(int8["probabilities"].values()), expected, atol=0.15)


def test_a_stopped_run_is_resumed_to_equal_weights(chain: Chain, tmp_path: Path) -> None:
    step, options = DistillationModule.training_step, (f"output_dir={tmp_path}", "export.enabled=false")
    with pytest.MonkeyPatch.context() as patch:

        def stop_at_the_fifth(module: DistillationModule, batches: Any, index: int) -> None:
            if module.global_step == 4:
                raise KeyboardInterrupt
            step(module, batches, index)

        patch.setattr(DistillationModule, "training_step", stop_at_the_fifth)
        with pytest.raises(SystemExit, match="130"):
            run_here(*chain.command, *options, cwd=tmp_path)
    [begun] = tmp_path.rglob("run.json")
    assert json.loads(begun.read_text())["status"] == "failed"
    resumed = run_here(f"resume={begun.parent}", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    weights = [directory / "student" / "model.safetensors" for directory in (begun.parent, chain.directory)]
    assert weights[0].read_bytes() == weights[1].read_bytes()
