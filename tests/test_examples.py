"""Tests of the tutorial, the notebooks and the scripts of `examples/`: their files, and whole runs of small size."""

import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from tests.documents import NOTEBOOKS, ROOT, SCRIPTS, read_blocks
from tests.edge.conftest import write_ranking_bundle, write_tag_bundle, write_vector_bundle

LARGEST_NOTEBOOK = 200_000  # Bytes.
EXAMPLES = ROOT / "examples"
# For each notebook what a small run replaces in its cells.
SMALLER = {
    "tutorial.ipynb": {"head(1000)": "head(150)", "max_epochs=6": "max_epochs=1", "max_epochs=2": "max_epochs=1",
                       "Teacher.embedded().fit(task)": "Teacher.embedded().fit(task, max_epochs=15)",
                       "distill -m +teacher=embedded": "distill -m +teacher=embedded teacher.finetune.max_epochs=15",
                       "temperature=1,2,4": "temperature=1,2"},
    "compare_temperatures.ipynb": {"[1, 2, 8]": "[1, 8]", "head(200)": "head(80)", "max_epochs=4": "max_epochs=1",
                                   "seeds=3": "seeds=2"},
    "inspect_predictions.ipynb": {"head(400)": "head(120)", "max_epochs=4": "max_epochs=1"},
}  # fmt: skip
ASSISTANT = ROOT / "docs/assistant.md"
# What a small run replaces in the commands of the page for assistants.
SMALLER_COMMANDS = {
    "+teacher=embedded": "+teacher=embedded teacher.finetune.max_epochs=15",
    "baseline=true": "baseline=true trainer.max_epochs=4 benchmark.seconds=0.05",
}
# For each script the arguments of a small run, and what its output has.
RUNS = {
    "csv_classifier.py": (["--rows", "700", "--epochs", "1"], r"of accuracy|accuracy 0\.\d+"),
    "compare_losses.py": (["--rows", "700", "--epochs", "1", "--seeds", "2", "--losses", "hinton"], r"hinton +0\.\d+"),
    "tags.py": (["--rows", "300", "--epochs", "2"], r"city +[01]\.\d\d  \d+-\d+  new york"),
    "search_encoder.py": (["--rows", "400", "--epochs", "1"], r"\n-?[01]\.\d\d  \w+"),
}


def environment(cache: Path) -> dict[str, str]:
    return {**os.environ, "DISTILL_CACHE": str(cache), "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the cache that the runs of one process share."""
    return tmp_path_factory.mktemp("cache")


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.name)
def test_every_notebook_is_executed_and_shows_nothing_of_the_machine(notebook: Path) -> None:
    text = notebook.read_text(encoding="utf-8")
    assert len(text) < LARGEST_NOTEBOOK
    assert not re.findall(r"/(?:root|home|work|tmp|Users)/", text)
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == [*range(1, len(cells) + 1)]
    assert not any(output["output_type"] == "error" for cell in cells for output in cell["outputs"])


def test_every_notebook_and_script_has_a_small_run() -> None:
    assert set(SMALLER) == {path.name for path in NOTEBOOKS}
    assert {*RUNS, "serve_and_ask.py", "retrieve_and_read.py"} == {path.name for path in SCRIPTS}


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.name)
def test_a_small_run_finds_what_it_replaces(notebook: Path) -> None:
    assert shrink(read_notebook(notebook), SMALLER[notebook.name])


def read_notebook(path: Path) -> Any:
    nbformat = pytest.importorskip("nbformat", reason="notebooks are read with the packages of the extra dev")
    return nbformat.read(path, 4)


def shrink(notebook: Any, smaller: dict[str, str]) -> Any:
    """Returns the notebook with smaller values, each of which it must have."""
    for old, new in smaller.items():
        cells = [cell for cell in notebook.cells if cell.cell_type == "code" and old in cell.source]
        assert cells, old
        for cell in cells:
            cell.source = cell.source.replace(old, new)
    return notebook


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_runs(path: Path, tmp_path: Path, cache: Path) -> None:
    from tests import notebooks

    notebook = shrink(read_notebook(path), SMALLER[path.name])
    notebooks.execute(notebook, tmp_path, cache=cache)
    notebooks.clean(notebook, {})
    for kept, new in zip(read_notebook(path).cells, notebook.cells, strict=True):
        assert bool(new.get("outputs")) == bool(kept.get("outputs")), new.source
    assert [*(tmp_path / "runs").rglob("run.json")]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(RUNS))
def test_an_example_runs(name: str, tmp_path: Path, cache: Path) -> None:
    arguments, expected = RUNS[name]
    output = run_example(name, *arguments, "--directory", "runs/one", directory=tmp_path, cache=cache)
    assert re.search(expected, output), output[-2000:]


def read_assistant() -> list[tuple[str, str]]:
    """Returns the commands of the page for assistants, each with the pattern of its last line."""
    expected = [re.escape(line.strip()).replace(re.escape("..."), ".+") for line in read_blocks(ASSISTANT, "text")]
    return list(zip(read_blocks(ASSISTANT, "sh"), expected, strict=True))


