"""Tests of job=glue_test: the files that GLUE's server takes, from the bundles of a table."""

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from transformers import PreTrainedTokenizerBase

from distill.core import storage
from distill.core.errors import UnreachableError
from distill.records.experiment import Outcome, Place, TableRuns, write_runs
from distill.records.run import Run, create_record
from tests.edge.conftest import write_toy_bundle
from tests.jobs.conftest import Command
from tests.records.test_report import record

BUNDLES: dict[str, dict[str, Any]] = {
    "cola": {"labels": ["unacceptable", "acceptable"]},
    "rte": {"labels": ["entailment", "not_entailment"], "pair": True},
    "stsb": {"labels": ["score"], "pair": True, "decoder": "number", "kind": "regression"},
}
TEXTS = {"cola": ["sentence"], "rte": ["premise", "hypothesis"], "stsb": ["sentence1", "sentence2"]}
# The toy bundle takes texts of more than four tokens, two of them at the ends, for the first class.
LONG, SHORT = "a lovely and moving film", "film"


@pytest.fixture
def table(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> Path:
    """A table of a teacher without a bundle and a student, on three tasks of GLUE and another one, two seeds each."""
    directory, outcomes = tmp_path / "table", []
    for seed, accuracy in enumerate((0.8, 0.7)):
        for task in (*BUNDLES, "other"):
            run = directory / "runs" / f"{task}-{seed}"
            (run / "bundle").mkdir(parents=True)
            content = create_record(job="distill", seed=seed, command=[]) | record(status="finished")
            content["export"]["fp32"]["metrics"] = {"accuracy": accuracy}
            Run(run, content).save()
            OmegaConf.save(OmegaConf.create({"task": {"text": TEXTS.get(task, ["sentence"])}}), run / "config.yaml")
            if seed == 0:  # The bundle of the worse seed is empty.
                write_toy_bundle(run / "bundle", tokenizer, max_length=32, **BUNDLES.get(task, {}))
            outcomes.append(Outcome(Place("half", task, seed), run))
    outcomes += [Outcome(Place("teacher", "cola", 0), directory / "runs"), Outcome(Place("none", "rte", 0), None, "no")]
    write_runs(directory, TableRuns({}, outcomes, ["python"]))
    return directory


def write_rows(path: Path, header: str, *rows: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")


def test_files_have_what_the_server_takes(table: Path, tmp_path: Path, command: Command) -> None:
    write_rows(tmp_path / "glue" / "cola" / "test.tsv", "index\tsentence", f"0\t{LONG}", f"1\t{SHORT}")
    # Columns of other names than in the training.
    write_rows(tmp_path / "glue" / "rte" / "test.tsv", "index\tsentence1\tsentence2", f"0\t{SHORT}\t{LONG}")
    (tmp_path / "glue" / "stsb").mkdir()
    (tmp_path / "glue" / "stsb" / "test.jsonl").write_text(f'{{"sentence1": "{SHORT}", "sentence2": "{LONG}"}}\n')
    code, output, error = command("job=glue_test", f"runs={table}", f"data={tmp_path / 'glue'}")
    assert code == 0, error
    files = {path.name: path.read_text() for path in (table / "test" / "half").iterdir()}
    assert files == {
        "CoLA.tsv": "index\tprediction\n0\t0\n1\t1\n",
        "RTE.tsv": "index\tprediction\n0\tentailment\n",
        "STS-B.tsv": "index\tprediction\n0\t5.000\n",  # The server takes numbers from 0 to 5.
    }
    assert [path.name for path in (table / "test").iterdir()] == ["half"]
    assert "half: CoLA.tsv, RTE.tsv, STS-B.tsv in" in output.replace("\n", " ")
    assert "half has no MNLI-m, MNLI-mm, AX, MRPC, QNLI, QQP, SST-2, WNLI" in " ".join((output + error).split())


def test_test_sets_are_those_of_the_hub_by_default(
    table: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str]] = []

    def load(hub_id: str, source: str, *, advice: str, split: str) -> list[dict[str, Any]]:
        asked.append((hub_id, split))
        texts = ["sentence"] if hub_id.endswith("cola") else ["sentence1", "sentence2"]
        return [dict.fromkeys(texts, SHORT) | {"label": -1, "idx": 0}]

    monkeypatch.setattr(storage, "load_hub_dataset", load)
    assert command("job=glue_test", f"runs={table}")[0] == 0
    assert asked == [("nyu-mll/glue:cola", "test"), ("nyu-mll/glue:rte", "test"), ("nyu-mll/glue:stsb", "test")]

    def fail(*arguments: Any, **options: Any) -> None:
        raise UnreachableError("the Hub does not respond")

    monkeypatch.setattr(storage, "load_hub_dataset", fail)
    code, _, error = command("job=glue_test", f"runs={table}")
    assert code == 2
    assert error.strip().endswith("cannot be downloaded from the Hub: add data=DIR, a directory with cola/test.tsv")


def test_tables_and_test_sets_that_cannot_be_are_refused(table: Path, tmp_path: Path, command: Command) -> None:
    write_rows(tmp_path / "glue" / "cola" / "test.tsv", "index\tfirst\tsecond", "0\ta\tb")
    write_rows(tmp_path / "null" / "cola" / "test.jsonl", '{"sentence": "a film"}', '{"sentence": null}')
    for options, message in (
        ([], "job=glue_test has no table: add runs=DIR, the directory of +experiment=glue"),
        ([f"runs={tmp_path}"], f"{tmp_path} has no table, expected the directory of +experiment=glue"),
        ([f"runs={table}", f"data={tmp_path / 'glue'}"], "the test set cola/test has the columns index, first, second"),
        ([f"runs={table}", "seed=1"], "seed"),
        ([f"runs={table}", f"data={tmp_path / 'null'}"], "the test set cola/test, row 2: got None, expected a text"),
    ):
        code, _, error = command("job=glue_test", *options)
        assert (code, len(error.strip().splitlines())) == (2, 1), error
        assert message in error
