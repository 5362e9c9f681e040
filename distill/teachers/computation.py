"""Passes of a teacher over examples and texts: outputs, features of a frozen encoder, and gradients of parts.

Features of a frozen encoder for a BiLSTM, a teacher without fine-tuning (Devlin et al., arXiv 1810.04805, table 7). The
hidden states of the encoder are computed once, and the BiLSTM is trained on their cache. The teacher that results is
one model of encoder and BiLSTM.
"""

import copy
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal, Unpack

import numpy as np
import torch
from pydantic import Field, PositiveInt
from pydantic.dataclasses import dataclass as checked_dataclass
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import PreTrainedModel

from distill.core import storage
from distill.core.console import ProgressMeter, print_line, print_notice
from distill.core.contracts import (
    ENCODER_FEATURES,
    Batch,
    BatchOptions,
    EncodedSplits,
    Examples,
    Items,
    Learnable,
    Loader,
    Outputs,
    Scores,
    Stream,
    Task,
)
from distill.core.errors import NumericalError, OptionError, UserError
from distill.core.options import STRICT, raise_option_errors, show_value
from distill.data.batches import (
    CollatedBatch,
    TokenizedExamples,
    bucket_loader,
    scored_tokens,
    scoring_steps,
    seen_examples,
)
from distill.kinds.outputs import KnownReading
from distill.kinds.scoring import Scoring
from distill.losses import Objective
from distill.models.architectures.modeling_bilstm import (
    FEATURES,
    BilstmConfig,
    FeatureBilstmConfig,
    FeatureBilstmPreTrainedModel,
    feature_layers,
)
from distill.models.forward import count_outputs, model_class, run_encoder, to_device
from distill.models.loading import Start
from distill.models.surgery.layers import Importance, Sizes, list_readers
from distill.teachers.output_cache import (
    Cached,
    Draws,
    HiddenLayers,
    OutputCache,
    TopK,
    library_versions,
    pack_logits,
    split_items,
)
from distill.teachers.reading import Reading
from distill.training.hyperparameters import TrainerSettings
from distill.training.module import Columns, concatenate, freeze, score_items


@torch.inference_mode()
def compute_rows(
    compute: Callable[[CollatedBatch], Tensor],
    examples: TokenizedExamples,
    device: torch.device,
    *,
    title: str,
    unit: str,
) -> np.ndarray:
    """Returns a row for each text, `[N, ...]`, from batches of texts of like length.

    Args:
        compute: returns the rows `[B, ...]` of a batch on the device.
        title, unit: what the progress shows.
    """
    result = np.empty(0)
    with ProgressMeter(title, len(examples), unit=unit) as meter:
        for rows in scoring_steps(examples.lengths, scored_tokens(device)):
            computed = compute(to_device(examples[rows], device)).cpu().numpy()
            if not len(result):
                result = np.empty((len(examples), *computed.shape[1:]), dtype=computed.dtype)
            result[rows] = computed
            meter.advance(len(rows))
    return result


class HiddenStatesOverflow(UserError):
    """Hidden states too large for float16."""

    reason = f"the teacher's hidden states pass {torch.finfo(torch.float16).max:,.0f}, the most that float16 holds"

    def __init__(self) -> None:
        super().__init__(f"{self.reason}: set teacher.cache.hidden=false")


@dataclass(frozen=True)
class Computation:
    """Everything that the outputs of a teacher depend on except the examples.

    Args:
        model: loads the teacher; called only if outputs are missing.
        fingerprint: digest of the teacher's weights, labels and precision.
        task: runs the model.
        cache: the rules for caching.
        directory: directory of all cached outputs. Those of a split are in a subdirectory named by a digest.
        device: type of the device of the forward passes. The digest covers it, and the versions of the libraries.
        kept: what is cached of logits over a vocabulary; None for all logits.
        only_hidden: whether the model is an encoder without a head, of which only hidden states are cached.
        readings: how a teacher of another tokenizer reads the examples, or what a table says of them, by their digest;
            empty for one that reads the batches.
    """

    model: Callable[[], PreTrainedModel]
    fingerprint: str
    task: Task
    cache: OutputCache
    directory: Path
    device: str = "cpu"
    kept: Draws | TopK | None = None
    only_hidden: bool = False
    readings: Mapping[str, Reading | KnownReading] = field(default_factory=dict)

    def run(
        self, model: PreTrainedModel, examples: Examples, batch: Batch, items: Items, needs: frozenset[str]
    ) -> Outputs:
        """Returns the outputs of the teacher for a batch of these examples."""
        reading = self.readings.get(examples.digest)
        if reading is None:
            return self.task.run(model, batch, items, needs)
        return reading.run(model, batch, items, needs)


