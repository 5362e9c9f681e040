"""Tests of tokenizers whose offsets are wrong: they are corrected where that is possible, or refused."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, processors, trainers
from tokenizers import pre_tokenizers as pre
from transformers import PreTrainedTokenizerFast

from distill.core.errors import UserError
from distill.data.tokenization import check_offsets
from distill.edge.answering import cut_windows
from distill.kinds import QuestionAnswering, TokenClassification

TEXT = "I moved to Dublin, then I saw a Paris caf\u00e9"
SPECIAL = ["<s>", "</s>", "<unk>", "<pad>"]
TRIMMING = processors.RobertaProcessing(("</s>", 1), ("<s>", 0), trim_offsets=True, add_prefix_space=True)
SPACED = pre.ByteLevel(add_prefix_space=True)


def build(pre_tokenizer: Any, post_processor: Any = None, normalizer: Any = None) -> PreTrainedTokenizerFast:
    """Returns a tokenizer of bytes that was trained on the text."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizer, decoders.ByteLevel()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=SPECIAL, initial_alphabet=pre.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([TEXT] * 9, trainer)
    tokenizer.post_processor = post_processor or processors.TemplateProcessing(
        "<s> $A </s>", "<s> $A </s> $B </s>", [("<s>", 0), ("</s>", 1)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, cls_token="<s>", sep_token="</s>", pad_token="<pad>")


def covered(tokenizer: PreTrainedTokenizerFast) -> list[str]:
    """Returns the characters of each token of the text without spaces around."""
    encoding = tokenizer.backend_tokenizer.encode(TEXT)
    spans = [TEXT[start:end].strip() for start, end in encoding.offsets]
    return [span for span in spans if span]


WORDS = ["I", "moved", "to", "Dublin", ",", "then", "I", "saw", "a", "Paris", "caf\u00e9"]
# Pre-tokenizers that take away the spaces before a byte level that adds one to each word.
LATE: dict[str, Any] = {
    "white space": pre.Sequence([pre.WhitespaceSplit(), SPACED]),
    "marks": pre.Sequence([pre.Whitespace(), SPACED]),
    "spaces by themselves": pre.Sequence([pre.Split(" ", "isolated"), SPACED]),
}


@pytest.mark.parametrize("case", LATE)
@pytest.mark.parametrize("nested", [False, True])
def test_offsets_that_are_trimmed_wrongly_are_not_trimmed(
    case: str, nested: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = build(LATE[case], processors.Sequence([TRIMMING]) if nested else TRIMMING)
    assert "ublin" in covered(tokenizer)
    check_offsets(tokenizer, [TEXT])
    assert covered(tokenizer) == WORDS
    assert "the tokenizer trims the wrong characters, such as 'oved' for '\u0120moved'" in capsys.readouterr().out
    check_offsets(tokenizer, [TEXT])
    assert capsys.readouterr().out == ""


RIGHT = {
    "bytes": (SPACED, TRIMMING, None),
    "bytes with their space": (pre.ByteLevel(add_prefix_space=False), None, None),
    "words": (pre.Whitespace(), None, normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()])),
    "lower case": (pre.Whitespace(), None, normalizers.Lowercase()),
    "pieces": (pre.Metaspace(), None, None),
    "pieces of words": (pre.Sequence([pre.WhitespaceSplit(), pre.Metaspace()]), None, None),
    "other letters": (pre.Whitespace(), None, normalizers.Prepend("zz")),
}


@pytest.mark.parametrize("case", RIGHT)
def test_other_tokenizers_stay_as_they_are(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = build(*RIGHT[case])
    before = tokenizer.backend_tokenizer.to_str()
    check_offsets(tokenizer, [TEXT, "\u0130stanbul", "", " "])
    assert tokenizer.backend_tokenizer.to_str() == before
    assert capsys.readouterr().out == ""


class Shifted:
    """A tokenizer whose tokens tell the characters one place too early or too late."""

    def __init__(self, backend: Tokenizer, shift: int) -> None:
        self.backend, self.shift = backend, shift

    def encode(self, text: str) -> SimpleNamespace:
        encoding = self.backend.encode(text)
        offsets = [(max(0, start + self.shift), end + self.shift) for start, end in encoding.offsets]
        return SimpleNamespace(
            tokens=encoding.tokens, offsets=offsets, special_tokens_mask=encoding.special_tokens_mask
        )

    def to_str(self) -> str:
        return str(self.backend.to_str())


@pytest.mark.parametrize(("shift", "shown"), [(-1, "'' for 'I'"), (1, "' ' for 'I'")])
def test_offsets_that_cannot_be_corrected_are_refused(shift: int, shown: str) -> None:
    backend = build(pre.Whitespace()).backend_tokenizer
    shifted: Any = SimpleNamespace(backend_tokenizer=Shifted(backend, shift), name_or_path="toy")
    with pytest.raises(UserError, match=f"the tokenizer toy tells wrong characters for its tokens, such as {shown}"):
        check_offsets(shifted, [TEXT])


def test_offsets_that_do_not_ascend_are_refused() -> None:
    encoding = SimpleNamespace(tokens=["we", "go"], offsets=[(3, 5), (0, 2)], special_tokens_mask=[0, 0])
    backend = SimpleNamespace(encode=lambda text: encoding, to_str=lambda: '{"post_processor": null}')
    tokenizer: Any = SimpleNamespace(backend_tokenizer=backend, name_or_path="toy")
    with pytest.raises(UserError, match="the tokenizer toy tells wrong characters for its tokens"):
        check_offsets(tokenizer, ["go we"])


def test_answers_and_words_have_the_right_characters_after_the_correction() -> None:
    tokenizer = build(LATE["white space"], TRIMMING)
    answers = [{"text": "Dublin", "answer_start": 11}]
    rows = [{"question": "Where?", "context": TEXT, "answers": answers}]
    task = QuestionAnswering(train=rows, dev=[rows[0] | {"question": "Where to?"}], max_length=64, doc_stride=8)
    batch = task.encode(task.read(Path("unused")), tokenizer, None)["train"][[0]]
    first, last = (batch[f"{side}_positions"][0] for side in ("start", "end"))
    place = slice(int(batch["start_characters"][0, first]), int(batch["end_characters"][0, last]))
    assert TEXT[place] == "Dublin"
    # The tokenizer of a bundle gives the same characters.
    windows = cut_windows(tokenizer.backend_tokenizer.encode("Where?", TEXT), max_length=64, doc_stride=8)
    assert windows[0].characters[:, int(first)].tolist() == [11, 17]

    tokenizer = build(LATE["white space"], TRIMMING)
    tagged = TokenClassification(
        train=([["I", "saw", "Dublin"]], [["B-x", "O", "B-y"]]), dev=([["I"]], [["B-x"]]), max_length=16
    )
    data = tagged.read(Path("unused"))
    labels = tagged.encode(data, tokenizer, None)["train"][[0]]["labels"]
    assert [data.labels[label] for label in labels[labels >= 0].tolist()] == ["B-x", "O", "B-y"]
