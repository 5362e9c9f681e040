"""Toy models and data of the golden commands: made from fixed seeds, the same on every machine."""

import json
from pathlib import Path

import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from distill.text.vocabulary import train_bytes, train_word_pieces
from tests.conftest import BAD, GOOD, sentences, toy_bert, write_corpus

ROWS = {"train": sentences(36)[:24], "dev": sentences(36)[24:]}
CITIES = ("york", "paris", "rome", "oslo")
# Files of dev that are refused beside a good train.tsv, by their mistake.
MISTAKES = {
    "empty": b"",
    "header": b"sentence\tlabel\n",
    "unknown_label": b"sentence\tlabel\na\t7\n",
    "latin": b"sentence\tlabel\ncaf\xe9\t1\n",
    "wide": b"sentence\tlabel\na\t1\tx\n",
    "no_tab": b"sentence\tlabel\na\n",
    "nul": b"sentence\tlabel\na\0\t1\n",
    "space": b"sentence\tlabel\na\t1 \n",
    "empty_text": b"sentence\tlabel\na\t1\n \t0\n",
    "doubled": b"sentence\tlabel\tlabel\na\t1\t0\n",
}


def write_toys(root: Path) -> None:
    """Writes the models to `root`, the data of each kind of task, and files that are refused."""
    words = train_word_pieces([text for text, _ in sentences(64)], 200)
    config = toy_bert(len(words), layers=2).config
    torch.manual_seed(0)
    models = {"encoder": BertForMaskedLM(config)}
    models |= {f"classifier{seed}": toy_bert(len(words), layers=2, seed=seed) for seed in (1, 2)}
    pieces = train_bytes([text for text, _ in sentences(24)], 270, 80)
    pieces.add_special_tokens({"pad_token": "<pad>"})
    for name, model in {**models, **_make_writers(pieces)}.items():
        model.save_pretrained(root / name)
        (words if name in models else pieces).save_pretrained(root / name)
    for split, rows in ROWS.items():
        _write_tables(root, split, rows)
        _write_lines(root, split, rows)
    _write_retrieval(root / "retrieval")
    (root / "corpus").mkdir()
    write_corpus(root / "corpus")
    _write_mistakes(root / "bad")


def _make_writers(tokenizer: PreTrainedTokenizerBase) -> dict[str, PreTrainedModel]:
    """Returns models that write texts."""
    size, end, pad = len(tokenizer), tokenizer.eos_token_id, tokenizer.pad_token_id
    tokens = {"vocab_size": size, "bos_token_id": end, "eos_token_id": end, "pad_token_id": pad}
    torch.manual_seed(0)
    gpt2 = GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=2, n_positions=80, **tokens))
    halves = {f"{half}_{name}": 2 for half in ("encoder", "decoder") for name in ("layers", "attention_heads")}
    bart = BartConfig(
        d_model=32, encoder_ffn_dim=64, decoder_ffn_dim=64, max_position_embeddings=80, decoder_start_token_id=end,
        forced_eos_token_id=end, init_std=0.3, **halves, **tokens,
    )  # fmt: skip
    return {"gpt2": gpt2, "bart": BartForConditionalGeneration(bart)}


def _write_tables(root: Path, split: str, rows: list[tuple[str, int]]) -> None:
    """Writes classes, sets of labels, pairs with numbers, and texts with the texts to write for them."""
    words = [text.split() for text, _ in rows]
    sets = ["|".join(name for name in ("film", "acting", "joy") if name in each) for each in words]
    _write(root / f"classes/{split}.tsv", "sentence\tlabel", *(f"{text}\t{label}" for text, label in rows))
    _write(
        root / f"labels/{split}.tsv", "text\tlabel", *(f"{' '.join(w)}\t{s}" for w, s in zip(words, sets, strict=True))
    )
    pairs = zip(rows, rows[3:] + rows[:3], strict=True)
    scores = [f"{one}\t{two}\t{5 * (a == b) - n % 3 / 2}" for n, ((one, a), (two, b)) in enumerate(pairs)]
    _write(root / f"pairs/{split}.tsv", "sentence1\tsentence2\tscore", *scores)
    _write(root / f"targets/{split}.tsv", "source\ttarget", *(f"{' '.join(w[:3])}\t{' '.join(w[1:3])}" for w in words))


def _write_lines(root: Path, split: str, rows: list[tuple[str, int]]) -> None:
    """Writes tagged sentences, questions about contexts, and questions with choices."""
    tags, questions, choices = [], [], []
    for number, (text, label) in enumerate(rows):
        words = text.split()
        city = f"new B-city\n{CITIES[number % 4]} I-city" if number % 3 else f"{CITIES[number % 4]} B-city"
        tags.append("\n".join([*(f"{word} O" for word in words[:4]), city, ""]))
        answer = words[number % len(words)]
        answers = [{"text": answer, "answer_start": text.index(answer)}]
        questions.append({"id": f"{split}{number}", "question": "a film", "context": text, "answers": answers})
        choices.append({"question": text, "choices": [BAD[number % 4], GOOD[number % 4]], "answer": label})
    _write(root / f"tags/{split}.conll", *tags)
    _write(root / f"questions/{split}.jsonl", *map(json.dumps, questions))
    _write(root / f"choices/{split}.jsonl", *map(json.dumps, choices))


def _write_retrieval(directory: Path) -> None:
    """Writes documents, and queries of the last two words of each of the first ones."""
    texts = [text for text, _ in sentences(20)]
    queries = [" ".join(text.split()[-2:]) for text in texts[:16]]
    for name, letter, entries in (("corpus", "d", texts), ("queries", "q", queries)):
        rows = [{"_id": f"{letter}{number}", "text": text} for number, text in enumerate(entries)]
        _write(directory / f"{name}.jsonl", *map(json.dumps, rows))
    for split, numbers in (("train", range(10)), ("dev", range(10, 16))):
        rows_of_split = [f"q{number}\td{number}\t1" for number in numbers]
        _write(directory / f"qrels/{split}.tsv", "query-id\tcorpus-id\tscore", *rows_of_split)


def _write_mistakes(root: Path) -> None:
    for name, content in MISTAKES.items():
        _write(root / name / "train.tsv", "sentence\tlabel", "a\t1", "b\t0")
        (root / name / "dev.tsv").write_bytes(content)
    _write(root / "one_split/train.tsv", "sentence\tlabel", "a\t1", "b\t0")
    for split, tag, answer, start in (("train", "B-city", 2, 3), ("dev", "B-town", 0, 0)):
        _write(root / f"one_class/{split}.tsv", "sentence\tlabel", f"{split}\t1")
        _write(root / f"tags/{split}.conll", "fly O", f"york {tag}")
        choice = {"question": "which", "choices": ["one", "two"], "answer": answer}
        _write(root / f"choices/{split}.jsonl", json.dumps(choice))
        answers = [{"text": "they", "answer_start": start}]
        question = {"question": "who", "context": "they made it", "answers": answers}
        _write(root / f"questions/{split}.jsonl", json.dumps(question))
    _write(root / "run/run.json", "{}")
    _write(root / "pickle/config.json", "{}")
    _write(root / "pickle/pytorch_model.bin", "anything")


def _write(path: Path, *lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