def test_the_page_for_assistants_has_ten_commands() -> None:
    commands = [command for command, _ in read_assistant()]
    assert len(commands) == 10
    assert [old for old in SMALLER_COMMANDS if old not in "".join(commands)] == []


@pytest.mark.slow
def test_the_commands_for_assistants_end_as_their_page_says(tmp_path: Path, cache: Path) -> None:
    rows = [f"a {word} film of {number} minutes,{word}" for number in range(60, 210) for word in ("lovely", "dull")]
    (tmp_path / "reviews.csv").write_text("\n".join(["text,label", *rows]))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for command, expected in read_assistant():
        for old, new in SMALLER_COMMANDS.items():
            command = command.replace(old, new)
        done = subprocess.run(
            ["bash", "-euc", command], cwd=tmp_path, env={**environment(cache), "PATH": path}, capture_output=True,
            text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}{done.stderr}"
        assert re.fullmatch(expected, done.stdout.splitlines()[-1].strip()), f"{command}{done.stdout[-2000:]}"


@pytest.mark.slow
def test_the_server_of_an_example_is_asked(tmp_path: Path, cache: Path) -> None:
    run_example("csv_classifier.py", "--rows", "700", "--epochs", "1", directory=tmp_path, cache=cache)
    answer = json.loads(run_example("serve_and_ask.py", directory=tmp_path, cache=cache).splitlines()[-1])
    assert answer["label"] in answer["probabilities"]


def test_without_a_bundle_the_example_says_how_to_make_one(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "serve_and_ask.py")],
        cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == "no bundle below runs/: run python examples/csv_classifier.py, or give --bundle DIR\n"


@pytest.fixture
def bundles(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> dict[str, str]:
    """Bundles in which longer passages are further from a question, and score more with it, and data of questions."""
    for name in ("encoder", "reader", "ranker"):
        (tmp_path / name).mkdir()
    write_vector_bundle(tmp_path / "encoder", tokenizer)
    write_ranking_bundle(tmp_path / "ranker", tokenizer)
    write_tag_bundle(
        tmp_path / "reader", tokenizer, decoder="spans", labels=["start", "end"], pair=True, doc_stride=0,
        decoding={"n_best": 5, "max_answer_length": 2, "null_threshold": None},
    )  # fmt: skip
    contexts = ["a film", "a dull film and a moving film", "wonderful acting , a joy , a joy , a joy"]
    paragraphs = [
        {"context": context, "qas": [{"question": "a moving film", "answers": [{"text": context}]}]}
        for context in contexts
    ]
    (tmp_path / "data.json").write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    names = {"encoder": "encoder", "reader": "reader", "data": "data.json"}
    return {name: str(tmp_path / file) for name, file in names.items()}


def test_questions_are_answered_from_passages(tmp_path: Path, bundles: dict[str, str]) -> None:
    options = [part for name, value in bundles.items() for part in (f"--{name}", value)] + ["--model", "fp32"]
    output = run_example("retrieve_and_read.py", *options, "--k", "1", "3", directory=tmp_path, cache=tmp_path)
    summary, header, one, three = output.splitlines()
    assert summary.startswith("3 questions, 3 passages; exact match in its own passage 0.")
    assert header.split() == ["k", "found", "first", "best", "marginal"]
    # The nearest passage is that of one question, and all of them are read at the end.
    assert (one.split()[:2], three.split()[:2]) == (["1", "0.333"], ["3", "1.000"])
    assert one.split()[2] == one.split()[3]  # Of a single passage.
    for more, nearest in (((), "a film"), (("--ranker", str(tmp_path / "ranker")), "wonderful acting")):
        asked = run_example(
            "retrieve_and_read.py",
            *options,
            "--question",
            "film",
            "--k",
            "2",
            *more,
            directory=tmp_path,
            cache=tmp_path,
        )
        first, best, marginal, *passages = asked.splitlines()
        assert [line.split(": ")[0] for line in (first, best, marginal)] == ["first", "best", "marginal"]
        assert len(passages) == 2
        assert passages[0].split(")  ")[1].startswith(nearest)


def test_answers_are_weighed_by_their_passages() -> None:
    example = runpy.run_path(str(EXAMPLES / "retrieve_and_read.py"))
    reading, combine = example["Reading"], example["combine"]
    readings = [
        reading(0, 0.4, [("Rome", 0.6), ("Paris", 0.4)]),
        reading(1, 0.3, [("the Paris", 0.7), ("Rome", 0.1)]),
        reading(2, 0.3, [("Oslo", 0.9)]),
    ]
    # Rome 0.4 * 0.6 + 0.3 * 0.1 = 0.27, Paris 0.16 + 0.21 = 0.37, Oslo 0.27.
    assert combine(readings) == {"first": "Rome", "best": "Oslo", "marginal": "paris"}
    assert combine(readings[:2]) == {"first": "Rome", "best": "Rome", "marginal": "paris"}
    assert combine([reading(0, 1.0, [])]) == {"first": "", "best": "", "marginal": ""}


def run_example(name: str, *arguments: str, directory: Path, cache: Path) -> str:
    """Runs a script of `examples/` in a directory, and returns its output."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        cwd=directory, env=environment(cache), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout
