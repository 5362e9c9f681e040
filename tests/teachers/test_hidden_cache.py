"""Tests that the teacher's hidden states are cached where they fit and are used, and of the layers that terms name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from distill.builtin.students.distilbert import from_teacher
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.core.contracts import Items, Outputs, Signal
from distill.core.errors import UserError
from distill.data.batches import TokenizedExamples
from distill.losses import Cosine, HardLabels, Objective, SoftTargets
from distill.losses.term import Term
from distill.models.forward import run_model
from distill.teachers import output_cache
from distill.teachers.output_cache import Cached, HiddenLayers, OutputCache
from distill.teachers.signal import Live, check_size, earlier_decision, hidden_layers, outputs_for_training
from tests.teachers.conftest import EXAMPLES, TASK, make_prepared

LAYERS, WIDTH = 4, 32


class Embeddings(Term):
    """Reads the output of the embeddings and of the layer in the middle."""

    needs = frozenset({"hidden_states"})

    def teacher_layers(self, student_depth: int, teacher_depth: int) -> tuple[int, ...]:
        return (teacher_depth // student_depth, 0)

    def forward(self, student: Outputs, teacher: Outputs, items: Items) -> tuple[Tensor, Tensor]:
        raise AssertionError("is not called")


class Odd(Embeddings):
    """Reads as many layers as `Embeddings` does, and others."""

    def teacher_layers(self, student_depth: int, teacher_depth: int) -> tuple[int, ...]:
        return (1, 3)


class Unnamed(Embeddings):
    def teacher_layers(self, student_depth: int, teacher_depth: int) -> tuple[int, ...]:
        return ()


def objective(**terms: Term) -> Objective:
    return Objective(name="toy", terms={"soft": SoftTargets(), "cosine": Cosine(), **terms})


@pytest.fixture
def student(teacher: PreTrainedModel) -> PreTrainedModel:
    return from_teacher(teacher)


Cache = Callable[..., Any]


@pytest.fixture
def cache_for_training(
    teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, student: PreTrainedModel,
    examples: TokenizedExamples, tmp_path: Path,
) -> Cache:  # fmt: skip
    """Calls `outputs_for_training` with options of the cache."""
    prepared = make_prepared(teacher, tokenizer)

    def call(*, terms: Objective | None = None, epochs: float = 1.0, earlier: Any = None, **options: Any) -> Signal:
        return outputs_for_training(
            prepared, terms or objective(), TASK, examples, student=student, cache=OutputCache(**options),
            directory=tmp_path, epochs=epochs, earlier=earlier,
        )  # fmt: skip

    return call


def states_of(teacher: PreTrainedModel, batch: dict[str, Tensor]) -> list[Tensor]:
    """Returns the teacher's hidden states `[B, L, H]`, 0 for padding."""
    with torch.no_grad():
        states = run_model(teacher, batch, frozenset({"hidden_states"})).hidden_states
    return [layer * batch["attention_mask"][..., None] for layer in states]


def read_states(cached: Signal, batch: dict[str, Tensor]) -> Any:
    return cached(batch, TASK.select(batch)).whole().hidden_states


def test_the_layers_that_terms_name_are_cached_by_default_where_others_were_cached_before(
    cache_for_training: Cache, teacher: PreTrainedModel, examples: TokenizedExamples, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_cache, "SHARD_TOKENS", int(examples.lengths.sum()) + 1)
    batch = examples[[5, 38, 0]]
    expected, directories = states_of(teacher, batch), set()
    for terms, layers in (({}, [4]), ({"other": Embeddings()}, [0, 2, 4]), ({"other": Odd()}, [1, 3, 4])):
        cached = cache_for_training(terms=objective(**terms), epochs=3.5)
        assert cached.reason is None
        # The memory of a pass is that of one layer.
        assert len(list(cached.directory.glob("*.safetensors"))) == len(layers)
        directories.add(cached.directory)
        states = read_states(cached, batch)
        assert len(states) == LAYERS + 1
        assert [layer for layer, of_layer in enumerate(states) if of_layer is not None] == layers
        for layer in layers:
            torch.testing.assert_close(states[layer], expected[layer], atol=2e-3, rtol=2e-3)  # float16
    assert len(directories) == 3


def test_hidden_states_beyond_max_gb_are_computed_in_every_step(
    cache_for_training: Cache, examples: TokenizedExamples, tmp_path: Path
) -> None:
    layer, logits = int(examples.lengths.sum()) * WIDTH * 2 / 1e9, EXAMPLES * 2 * 4 / 1e9
    both = objective(embeddings=Embeddings())  # Three layers.
    signal = cache_for_training(terms=both, max_gb=logits + 2.9 * layer)
    assert isinstance(signal, Live)
    expected = "cosine, embeddings reads hidden states, and the teacher's outputs would take 0.1 MB, more than "
    assert signal.reason.startswith(f"{expected}teacher.cache.max_gb=")
    assert not list(tmp_path.iterdir())
    assert cache_for_training(terms=both, max_gb=logits + 3.1 * layer).bytes > 0


