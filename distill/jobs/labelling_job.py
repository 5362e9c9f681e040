"""The job `label`, which asks a language model at an endpoint for labels, and goes on to a student that learns them."""

import hashlib
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from omegaconf import DictConfig, OmegaConf
from pydantic import Field, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass as checked_dataclass

from distill.core.console import ProgressMeter, format_duration, print_line, print_notice
from distill.core.errors import OptionError, UserError, find_surrogate
from distill.core.files import write_json, write_text
from distill.core.options import STRICT, check_options, show_value
from distill.jobs.execution import instantiate
from distill.jobs.preflight import given_options, refuse_other_options
from distill.kinds.known import Key, normalize
from distill.labelling.answers import AnswerFile, Price
from distill.labelling.endpoint import Endpoint
from distill.labelling.forms import AnswerError, Form, Row
from distill.labelling.labeller import Calibration, Label, Labeller, to_rows
from distill.labelling.selection import Selector
from distill.rows.columns import Table, read_table
from distill.rows.formats import is_missing, is_without_label, show_names
from distill.training.statistics import wilson_interval

SAMPLE = 20  # Rows that a dry run asks about.
ROUNDS = 5  # Of `label.choose=uncertain`.
DRAWS = 1000  # Of gold rows, for the interval of a metric that is no share.


@check_options("label")
@checked_dataclass(frozen=True, config=STRICT)
class LabelSettings:
    """The options of `label`, as `conf/job/label.yaml` describes them."""

    endpoint: str
    model: str
    classes: Mapping[str | int, str | None] | Sequence[str | int] | None = None
    instructions: str | None = None
    output: str = "labels.jsonl"
    gold: str | None = None
    column: str | None = None
    pilot: PositiveInt = 200
    votes: PositiveInt = 1
    temperature: PositiveFloat = 1.0
    concurrency: PositiveInt = 8
    timeout: PositiveFloat = 60
    retries: Annotated[int, Field(ge=0)] = 5
    price: Mapping[str, Annotated[float, Field(ge=0, strict=False)]] | None = None
    max_cost: PositiveFloat | None = None
    rows: PositiveInt | None = None
    choose: Literal["random", "uncertain"] = "random"

    def __post_init__(self) -> None:
        if self.price is not None and set(self.price) != {"input", "output"}:
            raise OptionError(
                "label.price", show_value(self.price), "dollars of a million tokens: {input: 0.15, output: 0.60}"
            )
        if self.max_cost is not None and self.price is None:
            raise OptionError("label.max_cost", show_value(self.max_cost), "null, or label.price beside it")
        if self.choose == "uncertain" and self.rows is None:
            raise OptionError("label.choose", self.choose, "random, or label.rows=N beside it: the rows to choose")

    def described(self) -> dict[str, str]:
        """Returns the classes with their descriptions."""
        if not isinstance(self.classes, Mapping | None) and len(set(self.classes)) < len(self.classes):
            raise OptionError("label.classes", show_value(self.classes), "names that are different and not empty")
        pairs = (
            self.classes.items() if isinstance(self.classes, Mapping) else ((name, "") for name in self.classes or ())
        )
        return {str(name): text or "" for name, text in pairs}


@dataclass(frozen=True)
class Examples:
    """The rows to label.

    Args:
        rows: the columns of the texts of each example.
        gold: the right answer by the number of the example, for those that have one.
        column: of the right answers.
    """

    rows: list[Row]
    gold: dict[int, object]
    column: str

    @property
    def open(self) -> list[int]:
        """Returns the numbers of the examples without a right answer."""
        return [number for number in range(len(self.rows)) if number not in self.gold]