def cache_outputs(
    computation: Computation,
    examples: Examples,
    *,
    hidden: HiddenLayers | None = None,
    title: str = "teacher",
    epochs: float = 1.0,
) -> Cached:
    """Returns the outputs for all examples of a split, and computes those that are not cached.

    Args:
        hidden: the hidden states that are cached too; None caches only logits.
        title: title of the progress bar.
        epochs: number of epochs to compute outputs for, if the inputs of an example differ between epochs.

    Raises:
        UserError: if there is no room for them.
        NumericalError: if logits are not finite.
    """
    return fill_outputs(
        computation, examples, open_outputs(computation, examples, hidden), count_visited(examples, epochs), title=title
    )


def count_visited(examples: Examples, epochs: float) -> int:
    """Returns the number of examples that these epochs show, each with every one of its inputs."""
    return seen_examples(examples, math.ceil(epochs))


def open_outputs(computation: Computation, examples: Examples, hidden: HiddenLayers | None) -> Cached:
    """Returns those outputs of a split that are cached."""
    cache, kept = computation.cache, computation.kept
    environment = {"device": computation.device, **library_versions()}
    parts: list[object] = [environment, computation.fingerprint, examples.digest, hidden and hidden.key()]
    if kept is not None:
        parts.append(kept.key())
    if computation.readings:
        parts.append(computation.readings[examples.digest].digest)
    visits = examples.visits or 1
    outputs = cache.open(
        computation.directory / cache.key(*parts), np.tile(examples.tokens, visits), hidden=hidden, kept=kept
    )
    for path in outputs.damaged:
        print_notice(f"{path} is damaged: the teacher computes it again")
    return outputs


def fill_outputs(
    computation: Computation, examples: Examples, outputs: Cached, number: int, *, title: str = "teacher"
) -> Cached:
    """Returns the outputs once those of the first `number` that are missing are computed, in whole shards."""
    cache, task = computation.cache, computation.task
    missing = outputs.missing(number)
    if not missing:
        return outputs
    number = outputs.covering(number)
    start = time.perf_counter()
    teacher = computation.model()
    logit_bytes = 0.0 if computation.only_hidden else count_logit_bytes(cache, task, examples, teacher, number)
    size = cache.make_room(outputs, number, logit_bytes)
    total = sum(last - first for first, last in missing)
    kind = "features" if computation.only_hidden else "outputs"
    print_line(f"Teacher: computes the {kind} for {total:,} examples once, {size} in {outputs.directory}")
    with ProgressMeter(title, total, unit="examples") as meter:
        for first, last in missing:
            columns, states = _compute(
                teacher, computation, examples, outputs.lengths[first:last], first=first, hidden=outputs.hidden,
                done=meter.advance,
            )  # fmt: skip
            _check_finite(columns, states)
            outputs.add(first, columns, states)
    storage.try_send(outputs.directory)
    outputs.seconds = time.perf_counter() - start
    return outputs


def compute_logits(
    computation: Computation, teacher: PreTrainedModel, examples: Examples, done: Callable[[int], None]
) -> Tensor:
    """Returns the logits `[N, C]` of examples of one item each; raises NumericalError for those that are not finite.

    Args:
        done: called with the number of examples of each forward pass.
    """
    columns, _ = _compute(teacher, computation, examples, examples.tokens, first=0, hidden=None, done=done)
    _check_finite(columns, None)
    return columns["logits"]


def cached_scores(computation: Computation, scoring: Scoring, examples: EncodedSplits) -> dict[str, Scores]:
    """Returns the teacher's scores on every split except `train`, by example, from its cached logits."""
    scores = {}
    for name, split in examples.items():
        if name == "train" or not isinstance(split, Examples):
            continue
        outputs = cache_outputs(computation, split, title=f"teacher on {name}")
        scores[name] = concatenate(_score_outputs(computation.task, scoring, split, outputs)).by_example()
    return scores


