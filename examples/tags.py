"""Trains a tagger of words, such as names or slots, and finds the entities of a plain text.

    python examples/tags.py
    python examples/tags.py --data path/to/conll --text "fly from boston to new york on monday"

The data directory holds `train` and `dev` as CoNLL files, a word and its tag on each line. Without one, requests for
flights are made of a few patterns, so that the example is quick. The command for a directory is

    python -m distill +teacher=bert_base +student=distilbert task=token_classification task.data_dir=path/to/conll task.name=slots
"""  # noqa: E501

import argparse
import itertools
import random
from pathlib import Path

import distill as d

CITIES = ["boston", "new york", "san francisco", "paris", "oslo", "rome", "cape town", "lima", "tokyo", "berlin"]
DAYS = ["monday", "tuesday", "wednesday", "thursday", "friday"]
PATTERNS = [
    "fly from {city} to {city} on {day}",
    "i need a flight to {city} on {day} please",
    "is there anything from {city} on {day}",
    "show me all flights to {city}",
    "on {day} i have to be in {city}",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="a directory of CoNLL files; by default made of patterns")
    parser.add_argument("--teacher", help="a directory, or a name on the Hub; by default a small BERT is trained")
    parser.add_argument("--text", default="can i fly from oslo to new york on friday", help="is tagged at the end")
    parser.add_argument("--rows", type=int, default=1000, help="sentences of patterns (default %(default)s)")
    parser.add_argument("--epochs", type=int, default=5, help="of the student (default %(default)s)")
    parser.add_argument("--directory", type=Path, help="of the run; by default a new one under runs/")
    options = parser.parse_args()

    if options.data:
        task = d.tasks.TokenClassification(data=options.data)
    else:  # Lists of words and lists of their tags.
        sentences = make_sentences(options.rows)
        cut = len(sentences[0]) * 9 // 10
        train, dev = (tuple(part[:cut] for part in sentences), tuple(part[cut:] for part in sentences))
        task = d.tasks.TokenClassification(train=train, dev=dev)
    if options.teacher:
        teacher = d.Teacher.from_pretrained(options.teacher).fit(task)
    else:
        teacher = d.Teacher.embedded().fit(task, min_steps=400)
    result = d.distill(
        teacher,
        d.students.distilbert(),
        task,
        trainer=d.TrainerSettings.auto(max_epochs=options.epochs),
        directory=options.directory,
    )
    print(result.verdict)

    # `start` and `end` count characters of the text.
    [prediction] = result.bundle.predict([options.text])
    print(options.text)
    for entity in prediction["entities"]:
        print(f"{entity['type']:<8}{entity['score']:.2f}  {entity['start']}-{entity['end']}  {entity['text']}")


def make_sentences(rows: int) -> tuple[list[list[str]], list[list[str]]]:
    """Returns sentences of the patterns, as lists of words and of their tags in BIO."""
    choice = random.Random(0).choice
    words, tags = [], []
    for pattern in itertools.islice(itertools.cycle(PATTERNS), rows):
        sentence: list[tuple[str, str]] = []
        for token in pattern.split():
            if token in ("{city}", "{day}"):
                name = choice(CITIES if token == "{city}" else DAYS).split()
                sentence += [(word, f"{'I' if number else 'B'}-{token[1:-1]}") for number, word in enumerate(name)]
            else:
                sentence.append((token, "O"))
        words.append([word for word, _ in sentence])
        tags.append([tag for _, tag in sentence])
    return words, tags


if __name__ == "__main__":
    main()
