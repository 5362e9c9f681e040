"""Tests of the metrics of a bundle on labelled rows: against the libraries that a run uses, and invalid files."""

import gzip
import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from distill.core.errors import UserError
from distill.edge import evaluation
from distill.edge.__main__ import main
from distill.edge.bundle import Bundle
from distill.edge.evaluation import read_labelled
from distill.edge.prediction import RecordError
from distill.kinds import MultipleChoice
from distill.rows.labels import LabelColumn
from tests.edge.conftest import Output, Patch, Write

LONG = "a dull film and a moving film"  # One token more than the bundle reads.
TEXTS = ["film", LONG, "a film", LONG, "film", "a dull and moving film"]


def evaluate(directory: Path, file: Path, *options: str) -> int:
    return main([str(directory), "--evaluate", str(file), *options])


def write_lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


class Stub:
    """A bundle of which a reader of rows asks only the labels and the metrics."""

    model = "model.onnx"

    def __init__(self, labels: list[str], **manifest: Any) -> None:
        self.labels, self.manifest, self.pair = labels, manifest, False


def reader_of(name: str, bundle: Any, columns: evaluation.Columns | None = None, rows: Any = ()) -> Any:
    """Returns the reader of rows of a name."""
    return getattr(evaluation, name)(bundle, columns or evaluation.Columns(["text"]), list(rows))


def convert(reader: Any, values: list[Any], notices: list[str] | None = None) -> list[Any]:
    """Returns the labels of the rows of a file, the first of which is line 2."""
    column = LabelColumn("dev.csv", values, lines=range(2, len(values) + 2))
    return list(reader.convert(column, [].append if notices is None else notices.append))


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("is_constant", [False, True])
def test_metrics_are_those_of_the_libraries(classes: int, is_constant: bool) -> None:
    random, labels = np.random.default_rng(0), [f"label {number}" for number in range(classes)]
    expected, predicted = random.integers(0, classes, (2, 40))
    if is_constant:
        predicted[:] = 0
    predictions = [{"probabilities": dict(zip(labels, np.eye(classes)[of], strict=True))} for of in predicted]
    for positive in (None, *(labels if classes == 2 else ())):
        metrics = reader_of("ClassRows", Stub(labels, positive=positive)).score(predictions, expected.tolist())
        of_one = {"pos_label": labels.index(positive) if positive else 1, "average": "binary" if positive else "macro"}
        assert metrics == pytest.approx(
            {
                "accuracy": accuracy_score(expected, predicted),
                "f1": f1_score(expected, predicted, zero_division=0.0, **of_one),
                "matthews": matthews_corrcoef(expected, predicted),
                "macro_f1": f1_score(expected, predicted, average="macro", zero_division=0.0),
            }
        )
    values, numbers = random.integers(0, 9, 40).astype(float), random.normal(size=40)
    rows = reader_of("NumberRows", Stub(["score"]))
    assert rows.score([{"value": value} for value in values], numbers.tolist()) == pytest.approx(
        {
            "pearson": pearsonr(values, numbers).statistic, "spearman": spearmanr(values, numbers).statistic,
            "mae": np.abs(values - numbers).mean(),
        }
    )  # fmt: skip
    assert rows.score([{"value": 1.0}] * 40, numbers.tolist())["spearman"] == 0.0


def test_the_mean_f1_of_a_file_is_that_of_the_classes_with_a_row_and_says_so() -> None:
    classes, notices = ["a", "b", "c"], list[str]()
    rows = reader_of("ClassRows", Stub(classes))
    labels = convert(rows, ["a", "a", "b", "b"], notices)
    predictions = [{"probabilities": dict(zip(classes, np.eye(3)[of], strict=True))} for of in (0, 0, 1, 2)]
    assert rows.score(predictions, labels)["macro_f1"] == pytest.approx((1 + 2 / 3) / 2)
    assert notices == ["dev.csv has no row of c: the mean F1 is that of the other 2 classes"]
    sets = reader_of("LabelRows", Stub(classes, decoding={}))
    vectors, given = convert(sets, ["a", "a|b", "b", ""]), (["a"], ["a", "b"], ["c"], ["c"])
    found = [{"labels": [{"label": label} for label in of]} for of in given]
    assert sets.score(found, vectors)["macro_f1"] == pytest.approx((1 + 2 / 3) / 2)


