"""Tests of the figures and tables of a report as files for a paper."""

import csv
import re
from pathlib import Path

import pytest

from distill.jobs.publishing_jobs import write
from distill.records import row_tables
from distill.records.pages import write_collection
from distill.records.plots import draw
from distill.records.schema import find_runs
from tests.records.test_collection_report import CLASSES, save, save_sweep, write_predictions


def check_table(text: str) -> list[list[str]]:
    """Checks the LaTeX of a table, and returns its cells."""
    [columns] = re.findall(r"\\begin\{tabular\}\{((?:[lr]|p\{0\.4\\linewidth\})+)\}\n", text)
    number = len(re.findall(r"[lrp](?=[lrp{]|$)", columns))
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    cells = [re.split(r"(?<!\\)&", line.removesuffix(r"\\")) for line in rows]
    assert {len(row) for row in cells} == {number}
    assert text.count(r"\begin") == text.count(r"\end")
    for rule in ("top", "mid", "bottom"):
        assert text.count(rf"\{rule}rule") == 1
    body = re.sub(r"\\[\\&%$#_{}]", "", re.sub(r"^%.*\n", "", text, flags=re.M)).replace("!}{%", "!}{")
    assert body.count("{") == body.count("}")
    assert body.count("$") % 2 == 0
    assert not re.search(r"[#%_~^]", body)
    return [[cell.strip() for cell in row] for row in cells]


def test_texts_have_no_meaning_in_latex() -> None:
    assert row_tables.escape("50% of a_b & {c} #1 $x^2 ~ \\d <e> f|g") == (
        r"50\% of a\_b \& \{c\} \#1 \$x\textasciicircum{}2 \textasciitilde{} \textbackslash{}d "
        r"\textless{}e\textgreater{} f\textbar{}g"
    )
    assert row_tables.escape("0.85 ± 0.02, -1.3 to +7.3, 1e-5, a-1, two\nlines\0") == (
        r"0.85 $\pm$ 0.02, $-$1.3 to +7.3, 1e-5, a-1, two lines"
    )


def test_a_table_has_a_column_for_each_cell_and_no_cell_ends_a_row() -> None:
    cells = [("run", "a_b", "n"), ("[x]", "-", "1,000"), ("*y & \\\\", "long " * 20, "-2.5"), ("z", "", "-")]
    text = row_tables.render_table(row_tables.LatexTable("x", "100% of them", cells, notes=["a\nb"]))
    assert check_table(text)[1:] == [
        ["{}[x]", "--", "1,000"], [r"{}*y \& \textbackslash{}\textbackslash{}", ("long " * 20).strip(), "$-$2.5"],
        ["z", "", "--"],
    ]  # fmt: skip
    assert r"\begin{tabular}{lp{0.4\linewidth}r}" in text
    assert r"\caption{100\% of them}" in text
    assert text.startswith("% Needs \\usepackage{booktabs,graphicx}.\n% a b\n\\begin{table}")


def test_the_tables_of_a_report_are_those_of_its_markdown() -> None:
    markdown = (
        "# Report\n\nThe first.\n\n| a |\n| --- |\n| 1 |\n\n## B: c\n\n### D\n\nIts *own*\nwords `x`.\n\n"
        "| a | b |\n| --- | ---: |\n| 1 \\| 2 | [run](<x>) |\n\n### E\n\n| a |\n| --- |\n\n## F\n\n| a |\n| --- |\n"
    )
    other = row_tables.LatexTable("f", "the caption", [("other",)])
    tables = list(row_tables.read_tables(markdown, replaced={"F": other}))
    assert [(table.name, table.caption) for table in tables] == [
        ("summary", "Report. The first."), ("b-c-d", "B: c. D. Its own words x."), ("b-c-e", "B: c. E"),
        ("f", "the caption"),
    ]  # fmt: skip
    assert [[*map(list, table.cells)] for table in tables] == [
        [["a"], ["1"]], [["a", "b"], ["1 | 2", "run"]], [["a"]], [["other"]],
    ]  # fmt: skip


def test_csv_has_numbers_as_numbers_and_no_formulas() -> None:
    table = row_tables.LatexTable("x", "", [("a", "b"), ("-2.5", "=1+1"), ("+3.0 (a)", "one, two"), ("-", "-x")])
    assert row_tables.render_csv(table) == "a,b\n-2.5,'=1+1\n'+3.0 (a),\"one, two\"\n,'-x\n"