def test_a_full_disk_prevents_caching_unless_everything_is_cached(
    cache_for_training: Cache, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    free = 2.00001
    monkeypatch.setattr(output_cache, "free_bytes", lambda directory: free * 1e9)
    signal = cache_for_training()
    assert isinstance(signal, Live)
    assert signal.reason.endswith(f"of the 2.00 GB left in {tmp_path}, where 2 GB stay free")
    free = 2.1
    assert cache_for_training().bytes > 0
    free = 0.0
    cached = cache_for_training()
    assert (cached.reason, cached.seconds) == (None, 0)
    assert cached.bytes > 0


def test_a_training_of_less_than_one_epoch_does_not_pay_for_caching(
    cache_for_training: Cache, examples: TokenizedExamples, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = "cosine reads hidden states, and the training shows {} examples, fewer than the {} that caching computes"
    assert cache_for_training(epochs=0.75).reason == expected.format(30, 40)
    cache_for_training(hidden=True)
    assert cache_for_training(epochs=0.75).reason == expected.format(30, 40)  # Whatever is cached already.
    for required in ({"hidden": True}, {"enabled": True}):
        assert cache_for_training(epochs=0.75, **required).bytes > 0
    soft = Objective(name="toy", terms={"soft": SoftTargets()})
    assert cache_for_training(epochs=0.75, terms=soft).bytes > 0
    monkeypatch.setattr(type(examples), "visits", 2)  # Each example has two inputs.
    assert cache_for_training(epochs=1.5).reason == expected.format(60, 80)


def test_hidden_states_that_must_be_cached_are_refused_early_if_they_do_not_fit(
    teacher: PreTrainedModel, student: PreTrainedModel, examples: TokenizedExamples
) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"hidden": True}, "hidden"), ({"enabled": True}, "enabled"), ({"enabled": True, "hidden": True}, "enabled"),
    ]  # fmt: skip
    for options, name in cases:
        message = f"more than teacher.cache.max_gb=1e-06: raise it, or set teacher.cache.{name}=false"
        with pytest.raises(UserError, match=message):
            check_size(objective(), TASK, teacher, examples, OutputCache(max_gb=1e-6, **options), student=student)
    check_size(objective(), TASK, teacher, examples, OutputCache(max_gb=1e-6), student=student)


def test_hidden_states_that_float16_does_not_hold_are_computed_in_every_step(
    cache_for_training: Cache, teacher: PreTrainedModel
) -> None:
    with torch.no_grad():
        teacher.bert.encoder.layer[-1].output.LayerNorm.bias.fill_(1e6)
    expected = "cosine reads hidden states, and the teacher's hidden states pass 65,504, the most that float16 holds"
    assert cache_for_training().reason == expected
    with pytest.raises(UserError, match="pass 65,504, the most that float16 holds: set teacher.cache.hidden=false"):
        cache_for_training(hidden=True)


def test_a_resumed_training_keeps_the_decision_of_its_checkpoint(cache_for_training: Cache, tmp_path: Path) -> None:
    computed = {"cached": False, "reason": "the disk was full"}
    assert cache_for_training(earlier=computed).reason == "the disk was full"
    assert cache_for_training(earlier={"cached": True, "reason": None}, epochs=0.5).bytes > 0
    # An option that decides alone is obeyed.
    assert cache_for_training(earlier=computed, hidden=True).bytes > 0
    checkpoint = tmp_path / "last.ckpt"
    assert earlier_decision({"teacher_outputs": computed}, checkpoint) is None
    checkpoint.touch()
    assert earlier_decision({"teacher_outputs": computed}, checkpoint) == computed


def test_the_layers_of_an_objective_are_the_union_of_its_terms(
    cache_for_training: Cache, teacher: PreTrainedModel, student: Any
) -> None:
    hidden = hidden_layers(objective(embeddings=Embeddings()), student=student, teacher=teacher)
    assert hidden == HiddenLayers(width=WIDTH, depth=LAYERS, layers=(0, 2, 4))
    assert hidden.bytes_per_token == 3 * WIDTH * 2
    assert objective().teacher_layers(3, 6) == (6,)
    assert objective(embeddings=Embeddings()).teacher_layers(3, 6) == (0, 2, 6)
    assert objective(unread=Embeddings(weight=0)).teacher_layers(3, 6) == (6,)
    assert Objective(name="toy", terms={"hard": HardLabels()}).teacher_layers(3, 6) == ()
    assert objective(mine=Unnamed()).needing_unnamed_layers(3, 6) == ["mine"]
    signal = cache_for_training(terms=objective(mine=Unnamed()))
    assert signal.reason == "mine reads hidden states and its teacher_layers() names none"


def test_padding_on_the_left_moves_the_states(cache_for_training: Cache, examples: TokenizedExamples) -> None:
    cached = cache_for_training(terms=objective(embeddings=Embeddings()))
    batch = examples[[0, 2]]
    width = batch["attention_mask"].shape[1]
    flipped = {"attention_mask": batch["attention_mask"].flip(1), **{n: batch[n] for n in ("example_id", "labels")}}
    states, moved = read_states(cached, batch), read_states(cached, flipped)
    for row, length in enumerate(batch["attention_mask"].sum(dim=1).tolist()):
        for layer in (0, 2, 4):
            torch.testing.assert_close(moved[layer][row, width - length :], states[layer][row, :length])
            assert not moved[layer][row, : width - length].any()


def test_reading_copies_only_the_states_of_the_batch(tmp_path: Path) -> None:
    """The files stay memory-mapped: opened tensors share the storage of the file, and a batch does not change them."""
    lengths = np.array([3, 2])
    cached = Cached(tmp_path, lengths, hidden=HiddenLayers(4, 2, (2,)))
    states = torch.arange(20.0).view(5, 4)
    cached.add(0, {"logits": torch.zeros(2, 2)}, states)
    mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 0]])
    batch = {"attention_mask": mask, "example_id": torch.tensor([1, 0]), "labels": torch.tensor([0, 1])}
    hidden_states: Any = cached(batch, TASK.select(batch)).hidden_states
    assert hidden_states[:2] == (None, None)
    assert hidden_states[2].dtype == torch.float32
    hidden_states[2].zero_()
    again: Any = cached(batch, TASK.select(batch)).hidden_states
    assert again[2][0].tolist() == [*states[3:].tolist(), [0.0] * 4, [0.0] * 4]
    assert again[2][1].tolist() == [*states[:3].tolist(), [0.0] * 4]
