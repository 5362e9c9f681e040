"""Starts of a student besides its teacher's layers: vectors of pieces, a general stage, halves of one encoder.

An encoder-decoder whose halves both begin with the layers of one encoder. Rothe et al. (arXiv 1907.12461) initialize
both halves of a transformer from a BERT, with cross-attention that is new. Here the result is a BART, whose layers are
those of a BERT: normalization after each sum, learned positions, a normalization of the embeddings, and one table of
words for both halves and the output. It is trained, halved, exported and run as every other BART. It differs from
transformers' EncoderDecoderModel in two things: the output has no transformation before the table, and LayerNorm adds
1e-5 to the variance, where a BERT adds 1e-12.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass as checked_dataclass
from torch import Tensor
from transformers import BartConfig, BartForConditionalGeneration, PreTrainedModel, PreTrainedTokenizerBase

from distill.core.errors import OptionError, UserError
from distill.core.options import STRICT, check_options
from distill.models.forward import run_encoder
from distill.models.surgery.copies import Copies
from distill.models.surgery.layers import (
    BART_LAYER,
    MODULES,
    Importance,
    find_layer_prefix,
    is_whole,
    list_parts,
    reserved_positions,
    spread_layers,
)
from distill.models.surgery.long_texts import attends_locally
from distill.models.vectors import VectorSettings, encode_states, pool, vector_settings, vector_width

OPTION = "student.general"
GENERAL = "general"  # Among the names of the option `init` of a student.


@check_options(OPTION)
@checked_dataclass(frozen=True, config=STRICT)
class GeneralSettings:
    """The text and the training of a general stage, the keys of `student.general`.

    Args:
        corpus: a file of text, or a folder of files; None for the texts without labels of the task.
        documents: unit of the documents in a text file, a share of which is held out.
        tokens: most tokens of a pass. Each pass over a longer text goes on where the one before ended.
        passes: number of passes.
        learning_rate: its peak.
        batch_size: number of sequences in an optimizer step.
        max_length: number of tokens in a sequence.
    """

    corpus: str | None = None
    documents: Literal["file", "paragraph", "line"] = "paragraph"
    tokens: PositiveInt = 6_000_000
    passes: PositiveInt = 3
    learning_rate: PositiveFloat = 5e-4
    batch_size: PositiveInt = 32
    max_length: Annotated[int, Field(ge=8)] = 128

    @classmethod
    def of(cls, options: Mapping[str, Any] | None) -> "GeneralSettings":
        """Returns the settings that `student.general` gives; None gives none.

        Raises:
            UserError: for an option that there is not, or that got a value it cannot take.
        """
        given = dict(options or {})
        known = tuple(cls.__dataclass_fields__)
        if unknown := [name for name in given if name not in known]:
            raise UserError(f"{OPTION}.{unknown[0]} is unknown, expected one of {', '.join(known)}")
        return cls(**given)


def names_general(init: object) -> bool:
    """Returns whether the option `init` of a student names the general stage."""
    return GENERAL in ([init] if isinstance(init, str) else init if isinstance(init, list | tuple) else ())


BATCH = 1024  # Pieces in a forward pass, each a sequence of three tokens at most.
_MEAN: VectorSettings = {"pooling": "mean", "normalize": False}


@dataclass(frozen=True)
class Origins:
    """What a student may start from besides its teacher.

    Each is computed when it is called for, and None where only the sizes of the student matter.

    Args:
        tokenizer: of the teacher and the student.
        sentence_vectors: returns the vectors of all pieces, `[V, H]`, by the teacher's encoder before its fine-tuning.
        shares: returns the share of each piece among those of the training texts with and without labels, `[V]`.
        importance: returns the importance of the teacher's heads and inner neurons for the task.
    """

    tokenizer: PreTrainedTokenizerBase
    sentence_vectors: Callable[[], Tensor] | None = None
    shares: Callable[[], Tensor] | None = None
    importance: Callable[[], Importance] | None = None


def list_pieces(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Returns the text of each piece of a tokenizer, empty for special tokens, `[V]`."""
    special = set(tokenizer.all_special_ids)
    texts = tokenizer.batch_decode([[piece] for piece in range(len(tokenizer))])
    return ["" if piece in special else text.removeprefix("##").strip() for piece, text in enumerate(texts)]