def test_vectors_are_compared_by_their_cosines() -> None:
    rows = reader_of("create_vector_rows", Stub([], metrics={}), evaluation.Columns(["one", "two"], "score"))
    assert rows.read({"one": "a", "two": "b", "score": "2.5"}) == (["a", "b"], "2.5")
    assert convert(rows, ["2.5", 1, "1e0"]) == [2.5, 1.0, 1.0]
    cosines, numbers = np.array([0.9, 0.6, 0.1, 0.0]), [3.0, 1.0, 2.0, 0.0]
    vectors = [[cosine, (1 - cosine**2) ** 0.5] for cosine in cosines[:3]] + [[0.0, 0.0]]  # Of length 0.
    predictions = [{"vector": [[2.0, 0.0], vector]} for vector in vectors]
    expected = {"pearson": pearsonr(cosines, numbers).statistic, "spearman": spearmanr(cosines, numbers).statistic}
    assert rows.score(predictions, numbers) == pytest.approx(expected)
    languages: Any = Stub([], metrics={Stub.model: {"accuracy": 0.5}})
    row = {"one": "a", "two": "b", "lang": "de"}
    for label, language in (("lang", "de"), (None, "")):
        reader = reader_of("create_vector_rows", languages, evaluation.Columns(["one", "two"], label), [row])
        assert reader.read(row) == (["a", "b"], language)
    reader = reader_of("create_vector_rows", languages, evaluation.Columns(["one", "two"], "lagn"), [row])
    with pytest.raises(UserError, match="there is no column lagn, the columns are one, two, lang: give"):
        reader.read(row)


def test_words_may_be_scored_as_plain_text() -> None:
    tags = reader_of("TagRows", Stub(["O", "B-city"]), evaluation.Columns(as_text=True))
    row = {"tokens": ["to", "St.Paul", "!"], "tags": ["O", "B-city", "O"]}
    read = [tags.read(row | given) for given in ({}, {"text": "to  St.Paul!"}, {"text": "another text"})]
    assert [text for text, _ in read] == ["to St.Paul !", "to  St.Paul!", "to St.Paul !"]
    assert convert(tags, [value for _, value in read]) == [{("city", 3, 10)}, {("city", 4, 11)}, {("city", 3, 10)}]
    found = [{"entities": [{"type": "city", "start": 3, "end": 5}]}]
    assert tags.score(found, [{("city", 3, 10)}]) == {"text_f1": 0.0, "text_precision": 0.0, "text_recall": 0.0}


def test_a_bundle_of_tags_is_scored_on_the_files_of_its_task(write: Write, tmp_path: Path, capsys: Output) -> None:
    directory = write("tags", decoding={"splitter": {"name": "spaces"}})
    rows = [(["a", "lovely", "film"], ["O", "B-film", "O"]), (["dull"], ["B-cast"])]
    write_lines(tmp_path / "dev.jsonl", [{"tokens": words, "tags": tags} for words, tags in rows])
    for name, more in (("dev.conll", ""), ("dev.bio", " x")):
        sentences = ["".join(f"{word} {tag}{more}\n" for word, tag in zip(*row, strict=True)) for row in rows]
        (tmp_path / name).write_text("\n".join(sentences))
    classes = ["B-cast", "B-film", "O"]  # In another order than those of the bundle.
    features = datasets.Features({"tokens": datasets.List(datasets.Value("string")),
                                  "tags": datasets.List(datasets.ClassLabel(names=classes))})  # fmt: skip
    columns = {"tokens": [words for words, _ in rows], "tags": [tags for _, tags in rows]}
    datasets.Dataset.from_dict(columns, features=features).to_parquet(str(tmp_path / "dev.parquet"))
    named = ["--text-column", "0", "--label-column", "1"]
    outputs = []
    for name, options in (
        ("jsonl", []), ("conll", []), ("parquet", []), ("bio", named), ("jsonl", ["--as-text"]),
    ):  # fmt: skip
        assert evaluate(directory, tmp_path / f"dev.{name}", *options, "--json") == 0
        outputs.append(json.loads(capsys.readouterr().out))
    assert outputs[0] == outputs[1] == outputs[2] == outputs[3]
    assert [(of["rows"], of["read_as"]) for of in (outputs[0], outputs[4])] == [(2, "words"), (2, "text")]
    # The splitter finds the words of the file in their text.
    assert outputs[0]["metrics"] == {name.removeprefix("text_"): of for name, of in outputs[4]["metrics"].items()}
    assert evaluate(directory, tmp_path / "dev.jsonl") == 0
    assert capsys.readouterr().out.endswith("read as\twords\n")
    for option, message in (
        ("tags", "got --label-column tags, expected the number of a column of CoNLL"),
        ("0", "the words and the tags are both in column 0: give --text-column N and --label-c"),
    ):
        assert evaluate(directory, tmp_path / "dev.conll", "--label-column", option) == 2
        assert message in capsys.readouterr().err


def test_questions_are_read_from_the_json_of_squad(tmp_path: Path) -> None:
    answers = [{"text": "Turing", "answer_start": 5}]
    questions = [{"question": "who?", "answers": answers}, {"question": "when?", "answers": []}]
    content = {"data": [{"title": "x", "paragraphs": [{"context": "Alan Turing.", "qas": questions}]}]}
    (tmp_path / "dev.json").write_text(json.dumps(content))
    file = read_labelled("spans", tmp_path / "dev.json", evaluation.Columns(), print)
    reader = reader_of("SpanRows", Stub([], decoding={"null_threshold": 0.0}), file.columns)
    assert [(file.noun, number, *reader.read(row)) for number, row in file.rows] == [
        ("question", 1, {"question": "who?", "context": "Alan Turing."}, ["Turing"]),
        ("question", 2, {"question": "when?", "context": "Alan Turing."}, []),
    ]
    (tmp_path / "dev.json").write_text('{"data": [{}]}')
    with pytest.raises(UserError, match="is not in the format of SQuAD"):
        read_labelled("spans", tmp_path / "dev.json", evaluation.Columns(), print)
    with pytest.raises(UserError, match=r"expected a file that ends in .*\.parquet$"):
        read_labelled("classes", tmp_path / "dev.json", evaluation.Columns(), print)


def test_entities_answers_and_choices_are_compared() -> None:
    labels = ["O", "B-city", "I-city"]
    tags = reader_of("TagRows", Stub(labels), evaluation.Columns())
    record, read = tags.read({"tokens": ["to", "new", "york"], "tags": ["O", "B-city", "I-city"]})
    assert record == {"tokens": ["to", "new", "york"]}
    [entities, indexed, none] = convert(tags, [read, (read[0], ["O", "B-city", "I-city"]), ([], [])])
    assert (entities, indexed, none) == ({("city", 3, 11)}, {("city", 3, 11)}, set())
    assert convert(tags, [([(0, 2), (3, 7)], [0, 1])]) == [{("city", 3, 7)}]
    with pytest.raises(UserError, match=r"dev\.csv, line 3: label 2 is an index and O of dev\.csv, line 2 a name, exp"):
        convert(tags, [([(0, 2)], ["O"]), ([(0, 4)], ["2"])])
    found = [{"entities": [{"type": "city", "start": 3, "end": 11}, {"type": "city", "start": 0, "end": 2}]}]
    assert tags.score(found, [entities]) == pytest.approx({"f1": 2 / 3, "precision": 0.5, "recall": 1.0})
    spans = reader_of("SpanRows", Stub([], decoding={"null_threshold": 0.0}), evaluation.Columns())
    row = {"question": "who?", "context": "Alan Turing.", "answers": {"text": ["Alan Turing"], "answer_start": [0]}}
    none = {**row, "answers": None}
    answers = [spans.read(each)[1] for each in (row, row, none)]
    predictions = [{"answer": answer} for answer in ("the Alan Turing!", "Alan", None)]
    assert spans.score(predictions, answers) == pytest.approx(
        {
            "f1": (1 + 2 / 3 + 1) / 3, "exact_match": 2 / 3, "has_answer_f1": (1 + 2 / 3) / 2,
            "has_answer_exact_match": 1 / 2, "no_answer_f1": 1.0, "no_answer_exact_match": 1.0,
        }
    )  # fmt: skip
    assert spans.score(predictions[:2], answers[:2]) == pytest.approx({"f1": (1 + 2 / 3) / 2, "exact_match": 1 / 2})


@pytest.mark.parametrize(("suffix", "separator"), [("tsv", "\t"), ("csv", ","), ("jsonl", None)])
def test_a_file_is_scored(write: Write, tmp_path: Path, capsys: Output, suffix: str, separator: str | None) -> None:
    directory = write(metrics={"fp32": {"accuracy": 0.5, "test/accuracy": 0.5}})
    labels = ["short", "long", "long", "short", "long", "long"]
    predicted = [prediction["label"] for prediction in Bundle(directory).predict(TEXTS)]
    expected = np.mean([of == label for of, label in zip(predicted, labels, strict=True)])
    path, pairs = tmp_path / f"dev.{suffix}", list(zip(TEXTS, labels, strict=True))
    if separator is None:
        write_lines(path, [{"sentence": text, "label": label} for text, label in pairs])
    else:
        lines = "".join(f"{text}{separator}{label}\n" for text, label in [("sentence", "label"), *pairs])
        path.write_text("\ufeff" * (suffix == "csv") + lines, encoding="utf-8")
    assert evaluate(directory, path, "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "model": "fp32", "rows": 6, "truncated": 2, "metrics": {"accuracy": pytest.approx(expected)},
    }  # fmt: skip
    zipped = tmp_path / f"dev.{suffix}.gz"
    zipped.write_bytes(gzip.compress(path.read_bytes()))
    assert evaluate(directory, zipped, "--text-column", "sentence") == 0
    assert capsys.readouterr().out == f"accuracy\t{expected:.4f}\nrows\t6\ntruncated\t2\n"


@pytest.mark.parametrize("answers", [(1, 0), ("1", "0"), (2, 1), ("B", "a"), ("a dull film", "film")])
def test_choices_are_scored(answers: tuple[Any, Any], write: Write, tmp_path: Path, capsys: Output) -> None:
    directory, values = write("choices"), [["which", ["film", "a dull film"], answer] for answer in answers]
    own = ["--text-column", "ask", "--text-column", "options", "--label-column", "key"]
    for names, options in ((("question", "choices", "answer"), []), (("ask", "options", "key"), own)):
        file = write_lines(tmp_path / "dev.jsonl", [dict(zip(names, row, strict=True)) for row in values])
        assert evaluate(directory, file, *options) == 0
        assert capsys.readouterr().out == "accuracy\t0.5000\nrows\t2\ntruncated\t0\n"


def test_each_choice_may_have_a_column(write: Write, tmp_path: Path, capsys: Output) -> None:
    directory, file = write("choices"), tmp_path / "dev.csv"
    rows = ["question,a,b,c,key", "which,film,a dull film,,A", "which,film,a dull film,a film,C"]

    def run(*lines: str, first: str = "a") -> tuple[int, str]:
        file.write_text("\n".join([*rows, *lines]))
        options = [f"--text-column={name}" for name in ("question", first, "b", "c")]
        return evaluate(directory, file, *options, "--label-column=key"), "".join(capsys.readouterr())

    # The choices of both rows are read, of 2 and of 3, and the longest ones are the second ones.
    assert run() == (0, "accuracy\t0.0000\nrows\t2\ntruncated\t0\n")
    assert run("which,film,a dull film,a film,B")[1].startswith("accuracy\t0.3333\n")
    assert run("which,,,,A") == (2, f"error: {file}, line 4: got '', expected at least two choices\n")
    found = "{'question': 'which', 'choices': ['film']}"
    message = f"error: {file}, line 4: got {found}, expected a list of at least two choices\n"
    assert run("which,film,,,A") == (2, message)
    missing = "there is no column x, the columns are question, a, b, c, key: give --text-column or --label-column"
    assert run(first="x") == (2, f"error: {missing}\n")