@torch.inference_mode()
def computed_scores(computation: Computation, scoring: Scoring, examples: EncodedSplits) -> dict[str, Scores]:
    """Returns the teacher's scores on every split except `train`, by example, from outputs that are not cached."""
    model, scores = computation.model(), {}
    for name, split in examples.items():
        if name != "train" and isinstance(split, Examples):
            outputs = partial(computation.run, model, split, needs=frozenset())
            found = _score_outputs(computation.task, scoring, split, outputs, model.device)
            scores[name] = concatenate(found).by_example()
    return scores


def _score_outputs(
    task: Task,
    scoring: Scoring,
    split: Examples,
    outputs: Callable[[Batch, Items], Outputs],
    device: torch.device | None = None,
) -> Iterator[Columns]:
    for step in scoring_steps(split.lengths):
        batch = split[step] if device is None else to_device(split[step], device)
        items = task.select(batch)
        yield score_items(scoring, outputs(batch, items), items)


def count_logit_bytes(
    cache: OutputCache, task: Task, examples: Examples, teacher: PreTrainedModel, number: int
) -> float:
    """Returns the size of the logits of `number` examples, in bytes."""
    classes = examples.classes_per_item or count_outputs(teacher)
    item_bytes = cache.bytes_per_item if task.info.classes_are_tokens else 4 * classes
    return number * examples.items_per_example * item_bytes


def _check_finite(columns: Mapping[str, Tensor], states: Tensor | None) -> None:
    if not all(values.isfinite().all() for values in columns.values()):
        raise NumericalError("the teacher's logits are not finite: check its weights, or set teacher.precision=float32")
    if states is not None and not states.isfinite().all():
        raise HiddenStatesOverflow


@torch.inference_mode()
def _compute(
    teacher: PreTrainedModel,
    computation: Computation,
    examples: Examples,
    lengths: np.ndarray,
    *,
    first: int,
    hidden: HiddenLayers | None,
    done: Callable[[int], None],
) -> tuple[dict[str, Tensor], Tensor | None]:
    """Computes the arguments of `Cached.add` for the examples from `first` on, which have these tokens.

    Of an encoder alone there are no columns.

    Returns the columns, and the float16 hidden states `[tokens, H]`, of several layers `[tokens, layers, H]`, or None.
    """
    task, needs = computation.task, frozenset({"hidden_states"} if hidden else ())
    width, layers = (hidden.width, hidden.layers) if hidden else (0, ())
    starts = lengths.cumsum() - lengths
    # Copied into one array, because views would keep the outputs of all batches in memory.
    states = torch.empty(int(lengths.sum()), len(layers), width, dtype=torch.float16)
    per_example, counts = [dict[str, Tensor]() for _ in lengths], torch.ones(len(lengths), dtype=torch.long)
    profile = torch.zeros(teacher.config.vocab_size if computation.kept else 0, device=teacher.device)
    generator = torch.Generator().manual_seed(first)  # The same draws whenever this part is computed.
    padded = examples.lengths[np.arange(first, first + len(lengths)) % len(examples)]
    for micro_batch in scoring_steps(padded, scored_tokens(teacher.device)):
        batch = to_device(examples[[first + index for index in micro_batch]], teacher.device)
        if computation.only_hidden:
            hidden_states = run_encoder(teacher, batch, needs).hidden_states
        else:
            items = task.select(batch)
            outputs = computation.run(teacher, examples, batch, items, needs)
            hidden_states = outputs.hidden_states
            columns = _pack_parts(outputs, items, computation, profile, generator)
            counts[micro_batch] = torch.bincount(items.row, minlength=len(micro_batch)).cpu()
            split = split_items(columns, counts[micro_batch])
            for row, index in enumerate(micro_batch):
                per_example[index] = {name: values[row] for name, values in split.items()}
        if hidden:
            by_example = _token_states(hidden_states, batch, hidden).split(lengths[micro_batch].tolist())
            for index, tokens in zip(micro_batch, by_example, strict=True):
                states[starts[index] : starts[index] + lengths[index]] = tokens
        done(len(micro_batch))
    result = {name: torch.cat([columns[name] for columns in per_example]) for name in per_example[0]}
    if not bool((counts == 1).all()):
        result["counts"] = counts
    if computation.kept is not None:
        result |= {"counts": counts, "profile": (profile / counts.sum().clamp(min=1)).half().cpu()}
    return result, states.squeeze(1) if hidden else None


