"""Loads a model with its tokenizer and a head for the task from a directory, and checks its tensors."""

import re
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

import torch
import transformers
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from distill.core.errors import UserError, first_line
from distill.models.architectures import register_architecture
from distill.models.forward import (
    SEQ2SEQ,
    check_causal,
    check_reads_both_sides,
    choose_padding_side,
    input_embeddings,
    is_decoder,
    model_class,
)
from distill.models.sentence_files import (
    adopt_language,
    adopt_sentence_files,
    head_activation,
    load_tokenizer,
    read_sentence_files,
    separate_texts,
)
from distill.models.vectors import load_layers, vector_settings


class LoadingInfo(TypedDict):
    """The report of `from_pretrained`: names of tensors, with the shapes of checkpoint and model if they differ."""

    missing_keys: Collection[str]
    unexpected_keys: Collection[str]
    mismatched_keys: Collection[tuple[str, torch.Size, torch.Size]]


def find_embeddings(model: PreTrainedModel, directory: Path) -> Tensor:
    """Returns the table of the embeddings of tokens `[V, H]`; raises UserError for a model without one."""
    table = getattr(input_embeddings(model), "weight", None)
    if table is None:
        raise UserError(
            f"{directory} has a {type(model).__name__}, which has no table of token embeddings (it may read "
            "characters or other inputs), expected a model that reads the tokens of a vocabulary, such as a BERT"
        )
    assert isinstance(table, Tensor)
    return table


