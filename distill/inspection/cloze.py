"""Cloze probes: which word a language model puts into the gap of a sentence."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.models.forward import predicts_tokens

GAP = "___"
FILE = "cloze.jsonl"


@dataclass(frozen=True)
class Cloze:
    """A sentence with a gap.

    Attributes:
        group: what it asks for, such as `facts`.
        text: the sentence, with `___` for the word.
        answer: the right word.
        foil: a wrong word that would fit into the gap.
    """

    group: str
    text: str
    answer: str
    foil: str


@dataclass(frozen=True)
class Filled:
    """What a model says of a gap.

    Attributes:
        rank: of the right word among all tokens, 1 for the likeliest.
        probability: of the right word.
        best: the likeliest token.
        prefers: whether the right word is likelier than the wrong one.
    """

    cloze: Cloze
    rank: int
    probability: float
    best: str
    prefers: bool


def read_clozes() -> list[Cloze]:
    """Returns the sentences that come with the program."""
    lines = resources.files("distill.inspection").joinpath(FILE).read_text(encoding="utf-8").splitlines()
    return [Cloze(**json.loads(line)) for line in lines]


@torch.no_grad()
def fill_gaps(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, clozes: Sequence[Cloze]
) -> tuple[list[Filled], list[Cloze]]:
    """Returns what the model says of each gap, and the sentences whose words are no single tokens of its vocabulary.

    A masked language model reads the whole sentence. A causal one reads what is before the gap.
    """
    filled, left_out = [], []
    for cloze in clozes:
        found = _read(model, tokenizer, cloze)
        if found is None:
            left_out.append(cloze)
            continue
        ids, position, answer, foil = found
        logits = model(input_ids=torch.tensor([ids], device=model.device)).logits[0, position].float().cpu()
        probabilities = logits.softmax(dim=-1)
        filled.append(
            Filled(
                cloze, int((logits > logits[answer]).sum()) + 1, float(probabilities[answer]),
                tokenizer.decode([int(logits.argmax())]).strip(), bool(logits[answer] > logits[foil]),
            )
        )  # fmt: skip
    return filled, left_out


def _read(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, cloze: Cloze
) -> tuple[list[int], int, int, int] | None:
    """Returns the tokens, the position that predicts the gap, and the two words; None for words of several."""
    before, _, after = cloze.text.partition(GAP)
    words = (cloze.answer, cloze.foil)
    if predicts_tokens(model):
        ids = tokenizer(f"{before}{tokenizer.mask_token}{after}")["input_ids"]
        position = place = ids.index(tokenizer.mask_token_id)
        filled = [tokenizer(f"{before}{word}{after}")["input_ids"] for word in words]
        length = len(ids)
    else:
        ids = tokenizer(before.rstrip())["input_ids"]
        position, place = len(ids) - 1, len(ids)
        filled = [[*ids, *tokenizer(f" {word}", add_special_tokens=False)["input_ids"]] for word in words]
        length = len(ids) + 1
    if any(len(each) != length for each in filled):
        return None
    answer, foil = (each[place] for each in filled)
    return None if tokenizer.unk_token_id in (answer, foil) else (ids, position, answer, foil)
