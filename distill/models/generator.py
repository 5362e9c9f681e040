"""Masked language models that replace tokens: for a discriminator (arXiv 2003.10555), or in copies of texts."""

import hashlib
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, cast

import numpy as np
import torch
from pydantic import Field, NonNegativeInt, PositiveInt
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from transformers import ElectraConfig, ElectraForMaskedLM, PreTrainedModel, PreTrainedTokenizerBase

from distill.core import storage
from distill.core.console import ProgressMeter, print_line
from distill.core.errors import OptionError, UnreachableError, UserError
from distill.core.files import hash_file
from distill.core.options import STRICT, check_arguments, raise_option_errors
from distill.data.augmentation import Augmentation, Copy, Probability, change_in_turns
from distill.data.batches import scored_tokens, scoring_steps
from distill.data.splits import LabelledData
from distill.models.forward import attention_width, run_encoder, run_head, to_device
from distill.models.loading import Start, find_directory, load_directory
from distill.models.wrappers import SeveralHeads, shapes_of

DISCRIMINATOR, GENERATOR = "discriminator", "generator"


@raise_option_errors
@dataclass(frozen=True, config=STRICT)
class GeneratorOptions:
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
        start = load_directory(
            find_directory(str(self.path), "task.generator.path"), "AutoModelForMaskedLM", None, trust_remote_code=False
        )
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
        if module is not table and name in theirs and shapes_of(module) == shapes_of(theirs[name])
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


_TEXTS_PER_CALL = 4096  # Limits the memory for token ids.
_FILES = ("*.json", "*.txt", "*.model", "*.safetensors")


class MaskedLMAugmentation(Augmentation):
    """Augmentation of TinyBERT, arXiv 1909.10351, algorithm 1.

    Each word is replaced with `p_replace` by one of the `candidates` likeliest words of a masked language model at its
    place, all with the same probability. Unlike in the paper, words of several pieces are masked as a whole in place
    of a search for neighbours among word vectors. Candidates are whole words with a letter or digit. Of pairs the first
    text is changed, the second, or both, in turns. A word beyond the model's longest input is never replaced.

    Args:
        model: a directory or an id of the Hub, with a trained head for masked tokens.
        copies: of each training example.
        p_replace: probability of replacing a word.
        candidates: number of the likeliest words that one is drawn from.
        seed: of all random choices.

    Raises:
        OptionError: for an option that got a value it cannot take.
    """

    name = "mlm"

    @check_arguments
    def __init__(
        self,
        *,
        model: str | Path | None = None,
        copies: PositiveInt = 20,
        p_replace: Probability = 0.4,
        candidates: PositiveInt = 15,
        seed: NonNegativeInt = 0,
    ) -> None:
        self.model = None if model is None else str(model)
        self.copies, self.p_replace, self.candidates, self.seed = copies, p_replace, candidates, seed
        self._start: Start | None = None

    def check(self) -> None:
        """Raises UserError if the model is missing or has no trained head for masked tokens."""
        directory = self._locate()
        start = load_directory(directory, "AutoModelForMaskedLM", None, trust_remote_code=False)
        if not start.fits:
            raise UserError(
                f"augment.model={self.model} is no masked language model: {start.reason}; give one that was trained on "
                "masked tokens (job=pretrain makes one)"
            )
        if start.tokenizer.mask_token_id is None:
            raise UserError(f"augment.model={self.model} has a tokenizer without a mask token, which augment=mlm needs")
        self._start = start

    def key(self, data: LabelledData) -> list[object]:
        options = self.options() | {"model": None}
        paths = sorted(path for pattern in _FILES for path in self._locate().glob(pattern))
        digest = hashlib.sha256("".join(f"{path.name} {hash_file(path)}\n" for path in paths).encode()).hexdigest()
        return [options, digest, [".".join(torch.__version__.split(".")[:2])]]

    def prepare(self, data: LabelledData, mask_token: str | None, device: str) -> Copy:
        """Returns the function that makes the copies; `mask_token` is not read, because the model has its own."""
        split = data.splits["train"]
        if self._start is None:
            self.check()
        assert self._start is not None
        sides = [split.texts] if split.pairs is None else [split.texts, split.pairs]
        words = [[text.split() for text in texts] for texts in sides]
        predictor = _Predictor(self._start, self.candidates, torch.device(device))
        found = predictor.predict([text for side in words for text in side])
        self._start = None  # Frees its memory.
        vocabulary, starts, count = predictor.words, predictor.starts, len(split)

        def change(row: int, side: int, random: np.random.Generator) -> str:
            changed = list(words[side][row])
            replaced = np.flatnonzero(random.random(len(changed)) < self.p_replace)
            chosen = random.integers(0, found.shape[1], len(replaced))
            tokens = found[starts[side * count + row] + replaced, chosen]
            for place, token in zip(replaced.tolist(), tokens.tolist(), strict=True):
                if token >= 0:
                    changed[place] = vocabulary[token]
            return " ".join(changed)

        return change_in_turns(split, change)

    def _locate(self) -> Path:
        """Returns the directory of the model, downloaded from the Hub if necessary."""
        from huggingface_hub import errors, snapshot_download

        if self.model is None:
            raise UserError("augment=mlm needs a masked language model: set augment.model=DIR or an id of the Hub")
        if Path(self.model).expanduser().is_dir():
            return find_directory(self.model, "augment.model")
        try:
            return Path(snapshot_download(self.model, local_files_only=True, allow_patterns=list(_FILES)))
        except (errors.LocalEntryNotFoundError, errors.HFValidationError):
            pass  # The check below reports an invalid name.
        try:
            storage.check_hub_file(self.model, "config.json")
            return Path(snapshot_download(self.model, allow_patterns=list(_FILES)))
        except UnreachableError as error:
            raise UnreachableError(
                f"augment.model={self.model} is no directory, and it is neither in the Hugging Face cache nor can it "
                "be downloaded from the Hub: give a directory, or go online once"
            ) from error


