"""The embeddings of a model: of fewer pieces, of added words, or narrow with a projection (ALBERT).

Narrow embeddings and a projection to the width of the layers, in place of a teacher's embeddings (ALBERT). ALBERT
(arXiv 1909.11942, section 3.1) normalizes its embeddings at their own width E, a BERT at the width H of its layers. The
two agree exactly if the teacher's normalized embeddings are of rank E - 1 at most.

Cuts a vocabulary down to the pieces that the texts of a task need. Most of a small student is its embedding. A piece
that no training text holds has a row that was never trained on the task. Without it a text that needs it is split into
shorter pieces, all of whose rows are there.
"""

import copy
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.core.errors import OptionError, UserError
from distill.core.options import show_value
from distill.data.tokenization import encode_whole
from distill.models.loading import Start
from distill.models.surgery.copies import Copies
from distill.models.surgery.layers import list_layers, reserved_rows

TOKENS = 30_000  # Of the vocabulary at most, at which the projection is fitted.
LENGTH = 64  # Of the sequences that these tokens are read in.
PENALTY = 1e-6  # Of the ridge regression, a share of the mean square of a feature.


class _FirstLayer(Exception):
    """Ends a forward pass at the first layer, with its input as the argument."""


@dataclass(frozen=True)
class EmbeddingTables:
    """The tables whose rows a model adds up and then normalizes.

    Attributes:
        words: `[V, W]`.
        positions: `[P, W]` from position 0 on, None for a model with other positions.
        types: of the token types `[T, W]`, None for a model without them.
        norm: the norm of the sums, None for a model without one.
    """

    words: nn.Embedding
    positions: nn.Embedding | None
    types: nn.Embedding | None
    norm: nn.LayerNorm | None

    @classmethod
    def of(cls, model: PreTrainedModel) -> "EmbeddingTables":
        """Returns the tables of a model; those of its positions and types stand beside its word embeddings."""
        words = model.get_input_embeddings()
        assert isinstance(words, nn.Embedding)
        name = next(name for name, module in model.named_modules() if module is words)
        beside = dict(model.get_submodule(name.rpartition(".")[0]).named_children())

        def find(key: str) -> nn.Embedding | None:
            table = beside.get(key)
            is_added = isinstance(table, nn.Embedding) and table.embedding_dim == words.embedding_dim
            return table if is_added else None  # type: ignore[return-value]

        norm = next((module for module in beside.values() if isinstance(module, nn.LayerNorm)), None)
        return cls(words, find("position_embeddings"), find("token_type_embeddings"), norm)

    def position_rows(self) -> Tensor | None:
        """Returns the rows `[P, W]` from position 0 on."""
        return None if self.positions is None else _rows(self.positions)[reserved_rows(self.positions) :]

    def add_up(self, ids: Tensor) -> Tensor:
        """Returns the sums `[n, L, W]` for `ids [n, L]` before the norm."""
        sums = _rows(self.words, ids)
        if (rows := self.position_rows()) is not None:
            sums = sums + rows[: ids.shape[1]]
        return sums if self.types is None else sums + _rows(self.types)[0]


@torch.no_grad()
def factorize_embeddings(
    copies: Copies, teacher: PreTrainedModel, student: PreTrainedModel, *, method: Literal["svd", "ridge"]
) -> None:
    """Starts the embeddings of an ALBERT and their projection from the teacher's embeddings.

    The tables are projected onto the principal directions of the normalized embeddings, turned so that the student's
    norm leaves them as they are. Tables of the teacher's own width are copied, with their norm. The projection is
    fitted to the inputs of the teacher's first layer.

    Args:
        method: `svd` projects back by the same directions with one scale, `ridge` by a ridge regression.
    """
    source, target = EmbeddingTables.of(teacher), EmbeddingTables.of(student)
    width = target.words.embedding_dim
    ids = _sample_tokens(teacher, source, target)
    back = None
    if width < source.words.embedding_dim:
        directions = _principal_directions(source.add_up(ids).flatten(0, 1), width - 1)  # [W, E - 1]
        back = _zero_mean_basis(width) @ directions.T  # [E, W]
    _copy_tables(copies, source, target, back)
    wanted = _read_first_inputs(teacher, ids).flatten(0, 1)
    given = student.base_model.embeddings.eval()(ids).flatten(0, 1)
    if method == "ridge" or back is None or back.shape[1] != wanted.shape[1]:
        weight, bias = fit_ridge(given, wanted)
    else:
        weight, bias = _fit_scale(given, wanted, back)
    projection = student.base_model.encoder.embedding_hidden_mapping_in
    copies.copy(projection.weight, source.words.weight, weight.T)
    copies.copy(projection.bias, source.words.weight, bias)