def _pack_parts(
    outputs: Outputs, items: Items, computation: Computation, profile: Tensor, generator: torch.Generator
) -> dict[str, Tensor]:
    """Returns the columns of the items of a batch, whose logits over a vocabulary are computed in chunks."""
    parts = [
        _pack(outputs.at(part).logits, part, computation, profile, generator)
        for part in items.parts(outputs.chunk_size)
    ]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _pack(
    logits: Tensor | None, items: Items, computation: Computation, profile: Tensor, generator: torch.Generator
) -> dict[str, Tensor]:
    """Returns the columns of the items of a batch; over a vocabulary their log-probabilities are added to `profile`."""
    assert logits is not None
    if computation.kept is None:
        return pack_logits(logits.float().cpu(), items.valid)
    log_probs = logits.float().log_softmax(dim=-1)
    profile += log_probs.sum(dim=0)
    return computation.kept.pack(log_probs, generator)


def _token_states(hidden_states: Sequence[Tensor] | None, batch: Batch, hidden: HiddenLayers) -> Tensor:
    """Returns the hidden states of all tokens except padding, `[tokens, layers, H]` (float16) on the CPU."""
    assert hidden_states is not None
    # Counted from the end, because the last one is that of the last layer in every family.
    chosen = [hidden_states[layer - hidden.depth - 1].half() for layer in hidden.layers]
    mask = batch["attention_mask"].bool()
    return torch.stack([states[mask] for states in chosen], dim=1).cpu()


@raise_option_errors
@checked_dataclass(frozen=True, config=STRICT)
class BilstmSettings:
    """The BiLSTM on the features of a frozen encoder, and its training. The paper has two layers of 768.

    Args:
        layers: number of layers.
        hidden_dim: width of each direction.
        dropout: share of the inputs of each layer and of the head.
        pooling: of the states of a whole text: the last one of each direction, their maximum or their mean.
        trainer: settings of the training.
    """

    trainer: TrainerSettings
    layers: PositiveInt = 2
    hidden_dim: PositiveInt = 768
    dropout: Annotated[float, Field(ge=0, lt=1, description="a share from 0 to below 1")] = 0.1
    pooling: Literal["last", "max", "mean"] = "max"


