"""Tests that a wrong command ends before torch is imported, with the message that the run itself would have."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hydra.utils import get_object
from omegaconf import OmegaConf

from distill.core.errors import UserError
from distill.core.options import describe, list_annotations
from distill.jobs.preflight import UnknownAnnotationError, check_early, find_annotation
from distill.kinds import Classification
from distill.rows.columns import SUFFIXES
from tests.documents import ROOT
from tests.jobs.test_config import CONF, compose_config

MODELS = ("+teacher=minilm", "+student=distilbert")
DATA = ("task=classification", "task.data_dir=films.csv")
COMMANDS = {
    ("trainer.max_steps=abc",): "got trainer.max_steps=abc, expected a whole number of at least 1 or null",
    ("task.max_length=1",): "got task.max_length=1, expected ",
    ("benchmark.batches=8",): "got benchmark.batches=8, expected whole numbers of at least 1 in a list",
    ("export.gate=x",): "there is no option export.gate",
    ("task=classification", "task.data_dir=nowhere"): "task.data_dir=nowhere does not exist, expected a directory with",
    ("task=mlm", "task.data_dir=nowhere"): "task.data_dir=nowhere does not exist, expected a text file or a folder",
    ("task=classification", "task.data_dir=folder"): "folder has no dev or validation or valid file (found train.csv)",
    (*DATA, "task.text=[txt]"): "films.csv has no column txt (did you mean text?): it has text, label",
    (*DATA, "task.text=[text]", "task.label=labl"): "films.csv has no column labl (did you mean label?)",
    ("teacher.path=nowhere",): "teacher.path=nowhere is no directory, expected one with config.json and weights",
    # Problems of the data come before those of the weights.
    (*DATA, "task.text=[txt]", "teacher.path=nowhere"): "films.csv has no column txt",
}


def test_a_wrong_command_ends_before_torch_is_imported(tmp_path: Path) -> None:
    (tmp_path / "films.csv").write_text("text,label\ngood,1\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "train.csv").write_text("text,label\ngood,1\n")
    program = (
        "import json, sys\n"
        "from distill.__main__ import main\n"
        "for options in json.loads(sys.argv[1]):\n"
        "    sys.argv[1:] = options\n"
        "    print(main(), sorted({'torch', 'transformers', 'pandas'} & sys.modules.keys()))\n"
    )
    commands = json.dumps([[*MODELS, *options] for options in COMMANDS])
    done = subprocess.run(
        [sys.executable, "-c", program, commands], cwd=tmp_path, env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    ends = [line for line in done.stdout.splitlines() if not line.startswith("Job")]
    assert ends == ["2 []"] * len(COMMANDS), done.stderr
    errors = done.stderr.strip().splitlines()
    pairs = zip(errors, COMMANDS.values(), strict=True)
    assert [(line, expected) for line, expected in pairs if expected not in line] == []


def test_a_dry_run_imports_no_library_that_only_a_whole_run_uses(encoder_dir: Path, tmp_path: Path) -> None:
    rows = [f"a {word} film of {number} minutes,{word}" for number in range(40) for word in ("good", "bad")]
    (tmp_path / "films.csv").write_text("\n".join(["text,label", *rows]))
    program = (
        "import sys\n"
        "from distill.__main__ import main\n"
        "code = main()\n"
        "print(code, sorted({'scipy', 'sklearn', 'matplotlib', 'datasets'} & sys.modules.keys()))\n"
    )
    options = (
        "+teacher=pretrained",
        f"teacher.path={encoder_dir}",
        "+student=distilbert",
        "dry_run=true",
        "cache_dir=c",
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *options, *DATA, "task.text=[text]", "task.label=label",
         "task.max_length=32", "cache_dir=cache"],
        cwd=tmp_path, env={"PYTHONPATH": str(ROOT), "PATH": ""}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1:] == ["0 []"], done.stderr


def test_annotations_from_source_are_those_of_the_classes() -> None:
    targets: dict[str, set[str]] = {}

    def add(node: object) -> None:
        if isinstance(node, dict):
            if "_target_" in node:
                targets.setdefault(node["_target_"], set()).update(map(str, node))
            for value in node.values():
                add(value)

    for path in CONF.glob("*/*.yaml"):
        add(OmegaConf.to_container(OmegaConf.load(path), resolve=False))
    found = 0
    for target, options in targets.items():
        for option in options:
            try:
                annotation = find_annotation(target, option)
            except UnknownAnnotationError:
                continue
            found += 1
            assert describe(annotation) == describe(list_annotations(get_object(target))[option]), (target, option)
    assert found > 250


@pytest.mark.parametrize("suffix", [suffix for suffix in SUFFIXES if suffix in (".tsv", ".csv", ".jsonl", ".parquet")])
def test_columns_are_refused_as_the_task_refuses_them(tmp_path: Path, suffix: str) -> None:
    path, rows = tmp_path / f"rows{suffix}", [{"review": f"text {row}", "stars": row % 2} for row in range(20)]
    if suffix == ".jsonl":
        path.write_text("\n".join(map(json.dumps, rows)))
    elif suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        sign = "," if suffix == ".csv" else "\t"
        path.write_text("\n".join([sign.join(rows[0]), *(sign.join(map(str, row.values())) for row in rows)]))

    def check(*options: str) -> None:
        check_early(compose_config(*MODELS, "task=classification", f"task.data_dir={path}", *options), options)

    check("task.text=[review]", "task.label=stars")
    check("task.text=[review]", "task.label=[label,stars]")
    check("task.text=[review]", "task.label=null", "task.labels=[a,b]")
    for text, label in (("reviw", "stars"), ("review", "star"), ("review", None)):
        with pytest.raises(UserError) as late:
            Classification(text=text, label=label, data_dir=str(path)).read(tmp_path)
        with pytest.raises(UserError) as early:
            check(f"task.text=[{text}]", f"task.label={label or 'null'}")
        assert str(early.value) == str(late.value)