@torch.no_grad()
def encode_pieces(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, own: PreTrainedTokenizerBase | None = None
) -> Tensor:
    """Returns the vectors `[V, H]` of an encoder for texts of one piece each, without those of special tokens.

    They are pooled as the model's configuration says, and by the mean if it says nothing (as model2vec has it).
    The rows of special tokens are 0.

    Args:
        own: the tokenizer of the encoder, by which it reads the text of each piece; None if that is `tokenizer`.
    """
    if own is not None:
        return _encode_texts(model, list_pieces(tokenizer), own)
    before, after = tokenizer.cls_token_id, tokenizer.sep_token_id
    prefix, suffix = ([] if token is None else [token] for token in (before, after))
    vectors = torch.zeros(int(model.config.vocab_size), vector_width(model.config))
    special = set(tokenizer.all_special_ids)
    pieces = torch.tensor([piece for piece in range(len(tokenizer)) if piece not in special])
    was_training = model.training
    model.eval()
    for ids in pieces.split(BATCH):
        rows = torch.stack([torch.tensor([*prefix, piece, *suffix]) for piece in ids.tolist()]).to(model.device)
        mask = torch.ones_like(rows)
        batch = {"input_ids": rows, "attention_mask": mask, "token_type_ids": torch.zeros_like(rows)}
        states: Tensor = run_encoder(model, batch).last_hidden_state
        vectors[ids] = _encode_states(model, states, mask).cpu()
    model.train(was_training)
    return vectors


def _encode_states(model: PreTrainedModel, states: Tensor, mask: Tensor) -> Tensor:
    """Returns the vectors of texts in their own length, by the mean if the model's configuration says nothing."""
    if vector_settings(model.config) is None:
        return pool(states, mask, _MEAN)
    return encode_states(model, states, mask, normalize=False)


def _encode_texts(model: PreTrainedModel, texts: list[str], tokenizer: PreTrainedTokenizerBase) -> Tensor:
    """Returns the vectors `[V, H]` of texts, 0 for those that are empty."""
    vectors = torch.zeros(len(texts), vector_width(model.config))
    filled = torch.tensor([row for row, text in enumerate(texts) if text])
    model.eval()
    for rows in filled.split(BATCH):
        chosen = [texts[row] for row in rows.tolist()]
        batch = tokenizer(chosen, padding=True, return_tensors="pt", return_attention_mask=True).to(model.device)
        states: Tensor = run_encoder(model, batch).last_hidden_state
        vectors[rows] = _encode_states(model, states, batch["attention_mask"]).cpu()
    return vectors


Owner = Literal["teacher", "student"]
_EMBEDDINGS = {
    "word_embeddings.weight", "position_embeddings.weight", "token_type_embeddings.weight", "LayerNorm.weight",
    "LayerNorm.bias",
}  # fmt: skip
_OFFSET = 2  # Rows in front of the positions of a BART.


@torch.no_grad()
def build_encoder_decoder(
    encoder: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    owner: Owner,
    *,
    depth: int | None = None,
    decoder_depth: int | None = None,
) -> BartForConditionalGeneration:
    """Creates a BART from an encoder, in evaluation mode and float32.

    Texts that it writes begin with [CLS] and end with [SEP], which become the `bos_token` and `eos_token` of a
    tokenizer without such. The model's `inherited` maps the names of its tensors to those of the encoder's tensors that
    they were copied from.

    Args:
        encoder: without a head: BERT, RoBERTa, DistilBERT or another with such layers and learned positions.
        owner: of the model, whose options are named in messages.
        depth, decoder_depth: number of layers of each half, the first, the last and evenly spaced ones
            between them; None for all.

    Raises:
        OptionError: for a number of layers that the encoder does not have.
        UserError: for an encoder with other layers or embeddings, and a tokenizer without [CLS] and [SEP].
    """
    total = encoder.config.num_hidden_layers
    halves = {
        "encoder": _choose_layers(f"{owner}.depth", total, depth),
        "decoder": _choose_layers(f"{owner}.decoder_depth", total, decoder_depth),
    }
    _check_encoder(encoder)
    _fit_tokenizer(tokenizer)
    parts, positions = list_parts(encoder), _read_positions(encoder)
    model = _create(encoder, tokenizer, {half: len(layers) for half, layers in halves.items()})
    copies = Copies(encoder, model)
    copies.copy_module(model.model.shared, encoder.embeddings.word_embeddings)
    for half, layers in halves.items():
        module = model.get_submodule(f"model.{half}")
        copies.copy_module(module.layernorm_embedding, encoder.embeddings.LayerNorm)
        module.embed_positions.weight[_OFFSET:] = positions
        for own, layer in zip(module.layers, layers, strict=True):
            for name, target in zip(MODULES, BART_LAYER, strict=True):
                copies.copy_module(own.get_submodule(target), parts[layer][name])
    model.inherited = copies.names  # type: ignore[assignment]
    return model.float().eval()