def run_label(config: DictConfig) -> None:
    """Labels a table, and trains a student on the labels if one is chosen.

    Raises:
        UserError: for options, data and an endpoint that cannot be used.
    """
    goes_on = not OmegaConf.is_missing(config, "student")
    if not goes_on:
        refuse_other_options("label")
    for name, value in (
        ("data", config.data),
        ("label.endpoint", config.label.endpoint),
        ("label.model", config.label.model),
    ):
        if not isinstance(value, str):
            raise UserError(f"job=label has no {name}: add {name}=...")
    settings: LabelSettings = instantiate(config.label)
    task = instantiate(config.task)
    if config.task.get("context"):
        raise UserError("job=label asks about a question and its choices alone: leave out task.context")
    if task.answer_form is None:
        raise UserError(
            f"job=label has no question for task={config.task.name}: take a task of classes, numbers, tags or choices"
        )
    form = task.answer_form(task.known_columns, settings.described(), settings.instructions or "")
    fallback = config.task.get("label") or config.task.get("answer") or form.key
    data, output = Path(config.data).expanduser(), Path(settings.output).expanduser()
    gold = None if settings.gold is None else Path(settings.gold).expanduser()
    _check_output(output, form, settings, {data, gold})
    examples = read_examples(form, data, settings.column or str(fallback), gold, is_named=settings.column is not None)
    endpoint = Endpoint(settings.endpoint, settings.model, settings.timeout, settings.retries)
    with AnswerFile(output.with_suffix(".answers.jsonl")) as file:
        price = None if settings.price is None else Price(**settings.price)
        labeller = Labeller(
            form, endpoint, file, votes=settings.votes, temperature=settings.temperature,
            concurrency=settings.concurrency, price=price, max_cost=settings.max_cost,
        )  # fmt: skip
        if config.dry_run:
            _print_plan(labeller, examples, settings)
            return
        asked = _label(labeller, examples, settings, int(config.seed))
        labels = _collect(labeller, examples, asked)
        if not labels:
            raise UserError(f"{settings.endpoint} has given no label: {dict(labeller.count_faults())}")
        _write(output, labeller, examples, labels, settings, without_answer=len(asked) - len(labels))
        _print_result(output, labeller, examples, labels, without_answer=len(asked) - len(labels))
    if goes_on:
        _train(output, form, examples, config)


def read_examples(form: Form[Any], data: Path, column: str, gold: Path | None, *, is_named: bool = False) -> Examples:
    """Returns the rows of a table, and those of a table of gold rows before them, each text once.

    Args:
        column: of the right answers, which `data` need not have unless `is_named`.

    Raises:
        UserError: for columns that are missing, a table without texts, and right labels that are no answers.
    """
    rows, right, numbers = list[Row](), dict[int, object](), dict[Key, int]()
    for path in [data] if gold is None else [gold, data]:
        if not path.is_file():
            raise UserError(f"{path} is no file, expected a table of texts")
        table = read_table(path)
        needed = (*form.columns, *([column] if path == gold or (is_named and gold is None) else []))
        if missing := [name for name in needed if name not in table.names]:
            raise UserError(
                f"{table.source} has the columns {show_names(table.names)}, expected {show_names(missing)} too: name "
                "those of the texts with task.text=[...], and that of the labels with label.column=NAME"
            )
        for row in range(len(table)):
            values = {name: _read_text(table, row, table.columns[name][row]) for name in form.columns}
            if not all(values.values()):
                continue
            number = numbers.setdefault(normalize([text for _, text in form.texts(values)]), len(rows))
            if number == len(rows):
                rows.append(values)
            label = table.columns[column][row] if column in table.names else None
            if not (is_without_label(label) or label == ""):
                answer = _read_gold(form, table, row, values, _name_class(table, column, label))
                if right.setdefault(number, answer) != answer:
                    raise UserError(
                        f"{table.place(row)}: the text has the right label {label!r}, and another one before"
                    )
    if not rows:
        raise UserError(f"{data} has no text in {show_names(form.columns)}, expected a text in every row")
    return Examples(rows, right, column)


def _read_text(table: Table, row: int, value: object) -> str | list[str]:
    """Returns the text of a column, or a list of texts; an empty one for a missing value."""
    texts = value if isinstance(value, list | tuple | np.ndarray) else [value]
    found = ["" if is_missing(text) else str(text) for text in texts]
    for text in found:
        if find_surrogate(text) is not None:
            raise UserError(f"{table.place(row)}: the text has a lone surrogate, expected Unicode")
    return found[0] if texts is not value else found


def _name_class(table: Table, column: str, label: object) -> object:
    """Returns the name of a class of `datasets.ClassLabel`, and another label as it is."""
    names = table.classes.get(column)
    return names[label] if names and isinstance(label, int) else label


def _read_gold(form: Form[Any], table: Table, row: int, values: Row, label: object) -> object:
    try:
        return form.read_gold(label, values)
    except AnswerError as error:
        known = f", expected one of {show_names(form.names)}" if form.names else ""
        raise UserError(f"{table.place(row)}: the right label {label!r} is {error}{known}") from None


def _digest(form: Form[Any], settings: LabelSettings) -> str:
    """Returns what stands for the question and the model."""
    content = [type(form).__name__, form.columns, dict(form.classes), form.instructions, settings.model]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _check_output(output: Path, form: Form[Any], settings: LabelSettings, data: Collection[Path | None]) -> None:
    """Raises UserError for an output that would replace other files than those of the same question and model."""
    if output.suffix != ".jsonl" or output in data:
        raise OptionError("label.output", str(output), "a name that ends with .jsonl and is not that of the data")
    record = output.with_suffix(".json")
    try:
        known = json.loads(record.read_text(encoding="utf-8")).get("question_sha256")
    except (OSError, ValueError, AttributeError):
        known = None
    is_there = any(path.exists() for path in (output, record, output.with_suffix("")))
    if is_there and known != _digest(form, settings):
        raise UserError(
            f"{output} or what is beside it has the labels of another question or model: set label.output to another "
            "file, or remove it"
        )


