"""Tests of the command that writes the results of runs into the tables of a page."""

import re
from collections.abc import Callable
from pathlib import Path

import yaml

from benchmarks.results_table import fill, main, read_values, write_lines
from distill.records.comparison import compare_runs
from distill.records.schema import find_runs
from tests.documents import ROOT
from tests.golden.runs import golden_output, golden_root, golden_run

__all__ = ["golden_output", "golden_root", "golden_run"]

PAGE = (
    "# Results\n\n## Tags\n\n| | dev | size |\n|---|---:|---:|\n| student fp32 | 0.1 | 1 MB |\n| | old | |\n\n## Next\n"
)


def test_a_line_is_replaced_and_another_one_added(golden_run: Callable[[str], Path], tmp_path: Path) -> None:
    page, run = tmp_path / "results.md", golden_run("labels")
    page.write_text(PAGE)
    lines = [["student fp32", "{fp32}", "{fp32_mb:.2f} MB", "{task}"], ["{task}", "{of_int8:.1%}", "{teacher_p50_ms}"]]
    (tmp_path / "tables.yaml").write_text(yaml.safe_dump({"results.md": {"Tags": {1: lines}}}))
    main([str(page), "Tags", str(run)])
    (row,) = compare_runs(find_runs(run).readable)
    fp32, int8 = row.files["fp32"], row.files["int8"]
    assert row.teacher is not None
    assert row.teacher.metrics["dev"]
    assert fp32.bytes is not None
    share = int8.values[0] / row.teacher.metrics["dev"]
    assert page.read_text() == PAGE.replace(
        "| student fp32 | 0.1 | 1 MB |\n| | old | |\n",
        f"| student fp32 | {fp32.values[0]:.4f} | {fp32.bytes / 1e6:.2f} MB |\n| | old | |\n"
        f"| {row.task['name']} | {share:.1%} | |\n",
    )


def test_the_tables_that_are_described_are_there_and_take_their_lines(golden_run: Callable[[str], Path]) -> None:
    (values,) = map(read_values, compare_runs(find_runs(golden_run("tags")).readable))
    described = yaml.safe_load((ROOT / "docs" / "tables.yaml").read_text())
    for name, headings in described.items():
        page = (ROOT / "docs" / name).read_text()
        for heading, tables in headings.items():
            for number, lines in tables.items():
                written = write_lines(
                    page, heading, [[fill(cell, values) for cell in line] for line in lines], number=number
                )
                assert not re.search(r"\{|None", "".join(set(written.splitlines()) - set(page.splitlines()))), heading