def _fit_tokenizer(tokenizer: PreTrainedTokenizerBase) -> None:
    """Gives a tokenizer the tokens at the ends of a text, and takes away token types, which a BART does not read.

    Raises:
        UserError: for a tokenizer without [CLS] and [SEP].
    """
    if tokenizer.cls_token is None or tokenizer.sep_token is None:
        raise UserError(
            "a text that a model writes begins with [CLS] and ends with [SEP], and the tokenizer has no such tokens: "
            "take another encoder"
        )
    if tokenizer.bos_token is None:
        tokenizer.bos_token = tokenizer.cls_token
    if tokenizer.eos_token is None:
        tokenizer.eos_token = tokenizer.sep_token
    tokenizer.model_input_names = [name for name in tokenizer.model_input_names if name != "token_type_ids"]
    tokenizer.init_kwargs["model_input_names"] = tokenizer.model_input_names  # Else it is not saved.


def _choose_layers(option: str, total: int, depth: int | None) -> list[int]:
    if depth is None:
        return list(range(total))
    if not is_whole(depth, 1, total):
        raise OptionError(option, str(depth), f"a whole number from 1 to {total}, the layers of the encoder, or null")
    return spread_layers(total, depth)


def _check_encoder(encoder: PreTrainedModel) -> None:
    """Raises UserError for an encoder whose layers and embeddings are none of a BART."""
    name, parts = type(encoder).__name__, list_parts(encoder)
    if not parts or attends_locally(encoder):
        raise UserError(
            f"the layers of a {name} do not fit the halves of an encoder-decoder, which are those of a BERT: take a "
            "BERT, a RoBERTa, a DistilBERT or a model with such layers"
        )
    prefix = find_layer_prefix(encoder)
    others = {tensor for tensor, _ in encoder.named_parameters() if not tensor.startswith((prefix, "pooler."))}
    own = {tensor.removeprefix("embeddings.") for tensor in others}
    strange = sorted(own - _EMBEDDINGS or _EMBEDDINGS - {"token_type_embeddings.weight"} - own)
    if strange:
        raise UserError(
            f"the embeddings of a {name} are not those of a BERT ({strange[0]}), and no encoder-decoder begins with "
            "them: take a BERT, a RoBERTa, a DistilBERT or a model with such embeddings"
        )
    width = encoder.config.hidden_size
    sizes = {(layer["attention.query"].out_features, layer["ffn"].out_features) for layer in parts}
    if len(sizes) > 1 or min(sizes)[0] != width:
        raise UserError(f"the layers of this {name} were narrowed, and an encoder-decoder has whole ones: take another")


def _create(
    encoder: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, depths: Mapping[str, int]
) -> BartForConditionalGeneration:
    """Returns a BART of the encoder's sizes with random weights."""
    config = encoder.config
    activation, dropout = (getattr(config, name, None) for name in ("hidden_act", "hidden_dropout_prob"))
    sizes: dict[str, int] = {}
    for half, depth in depths.items():
        inner = list_parts(encoder)[0]["ffn"].out_features
        heads = config.num_attention_heads
        sizes |= {f"{half}_layers": depth, f"{half}_attention_heads": heads, f"{half}_ffn_dim": inner}
    return BartForConditionalGeneration(BartConfig(
        vocab_size=encoder.get_input_embeddings().weight.shape[0],
        d_model=config.hidden_size,
        max_position_embeddings=len(_read_positions(encoder)),
        activation_function=activation or config.activation,  # DistilBERT has names of its own.
        dropout=config.dropout if dropout is None else dropout,
        init_std=config.initializer_range,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        decoder_start_token_id=tokenizer.cls_token_id,
        forced_eos_token_id=None,
        **sizes,
    ))  # fmt: skip


def _read_positions(encoder: PreTrainedModel) -> Tensor:
    """Returns the embeddings of the positions, `[P, H]`, with that of the first token type, which all tokens have."""
    table: Tensor = encoder.embeddings.position_embeddings.weight[reserved_positions(encoder) :]
    types = getattr(encoder.embeddings, "token_type_embeddings", None)
    return table if types is None else table + types.weight[0]