class Features:
    """The features of a teacher's frozen encoder, and the BiLSTM that reads them.

    Args:
        name: the hidden states that are the features: of the `last` layer, of the one before (`second_to_last`), the
            last four one behind the other (`concat_last_4`), the sum of the last four (`sum_last_4`) or of all layers
            (`sum_all`) with learned weights, or the embeddings below the first layer (`input_embeddings`).
        bilstm: its sizes and its training.

    Raises:
        OptionError: for an unknown name.
    """

    def __init__(self, name: str, bilstm: BilstmSettings) -> None:
        if name not in FEATURES:
            raise OptionError("teacher.features", show_value(name), f"null or one of {', '.join(FEATURES)}")
        self.name, self.bilstm = name, bilstm

    def __str__(self) -> str:
        return f"{self.name} of the frozen encoder, {self.bilstm.layers} x {self.bilstm.hidden_dim} BiLSTM"

    def record(self) -> dict[str, Any]:
        """Returns the options that the model depends on, besides those of its training."""
        return {"name": self.name} | {key: value for key, value in vars(self.bilstm).items() if key != "trainer"}

    def check(self, task: Task, cache: OutputCache, *, is_new: bool) -> None:
        """Raises UserError for a task, a teacher or a cache that features cannot be used with."""
        given = f"teacher.features={self.name}"
        if task.info.raw_text or _model_class(task) is None:
            raise UserError(
                f"{given} is for labels of texts or words and for answers in a text, and task {task.info.name} is "
                f"{task.info.kind}: leave it out"
            )
        if is_new:
            raise UserError(
                f"{given} is for a pre-trained encoder, and this teacher begins with random weights: take another one"
            )
        if cache.enabled is False:
            raise OptionError("teacher.cache.enabled", "false", "auto or true because features are cached")

    def wrap(self, start: Start, task: Task, name: str) -> Start:
        """Returns the loaded teacher with its encoder under a new BiLSTM, in place of its own head.

        Raises:
            UserError: if the encoder has too few layers, is of a custom class, or is under a BiLSTM already.
        """
        encoder, given = start.model.base_model, f"teacher.features={self.name}"
        if isinstance(start.model, FeatureBilstmPreTrainedModel):
            raise UserError(f"{given}: teacher {name} is a BiLSTM on features already: leave teacher.features out")
        if model_class("AutoModel", type(encoder.config)) is None:
            raise UserError(f"{given}: teacher {name} is of a class that transformers does not include: take another")
        depth = int(encoder.config.num_hidden_layers)
        try:
            layers = feature_layers(self.name, depth)
        except ValueError as error:
            raise UserError(f"{given}: {error}: take last or sum_all, or a deeper teacher than {name}") from error
        is_sum, width = self.name.startswith("sum"), int(encoder.config.hidden_size)
        size, shared = self.bilstm, ("id2label", "label2id", "problem_type")
        labels = {key: copy.deepcopy(getattr(start.model.config, key)) for key in shared}
        bilstm = BilstmConfig(
            vocab_size=None, embedding_dim=width if is_sum else width * len(layers),
            summed_layers=len(layers) if is_sum else 0, hidden_dim=size.hidden_dim, num_hidden_layers=size.layers,
            classifier_dim=size.hidden_dim, dropout=size.dropout, pooling=size.pooling, pair=task.info.pair,
            sep_token_id=start.tokenizer.sep_token_id, pad_token_id=start.tokenizer.pad_token_id, **labels,
        )  # fmt: skip
        config = FeatureBilstmConfig(
            encoder=copy.deepcopy(encoder.config), bilstm=bilstm, features=self.name,
            pad_token_id=start.tokenizer.pad_token_id, **labels,
        )  # fmt: skip
        model_type = _model_class(task)
        assert model_type is not None
        model = model_type(config)
        # A pooler is left out.
        lacking = model.encoder.load_state_dict(encoder.state_dict(), strict=False).missing_keys
        if lacking:
            raise UserError(f"{given}: the encoder of teacher {name} has no {min(lacking)}: take another teacher")
        reason = f"a BiLSTM on its features ({self.name}) is new"
        return replace(start, model=model.eval(), fits=False, reason=reason, fresh=[])

    def prepare_training(
        self,
        model: PreTrainedModel,
        task: Task,
        examples: EncodedSplits,
        *,
        fingerprint: str,
        precision: str,
        device: torch.device,
        cache: OutputCache,
        directory: Path,
    ) -> tuple[PreTrainedModel, EncodedSplits]:
        """Returns the BiLSTM to train, and the splits for training and selection with the cached features.

        Args:
            model: as `wrap` returns it.
            fingerprint: stands for the weights of its encoder.
            precision: of the encoder.
            directory: directory of all cached outputs.

        Raises:
            UserError: if there is no room for the features, or float16 cannot hold them.
        """
        assert isinstance(model, FeatureBilstmPreTrainedModel)
        encoder, depth = model.encoder, model.config.num_hidden_layers
        hidden = HiddenLayers(model.config.hidden_size, depth, feature_layers(self.name, depth))

        def load_encoder() -> PreTrainedModel:
            return freeze(copy.deepcopy(encoder).to(device, getattr(torch, precision)))

        computation = Computation(
            load_encoder, f"encoder {fingerprint}-{precision}", task, cache, directory, device=device.type,
            only_hidden=True,
        )  # fmt: skip
        with_features: dict[str, Examples] = {}
        for name in ("train", "dev"):
            split = examples[name]
            assert isinstance(split, Examples)  # A task that fine-tunes its teacher has no stream.
            self._check_size(split, hidden, cache)
            try:
                outputs = cache_outputs(computation, split, hidden=hidden, title=f"features of {name}")
            except HiddenStatesOverflow as error:
                raise UserError(f"{error.reason}: teacher.features={self.name} needs another teacher") from error
            with_features[name] = FeaturedExamples(split, outputs)
        return model.head, with_features

    def _check_size(self, split: Examples, hidden: HiddenLayers, cache: OutputCache) -> None:
        size = cache.size_gb(split.tokens, logit_bytes=0, hidden=hidden)
        if size > cache.max_gb:
            raise UserError(
                f"the features teacher.features={self.name} would take {size:.2f} GB, more than teacher.cache.max_gb="
                f"{cache.max_gb:g}: raise it, or take last, which has one layer"
            )


def _model_class(task: Task) -> type[PreTrainedModel] | None:
    """Returns the class of encoder and BiLSTM with the task's head, None if there is none."""
    return model_class(task.info.auto_class, FeatureBilstmConfig)