def _sample_tokens(teacher: PreTrainedModel, source: EmbeddingTables, target: EmbeddingTables) -> Tensor:
    """Returns different tokens of the vocabulary as sequences `[n, L]`, the same in every call."""
    limits = [len(rows) for rows in (source.position_rows(), target.position_rows()) if rows is not None]
    length = min(LENGTH, *limits)
    order = torch.randperm(source.words.num_embeddings, generator=torch.Generator().manual_seed(0))
    order = order[order != teacher.config.pad_token_id][:TOKENS]
    length = min(length, len(order))
    return order[: len(order) // length * length].view(-1, length)


def _read_first_inputs(teacher: PreTrainedModel, ids: Tensor) -> Tensor:
    """Returns the inputs `[n, L, H]` of the teacher's first layer, in float32."""

    def stop(module: nn.Module, arguments: tuple[Tensor, ...], options: dict[str, Tensor]) -> None:
        raise _FirstLayer(arguments[0] if arguments else options["hidden_states"])

    is_training = teacher.training
    handle = list_layers(teacher)[0].register_forward_pre_hook(stop, with_kwargs=True)
    inputs = []
    try:
        teacher.eval()
        for part in ids.to(teacher.device).split(LENGTH):
            try:
                teacher.base_model(input_ids=part, attention_mask=torch.ones_like(part))
            except _FirstLayer as reached:
                inputs.append(reached.args[0].float().cpu())
    finally:
        handle.remove()
        teacher.train(is_training)
    return torch.cat(inputs)


def _principal_directions(rows: Tensor, number: int) -> Tensor:
    """Returns orthonormal directions `[W, number]` that preserve most of the normalized `rows [n, W]`."""
    normalized = F.layer_norm(rows, rows.shape[1:]).double()
    _, directions = torch.linalg.eigh(normalized.T @ normalized)  # Ascending.
    directions = directions[:, -number:]
    centred: Tensor = (directions - directions.mean(dim=0)).float()  # The mean is 0 but for rounding errors.
    return centred


def _zero_mean_basis(width: int) -> Tensor:
    """Returns orthonormal columns `[E, E - 1]` whose elements have the mean 0, which a norm would subtract."""
    columns = torch.cat([torch.ones(width, 1), torch.eye(width)[:, : width - 1]], dim=1)
    basis: Tensor = torch.linalg.qr(columns.double())[0][:, 1:].float()
    return basis


def _rows(table: nn.Embedding, ids: Tensor | slice = slice(None)) -> Tensor:
    """Returns rows of a table in float32, all by default, on the CPU."""
    chosen = ids.to(table.weight.device) if isinstance(ids, Tensor) else ids
    return table.weight.detach()[chosen].float().cpu()


def _copy_tables(copies: Copies, source: EmbeddingTables, target: EmbeddingTables, back: Tensor | None) -> None:
    """Projects the source's tables by `back [E, W]`, or copies them and their norm."""
    tables = ((target.words, source.words), (target.positions, source.positions), (target.types, source.types))
    for own, other in tables:
        if own is not None and other is not None:
            rows = _rows(other)[reserved_rows(source.positions) if other is source.positions else 0 :]
            copies.copy(own.weight, other.weight, rows if back is None else rows @ back.T)
        elif own is not None:  # The teacher's embeddings do not depend on them.
            own.weight.zero_()
    if back is None and source.norm is not None and target.norm is not None:
        copies.copy_module(target.norm, source.norm)


def fit_ridge(given: Tensor, wanted: Tensor, *, penalty: float = PENALTY) -> tuple[Tensor, Tensor]:
    """Returns weight `[E, H]` and bias `[H]` of the ridge regression of `wanted [n, H]` on `given [n, E]`.

    Args:
        penalty: of the squared weights, a share of the mean sum of squares of a feature.
    """
    features, targets = given.double(), wanted.double()
    feature_mean, target_mean = features.mean(dim=0), targets.mean(dim=0)
    features = features - feature_mean
    gram = features.T @ features
    gram.diagonal().add_(penalty * gram.diagonal().mean().clamp_min(1e-12))  # Features may be constant.
    weight = torch.linalg.solve(gram, features.T @ (targets - target_mean))
    return weight.float(), (target_mean - feature_mean @ weight).float()


def _fit_scale(given: Tensor, wanted: Tensor, back: Tensor) -> tuple[Tensor, Tensor]:
    """Returns `scale * back [E, H]` and the bias `[H]` that fit best."""
    features, target_mean = given - given.mean(dim=0), wanted.mean(dim=0)
    projected = features @ back
    scale = (projected * (wanted - target_mean)).sum() / projected.square().sum()
    weight = scale * back
    return weight, target_mean - given.mean(dim=0) @ weight


AUTO_WORDS: Literal["auto"] = "auto"
REDUCTION = 0.08  # Of the pieces of a text, which `auto` adds words for.
MOST_WORDS = 5_000  # That `auto` adds.
LEAST_COUNT = 10  # Of a chosen word in the text; the row of a rarer one would hardly be trained.
LEAST_LETTERS = 3
KIND = "WordPiece"

AddWords = int | list[str] | Literal["auto"]


class TokenizerFile:
    """The tokenizer.json of a fast tokenizer.

    Attributes:
        content: of the file.
        model: the part of it that has the vocabulary.
        kind: of the vocabulary, such as WordPiece.
        pieces: their ids.
        merges: pairs of pieces of a BPE, whose files have them as one string in old versions.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self.content: dict[str, Any] = json.loads(tokenizer.backend_tokenizer.to_str())
        self.model: dict[str, Any] = self.content["model"]
        self.kind: str = self.model["type"]
        self.pieces: dict[str, int] = self.model["vocab"]
        if self.kind == "Unigram":
            self.pieces = {piece: number for number, (piece, _) in enumerate(self.model["vocab"])}
        merges = self.model.get("merges") or ()
        self.merges = [tuple(merge.split(" ") if isinstance(merge, str) else merge) for merge in merges]

    def rebuild(self) -> PreTrainedTokenizerBase:
        """Returns a copy of the tokenizer with the content as it is now."""
        rebuilt: Any = copy.deepcopy(self.tokenizer)
        rebuilt._tokenizer = Tokenizer.from_str(json.dumps(self.content))
        return rebuilt  # type: ignore[no-any-return]

    def add(self, words: Sequence[str]) -> PreTrainedTokenizerBase:
        """Returns a copy of the tokenizer with further pieces in its model.

        Tokens that are added beside the model would keep the case of a text and bypass its normalization.
        """
        first = _next_id(self.tokenizer)
        self.model["vocab"] |= {word: first + place for place, word in enumerate(words)}
        return self.rebuild()

    def covers_every_text(self) -> bool:
        """Returns whether there is a piece for every byte, so that no text is unknown."""
        if self.model.get("byte_fallback"):
            return True
        steps = self.content.get("pre_tokenizer") or {}
        return any(step.get("type") == "ByteLevel" for step in (steps, *steps.get("pretokenizers", ())))

    def close(self, used: set[int]) -> list[int]:
        """Returns the ids that stay: those used, special ones, single characters, and what they are merged of."""
        kept = used | set(self.tokenizer.all_special_ids) | {token["id"] for token in self.content["added_tokens"]}
        kept |= {number for piece, number in self.pieces.items() if self._is_character(piece)}
        halves = {"".join(merge): merge for merge in reversed(self.merges)}
        queue = [piece for piece, number in self.pieces.items() if number in kept]
        while queue:
            for half in halves.get(queue.pop(), ()):
                if self.pieces[half] not in kept:
                    kept.add(self.pieces[half])
                    queue.append(half)
        return sorted(kept)

    def _is_character(self, piece: str) -> bool:
        prefix = self.model.get("continuing_subword_prefix") or "▁"
        is_byte = len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">")
        return len(piece.removeprefix(prefix)) <= 1 or is_byte

    def renumber(self, number: Mapping[int, int]) -> PreTrainedTokenizerBase:
        """Returns a copy of the tokenizer with the pieces that have a new id."""
        content, model = self.content, self.model
        if self.kind == "Unigram":
            model["vocab"] = [model["vocab"][old] for old in number if old < len(model["vocab"])]
            if model.get("unk_id") is not None:
                model["unk_id"] = number[model["unk_id"]]
        else:
            known = {piece: number[old] for piece, old in self.pieces.items() if old in number}
            model["vocab"] = known
        if self.kind == "BPE":
            model["merges"] = [[a, b] for a, b in self.merges if a in known and b in known and a + b in known]
        for token in content["added_tokens"]:
            token["id"] = number[token["id"]]
        if content.get("padding"):
            content["padding"]["pad_id"] = number[content["padding"]["pad_id"]]
        _renumber_special(content.get("post_processor"), number)
        return self.rebuild()


def _renumber_special(processor: Any, number: Mapping[int, int]) -> None:
    """Renumbers the special pieces that a post-processor adds, in place."""
    if not processor:
        return
    for inner in processor.get("processors", ()):
        _renumber_special(inner, number)
    for entry in (processor.get("special_tokens") or {}).values():  # TemplateProcessing
        entry["ids"] = [number[old] for old in entry["ids"]]
    for name in ("cls", "sep"):  # BertProcessing, RobertaProcessing
        if name in processor:
            processor[name][1] = number[processor[name][1]]


@dataclass(frozen=True)
class Growth:
    """The words that a vocabulary gets.

    Args:
        words: the new pieces, in the order of their ids.
        standing: words that were given and are pieces already.
        before, after: pieces of a word of the text.
    """

    words: Sequence[str]
    standing: Sequence[str]
    before: float
    after: float

    def __str__(self) -> str:
        fewer = 1 - self.after / self.before
        pieces = f"{self.before:.3f} -> {self.after:.3f} pieces a word, {fewer:.1%} fewer"
        if not self.standing:
            return f"{len(self.words):,} words become pieces: {pieces}"
        verb = "is a piece" if len(self.standing) == 1 else "are pieces"
        return f"{len(self.words):,} words become pieces: {pieces}; {', '.join(self.standing)} {verb} already"

    def record(self) -> dict[str, Any]:
        """Returns the growth for run.json."""
        return {
            "words": len(self.words), "standing": len(self.standing),
            "pieces_per_word": {"before": self.before, "after": self.after},
        }  # fmt: skip


def check_option(add_words: object, option: str = "add_words") -> None:
    """Raises OptionError for anything but `auto`, a number or a list of words, given as this option."""
    is_number = isinstance(add_words, int) and not isinstance(add_words, bool) and add_words >= 0
    is_list = isinstance(add_words, list) and all(isinstance(word, str) for word in add_words)
    if add_words != AUTO_WORDS and not is_number and not is_list:
        expected = "auto, a number of at least 0, or a list of words"
        raise OptionError(option, show_value(add_words), expected)


def count_words(texts: Iterable[str], tokenizer: PreTrainedTokenizerBase) -> Counter[str]:
    """Returns the words of texts with their numbers, as a tokenizer splits them before it looks for pieces."""
    return Counter(word for text in texts for word in _split(tokenizer, text))


def pieces_per_word(words: Counter[str], tokenizer: PreTrainedTokenizerBase) -> float:
    """Returns the mean number of pieces of a word."""
    return sum(count * len(_split_word(tokenizer, word)) for word, count in words.items()) / words.total()


def can_grow(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Returns whether words can be added to a vocabulary one by one."""
    return _kind(tokenizer) == KIND


def plan_growth(texts: Iterable[str], tokenizer: PreTrainedTokenizerBase, add_words: AddWords) -> Growth:
    """Chooses the words that a vocabulary gets.

    Args:
        texts: are read only for a vocabulary that can grow.
        add_words: a number of words, words, or `auto` for as many as shorten the texts by `REDUCTION`, at most
            `MOST_WORDS`.

    Raises:
        UserError: for a vocabulary of another kind than WordPiece, and words that are none.
    """
    if not can_grow(tokenizer):
        raise UserError(
            f"got adapt.add_words={show_value(add_words)} and a vocabulary of the kind {_kind(tokenizer)}, expected "
            f"{KIND}, whose words can be added one by one: set adapt.add_words=0"
        )
    words, standing = count_words(texts, tokenizer), list[str]()
    if isinstance(add_words, list):
        chosen, standing = _sort_given(add_words, tokenizer)
    else:
        chosen = choose_words(words, tokenizer, None if add_words == AUTO_WORDS else int(add_words))
    after = pieces_per_word(words, TokenizerFile(tokenizer).add(chosen))
    return Growth(chosen, standing, pieces_per_word(words, tokenizer), after)


@torch.no_grad()
def grow_vocabulary(start: Start, words: Sequence[str]) -> Start:
    """Returns copies of the model and its tokenizer with further pieces, which are words.

    Rows of embeddings begin as the mean of those of the pieces that a word had.
    """
    if not words:
        return start
    model: PreTrainedModel = copy.deepcopy(start.model)
    first = _next_id(start.tokenizer)
    needed = first + len(words)
    if needed > model.get_input_embeddings().weight.shape[0]:  # Rows that nothing read are used first.
        model.resize_token_embeddings(needed, mean_resizing=False)
    output = model.get_output_embeddings()
    rows = [model.get_input_embeddings().weight]
    if output is not None:
        bias = getattr(output, "bias", None)
        rows += [*([] if output.weight is rows[0] else [output.weight]), *([] if bias is None else [bias])]
    for place, word in enumerate(words, first):
        for parameter in rows:
            parameter[place] = parameter[_split_word(start.tokenizer, word)].mean(dim=0)
    return replace(start, model=model, tokenizer=TokenizerFile(start.tokenizer).add(words))


def choose_words(words: Counter[str], tokenizer: PreTrainedTokenizerBase, number: int | None = None) -> list[str]:
    """Returns the words that save most pieces: their count times the pieces beyond one.

    Words have `LEAST_LETTERS` letters, and stand `LEAST_COUNT` times in the text.

    Args:
        number: of words at most; None for the fewest that shorten the text by `REDUCTION`, at most `MOST_WORDS`.
    """
    gains = {
        word: count * (len(_split_word(tokenizer, word)) - 1)
        for word, count in words.items()
        if count >= LEAST_COUNT and sum(map(str.isalpha, word)) >= LEAST_LETTERS
    }
    ordered = sorted((word for word, gain in gains.items() if gain > 0), key=lambda word: (-gains[word], word))
    if number is not None:
        return ordered[:number]
    wanted, saved = REDUCTION * words.total() * pieces_per_word(words, tokenizer), 0
    for place, word in enumerate(ordered[:MOST_WORDS]):
        if saved >= wanted:
            return ordered[:place]
        saved += gains[word]
    return ordered[:MOST_WORDS]


def _sort_given(given: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> tuple[list[str], list[str]]:
    """Returns the given words that are new and those that are pieces already, each once, as texts have them.

    Raises:
        UserError: for a word that the tokenizer splits before it looks for pieces.
    """
    vocabulary = tokenizer.get_vocab()
    new: dict[str, None] = {}
    standing: dict[str, None] = {}
    for word in given:
        parts = _split(tokenizer, word)
        if len(parts) != 1:
            raise UserError(
                f"got the word {word!r} in adapt.add_words, which the tokenizer splits into {len(parts)} words before "
                "it looks for pieces, expected single words: leave it out, or give its parts"
            )
        (standing if parts[0] in vocabulary else new)[parts[0]] = None
    return list(new), list(standing)


def _kind(tokenizer: PreTrainedTokenizerBase) -> str:
    return str(type(tokenizer.backend_tokenizer.model).__name__)


def _split(tokenizer: PreTrainedTokenizerBase, text: str) -> list[str]:
    """Returns the words of a text, normalized."""
    backend: Tokenizer = tokenizer.backend_tokenizer
    if backend.normalizer is not None:
        text = backend.normalizer.normalize_str(text)
    if backend.pre_tokenizer is None:
        return text.split()
    return [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(text)]


def _split_word(tokenizer: PreTrainedTokenizerBase, word: str) -> list[int]:
    """Returns the ids of a word's pieces."""
    return [piece.id for piece in tokenizer.backend_tokenizer.model.tokenize(word)]


def _next_id(tokenizer: PreTrainedTokenizerBase) -> int:
    return int(max(tokenizer.get_vocab().values())) + 1


COMMON = 20  # A piece that no labelled text holds stays if this many unlabelled ones do.
KINDS = ("WordPiece", "BPE", "Unigram")


@dataclass(frozen=True)
class CutVocabulary:
    """A vocabulary with some pieces of a larger one.

    Attributes:
        tokenizer: has the pieces that stay.
        kept: their ids in the larger vocabulary, in the order of the new ones.
    """

    tokenizer: PreTrainedTokenizerBase
    kept: Sequence[int]

    @torch.no_grad()
    def apply(self, model: PreTrainedModel) -> PreTrainedModel:
        """Returns a copy of a model for the larger vocabulary with the embeddings of the pieces that stay."""
        smaller: PreTrainedModel = copy.deepcopy(model)
        number, kept = {old: new for new, old in enumerate(self.kept)}, torch.tensor(self.kept)
        embedding = smaller.get_input_embeddings()
        padding = None if embedding.padding_idx is None else number[embedding.padding_idx]
        # In the module that is there, which may scale the embeddings or project them.
        embedding.weight = nn.Parameter(embedding.weight[kept].clone())
        embedding.num_embeddings, embedding.padding_idx = len(kept), padding
        if hasattr(smaller, "select_pieces"):  # Of a model that has more of a piece than its embedding.
            smaller.select_pieces(kept)
        smaller.config.vocab_size = len(kept)
        for name in ("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"):
            old = getattr(smaller.config, name, None)
            if isinstance(old, int) and old in number:
                setattr(smaller.config, name, number[old])
        return smaller


def check_cut(tokenizer: PreTrainedTokenizerBase, option: str = "task") -> None:
    """Raises UserError for a tokenizer whose vocabulary cannot be cut, as the value `option` has it."""
    file = TokenizerFile(tokenizer)
    if file.kind not in KINDS:
        raise UserError(
            f"got export.vocabulary={option} and a vocabulary of the kind {file.kind}, expected one of "
            f"{', '.join(KINDS)}: set export.vocabulary=full"
        )
    if not file.covers_every_text() and tokenizer.unk_token_id is None:
        raise UserError(
            f"got export.vocabulary={option} and a vocabulary without an unknown piece, so that a text with a "
            "character that training never shows would have no tokens: set export.vocabulary=full"
        )


def choose_pieces(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, labelled: Iterable[str], unlabelled: Iterable[str] = ()
) -> CutVocabulary:
    """Returns the vocabulary with the pieces that the texts need.

    A piece stays if a labelled text or `COMMON` unlabelled ones hold it. Special pieces and pieces of one character
    stay, whatever the texts hold. Ids are given anew, in the old order. An id that positions are counted by stays as it
    is, because RoBERTa and its relatives count them from the one behind the padding's.

    Raises:
        UserError: for a tokenizer whose vocabulary cannot be cut.
    """
    check_cut(tokenizer)
    used = set(_count_texts(tokenizer, labelled))
    used.update(piece for piece, texts in _count_texts(tokenizer, unlabelled).items() if texts >= COMMON)
    embedding = model.get_input_embeddings()
    # Modules besides the embedding of tokens compare with these to count positions.
    ids = (getattr(module, "padding_idx", None) for module in model.modules() if module is not embedding)
    pinned = {number for number in ids if isinstance(number, int)}
    used |= pinned | ({embedding.padding_idx} if embedding.padding_idx is not None else set())
    file = TokenizerFile(tokenizer)
    kept = _place(file.close(used), pinned)
    return CutVocabulary(file.renumber({old: new for new, old in enumerate(kept)}), kept)


def _count_texts(tokenizer: PreTrainedTokenizerBase, texts: Iterable[str]) -> Counter[int]:
    """Returns for every id the number of texts that hold it. Texts are read whole."""
    count: Counter[int] = Counter()
    for ids in encode_whole(texts, tokenizer, add_special_tokens=True):
        count.update(set(ids))
    return count


def _place(kept: Sequence[int], pinned: set[int]) -> list[int]:
    """Returns the ids in an order in which each pinned one stands at its own place, and the others ascend.

    Where too few ids stay to reach that place, the smallest others stay too.

    >>> _place([0, 3, 7, 9], {3}), _place([5, 7, 8], {3}), _place([5], {2})
    ([0, 7, 9, 3], [5, 7, 8, 3], [0, 5, 2])
    """
    places = sorted(pinned)
    others = [number for number in kept if number not in pinned]
    missing = max(places, default=-1) + 1 - len(places) - len(others)
    spare = (number for number in itertools.count() if number not in pinned and number not in set(others))
    others = sorted([*others, *itertools.islice(spare, max(0, missing))])
    for place in places:
        others.insert(place, place)
    return others