def test_answers_are_read_as_in_a_run() -> None:
    """A number is an index before it is anything else, a text is one of a choice, and names come before both."""
    numbers = [{"choices": ["1", "2", "3"], "answer": answer} for answer in (1, 2)]
    named = [{"choices": {"text": ["x", "y"], "label": ["B", "A"]}, "answer": "A", "context": None}]
    texts = [{"choices": ["1", "2", "3"], "answer": answer} for answer in ("1", "2")]
    for rows, expected in ((numbers, [1, 2]), (texts, [0, 1]), (named, [1])):
        columns = {name: [row.get(name) for row in rows] for name in ("choices", "answer")}
        questions = {"question": ["which"] * len(rows), **columns}
        task = MultipleChoice(question="question", choices="choices", answer="answer", train=questions, dev=questions)
        assert task.read(Path()).splits["dev"].labels.tolist() == expected
        rows = [{"question": "which", **row} for row in rows]
        reader = reader_of("ChoiceRows", Stub([], decoding={}), evaluation.Columns(), rows)
        assert [reader.read(row)[1] for row in rows] == expected
    assert reader.read(rows[0])[0] == {"question": "which", "choices": ["x", "y"]}


def test_answers_are_read_as_those_of_the_run_that_made_the_bundle() -> None:
    """In some rows no answer tells an index from a number. Letters are those of another file."""
    for reading, answers, expected in (
        ("number", [1, 2], [0, 1]),
        ("index", [1, 2], [1, 2]),
        ("letter", [0, 2], [0, 2]),
    ):
        rows = [{"question": "which", "choices": ["x", "y", "z"], "answer": answer} for answer in answers]
        reader = reader_of("ChoiceRows", Stub([], decoding={"answers": reading}), evaluation.Columns(), rows)
        assert [reader.read(row)[1] for row in rows] == expected


STARS = ["1", "2", "3", "4", "5"]


@pytest.mark.parametrize(
    ("names", "values", "message"),
    [
        (STARS, ["0", "1", "2", "3", "4"], "line 2: label '0' is unknown, expected one of 1, 2, 3, 4, 5$"),
        (STARS, ["1", "01"], "line 3: label '01' is unknown"),
        (["no", "yes"], ["no", "1"], "line 3: label 1 is an index and no of .*line 2 a name, expected only"),
        (["no", "yes"], ["no", "9" * 5000], "line 3: label '9{12,}.* is unknown, expected one of no, yes, or all"),
        (["no", "yes"], ["no", ""], "line 3: label '' is empty, expected a class"),
    ],
)
def test_labels_are_not_shifted_or_guessed(names: list[str], values: list[Any], message: str) -> None:
    reader = reader_of("ClassRows", Stub(names))
    with pytest.raises(UserError, match=message) as caught:
        convert(reader, values)
    assert len(str(caught.value)) < 300


def test_numbers_are_read_by_the_rules_of_a_run() -> None:
    reader = reader_of("NumberRows", Stub(["score"]))
    assert convert(reader, ["1.5", 2, " 3 "]) == [1.5, 2.0, 3.0]
    for value in ("nan", "1_0", "1e39", "9" * 5000, True, None):
        with pytest.raises(UserError, match=r"dev\.csv, line 3: label .* is no number"):
            convert(reader, ["1", value])


def label_rows(names: list[str], row: dict[str, Any] | None = None, **columns: Any) -> evaluation.LabelRows:
    bundle: Any = Stub(names, decoding={"separator": "|"})
    return evaluation.LabelRows(bundle, evaluation.Columns(**columns), [row or {"text": "a", "label": "b"}])


