"""What are the features of a frozen encoder worth: a linear head on its layers, on its embeddings alone, and on TF-IDF.

    python benchmarks/features.py --tags path/to/atis path/to/bilm_of_seed_0 path/to/bilm_of_seed_1
    python benchmarks/features.py --texts path/to/snips path/to/bilm_of_seed_0 path/to/bilm_of_seed_1

A word is represented by its first piece, and a text by the mean of its pieces. The same linear head is trained on each
representation of train, with a learned sum where there are several layers (arXiv 1802.05365, equation 1), and scored on
dev and on test. The encoder is never trained. The mean and the standard deviation are over the encoders, which differ
in the seed of their pre-training; the seed of the head is the number of its encoder. TF-IDF has the words of a text, or
a word with its two neighbours, and a logistic regression.
"""

import argparse
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from transformers import PreTrainedModel

from distill.core.contracts import Scores
from distill.data import batches
from distill.data.splits import LabelledData
from distill.kinds import Classification, TokenClassification
from distill.models.architectures.modeling_bilm import ScalarMix
from distill.models.forward import run_model
from distill.models.loading import load_directory

EPOCHS, BATCH, LEARNING_RATE = 10, 256, 3e-3
LAYERS: Mapping[str, slice] = {
    "input embeddings": slice(0, 1),
    "first layer": slice(1, 2),
    "last layer": slice(-1, None),
    "all layers": slice(None),
}


@dataclass
class Represented:
    """The items of a split: hidden states `[n, layers, D]`, labels `[n]` and examples `[n]`."""

    states: Tensor
    labels: Tensor
    example_id: Tensor


@torch.no_grad()
def represent(model: PreTrainedModel, task: Any, examples: Any) -> Represented:
    """Returns the hidden states of the words, or the mean of those of each text."""
    columns: list[tuple[Tensor, ...]] = []
    for step in batches.evaluation_loader(examples):
        for batch in step:
            items = task.select(batch)
            states = torch.stack(run_model(model, batch, frozenset({"hidden_states"})).hidden_states, dim=2)
            if items.index is None:
                mask = batch["attention_mask"][:, :, None, None]
                chosen = ((states * mask).sum(dim=1) / mask.sum(dim=1))[items.row]
            else:
                chosen = states.flatten(0, 1)[items.index]
            columns.append((chosen, items.labels, items.example_id()))
    return Represented(*(torch.cat(column) for column in zip(*columns, strict=True)))


class Head(nn.Module):
    """A sum of layers, normalized, and a linear layer."""

    def __init__(self, layers: int, width: int, classes: int) -> None:
        super().__init__()
        self.mix, self.norm, self.linear = ScalarMix(layers), nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, states: Tensor) -> Tensor:
        logits: Tensor = self.linear(self.norm(self.mix(states.unbind(dim=1))))
        return logits


def train_head(train: Represented, layers: slice, classes: int, *, seed: int) -> Head:
    torch.manual_seed(seed)
    states = train.states[:, layers]
    head = Head(states.shape[1], states.shape[2], classes)
    optimizer = torch.optim.AdamW(head.parameters(), lr=LEARNING_RATE)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(states)).split(BATCH):
            optimizer.zero_grad()
            F.cross_entropy(head(states[rows]), train.labels[rows]).backward()
            optimizer.step()
    return head.eval()


def score(data: LabelledData, split: Represented, logits: Tensor) -> float:
    """Returns the metric of the task."""
    columns = {"logits": logits.detach().numpy()}
    scores = Scores(columns, split.labels.numpy(), split.example_id.numpy()).by_example()
    return float(data.scoring.metrics(scores)[data.scoring.metric])


def score_tfidf(data: LabelledData, words: Mapping[str, list[list[str]]], splits: Mapping[str, Represented]) -> Any:
    """Returns the metric on each split of a logistic regression on the words of each item."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    vectorizer = TfidfVectorizer(analyzer=lambda item: item, sublinear_tf=True)
    model = LogisticRegression(C=10, max_iter=1000)
    model.fit(vectorizer.fit_transform(words["train"]), splits["train"].labels.numpy())
    metrics = {}
    for name in words.keys() - {"train"}:
        logits = np.full((len(words[name]), len(data.labels)), -1e4, dtype=np.float32)
        logits[:, model.classes_] = model.predict_log_proba(vectorizer.transform(words[name]))
        metrics[name] = score(data, splits[name], torch.from_numpy(logits))
    return metrics


def words_of(data: LabelledData, splits: Mapping[str, Represented]) -> dict[str, list[list[str]]]:
    """Returns the words that TF-IDF reads of each item, in the order of the items."""
    found: dict[str, list[list[str]]] = {}
    for name, split in splits.items():
        of_split = data.splits[name]
        counts = torch.bincount(split.example_id, minlength=len(of_split))
        found[name] = []
        for example in dict.fromkeys(split.example_id.tolist()):
            if "words" in of_split.columns:
                words = ["<s>", *of_split["words"][example], "</s>"]
                near = [
                    [f"-{one}", two, f"+{three}"] for one, two, three in zip(words, words[1:], words[2:], strict=False)
                ]
                found[name] += near[: int(counts[example])]
            else:
                found[name].append(of_split.texts[example].lower().split())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    data_set = parser.add_mutually_exclusive_group(required=True)
    data_set.add_argument("--tags", type=Path, help="a directory of a task of tags")
    data_set.add_argument("--texts", type=Path, help="a directory of a task of labels: the columns sentence and label")
    parser.add_argument("encoders", type=Path, nargs="+", help="the directories of encoders of several seeds")
    options = parser.parse_args()
    task: Any = (
        TokenClassification(data_dir=options.tags, max_length=64)
        if options.tags
        else Classification(data_dir=options.texts, text="sentence", label="label", max_length=64)
    )
    with tempfile.TemporaryDirectory() as cache:
        Console().print(measure(task, options.encoders, Path(cache)))


def measure(task: Any, encoders: Sequence[Path], cache: Path) -> Table:
    """Returns the metrics of the heads on the layers of each encoder, and of TF-IDF."""
    data = task.read(cache)
    metrics: dict[str, dict[str, list[float]]] = {}
    for seed, directory in enumerate(encoders):
        start = load_directory(directory, task.info.auto_class, data.labels, trust_remote_code=False)
        examples = task.encode(data, start.tokenizer, cache)
        splits = {name: represent(start.model.eval(), task, of_split) for name, of_split in examples.items()}
        for name, layers in LAYERS.items():
            head = train_head(splits["train"], layers, len(data.labels), seed=seed)
            for split in splits.keys() - {"train"}:
                value = score(data, splits[split], head(splits[split].states[:, layers]))
                metrics.setdefault(name, {}).setdefault(split, []).append(value)
    metrics["TF-IDF"] = {name: [value] for name, value in score_tfidf(data, words_of(data, splits), splits).items()}
    return make_table(metrics, data.scoring.metric, [name for name in splits if name != "train"])


def make_table(metrics: Mapping[str, Mapping[str, Sequence[float]]], metric: str, splits: Sequence[str]) -> Table:
    table = Table("features", *(f"{metric} on {split}" for split in splits))
    for name, by_split in metrics.items():
        cells = (by_split[split] for split in splits)
        table.add_row(name, *(f"{statistics.mean(c):.4f} ± {statistics.stdev(c) if c[1:] else 0:.4f}" for c in cells))
    return table


if __name__ == "__main__":
    main()