def test_figures_of_several_sections_have_names_of_their_own() -> None:
    figure, other = draw("x", lambda axes: None, name="cost"), draw("y", lambda axes: None, name="by-a.b")
    named = row_tables.name_figures({"toy: f1": [figure, other], "": [figure], "Toy f1": [figure]})
    assert list(named) == ["toy-f1-cost", "by-a-b", "cost", "toy-f1-cost-2"]


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """Writes the report of a sweep of two temperatures with three seeds, and of its predictions."""
    save_sweep(tmp_path)
    write_predictions(tmp_path / "1", CLASSES)
    write(tmp_path, tmp_path)
    return tmp_path / "report-paper"


@pytest.mark.usefixtures("drawn")
def test_a_sweep_leaves_every_figure_as_svg_and_pdf_and_every_table_as_latex_and_csv(sweep: Path) -> None:
    page = (sweep.parent / "report.html").read_text()
    figures, pdfs = ({path.stem for path in sweep.glob(f"*.{end}")} for end in ("svg", "pdf"))
    assert figures == pdfs == {"cost", "by-temperature", "calibration", "confusion", "lengths"}
    assert page.count("<figure") == len(figures)
    tables = {path.stem for path in sweep.glob("*.csv")}
    assert tables == {path.stem for path in sweep.glob("*.tex")} - {"figures"}
    assert page.count("<table") == len(tables)
    for name in figures:
        svg, pdf = (sweep / f"{name}.svg").read_text(), (sweep / f"{name}.pdf").read_bytes()
        assert svg.startswith('<?xml version="1.0" encoding="UTF-8"?>\n<svg ')
        assert "<text" in svg
        assert "var(--" not in svg  # Inkscape and LaTeX know no variables of a page.
        assert pdf.startswith(b"%PDF-")
        assert b"/FontFile2" in pdf  # A TrueType font is embedded, as text.
        assert b"/Type3" not in pdf
    for name in tables:
        cells = check_table((sweep / f"{name}.tex").read_text())
        assert len(list(csv.reader((sweep / f"{name}.csv").read_text().splitlines()))) == len(cells)
    table = (sweep / "toy-accuracy.tex").read_text()
    assert (
        r"\caption{accuracy on dev of toy (24 examples): mean $\pm$ standard deviation over 3 seeds of each row. "
        r"In brackets is the 95\% interval of the metric over seeds (Student's t). Differences are in points "
        r"(hundredths of the metric), with 95\% intervals: t-test over seeds, paired by seed (Welch's where no two "
        r"seeds are the same).}"
    ) in table
    assert check_table(table)[0][:4] == ["temperature", "accuracy", "against the first", "against the teacher"]
    value = r"\begin{tabular}[t]{@{}r@{}}0.8800 $\pm$ 0.0200 \\ \scriptsize (0.8303 to 0.9297)\end{tabular}"
    assert check_table(table)[1][:3] == ["2.0", value, "--"]
    figures = (sweep / "figures.tex").read_text()
    assert (
        r"\caption{accuracy on dev against temperature; bars are 95\% intervals: Student's t over 3 seeds of "
        r"each row"
    ) in figures
    assert r"\includegraphics[width=\linewidth]{by-temperature}" in figures
    assert r"in ten bins (temperature=2.0, seed 1)}" in figures


def test_one_seed_has_the_intervals_over_examples(tmp_path: Path) -> None:
    for number in range(2):
        student = {"name": "small", "parameters": 9, "metrics": {"accuracy": 0.5 + number / 4}}
        config = {"task": {"name": "toy"}, "objective": {"name": "hinton", "temperature": number + 1}}
        save(tmp_path / f"{number}", config, student=student, export={}, benchmark=[])
    written = write_collection(find_runs(tmp_path), tmp_path)
    assert written.tables["toy: accuracy"].caption == (
        "accuracy on dev of toy (24 examples): seed 0. In brackets is the 95% interval of the metric over examples for "
        "one seed (Wilson's score). Differences are in points (hundredths of the metric), with 95% intervals: "
        "Newcombe's interval over examples."
    )


def test_one_run_leaves_its_files_too_and_other_files_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = save(tmp_path / "run")
    (tmp_path / "report-paper").mkdir()
    (tmp_path / "report-paper" / "mine.tex").write_text("mine")
    write(run, tmp_path)
    printed = capsys.readouterr().out.replace("\n", "")
    assert f"Paper    {tmp_path}/report-paper: 2 figures as SVG and PDF, 3 tables as LaTeX and CSV" in printed
    names = {path.name for path in (tmp_path / "report-paper").iterdir()}
    assert names >= {"mine.tex", "summary.tex", "summary.csv", "latency.tex", "cost.svg", "cost.pdf", "models.pdf"}
    assert not (run / "report-paper").exists()
