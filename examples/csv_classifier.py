"""Trains a small classifier on a CSV, and says whether the teacher helped.

    python examples/csv_classifier.py
    python examples/csv_classifier.py --csv reviews.csv --text review --label stars --teacher sentence-transformers/all-MiniLM-L6-v2

Without a CSV the rows are sentences of documentation, and the label is the package. Without a teacher a small BERT is
trained on the rows first, so that nothing is downloaded. The same in one command is

    python -m distill +teacher=embedded +student=distilbert task=classification task.data_dir=reviews.csv task.text=[review] task.label=stars baseline=true
"""  # noqa: E501

import argparse
from pathlib import Path

import pandas

import distill as d
from distill.data.docstrings import prepare_dataset


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--csv", type=Path, help="a file with a header; by default sentences of documentation")
    parser.add_argument("--text", default="sentence", help="the column of the text (default %(default)s)")
    parser.add_argument("--label", default="label", help="the column of the label (default %(default)s)")
    parser.add_argument("--teacher", help="a directory, or a name on the Hub; by default a small BERT is trained")
    parser.add_argument("--rows", type=int, default=2800, help="of the built-in sentences (default %(default)s)")
    parser.add_argument("--epochs", type=int, default=5, help="of the student (default %(default)s)")
    parser.add_argument("--directory", type=Path, help="of the run; by default a new one under runs/")
    options = parser.parse_args()

    # A table is a path, a pandas frame, a list of rows or a `datasets.Dataset`. A tenth of its rows is held out as dev.
    data = options.csv or read_sentences(options.rows)
    task = d.tasks.Classification(data=data, text=options.text, label=options.label)

    # `fit` trains the teacher on the labels once. The next run with the same data loads it from the cache.
    if options.teacher:
        teacher = d.Teacher.from_pretrained(options.teacher).fit(task)
    else:
        teacher = d.Teacher.embedded().fit(task, min_steps=400)

    # The student has every second layer of the teacher. The baseline is the same student, trained without the teacher.
    result = d.distill(
        teacher,
        d.students.distilbert(layers="alternate"),
        task,
        trainer=d.TrainerSettings.auto(max_epochs=options.epochs),
        baseline=True,
        directory=options.directory,
    )
    print(result.verdict)

    # The bundle is what a device gets. It predicts without torch.
    for text in ["Returns the eigenvalues of a square array.", "Compute the shortest path between two nodes."]:
        [prediction] = result.bundle.predict([text])
        print(f"{prediction['label']}  {prediction['probability']:.2f}  {text}")
    print("The report is", result.directory / "report.html")


def read_sentences(rows: int) -> pandas.DataFrame:
    """Returns built-in sentences, as many of each package."""
    table = pandas.read_json(prepare_dataset(d.Teacher.embedded().cache_dir) / "train.jsonl", lines=True)
    return table.groupby("label").head(rows // table.label.nunique())


if __name__ == "__main__":
    main()