class FeaturedExamples(Dataset[dict[str, Tensor]]):
    """One tokenized split whose batches have the features of every token, `[S, L, F]`, from the cache."""

    def __init__(self, examples: Examples, outputs: Cached) -> None:
        self.examples, self.outputs = examples, outputs
        self.lengths, self.tokens, self.sequences = examples.lengths, examples.tokens, examples.sequences
        self.truncated, self.digest, self.visits = examples.truncated, examples.digest, examples.visits
        self.items_per_example, self.classes_per_item = examples.items_per_example, examples.classes_per_item

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, indices: Sequence[int]) -> dict[str, Tensor]:
        batch = self.examples[indices]
        states = self.outputs.hidden_states(batch)
        return {**batch, ENCODER_FEATURES: torch.cat([layer for layer in states if layer is not None], dim=-1)}

    def pieces(self) -> np.ndarray | None:
        """Returns the ids of all tokens of the batches, as `Examples`."""
        return self.examples.pieces()

    def training_loader(self, *, steps: int | None, **batches: Unpack[BatchOptions]) -> Loader:
        """Returns a loader of shuffled optimizer steps; `batches` are arguments of `LengthBuckets`."""
        return bucket_loader(self, **batches)


BATCHES = 200  # Of train, at most.


def measure_importance(
    model: PreTrainedModel, task: Learnable, objective: Objective, loader: Loader, *, batches: int = BATCHES
) -> Importance:
    """Returns the importance of the heads and the inner neurons of each layer for a loss.

    That of a head is the expected size of the derivative by a factor 1 of its output, `E |A^T dL/dA|` (arXiv
    1905.10650, equation 2), and that of a neuron the same of its activation, both over the tokens of an example. In
    each layer they are divided by their Euclidean norm, as there (section 4.1).

    Args:
        objective: learns from labels alone.
        loader: yields lists of batches, of which the first `batches` are read.

    Raises:
        UserError: for a model of a family whose layers are not cut.
    """
    heads, modules = Sizes.of(model).heads, list_readers(model)
    sums = [torch.zeros(0)] * len(modules)
    was_training = model.training
    model.eval()
    with _record_inputs(modules) as inputs:
        for batch in islice(_micro_batches(loader), batches):
            loss = _loss(model, task, objective, to_device(batch, model.device))
            states = [inputs[module] for module in modules]
            for place, (state, gradient) in enumerate(zip(states, torch.autograd.grad(loss, states), strict=True)):
                effects = (state.detach() * gradient).float().sum(dim=1)  # [B, A * D] or [B, F]
                if place % 2 == 0:
                    effects = effects.unflatten(1, (heads[place // 2], -1)).sum(dim=2)  # [B, A]
                found = effects.abs().sum(dim=0).cpu() * len(effects)  # The loss is a mean over the batch.
                sums[place] = sums[place] + found if len(sums[place]) else found
    model.train(was_training)
    normalized = [of / of.norm().clamp_min(torch.finfo(of.dtype).tiny) for of in sums]
    return Importance(normalized[::2], normalized[1::2])


def labelled_loader(examples: Examples | Stream, **batches: Any) -> Loader:
    """Returns the loader that the importance is measured with."""
    return examples.training_loader(steps=BATCHES, **batches)


def _micro_batches(loader: Loader) -> Iterator[Batch]:
    for step in loader:
        yield from step


def _loss(model: PreTrainedModel, task: Learnable, objective: Objective, batch: Batch) -> Tensor:
    items = task.select(batch)
    outputs = task.run(model, batch, items, objective.student_needs).at(items)
    loss: Tensor = objective(outputs, Outputs(), items)[0]
    return loss


@contextmanager
def _record_inputs(modules: Sequence[nn.Module]) -> Iterator[dict[nn.Module, Tensor]]:
    """Yields the inputs `[B, L, W]` of the modules in the last forward pass, whose gradients can be computed.

    A model without gradients has them from the first of these inputs on.
    """
    inputs: dict[nn.Module, Tensor] = {}

    def record(module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        inputs[module] = arguments[0] if arguments[0].requires_grad else arguments[0].requires_grad_()

    handles: list[Any] = [module.register_forward_pre_hook(record) for module in modules]
    try:
        yield inputs
    finally:
        for handle in handles:
            handle.remove()