class _Predictor:
    """Predicts the words of texts, each masked in turn.

    `words` are the tokens of the vocabulary as text, and `starts` the place of each text's first word among all.
    """

    def __init__(self, start: Start, candidates: int, device: torch.device) -> None:
        self.model, self.tokenizer, self.device = start.model.to(device).eval(), start.tokenizer, device
        self.words = [self.tokenizer.decode([token]).strip() for token in range(len(self.tokenizer))]
        width = int(start.model.config.vocab_size)
        self.allowed = torch.zeros(width, dtype=torch.bool, device=device)
        self.allowed[torch.tensor(whole_words(self.tokenizer, self.words), dtype=torch.long, device=device)] = True
        self.candidates = min(candidates, int(self.allowed.sum()))
        if self.candidates == 0:
            raise UserError("the vocabulary of augment.model has no whole word")
        positions = int(getattr(start.model.config, "max_position_embeddings", 512))
        # Positions of RoBERTa begin with 2.
        self.longest = min(positions - 2, int(self.tokenizer.model_max_length))
        self.starts = np.zeros(0, dtype=np.int64)

    def predict(self, texts: Sequence[Sequence[str]]) -> np.ndarray:
        """Returns the likeliest tokens for every word of all texts, `[words, candidates]`; -1 where there is none."""
        counts = np.array([len(words) for words in texts], dtype=np.int64)
        self.starts = counts.cumsum() - counts
        total = int(counts.sum())
        found = np.full((total, self.candidates), -1, dtype=np.int32)
        print_line(f"augment=mlm: predicts {total:,} masked words once")
        done = 0
        with ProgressMeter("augment=mlm model", total, unit="words") as meter:
            for chunk in _chunks(self._masked(texts), _TEXTS_PER_CALL):
                found[done : done + len(chunk)] = self._predict_chunk(chunk)
                done += len(chunk)
                meter.advance(len(chunk))
        return found

    def _masked(self, texts: Sequence[Sequence[str]]) -> Iterator[str]:
        mask = str(self.tokenizer.mask_token)
        for words in texts:
            for place in range(len(words)):
                yield " ".join([*words[:place], mask, *words[place + 1 :]])

    @torch.inference_mode()
    def _predict_chunk(self, texts: list[str]) -> np.ndarray:
        encoded = self.tokenizer(texts, truncation=True, max_length=self.longest)
        mask_id = self.tokenizer.mask_token_id
        ids = [np.array(row) for row in encoded["input_ids"]]
        found = np.full((len(texts), self.candidates), -1, dtype=np.int32)
        rows = np.array([row for row, token_ids in enumerate(ids) if (token_ids == mask_id).any()], dtype=np.int64)
        if not len(rows):
            return found
        lengths = np.array([len(ids[row]) for row in rows])
        for step in scoring_steps(lengths, scored_tokens(self.device)):
            chosen = rows[step]
            picked = {name: [values[row] for row in chosen] for name, values in encoded.items()}
            padded = self.tokenizer.pad(picked, return_tensors="pt")
            batch = to_device(dict(padded), self.device)
            output = run_encoder(self.model, batch)
            places = (batch["input_ids"] == mask_id).int().argmax(dim=1)
            states = output.last_hidden_state[torch.arange(len(step), device=self.device), places]
            logits = run_head(self.model, output, states).logits[0].float()
            best = logits.masked_fill(~self.allowed, -torch.inf).topk(self.candidates, dim=-1).indices
            found[chosen] = best.cpu().numpy()
        return found


def whole_words(tokenizer: PreTrainedTokenizerBase, words: Sequence[str]) -> list[int]:
    """Returns the tokens that are a word with a letter or digit, and not a piece of one.

    Such a token is the only one of its text behind another word.

    Args:
        words: the text of every token.
    """
    candidates = [
        token for token, word in enumerate(words) if any(map(str.isalnum, word)) and not any(map(str.isspace, word))
    ]
    special = set(tokenizer.all_special_ids)
    before = tokenizer("a", add_special_tokens=False)["input_ids"]
    texts = [f"a {words[token]}" for token in candidates]
    encoded = tokenizer(texts, add_special_tokens=False)["input_ids"] if texts else []
    return [
        token
        for token, ids in zip(candidates, encoded, strict=True)
        if ids == [*before, token] and token not in special
    ]


def _chunks(texts: Iterator[str], size: int) -> Iterator[list[str]]:
    while chunk := list(islice(texts, size)):
        yield chunk