def test_each_label_may_have_a_column() -> None:
    row = {"threat": 1, "text": "t", "rude": "0"}
    for columns in ({}, {"labels": ["threat", "rude"]}, {"labels": ["rude", "threat"], "texts": ["text"]}):
        reader = label_rows(["rude", "threat"], row, **columns)
        record, read = reader.read(row)
        assert record == "t"
        assert [of.tolist() for of in convert(reader, [read, ["1.0", "false"]])] == [[False, True], [True, False]]
    with pytest.raises(UserError, match=r"dev\.csv, line 3: column threat is '2', expected 0 or 1, because there is"):
        convert(reader, [["0", "1"], ["0", "2"]])
    with pytest.raises(UserError, match="got a column label and one for each of rude, threat, which may both be the"):
        label_rows(["rude", "threat"], {**row, "label": "rude"})
    assert label_rows(["rude", "threat"], {**row, "label": "rude"}, label="label", texts=["text"]).each is None
    with pytest.raises(UserError, match="got the label columns rude, insult, expected rude, threat"):
        label_rows(["rude", "threat"], row, labels=["rude", "insult"])


def test_a_row_that_cannot_be_read_is_named_by_its_line(write: Write, tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(evaluation, "CHUNK", 2)

    def refuse(bundle: Bundle, records: list[Any], **options: Any) -> list[Any]:
        if "bad" in records:
            raise RecordError(records.index("bad") + 1, "it has no tokens")
        return [{"probabilities": {"long": 1.0, "short": 0.0}}] * len(records)

    monkeypatch.setattr(Bundle, "predict", refuse)
    path = tmp_path / "dev.csv"
    path.write_text("text,label\n" + "a,long\n" * 3 + "bad,long\n")
    with pytest.raises(UserError, match=r"dev\.csv, line 5: it has no tokens$"):
        evaluation.evaluate(Bundle(write()), path, evaluation.Columns())


@pytest.mark.parametrize(
    ("name", "content", "options", "expected"),
    [
        ("dev.txt", "film", [], "dev.txt, expected a file that ends in .tsv, .csv, .jsonl, "),
        ("dev.conll", "film", [], ".jsonl.gz, .parquet\n"),
        ("dev.csv", None, [], "dev.csv cannot be read: No such file or directory"),
        ("dev.csv", "id,text,label\n1,a,long\n", [], "got id, text, expected one column of text: give --text-column"),
        ("dev.csv", "text,label\na,2\n", [], "line 2: label '2' is unknown, expected one of long, short, or "),
        ("dev.csv", "text,class\na,0\n", ["--text-column", "text"], "line 2: there is no column label, the columns"),
        ("dev.jsonl", '{"text": 1, "label": 0}\n', [], "dev.jsonl, line 1: got 1, expected a text"),
        ("dev.csv", "text,label\na,0\n", ["--as-text"], "does not tag words: leave it out"),
        (
            "dev.csv", "text,a,b\nx,0,1\n", ["--label-column", "a", "--label-column", "b"],
            "got the label columns a, b, expected one: this bundle has one label",
        ),
        ("dev.csv", "text,label\na,0\n", ["film"], "got --evaluate and 'film', expected one of the two"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_scored_is_refused(
    write: Write, tmp_path: Path, capsys: Output, name: str, content: str | None, options: list[str], expected: str
) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    assert main([str(write()), *options, "--evaluate", str(tmp_path / name)]) == 2
    error = capsys.readouterr().err
    assert expected in error
    assert len(error.splitlines()) == 1


def test_a_long_field_is_read_and_damaged_metrics_are_refused(write: Write, tmp_path: Path, capsys: Output) -> None:
    file = tmp_path / "dev.csv"
    file.write_text(f"text,note,label\nfilm,{'x' * 140_000},long\n")
    assert evaluate(write(), file, "--text-column", "text") == 0
    metrics: Any
    for metrics in ([], {"fp32": []}):
        assert evaluate(write(metrics=metrics), file) == 2
        assert "metrics is" in capsys.readouterr().err
