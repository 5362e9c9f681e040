"""Trains a small encoder of sentences, and searches with it.

    python examples/search_encoder.py
    python examples/search_encoder.py --teacher sentence-transformers/all-MiniLM-L6-v2 --query "read a file line by line"

A sentence encoder teaches as it is, and the student learns its vectors from texts alone. Without one, so that nothing is
downloaded, a small BERT learns first that two sentences of documentation are near if they are of one package. That is a
weak teacher: what it finds shows the way, and not the quality. The command for pairs with scores is

    python -m distill +teacher=minilm +student=distilbert task=embedding task.data_dir=mydata task.text=[first,second] task.label=score objective=embedding
"""  # noqa: E501

import argparse
from pathlib import Path

import pandas

import distill as d
from distill.data.docstrings import prepare_dataset


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--teacher", help="a sentence encoder: a directory, or a name on the Hub")
    parser.add_argument("--query", default="the shortest path between two nodes", help="default: %(default)s")
    parser.add_argument("--rows", type=int, default=2000, help="pairs of sentences (default %(default)s)")
    parser.add_argument("--epochs", type=int, default=5, help="of the student (default %(default)s)")
    parser.add_argument("--directory", type=Path, help="of the run; by default a new one under runs/")
    options = parser.parse_args()

    sentences = read_sentences()
    pairs = make_pairs(sentences, options.rows)
    cut = len(pairs) * 9 // 10
    # Dev has pairs with a score, the higher the more similar. Train may be single texts without one.
    task = d.tasks.Embedding(train=pairs[:cut], dev=pairs[cut:])
    if options.teacher:
        teacher = d.Teacher.from_pretrained(options.teacher).fit(task)
    else:
        # Without `accept_weak` the run stops, because so small a teacher is hardly better than a constant.
        teacher = d.Teacher.embedded(accept_weak=True).fit(task)
    result = d.distill(
        teacher,
        d.students.distilbert(),
        task,
        objective=d.Objective(vectors=d.EmbeddingMSE(weight=1), similarity=d.PairwiseSimilarity(weight=1)),
        trainer=d.TrainerSettings.auto(max_epochs=options.epochs),
        directory=options.directory,
    )
    print(result.verdict)

    # The search is exact: the cosines of the query with all sentences.
    corpus = sentences.sentence.head(2000).tolist()
    [found] = result.bundle.search([options.query], corpus, k=3)
    print(options.query)
    for index, cosine in found:
        print(f"{cosine:.2f}  {corpus[index]}")


def read_sentences() -> pandas.DataFrame:
    """Returns built-in sentences of three packages in random order."""
    table = pandas.read_json(prepare_dataset(d.Teacher.embedded().cache_dir) / "train.jsonl", lines=True)
    return table[table.label.isin(["networkx", "pandas", "torch"])].sample(frac=1, random_state=0)


def make_pairs(sentences: pandas.DataFrame, rows: int) -> list[dict[str, str | float]]:
    """Returns pairs of sentences with the score 1 if they are of one package, and else 0."""
    first, second = sentences.iloc[: 2 * rows : 2], sentences.iloc[1 : 2 * rows : 2]
    return [
        {"sentence1": one.sentence, "sentence2": other.sentence, "score": float(one.label == other.label)}
        for one, other in zip(first.itertuples(), second.itertuples(), strict=False)
    ]


if __name__ == "__main__":
    main()