@dataclass(frozen=True)
class Start:
    """A loaded model with its tokenizer.

    Args:
        fits: whether the model has a trained head for the task's labels.
        reason: why the model does not fit, in words.
        notices: messages to print.
        fresh: names of the tensors with random weights.
        lengthens: whether an option `positions` gives the model more of them, as in `LongTexts`.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    fits: bool
    reason: str = ""
    notices: list[str] = field(default_factory=list)
    fresh: list[str] = field(default_factory=list)
    lengthens: bool = False


def check_directory(directory: Path, given: str) -> None:
    """Raises UserError if the directory, named as `given`, lacks a model in safetensors or its tokenizer."""
    if not directory.is_dir():
        raise UserError(f"{given} is no directory, expected one with config.json and weights")
    if not (directory / "config.json").is_file():
        read_sentence_files(directory)  # Names the folder of the model in old directories of sentence-transformers.
        raise UserError(f"{given} has no config.json, expected a directory that save_pretrained wrote")
    if not list(directory.glob("*.safetensors")):
        pickles = ", ".join(sorted(entry.name for entry in directory.glob("*.bin")))
        content = f"only {pickles}, which can run code when read" if pickles else "no weights"
        raise UserError(f"{given} holds {content}: save the model there again as safetensors (save_pretrained)")
    if not has_tokenizer(directory):
        raise UserError(f"{given} holds no tokenizer: call tokenizer.save_pretrained for the same directory")


def find_directory(path: str | Path, option: str) -> Path:
    """Returns the directory of a model that is given as the value of an option; raises as `check_directory` does."""
    directory = Path(str(path)).expanduser()
    check_directory(directory, f"{option}={path}")
    return directory


@contextmanager
def without_warnings() -> Iterator[None]:
    """Leaves out the warnings and the progress bar of transformers, such as the report of a tensor that is new."""
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.disable_progress_bar()
    transformers.logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers.logging.set_verbosity(verbosity)


def load_directory(
    directory: Path,
    auto_class: str,
    labels: Sequence[str] | None,
    *,
    trust_remote_code: bool,
    problem_type: str | None = None,
) -> Start:
    """Loads the model in float32 with a head for `labels`, and its tokenizer.

    A head with the same labels in another order is put into the task's order. Without labels it is over the
    vocabulary, or scores each choice.

    Args:
        problem_type: that of the configurations of transformers which the head must have been trained for, if its
            configuration names any; None for a number if there is one label, and else for labels that exclude each
            other.

    Raises:
        UserError: if files are damaged, or there is no such head for the model.
    """
    loading = _Loading(directory, auto_class, {"trust_remote_code": trust_remote_code})
    notices = loading.notices
    try:
        with without_warnings():  # `Start.reason` reports a new head.
            config = loading.load_config()
            tokenizer = loading.load_tokenizer(config)
            notices += attend_in_full(config)
            order, reason, of_labels = _fit_labels(config, labels, problem_type, head_activation(config, directory))
            if not reason and (other_head := _find_other_head(config, auto_class)):
                order, reason = None, other_head
            model, info = loading.load_weights(config)
    except (OSError, ValueError, TypeError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
        raise UserError(f"{directory} cannot be loaded: {first_line(error)}") from error  # Damaged files, no such head.
    loading.check_tensors(model, info, new_head=order is None)
    check_tokenizer(tokenizer, directory)
    loading.check_tokens(model, tokenizer)
    notices += choose_padding_side(model, tokenizer)
    pooler = "pooler." if model.base_model is model else ()  # Of an encoder, which is no head of a task.
    missing = [name for name in info["missing_keys"] if not name.startswith(pooler)]
    fresh = sorted({*missing, *(name for name, *_ in info["mismatched_keys"])})
    if missing:
        reason = f"its head is not trained ({', '.join(fresh)})"
    elif order is not None and labels is not None:
        reorder_head(model, order)
    if reason:
        if auto_class == OF_TEXTS:  # A trained head has learned texts without separators.
            separate_texts(tokenizer)
        return Start(model, tokenizer, fits=False, reason=reason, fresh=fresh, notices=notices)
    return Start(model, tokenizer, fits=True, notices=of_labels + notices)


@dataclass(frozen=True)
class _Loading:
    """The steps of loading a directory.

    Args:
        auto_class: with which the model is loaded.
        options: of each `from_pretrained`.
        notices: those that the steps have added.
    """

    directory: Path
    auto_class: str
    options: Mapping[str, bool]
    notices: list[str] = field(default_factory=list)

    def load_config(self) -> PreTrainedConfig:
        """Loads the configuration; raises UserError if the family has no model with this head."""
        directory, auto_class = self.directory, self.auto_class
        register_architecture(directory)
        config = transformers.AutoConfig.from_pretrained(directory, **self.options)
        check_reads_both_sides(config, auto_class, str(directory))
        check_is_one(config, directory)
        if auto_class == CAUSAL and config.is_encoder_decoder:
            raise UserError(
                f"{directory} has a model of type {config.model_type}, an encoder-decoder, and the task is for a "
                "decoder alone: take task=seq2seq or task=denoising, or a model such as GPT-2"
            )
        if model_class(auto_class, type(config)) is None and auto_class not in getattr(config, "auto_map", {}):
            raise UserError(
                f"{directory} cannot be loaded: transformers has no {auto_class} for a model of type "
                f"{config.model_type}: take one of another family, such as {_FAMILIES.get(auto_class, _ENCODERS)}"
            )
        return config

    def load_tokenizer(self, config: PreTrainedConfig) -> PreTrainedTokenizerBase:
        """Loads the tokenizer, which treats texts as sentence-transformers does."""
        tokenizer, notices = load_tokenizer(self.directory, **self.options)
        encodes = self.auto_class == ENCODER
        tokenizer, more_notices = adopt_sentence_files(config, tokenizer, self.directory, encodes=encodes)
        self.notices.extend(notices + more_notices)
        if tokenizer.pad_token_id is None and (self.auto_class in (CAUSAL, OF_TEXTS) or is_decoder(config)):
            tokenizer.pad_token = tokenizer.eos_token  # No token reads the padding behind it, whatever it is.
        if self.auto_class == OF_TEXTS and getattr(config, "pad_token_id", None) is None:
            config.pad_token_id = tokenizer.pad_token_id  # By which a decoder finds the last token of a text.
        return tokenizer

    def load_weights(self, config: PreTrainedConfig) -> tuple[PreTrainedModel, LoadingInfo]:
        """Loads the model in float32, with the names of the tensors that are missing or have other sizes."""
        loaded: tuple[PreTrainedModel, LoadingInfo] = getattr(transformers, self.auto_class).from_pretrained(
            self.directory, config=config, dtype=torch.float32, output_loading_info=True, use_safetensors=True,
            ignore_mismatched_sizes=True,  # `check_tensors` refuses those outside a new head.
            **self.options,
        )  # fmt: skip
        load_layers(loaded[0], self.directory)
        return loaded

    def check_tensors(self, model: PreTrainedModel, info: LoadingInfo, *, new_head: bool) -> None:
        """Adds a notice about tensors of the encoder's layers that the checkpoint has and the model does not read.

        The checkpoint must have all tensors of the encoder but those of its pooler. Only a head may be new.

        Args:
            new_head: whether the head may have another shape than in the checkpoint, and is then new.

        Raises:
            UserError: if the encoder lacks tensors, a tensor has another shape, or positions are relative.
        """
        encoder, name, directory = f"{model.base_model_prefix}.", type(model).__name__, self.directory
        mismatched = [entry for entry in info["mismatched_keys"] if not new_head or entry[0].startswith(encoder)]
        if mismatched:
            tensor, saved, expected = min(mismatched)
            raise UserError(
                f"{directory} cannot be loaded: {tensor} is of shape {list(saved)} in its weights and {list(expected)} "
                "by its config.json, which are not of the same model"
            )
        is_encoder = model.base_model is model  # Its tensors have no prefix.
        modules = model.base_model.named_modules(prefix="" if is_encoder else model.base_model_prefix)
        within = tuple(f"{name}." for name, module in modules if isinstance(module, nn.ModuleList))
        embeddings = find_embeddings(model, directory)
        read = [name for name, parameter in model.named_parameters() if parameter is embeddings]
        # Some classes have their head beside the encoder's layers, without a prefix that tells them apart.
        whole = ("",) if self.auto_class == ENCODER else () if is_encoder else (encoder,)
        poolers = tuple(f"{prefix}pooler" for prefix in whole)
        missing = [
            tensor
            for tensor in info["missing_keys"]
            if tensor.startswith(within)
            or tensor in read
            or (tensor.startswith(whole) and not tensor.startswith(poolers))
        ]
        if missing:
            raise UserError(
                f"{directory} cannot be loaded: its weights lack {len(missing)} tensors of the encoder of a {name}, "
                f"such as {min(missing)}"
            )
        unread = [tensor for tensor in info["unexpected_keys"] if tensor.startswith(within)]
        if any("distance_embedding" in tensor for tensor in unread):
            raise UserError(
                f"{directory} cannot be loaded: it has relative positions (position_embedding_type in config.json), "
                f"and a {name} of this version of transformers has absolute ones only"
            )
        if unread:
            self.notices.append(
                f"a {name} has no place for {len(unread)} tensors in the layers of the checkpoint, such as "
                f"{min(unread)}: its outputs are not those of the model that was saved"
            )

    def check_tokens(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        """Raises UserError for tokens without an embedding, and for those that a decoder cannot write targets with.

        Adds notices about the language of targets. Other models than decoders and encoder-decoders write none.
        """
        embedded, directory = len(find_embeddings(model, self.directory)), self.directory
        if len(tokenizer) > embedded:
            raise UserError(
                f"the tokenizer of {directory} has {len(tokenizer):,} tokens and the model embeds {embedded:,} only: "
                "save both again after model.resize_token_embeddings(len(tokenizer))"
            )
        if self.auto_class == CAUSAL:
            check_causal(model, str(directory))
        if self.auto_class != SEQ2SEQ:
            return
        if (tokens := getattr(model.config, "ngram", 1)) > 1:  # Of a ProphetNet.
            raise UserError(
                f"{directory} has a {type(model).__name__}, whose decoder predicts the next {tokens} tokens at once "
                "(ngram in its config.json), and targets are learned one token at a time: take "
                f"{_FAMILIES[SEQ2SEQ]}"
            )
        if tokenizer.eos_token_id is None:
            raise UserError(
                f"the tokenizer of {directory} has no eos_token, which ends each target: name one of its tokens "
                "(tokenizer.eos_token = ...) and save it there again"
            )
        if getattr(model.config, "decoder_start_token_id", None) is None:
            raise UserError(
                f"the config.json of {directory} has no decoder_start_token_id, with which a decoder begins: that of "
                "T5 is its pad_token, that of BART its eos_token, and that of mBART the token of the language of "
                "targets"
            )
        self.notices.extend(adopt_language(model, tokenizer))


def attend_in_full(config: PreTrainedConfig) -> list[str]:
    """Gives a BigBird full attention, and returns a notice of it.

    Its block-sparse attention fills a matrix of all pairs of tokens too, cannot be exported, and is switched off for
    all later texts by the first one that is short.
    """
    if getattr(config, "attention_type", None) != "block_sparse":
        return []
    config.attention_type = "original_full"
    return [
        f"the attention of a model of type {config.model_type} is computed in full, not in blocks: in transformers "
        f"{transformers.__version__} time and memory of both grow with the square of the length"
    ]


def check_is_one(config: PreTrainedConfig, directory: Path) -> None:
    """Raises UserError for a configuration that only has those of several models."""
    if config.sub_configs and "num_hidden_layers" not in (*dir(config), *config.attribute_map):
        raise UserError(
            f"{directory} has a model of type {config.model_type}, which joins several models (its configuration has "
            f"{' and '.join(config.sub_configs)}), and a teacher of texts is one: save its part that reads texts as a "
            "model of its own, or take another family"
        )


def read_config(directory: Path, *, trust_remote_code: bool) -> PreTrainedConfig:
    """Returns the configuration of a model; raises UserError if it cannot be loaded."""
    register_architecture(directory)
    try:
        with without_warnings():
            return transformers.AutoConfig.from_pretrained(directory, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise UserError(f"{directory} cannot be loaded: {first_line(error)}") from error


def load_saved(directory: Path, auto_class: str, *, trust_remote_code: bool = False) -> PreTrainedModel:
    """Returns a model in float32 that a run has saved, with the layers behind its pooling."""
    register_architecture(directory)
    with without_warnings():  # An encoder of vectors was saved without its pooler, which `configure` removes again.
        model: PreTrainedModel = getattr(transformers, auto_class).from_pretrained(
            directory, dtype=torch.float32, use_safetensors=True, trust_remote_code=trust_remote_code
        )
    load_layers(model, directory)
    return model


def read_width(directory: Path, *, trust_remote_code: bool) -> int:
    """Returns the size of the hidden states of a model, from its configuration alone.

    Raises:
        UserError: if the configuration cannot be loaded, or names no `hidden_size`.
    """
    config = read_config(directory, trust_remote_code=trust_remote_code)
    check_is_one(config, directory)
    width = getattr(config, "hidden_size", None)
    if not isinstance(width, int):
        raise UserError(
            f"the config.json of {directory} has hidden_size={width}, expected the size of the hidden states of an "
            "encoder: take a model of another family, such as BERT, RoBERTa or DeBERTa-v2"
        )
    return width


def list_labels(config: PreTrainedConfig) -> list[str]:
    """Returns the names of the classes of a configuration, in order."""
    return [str(config.id2label[index]) for index in sorted(config.id2label)]


def check_tokenizer(tokenizer: PreTrainedTokenizerBase, directory: Path) -> None:
    """Raises UserError if batches cannot be padded, or there is no fast tokenizer for a bundle."""
    if not tokenizer.is_fast or tokenizer.pad_token_id is None:
        missing = "padding token" if tokenizer.is_fast else "fast version (tokenizer.json)"
        raise UserError(f"the tokenizer of {directory} has no {missing}, which batches and bundles need")


# The outputs of a head, by the `problem_type` of its configuration.
_OUTPUTS = {
    "multi_label_classification": "labels of which several can be right at once",
    "single_label_classification": "labels that exclude each other",
    "regression": "numbers",
}


def _find_other_head(config: PreTrainedConfig, auto_class: str) -> str | None:
    """Returns the reason why a saved head is none of `auto_class`, whose tensors may have the same names and shapes."""
    # The vectors of a language model mean little, unless it was trained for them.
    heads = AUTO_CLASSES if auto_class == ENCODER and vector_settings(config) is None else HEADS
    names = {name: getattr(model_class(name, type(config)), "__name__", None) for name in AUTO_CLASSES}
    saved = [name for name in config.architectures or [] if name in [names[head] for head in heads]]
    if auto_class not in (*HEADS, ENCODER) or not saved or names[auto_class] in saved:
        return None
    return f"its head is that of a {saved[0]}, and the task needs a {names[auto_class]}"


def _fit_labels(
    config: PreTrainedConfig, labels: Sequence[str] | None, problem_type: str | None, activation: str | None
) -> tuple[list[int] | None, str, list[str]]:
    """Sets the labels of the configuration, and returns the result of `match_labels` for the model's own labels.

    Args:
        activation: that of a cross-encoder of sentence-transformers. A number is the logit itself, unless the task
            names its `problem_type`: scores that are compared with each other alone have the same order either way.
    """
    if labels is None:
        return [], "", []
    own = list_labels(config)
    trained_for = config.problem_type
    config.id2label = dict(enumerate(labels))
    config.label2id = {label: index for index, label in enumerate(labels)}
    config.problem_type = problem_type or default_problem_type(labels)
    order, reason, notices = match_labels(own, labels)
    if order is not None and trained_for not in (None, config.problem_type):
        outputs = _OUTPUTS[config.problem_type]
        return order, f"its head is for {_OUTPUTS[trained_for]} ({trained_for}), and the task is for {outputs}", []
    is_number = config.problem_type == "regression" and problem_type is None
    if order is not None and is_number and activation not in (None, "Identity"):
        return order, f"its number is {activation} of a logit (activation_fn), and the task is for the logit itself", []
    return order, reason, notices


def default_problem_type(labels: Sequence[str]) -> str:
    """Returns the `problem_type` of a head for `labels` of which, if there are several, one is right."""
    return "regression" if len(labels) == 1 else "single_label_classification"


OF_TEXTS = "AutoModelForSequenceClassification"
# The heads of tasks on labelled examples.
HEADS = (OF_TEXTS, "AutoModelForTokenClassification", "AutoModelForQuestionAnswering", "AutoModelForMultipleChoice")
ENCODER = "AutoModel"  # Has no head.
CAUSAL = "AutoModelForCausalLM"
_ENCODERS = "BERT, RoBERTa or DeBERTa-v2"
_FAMILIES = {SEQ2SEQ: "T5 (T5ForConditionalGeneration) or BART (BartForConditionalGeneration)"}
# In this order, because a language model may be registered for pre-training too.
AUTO_CLASSES = (*HEADS, SEQ2SEQ, "AutoModelForMaskedLM", CAUSAL, "AutoModelForPreTraining", ENCODER)


def auto_class_of(model: PreTrainedModel) -> str:
    """Returns the auto class of transformers that the model's class is registered with: its kind of head.

    Raises:
        UserError: if the class is registered with none of `AUTO_CLASSES`.
    """
    for name in AUTO_CLASSES:
        if model_class(name, type(model.config)) is type(model):
            return name
    raise UserError(f"the head of a {type(model).__name__} is of no known kind: expected a model of an auto class")


def has_tokenizer(directory: Path) -> bool:
    """Returns whether a tokenizer's vocabulary exists. Without one transformers creates a tokenizer of five tokens."""
    names = ("tokenizer.json", "vocab.txt", "vocab.json", "*.model")
    return any(next(directory.glob(name), None) is not None for name in names)


