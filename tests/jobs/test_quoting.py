"""Tests of the quotes around texts that Hydra's grammar does not read."""

import json
from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from distill.core.errors import UserError
from distill.jobs.command_line import quote_overrides
from distill.jobs.sweepers import GridSweeper
from tests.jobs.conftest import Command


def quote(argument: str) -> str:
    [quoted] = quote_overrides([argument], ())
    return quoted


def read(argument: str) -> Any:
    """Returns what Hydra reads: the value, or the values of a sweep."""
    override = OverridesParser.create().parse_override(quote(argument))
    if not override.is_sweep_override():
        return override.value()
    values = (f"a={value}" for value in override.sweep_string_iterator())
    return tuple(OverridesParser.create().parse_override(each).value() for each in values)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("a=Größe", "Größe"),
        ("a=日本", "日本"),
        ("a=b=c", "b=c"),
        ("a=it's", "it's"),
        ('a=5" disk', '5" disk'),
        ("a=x#y", "x#y"),
        ("a=x & y", "x & y"),
        ("a=review (old)", "review (old)"),
        ("a= ä ", "ä"),
        ("a=ä)", "ä)"),
        ("a=a[0]", "a[0]"),
        ("a=x:ä", "x:ä"),
        ("a=a\nb", "a\nb"),
        ("a=ä\\", "ä\\"),
        (r"a=C:\Größe", r"C:\Größe"),
        (r"a=Größe\,x", "Größe,x"),
        ("a=päth/${task.name}/ä", "päth/${task.name}/ä"),
        ("a=ä${oc.env:X,ä}", "ä${oc.env:X,ä}"),
        ("a=https://x/y?a=1&b=2#z", "https://x/y?a=1&b=2#z"),
        ("+a@b=ä", "ä"),
        ("~a=ä", "ä"),
        ("a=[Größe,naïve (old)]", ["Größe", "naïve (old)"]),
        ("a=[it's, that's,5,true,null, b c ]", ["it's", "that's", 5, True, None, "b c"]),
        ("a=[a[0],'x, y',\"ä\",[ö, 1],[]]", ["a[0]", "x, y", "ä", ["ö", 1], []]),
        ("a=[ä:b,x=1]", ["ä:b", "x=1"]),
        ("a=[a(ä]", ["a(ä"]),
        ("a={b: ä, c.d: [ö, 1], e: {f: x#}}", {"b": "ä", "c.d": ["ö", 1], "e": {"f": "x#"}}),
        ("a=ä,b", ("ä", "b")),
        ("a=price=€,#5", ("price=€", "#5")),
        ("a=[ä],[b,c]", (["ä"], ["b", "c"])),
        ("a={b:ä},{b:1}", ({"b": "ä"}, {"b": 1})),
    ],
)
def test_an_unambiguous_text_is_read(argument: str, value: object) -> None:
    assert read(argument) == value


UNCHANGED = (
    "a=", "a=1", "a=x y", "a='ä'", 'a=["ä",b]', "a=a,b", "a=choice(a,b)", "a=range(1,3)", "a=[]", "a=${x:ä}", "--ä",
    "a", "~a",
)  # fmt: skip


@pytest.mark.parametrize("argument", UNCHANGED)
def test_what_hydra_reads_itself_is_left_alone(argument: str) -> None:
    assert quote(argument) == argument


def test_values_of_options_of_hydra_are_left_alone() -> None:
    arguments = ["-m", "--config-dir", "Größe=ä", "a=ä"]
    assert quote_overrides(arguments, ("--config-dir",)) == [*arguments[:3], "a='ä'"]


@pytest.mark.parametrize(
    "argument",
    [
        "a=[size (a,b),c]", "a=[ä", "a=ä,(b,c)", "a=choice(ä,b)", "a=choice(ä)", "a='ä", "a='ä'b", "a=[a,,ä]", "a=[ä]x",
        "a={ä:1}", "a={b:ä", "a={b ä}", "a=ä,", "a=[ä}",
    ],
)  # fmt: skip
def test_an_ambiguous_text_is_refused_with_its_quotes(argument: str) -> None:
    with pytest.raises(UserError) as raised:
        quote(argument)
    assert str(raised.value) == (
        f"{argument} can be read in several ways: put each text in double quotes and the whole option in single ones, "
        'as in \'a="a text, (old)"\' or \'a=["one, two","three"]\''
    )


def test_a_name_outside_ascii_is_refused() -> None:
    with pytest.raises(UserError, match="the name task.tasks.Größe.text has letters outside ASCII"):
        quote("task.tasks.Größe.text=a")


def test_a_command_reads_its_columns_and_records_what_was_typed(command: Command, tmp_path: Path) -> None:
    for split in ("train", "dev"):
        (tmp_path / f"{split}.csv").write_text("größe,Is it good?\nbad,no\ngood,yes\n" * 3, encoding="utf-8")
    typed = ("task.text=[größe]", "task.label=Is it good?")
    options = ("+teacher=embedded", "+student=distilbert", "task=classification", f"task.data_dir={tmp_path}", *typed)
    code, _, error = command(*options, "task.labels=[no,maybe]")  # Rows have others, which are found in a run.
    assert (code, "no column" in error) == (2, False)
    [record] = [json.loads(path.read_text()) for path in tmp_path.rglob("run.json")]
    assert record["command"] == ["python", "-m", "distill", *options, "task.labels=[no,maybe]"]


def test_a_sweep_of_a_yaml_file_is_quoted_as_that_of_a_command() -> None:
    sweeper = object.__new__(GridSweeper)
    sweeper.params = {"task.text": "[Größe],[x]", "+ablation": "none,no_soft"}
    assert sweeper._parse_config() == ["task.text=['Größe'],[x]", "+ablation=none,no_soft"]
