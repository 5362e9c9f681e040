"""Features of a frozen encoder for a BiLSTM, a teacher without fine-tuning (Devlin et al., arXiv 1810.04805, table 7).

The hidden states of the encoder are computed once, and the BiLSTM is trained on their cache. The teacher that results
is one model of encoder and BiLSTM.
"""

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, Unpack

import numpy as np
import torch
from pydantic import Field, PositiveInt
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.utils.data import Dataset
from transformers import PreTrainedModel

from distill.contracts import ENCODER_FEATURES, BatchOptions, EncodedSplits, Examples, Loader, Task
from distill.data import batching
from distill.errors import OptionError, UserError
from distill.models.forward import model_class
from distill.models.loading import Start
from distill.models.modeling_bilstm import (
    FEATURES,
    BilstmConfig,
    FeatureBilstmConfig,
    FeatureBilstmPreTrainedModel,
    feature_layers,
)
from distill.options import STRICT, raise_option_errors, show_value
from distill.teaching.computation import Computation, HiddenStatesOverflow, cache_outputs
from distill.teaching.output_cache import Cached, HiddenLayers, OutputCache
from distill.training.module import freeze
from distill.training.settings import TrainerSettings


@raise_option_errors
@dataclass(frozen=True, config=STRICT)
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
        return batching.bucket_loader(self, **batches)