def _label(labeller: Labeller, examples: Examples, settings: LabelSettings, seed: int) -> list[int]:
    """Asks about the gold rows and then about the others; returns the numbers of the examples."""
    pilot = list(examples.gold)[: settings.pilot]
    if pilot and not _ask(labeller, examples, pilot, "pilot"):
        print_line(f"Pilot    {_describe_accuracy(labeller, examples, pilot)}")
    rest = [number for number in examples.gold if number not in set(pilot)]
    chosen, is_over = list(examples.open), _ask(labeller, examples, rest, "gold rows") if rest else False
    if settings.rows is not None and settings.rows < len(chosen):
        random, is_random = np.random.default_rng(seed), settings.choose == "random"
        selector = None if is_random else Selector([" ".join(map(str, row.values())) for row in examples.rows], seed)
        chosen, first = [], settings.rows if is_random else -(-settings.rows // ROUNDS)
        while len(chosen) < settings.rows and not is_over:
            remaining = sorted(set(examples.open) - set(chosen))
            known = {number: json.dumps(label.answer) for number, label in _collect(labeller, examples, chosen).items()}
            number = min(first, settings.rows - len(chosen))
            chosen += (
                selector.choose(remaining, known, number)
                if selector is not None and chosen
                else random.permutation(remaining)[:number].tolist()
            )
            is_over = _ask(labeller, examples, chosen, "texts")
    elif not is_over:
        is_over = _ask(labeller, examples, chosen, "texts")
    if is_over:
        print_notice(f"label.max_cost={settings.max_cost:g} ends the labelling; a larger one goes on from here")
    return [*examples.gold, *chosen]


def _ask(labeller: Labeller, examples: Examples, numbers: Sequence[int], title: str) -> bool:
    """Asks about examples with a bar of progress; returns whether the cost ended it."""
    rows = [examples.rows[number] for number in numbers]
    with ProgressMeter(title, len(rows), unit="examples") as meter:
        return labeller.run(rows, meter.show)


def _collect(labeller: Labeller, examples: Examples, numbers: Sequence[int]) -> dict[int, Label]:
    found = {number: labeller.label(examples.rows[number]) for number in numbers}
    return {number: label for number, label in found.items() if label is not None}


def _measure(labeller: Labeller, examples: Examples, numbers: Sequence[int]) -> dict[str, Any] | None:
    """Returns the metric of the model on gold rows with its 95% interval; None without one."""
    labels = _collect(labeller, examples, [number for number in numbers if number in examples.gold])
    if not labels:
        return None
    form, rows = labeller.form, list(labels)
    gold, answers = [examples.gold[row] for row in rows], [labels[row].answer for row in rows]
    value = form.score(gold, answers)
    if form.metric == "accuracy":
        interval = wilson_interval(value, len(rows))
    else:
        random = np.random.default_rng(0)
        draws = (random.integers(len(rows), size=len(rows)) for _ in range(DRAWS))
        scores = [form.score([gold[i] for i in draw], [answers[i] for i in draw]) for draw in draws]
        low, high = np.quantile(scores, [0.025, 0.975]).tolist()
        interval = low, high
    return {"metric": form.metric, "value": value, "interval": list(interval), "rows": len(rows)}


def _describe_accuracy(labeller: Labeller, examples: Examples, numbers: Sequence[int]) -> str:
    """Returns the accuracy of the model in words."""
    found = _measure(labeller, examples, numbers)
    if found is None:
        return "no answer to any of the gold rows"
    low, high = found["interval"]
    return (
        f"{labeller.endpoint.model} has {found['metric']} {found['value']:.4f} ({low:.4f} to {high:.4f}) on "
        f"{found['rows']:,} rows with a right label"
    )


def _print_plan(labeller: Labeller, examples: Examples, settings: LabelSettings) -> None:
    """Prints three questions, and what all labels cost, from the tokens of a few rows."""
    for row in examples.rows[:3]:
        for message in labeller.form.messages(row):
            print_line(f"[{message['role']}]")
            print_line(message["content"])
    asked = [*examples.gold, *examples.open[: settings.rows]]
    order = sorted(asked, key=lambda number: len(str(examples.rows[number])))
    places = np.linspace(0, len(order) - 1, min(SAMPLE, len(order))).round().astype(int)
    _ask(labeller, examples, sorted({order[place] for place in places}), "sample")
    if not labeller.file.by_key:
        raise UserError(f"{settings.endpoint} has answered none of the questions: {dict(labeller.count_faults())}")
    rows = [examples.rows[number] for number in asked]
    read, written, seconds = labeller.estimate(rows)
    print_line(f"Tokens   {read:,.0f} of questions and {written:,.0f} of replies for {len(rows):,} texts")
    price = labeller.price
    cost = "not known without label.price" if price is None else f"${price.of(read, written):.4g} for all of them"
    print_line(f"Price    {cost}")
    print_line(f"Time     about {format_duration(seconds)} with {labeller.concurrency} questions at once")
    print_line("Nothing but the sample was asked (dry_run=true); its answers are kept")


def _write(
    output: Path, labeller: Labeller, examples: Examples, labels: Mapping[int, Label], settings: LabelSettings, *,
    without_answer: int,
) -> None:  # fmt: skip
    """Writes the labels, the record beside them, and the rows of a training."""
    form = labeller.form
    gold = [(examples.rows[row], right, labels[row]) for row, right in examples.gold.items() if row in labels]
    calibration = Calibration.fit(form, gold)
    _write_lines(output, to_rows(form, examples.rows, labels, calibration))
    train = [
        form.labelled(label.answer, examples.rows[row], examples.column)
        for row, label in labels.items()
        if row not in examples.gold
    ]
    dev = [
        form.labelled(right, examples.rows[row], examples.column)
        for row, right in examples.gold.items()
        if row in labels
    ]
    for name, rows in (("train", train), ("dev", dev)):
        path = output.with_suffix("") / f"{name}.jsonl"
        _write_lines(path, rows) if rows else path.unlink(missing_ok=True)
    kept = labeller.answers([examples.rows[row] for row in labels])
    dollars = None if labeller.price is None else sum(labeller.price.of(one.read, one.written) for one in kept)
    write_json(output.with_suffix(".json"), {
        "schema": 1, "model": settings.model, "endpoint": settings.endpoint.partition("?")[0],
        "question_sha256": _digest(form, settings),
        "form": type(form).__name__, "columns": list(form.columns), "classes": dict(form.classes),
        "instructions": form.instructions, "texts": len(labels), "without_answer": without_answer,
        "gold": _measure(labeller, examples, list(examples.gold)), "temperature": calibration.temperature,
        "tokens": {"input": labeller.file.read, "output": labeller.file.written},
        "dollars": None if labeller.price is None else labeller.cost(),
        "dollars_per_million_texts": None if dollars is None else 1e6 * dollars / len(labels),
        "milliseconds": 1000 * float(np.median([answer.seconds for answer in kept])) if kept else None,
        "faults": dict(sorted(_count_faults(labeller, examples, labels).items())),
    })  # fmt: skip


def _count_faults(labeller: Labeller, examples: Examples, labels: Mapping[int, Label]) -> Counter[str]:
    """Returns the faults by their reason, with quotations whose place is not certain."""
    counted = (labeller.form.count_doubtful(label.answer, examples.rows[row]) for row, label in labels.items())
    return labeller.count_faults() + Counter({"a quotation that the text has several times": sum(counted)})


def _print_result(
    output: Path, labeller: Labeller, examples: Examples, labels: Mapping[int, Label], *, without_answer: int
) -> None:
    """Prints how good the model is, what its server lacks, the faults, and how many labels there are."""
    if examples.gold:
        print_line(f"Gold     {_describe_accuracy(labeller, examples, list(examples.gold))}")
    else:
        print_notice(
            "no text has a right label, so that a report compares the student with the model alone: give label.gold"
        )
    if lacks := labeller.endpoint.describe_lacks():
        print_notice(f"{labeller.endpoint.url} gives no {lacks}")
    if faults := _count_faults(labeller, examples, labels):
        print_notice("faults: " + ", ".join(f"{reason} {number:,}" for reason, number in faults.most_common()))
    missing = f"; {without_answer:,} texts have no label" if without_answer else ""
    cost = "" if labeller.price is None else f" for ${labeller.cost():.4g}"
    print_line(f"Labels   {len(labels):,} texts in {output}{cost}{missing}")


def _write_lines(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows))


def _train(output: Path, form: Form[Any], examples: Examples, config: DictConfig) -> None:
    """Trains the chosen student in a process of its own, and ends with its exit code if that is not 0."""
    left_out = ("job=", "data=", "label.", "teacher.path=", "task.data_dir=")
    options = [option for option in given_options() if not option.startswith(left_out)]
    if not any(option.startswith("task=") for option in options):
        options.append("task=classification")
    if "label" in config.task and examples.column != config.task.label:
        options.append(f"task.label={examples.column}")
    if form.names and "labels" in config.task and not form.has_spans:
        options.append(f"task.labels={json.dumps(form.names, ensure_ascii=False)}")
    options += [f"teacher.path={output}", f"task.data_dir={output.with_suffix('')}"]
    done = subprocess.run([sys.executable, "-m", "distill", *options], check=False)
    if done.returncode:
        sys.exit(done.returncode)