def match_labels(own: Sequence[str], labels: Sequence[str]) -> tuple[list[int] | None, str, list[str]]:
    """Returns the index of each of the task's labels in the model's `own` ones: `(order, reason, notices)`.

    The same names match by name, whose case matters only if nothing else tells two labels apart. `LABEL_3` and `3`
    match by their index. The default names `LABEL_i` match all other labels by index, with a notice.
    If the labels do not match, the order is None, and the reason says why.
    """
    if len(own) != len(labels):
        return None, f"it has {len(own)} labels and the task {len(labels)}", []
    if len(labels) == 1:  # The name of a regression does not matter.
        return [0], "", []
    for normalize in (str, str.lower):
        order = _match_names([normalize(name) for name in own], [normalize(label) for label in labels])
        if order is not None:
            moved = order != list(range(len(order)))
            return order, "", [f"the teacher's labels are put in order: {', '.join(labels)}"] if moved else []
    stripped = [_strip_default_prefix(label) for label in labels]
    order = _match_names([_strip_default_prefix(name) for name in own], stripped)
    # Labels such as LABEL_1 to LABEL_4 name indices too, and other ones.
    has_names = own != [f"LABEL_{index}" for index in range(len(own))] or stripped != [of.lower() for of in labels]
    if order is None and has_names:
        return None, f"its labels are {', '.join(own)} and the task's {', '.join(labels)}", []
    order = order or list(range(len(labels)))
    pairs = ", ".join(f"{own[index]}={label}" for index, label in zip(order, labels, strict=True))
    return order, "", [f"the teacher's labels have no names and are taken by index: {pairs}"]


