"""A small masked language model that replaces tokens, which a discriminator learns to detect (arXiv 2003.10555)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, cast

import torch
from pydantic import Field, PositiveInt
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from transformers import ElectraConfig, ElectraForMaskedLM, PreTrainedModel, PreTrainedTokenizerBase

from distill.errors import OptionError, UserError
from distill.models.attention import attention_width
from distill.models.heads import SeveralHeads
from distill.models.loading import check_directory, load_directory
from distill.options import STRICT, raise_option_errors

DISCRIMINATOR, GENERATOR = "discriminator", "generator"


@raise_option_errors
@dataclass(frozen=True, config=STRICT)
class Generator:
    """Options of the generator, the keys of `generator` in `conf/task/rtd.yaml`.

    Args:
        width: of its hidden states, as a share of the discriminator's.
        layers: number of its layers; None for as many as the discriminator has.
        path: a directory with a masked language model of the same vocabulary to begin with; None for random weights.
    """

    width: Annotated[float, Field(gt=0, le=1, description="a share above 0 and at most 1")] = 0.25
    layers: PositiveInt | None = None
    path: str | None = None

    def join(self, discriminator: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> SeveralHeads:
        """Returns the discriminator and its generator as one model.

        Embeddings that both have are one module. A new generator has the discriminator's table of words, and its other
        embeddings too if they give the same vectors. One from `path` has them if its table is the same.

        Raises:
            UserError: for a discriminator without attention, and for a generator that is wider than it, reads other
                tokens, or is no masked language model.
        """
        if attention_width(discriminator) is None:
            raise UserError(
                f"a generator has the layers of its discriminator, and a {type(discriminator).__name__} has no "
                "attention: take a teacher of another family, such as BERT, RoBERTa or ELECTRA"
            )
        generator = self._create(discriminator) if self.path is None else self._load(discriminator, tokenizer)
        joint = SeveralHeads({DISCRIMINATOR: discriminator, GENERATOR: generator})
        joint.encoder = discriminator.base_model
        return joint

    def _create(self, discriminator: PreTrainedModel) -> PreTrainedModel:
        """Returns a new generator, an ELECTRA whose embeddings are as wide as the discriminator's and projected."""
        size, table = discriminator.config, _word_embeddings(discriminator)
        heads = max(1, round(self.width * size.num_attention_heads))
        width = max(1, round(self.width * size.hidden_size / heads)) * heads
        config = ElectraConfig(
            vocab_size=table.num_embeddings,
            embedding_size=table.embedding_dim,
            hidden_size=width,
            num_hidden_layers=self.layers or size.num_hidden_layers,
            num_attention_heads=heads,
            intermediate_size=4 * width,
            hidden_dropout_prob=getattr(size, "hidden_dropout_prob", 0.1),
            attention_probs_dropout_prob=getattr(size, "attention_probs_dropout_prob", 0.1),
            max_position_embeddings=getattr(size, "max_position_embeddings", 512),
            type_vocab_size=max(2, getattr(size, "type_vocab_size", 0)),
            layer_norm_eps=getattr(size, "layer_norm_eps", 1e-12),
            pad_token_id=size.pad_token_id,
        )
        generator = ElectraForMaskedLM(config)
        share_embeddings(generator, discriminator)
        return generator

    def _load(self, discriminator: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
        """Returns the generator from `path`."""
        given = f"task.generator.path={self.path}"
        directory = Path(str(self.path)).expanduser()
        check_directory(directory, given)
        start = load_directory(directory, "AutoModelForMaskedLM", None, trust_remote_code=False)
        if not start.fits:
            raise UserError(f"{given} is no masked language model: {start.reason}; null makes a new generator")
        widths = [int(model.config.hidden_size) for model in (start.model, discriminator)]
        if widths[0] > widths[1]:
            raise OptionError(
                "task.generator.path", str(self.path),
                f"a generator of at most {widths[1]}, the width of its discriminator, and it has {widths[0]}",
            )  # fmt: skip
        own, expected = start.tokenizer.get_vocab(), tokenizer.get_vocab()
        if own != expected:
            differing = [token for token, index in expected.items() if own.get(token) != index] or sorted(own)
            raise OptionError(
                "task.generator.path", str(self.path),
                f"a generator with the vocabulary of its discriminator, {len(expected):,} tokens, and it has "
                f"{len(own):,}, of which {differing[0]!r} is another one",
            )  # fmt: skip
        words, other = _word_embeddings(start.model).weight, _word_embeddings(discriminator).weight
        if words.shape == other.shape and torch.equal(words, other):
            share_embeddings(start.model, discriminator)
        return start.model


def share_embeddings(generator: PreTrainedModel, discriminator: PreTrainedModel) -> None:
    """Gives the generator the discriminator's embeddings, as the same modules.

    They are the words, and the positions, segments and norm where the vectors of tokens are then those of the
    discriminator. Some families count positions in another way or have none.
    """
    table = _word_embeddings(discriminator)
    generator.set_input_embeddings(table)
    generator.tie_weights()
    own, other = (_parent(model, table) for model in (generator, discriminator))
    theirs = dict(other.named_children())
    before = {
        name: module
        for name, module in own.named_children()
        if module is not table and name in theirs and _shapes(module) == _shapes(theirs[name])
    }
    for name in before:
        setattr(own, name, theirs[name])
    if not _embed_alike(own, other):
        for name, module in before.items():
            setattr(own, name, module)


@torch.no_grad()
def sample_tokens(logits: Tensor, seed: int) -> Tensor:
    """Returns a token for each row of `logits [n, V]`, drawn from their softmax by Gumbel noise of this seed.

    `argmax(z - log(-log u))` with u uniform (arXiv 1611.01144, equation 1). The random numbers are of a generator of
    their own, so that those of dropout do not depend on them.
    """
    random = torch.Generator(logits.device).manual_seed(seed)
    uniform = torch.rand(logits.shape, generator=random, device=logits.device)
    noise = uniform.clamp_(min=torch.finfo(uniform.dtype).tiny).log_().neg_().log_()
    return (logits.float() - noise).argmax(dim=-1)


def _word_embeddings(model: PreTrainedModel) -> nn.Embedding:
    return cast(nn.Embedding, model.get_input_embeddings())


def _parent(model: PreTrainedModel, child: nn.Module) -> nn.Module:
    """Returns the module of the encoder that has this one."""
    modules: Iterator[nn.Module] = model.base_model.modules()
    return next(module for module in modules if any(each is child for each in module.children()))


def _shapes(module: nn.Module) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in module.state_dict().items()}


@torch.no_grad()
def _embed_alike(own: nn.Module, other: nn.Module) -> bool:
    """Returns whether two modules of embeddings give the same vectors of tokens, without dropout."""
    modes = [(module, module.training) for module in (own, other)]
    ids = torch.arange(2, 8, device=next(own.parameters()).device).unsqueeze(0)
    try:
        one, another = (module.eval()(input_ids=ids) for module, _ in modes)
    except TypeError:  # The other one has further inputs.
        return False
    finally:
        for module, mode in modes:
            module.train(mode)
    return one.shape == another.shape and torch.equal(one, another)
