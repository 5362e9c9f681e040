"""Vectors of directories of sentence-transformers equal those of that library, for the layouts of its encoders."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from distill.builtin.students import bilstm, distilbert
from distill.builtin.teachers.pretrained import Pretrained
from safetensors.torch import save_file
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.chain.plan import Student
from distill.core.contracts import VECTOR_SETTINGS
from distill.core.errors import OptionError, UserError
from distill.export.onnx import export_onnx
from distill.export.quantization import RecipeInput
from distill.kinds import Embedding
from distill.losses import EmbeddingMSE, Objective
from distill.losses.term import EncoderSize
from distill.models.forward import configure, run_model
from distill.models.loading import load_directory
from distill.models.sentence_files import keep_prompts, prompts_of, role_prompts
from distill.models.vectors import list_dense, save_encoder, set_known_width, vector_width

SIZES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "pad_token_id": 0,
    "initializer_range": 0.3,
}  # fmt: skip
DECODER = {"num_key_value_heads": 2, "head_dim": 8}
TEXTS = ["a small film", "one of the best and longest of all films , of this year and of the last one", "no", "a film"]
# The family with its options, the poolings, the layers behind them, the length 1, and the side of padding.
LAYOUTS: dict[str, tuple[str, dict[str, Any], Any, list[tuple[int, nn.Module]], bool, str]] = {
    "Qwen3-Embedding": ("Qwen3", DECODER, "lasttoken", [], True, "left"),
    "Qwen3-Embedding, right": ("Qwen3", DECODER, "lasttoken", [], True, "right"),
    "EmbeddingGemma": (
        "Gemma3Text", {**DECODER, "use_bidirectional_attention": True, "sliding_window": 8}, "mean",
        [(64, nn.Identity()), (32, nn.Identity())], True, "left",
    ),
    "LEAF": ("Bert", {}, "mean", [(48, nn.Identity())], True, "right"),
    "mxbai and BGE": ("Bert", {}, "cls", [], False, "right"),
    "GTE": ("ModernBert", {}, "cls", [], True, "right"),
    "E5 and jina": ("XLMRoberta", {"max_position_embeddings": 130}, "mean", [], True, "right"),
    "several poolings": ("Bert", {}, ("mean", "max"), [(20, nn.Tanh())], False, "right"),
    "weighted mean": ("XLMRoberta", {"max_position_embeddings": 130}, "weightedmean", [], False, "left"),
    "root of the length": ("Bert", {}, "mean_sqrt_len_tokens", [], False, "right"),
}  # fmt: skip


@pytest.fixture
def build(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> Callable[..., Any]:
    """Returns an encoder of sentence-transformers of a layout, whose directory is `tmp_path / "encoder"`."""
    library = pytest.importorskip("sentence_transformers", reason="needs it, of the extra dev")
    from sentence_transformers.sentence_transformer import modules as parts

    def create(layout: str, **options: Any) -> Any:
        family, own, pooling, dense, normalizes, side = LAYOUTS[layout]
        torch.manual_seed(0)
        config = getattr(transformers, f"{family}Config")(vocab_size=len(tokenizer), **SIZES, **own)
        getattr(transformers, f"{family}Model")(config).save_pretrained(tmp_path / "plain")
        tokenizer.save_pretrained(tmp_path / "plain")
        modules = [parts.Transformer(str(tmp_path / "plain")), parts.Pooling(32, pooling)]
        modules[0].tokenizer.padding_side = side
        width = modules[1].pooling_output_dimension
        for target, activation in dense:
            modules.append(parts.Dense(width, target, activation_function=activation))
            width = target
        modules += [parts.Normalize()] if normalizes else []
        library.SentenceTransformer(modules=modules, **options).save(str(tmp_path / "encoder"))
        return library.SentenceTransformer(str(tmp_path / "encoder"), device="cpu")

    return create


def load(directory: Path, *, normalize: bool) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    start = load_directory(directory, "AutoModel", None, trust_remote_code=False)
    configure(start.model, {VECTOR_SETTINGS: {"pooling": "auto", "normalize": normalize}})
    return start.model.eval(), start.tokenizer


@torch.no_grad()
def encode(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> torch.Tensor:
    vectors: torch.Tensor = run_model(model, tokenizer(texts, padding=True, return_tensors="pt")).logits
    return vectors


@pytest.mark.parametrize("layout", LAYOUTS)
def test_vectors_are_those_of_sentence_transformers_alone_and_in_a_batch(
    build: Callable[..., Any], tmp_path: Path, layout: str
) -> None:
    expected = torch.tensor(build(layout).encode(TEXTS, batch_size=1))
    model, tokenizer = load(tmp_path / "encoder", normalize=LAYOUTS[layout][4])
    assert vector_width(model.config) == expected.shape[1]
    alone = torch.cat([encode(model, tokenizer, [text]) for text in TEXTS])
    torch.testing.assert_close(alone, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(encode(model, tokenizer, TEXTS), expected, atol=1e-5, rtol=1e-5)


def test_the_first_dimensions_of_truncate_dim_are_the_vector(build: Callable[..., Any], tmp_path: Path) -> None:
    expected = torch.tensor(build("LEAF", truncate_dim=24).encode(TEXTS))
    model, tokenizer = load(tmp_path / "encoder", normalize=True)
    assert vector_width(model.config) == 24
    torch.testing.assert_close(encode(model, tokenizer, TEXTS), nn.functional.normalize(expected, dim=-1))


def test_a_saved_encoder_keeps_its_layers_for_both_readers(build: Callable[..., Any], tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    expected = torch.tensor(build("several poolings").encode(TEXTS))
    model, tokenizer = load(tmp_path / "encoder", normalize=False)
    save_encoder(model, tmp_path / "saved")
    tokenizer.save_pretrained(tmp_path / "saved")
    assert len(list_dense(model)) == 1  # They are taken out of the file alone.
    saved = library.SentenceTransformer(str(tmp_path / "saved"), device="cpu").encode(TEXTS)
    torch.testing.assert_close(torch.tensor(saved), expected, atol=1e-5, rtol=1e-5)
    again, tokenizer = load(tmp_path / "saved", normalize=False)
    torch.testing.assert_close(encode(again, tokenizer, TEXTS), expected, atol=1e-5, rtol=1e-5)


def make(student: Student, teacher: PreTrainedModel, objective: Objective) -> PreTrainedModel:
    rows = {"sentence1": TEXTS, "sentence2": TEXTS[::-1], "score": [0.0, 1.0, 2.0, 3.0]}
    task = Embedding(train=rows, dev=rows)
    return student.within(teacher, objective).make(teacher, task, task.read(Path()))


@pytest.mark.parametrize(
    ("projection", "term", "width"),
    [("auto", EmbeddingMSE(), 48), (None, EmbeddingMSE(), 16), ("auto", EmbeddingMSE(projection="pca"), 16)],
)
def test_a_student_of_another_width_lives_in_the_space_of_its_teacher_unless_it_keeps_its_own(
    build: Callable[..., Any], tmp_path: Path, projection: Any, term: EmbeddingMSE, width: int
) -> None:
    build("LEAF")
    teacher, _ = load(tmp_path / "encoder", normalize=True)
    student = Student("bilstm", partial(bilstm.from_teacher, hidden_dim=8, init="random"), projection=projection)
    model = make(student, teacher, Objective(embedding=term))
    assert vector_width(model.config) == width
    assert sum(layer.linear.weight.numel() for layer in list_dense(model)) == (48 * 16 if width == 48 else 0)


def test_half_of_the_layers_begin_with_the_pooling_and_the_layers_behind_it_of_their_teacher(
    build: Callable[..., Any], tmp_path: Path
) -> None:
    build("several poolings")
    teacher, _ = load(tmp_path / "encoder", normalize=True)
    teacher.requires_grad_(False)
    model = make(Student("half", distilbert.from_teacher), teacher, Objective(embedding=EmbeddingMSE()))
    [own], [theirs] = list_dense(model), list_dense(teacher)
    assert own is not theirs
    assert own.linear.weight.requires_grad
    assert torch.equal(own.linear.weight, theirs.linear.weight)
    assert model.config.sentence_vector["pooling"] == "mean+max"


def test_another_projection_is_refused() -> None:
    with pytest.raises(OptionError, match="student.projection=192, expected auto or null"):
        Student("half", distilbert.from_teacher, projection=192)  # type: ignore[arg-type]


def test_the_weights_of_layers_behind_the_pooling_are_a_part_of_the_fingerprint_and_of_their_own_folder(
    build: Callable[..., Any], tmp_path: Path
) -> None:
    build("LEAF")
    directory = tmp_path / "encoder"
    before, weights = Pretrained(name="leaf", path=str(directory)).fingerprint(), load(directory, normalize=True)[0]
    modules = directory / "modules.json"
    modules.write_text(modules.read_text().replace("2_Dense", "2_Dense_48"))
    (directory / "2_Dense").rename(directory / "2_Dense_48")
    [moved] = list_dense(load(directory, normalize=True)[0])
    assert torch.equal(moved.linear.weight, list_dense(weights)[0].linear.weight)
    renamed = Pretrained(name="leaf", path=str(directory)).fingerprint()
    save_file({name: 2 * of for name, of in moved.state_dict().items()}, directory / "2_Dense_48/model.safetensors")
    assert len({before, renamed, Pretrained(name="leaf", path=str(directory)).fingerprint()}) == 3


def test_prefixes_of_a_projected_vector_learn_the_vectors_of_the_teacher() -> None:
    objective = Objective(embedding=EmbeddingMSE(), dimensions=[8])
    objective.connect(EncoderSize(16, 1, vector=48), EncoderSize(32, 1, vector=48))
    shapes = [tuple(parameter.shape) for parameter in objective.parameters()]
    assert sorted(shapes) == [(48, 8), (48, 48)]
    with pytest.raises(UserError, match="objective.dimensions has 64, expected at most 48, the width of the student"):
        Objective(embedding=EmbeddingMSE(), dimensions=[64]).check_sizes(
            EncoderSize(16, 1, vector=48), EncoderSize(32, 1, vector=48)
        )


def test_a_saved_teacher_keeps_its_prompts(build: Callable[..., Any], tmp_path: Path) -> None:
    prompts = {"query": "find ", "document": ""}
    build("LEAF", prompts=prompts)
    model, tokenizer = load(tmp_path / "encoder", normalize=True)
    save_encoder(model, tmp_path / "saved", prompts_of(tokenizer))
    tokenizer.save_pretrained(tmp_path / "saved")
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert role_prompts(keep_prompts(again, tmp_path / "saved")) == {"query": "find "}
    with pytest.raises(OptionError, match="teacher.prompts=query, expected texts by their names, or null"):
        Pretrained(name="leaf", path=str(tmp_path), prompts="query")  # type: ignore[arg-type]


def test_vectors_of_a_file_have_the_width_of_the_space(build: Callable[..., Any], tmp_path: Path) -> None:
    build("LEAF")
    teacher, _ = load(tmp_path / "encoder", normalize=True)
    set_known_width(teacher, 100)
    student = Student("bilstm", partial(bilstm.from_teacher, hidden_dim=8, init="random"))
    assert vector_width(make(student, teacher, Objective(embedding=EmbeddingMSE())).config) == 100


def test_a_file_without_a_product_has_no_activations_to_measure(
    build: Callable[..., Any], tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    build("LEAF")
    teacher, _ = load(tmp_path / "encoder", normalize=True)
    student = Student("bilstm", partial(bilstm.from_teacher, hidden_dim=8, init="random"), projection=None)
    export_onnx(make(student, teacher, Objective(embedding=EmbeddingMSE())), tmp_path / "model.onnx")
    feed = dict(tokenizer(TEXTS, padding=True, return_tensors="np"))
    assert RecipeInput(tmp_path / "model.onnx", 8, lambda: iter([feed])).largest == {}