def _match_names(own: Sequence[str], labels: Sequence[str]) -> list[int] | None:
    """Returns the position of each label in `own`, None if the names are not the same or not distinct."""
    position = {name: index for index, name in enumerate(own)}
    if len(position) < len(own) or position.keys() != set(labels):
        return None
    return [position[label] for label in labels]


def _strip_default_prefix(label: str) -> str:
    """Returns the index of a default name `LABEL_i`, and any other label in lower case."""
    return re.sub(r"^label_(\d+)\Z", r"\1", label.lower())


@torch.no_grad()
def reorder_head(model: PreTrainedModel, order: Sequence[int]) -> None:
    """Permutes the rows of the last linear layer, so that output `i` is the former output `order[i]`."""
    if list(order) == list(range(len(order))):
        return
    head = find_head(model, len(order))
    if head is None:
        raise UserError(f"{type(model).__name__} has its labels in another order and no linear head to put in order")
    index = torch.tensor(order)
    head.weight.copy_(head.weight[index].clone())
    if head.bias is not None:
        head.bias.copy_(head.bias[index].clone())


@torch.no_grad()
def rescale_head(model: PreTrainedModel, slope: float, intercept: float) -> bool:
    """Turns the one output `y` of the last linear layer into `slope * y + intercept`.

    Returns whether there is such a layer with a bias. Without one nothing changes.
    """
    head = find_head(model, 1)
    if head is None or head.bias is None:
        return False
    head.weight.mul_(slope)
    head.bias.mul_(slope).add_(intercept)
    return True


