"""Tests that the option reference has a meaning, values and a default for every key of `conf/`."""

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from distill.__main__ import config_directory

FILES = sorted(config_directory().rglob("*.yaml"))


@pytest.fixture(scope="module")
def options(reference: ModuleType) -> list[Any]:
    """Returns every option."""
    found: list[Any] = reference.read_options()
    return found


def test_every_option_has_a_meaning(options: list[Any]) -> None:
    assert [f"{option.name} in {option.keys[0].file.name}" for option in options if not option.meaning] == []


def test_a_meaning_says_what_the_option_is_before_its_special_values(options: list[Any]) -> None:
    for option in options:
        first = option.meaning.split()[0].lower()
        assert first not in {"of", "or", "null:", "auto:", "true:", "false:", "task:", "not", "in"}, option.name
        assert len(option.meaning.split()) >= 3, option.name


def test_every_option_has_values(options: list[Any]) -> None:
    assert [option.name for option in options if not option.values] == []


@pytest.mark.parametrize("file", FILES, ids=lambda path: str(path.relative_to(config_directory())))
def test_every_key_of_a_file_is_an_option_or_sets_one(file: Path, reference: ModuleType, options: list[Any]) -> None:
    own = {key.path for option in options for key in option.keys if key.file == file or "mapping" in option.values}
    everywhere = {key.path for option in options for key in option.keys}
    prefix = next(reference.read_keys(file)).path[:-1] if yaml.safe_load(file.read_text(encoding="utf-8")) else ()
    for leaf in list_leaves(yaml.safe_load(file.read_text(encoding="utf-8")) or {}, prefix):
        assert any(leaf[: len(path)] == path for path in own) or reference.resolve(leaf) in everywhere, leaf


def list_leaves(values: Mapping[str, Any], prefix: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Returns the paths of the values, except those of Hydra."""
    for name, value in values.items():
        if name in ("_target_", "defaults"):
            continue
        if isinstance(value, Mapping) and value:
            yield from list_leaves(value, (*prefix, str(name)))
        else:
            yield (*prefix, str(name))


@pytest.mark.slow
def test_a_key_without_a_meaning_is_found(
    reference: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(config_directory(), tmp_path / "conf")
    file = tmp_path / "conf" / "trainer" / "auto.yaml"
    file.write_text(file.read_text(encoding="utf-8") + "shuffle: true\n", encoding="utf-8")
    monkeypatch.setattr(reference, "config_directory", lambda: tmp_path / "conf")
    assert [option.name for option in reference.read_options() if not option.meaning] == ["trainer.shuffle"]


@pytest.mark.parametrize(
    ("name", "values", "default"),
    [
        ("trainer.max_steps", "a whole number of at least 1 or null", "Default: `null`"),
        ("export.max_drop", "a number of at least 0", "Default: `0.01`"),
        ("task.mask.span_p", "a number above 0 and at most 1", "Default: `0.2`"),
        ("job.older_than_days", "a number of at least 0 or null", "Default: `null`"),
        ("teacher.paths", "a mapping, each value a string", "No default: it must be given"),
    ],
)
def test_values_and_default_are_those_of_the_code(
    reference: ModuleType, options: list[Any], name: str, values: str, default: str
) -> None:
    option = next(option for option in options if option.name == name)
    assert option.values == values
    assert reference.render_default(option) == default


def test_a_file_has_the_options_and_the_target_of_those_that_it_inherits_from(
    reference: ModuleType, options: list[Any]
) -> None:
    found = {(key.target, key.path[-1]): option for option in options for key in option.keys}
    length, *others = found["distill.kinds.Classification", "max_length"].keys
    assert length.file.stem == "classification"
    assert ("rte", "256") in {(key.file.stem, key.value) for key in others}
    assert found["distill.kinds.MaskPredict", "source"].meaning == found["distill.kinds.Seq2Seq", "source"].meaning
    assert found["distill.kinds.MaskedLM", "documents"].meaning.startswith("unit of a text file")
    assert "segment_pair" in found["distill.kinds.MaskedLM", "packing"].values
    assert "segment_pair" not in found["distill.kinds.CausalLM", "packing"].values
    page = reference.render_page("task", [])
    assert page.index("`task=seq2seq`") < page.index("`task=acl_arc`")  # Kinds come before data sets.
    assert "Slots of requests for flights (ATIS). The options are those of `task=token_classification`." in page


def test_a_comment_may_continue_below_its_key(reference: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "trainer" / "mine.yaml"
    file.parent.mkdir()
    file.write_text("steps: 1 # optimizer steps;\n  # null: all\n# of the next key\nsizes: [1, 2]\n", encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference, "config_directory", lambda: tmp_path)
        keys = list(reference.read_keys(file))
    assert [(key.path, key.value, key.comment) for key in keys] == [
        (("trainer", "steps"), "1", "optimizer steps; null: all"),
        (("trainer", "sizes"), "[1, 2]", ""),
    ]