@torch.no_grad()
def start_head(model: PreTrainedModel, bias: Sequence[float], *, inherited: Container[str] = ()) -> None:
    """Sets the bias `[C]` of the last linear layer with C outputs before a training.

    Without such a layer or its bias, or if its bias is `inherited` from another model, nothing changes.
    """
    head = find_head(model, len(bias))
    if head is None or head.bias is None:
        return
    if not any(parameter is head.bias and name in inherited for name, parameter in model.named_parameters()):
        head.bias.copy_(torch.tensor(bias))


@torch.no_grad()
def replace_head(model: PreTrainedModel, weight: Tensor, bias: Tensor) -> None:
    """Gives the last linear layer with C outputs this weight `[C, F]` and bias `[C]`."""
    head = find_head(model, len(bias))
    assert head is not None  # Whose inputs the weight was fitted to.
    head.weight.copy_(weight)
    if head.bias is not None:
        head.bias.copy_(bias)


@torch.no_grad()
def change_encoder(model: PreTrainedModel, changes: Mapping[str, Tensor]) -> None:
    """Adds these changes to the tensors of the base model, all of it but a pooler.

    Raises:
        UserError: for a base model with other tensors.
    """
    tensors, given = (
        {name: tensor for name, tensor in of.items() if not name.startswith("pooler.")}
        for of in (model.base_model.state_dict(), changes)
    )
    if {name: tensor.shape for name, tensor in tensors.items()} != {name: of.shape for name, of in given.items()}:
        raise UserError(
            f"student.init=general has the encoder of a student without a head, and that of a {type(model).__name__} "
            "has other tensors: take +student=layers, or another student.init"
        )
    for name, change in given.items():
        tensors[name].add_(change)


def find_head(model: PreTrainedModel, outputs: int) -> nn.Linear | None:
    """Returns the last linear layer with this number of outputs."""
    heads = [m for m in model.modules() if isinstance(m, nn.Linear) and m.out_features == outputs]
    return heads[-1] if heads else None
