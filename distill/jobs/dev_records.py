"""The texts of dev that a bundle is timed on, from the predictions.parquet of its run.

Nothing is created from the run's config.yaml, because a bundle may be a stranger's, unless the command trusts it.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from distill.console import print_notice
from distill.edge.decoder import Record
from distill.errors import UserError, first_line
from distill.jobs import build
from distill.jobs.trust import check_targets
from distill.records.predictions import FILE
from distill.records.saved_config import CONFIG, read_config

if TYPE_CHECKING:
    import pyarrow

SAMPLED = 256  # Records of dev.
# Columns of texts that predictions.parquet may have, in the forms in which a bundle reads records.
_FORMS: tuple[tuple[str, ...], ...] = (
    ("question", "context", "choices"), ("question", "choices"), ("question", "context"), ("texts",),
    ("text", "second_text"), ("text",), ("query", "documents"),
)  # fmt: skip


def read_dev_records(bundle: Path, *, trust: Sequence[str]) -> tuple[list[Record], int | None]:
    """Returns records of dev, and the number of choices of an example; none with a notice where there are no texts.

    Args:
        bundle: its directory, in that of its run.
        trust: what the command trusts; where predictions.parquet has no texts, the task of config.yaml reads them anew.
    """
    try:
        path = _find_predictions(bundle)
        records = _read_predictions(path) if path is not None else []
        if not records and trust:
            records = _read_task(bundle.absolute().parent, trust)
    except UserError as error:
        print_notice(f"the lengths of the dev split of {bundle} are not measured: {error}")
        return [], None
    if not records:
        reason = f"its run has no {FILE}" if path is None else f"{path} has no texts"
        print_notice(f"the lengths of the dev split of {bundle} are not measured, because {reason}")
    number = min(SAMPLED, len(records))
    sampled = [records[row] for row in np.random.default_rng(0).choice(len(records), number, replace=False)]
    choices = [len(record["choices"]) for record in sampled if isinstance(record, Mapping) and "choices" in record]
    return sampled, max(choices, default=None)


def _find_predictions(bundle: Path) -> Path | None:
    """Returns the predictions of the run of a bundle, or of its task among several; None without any."""
    absolute = bundle.absolute()
    places = [absolute.parent, absolute.parents[1] / "tasks" / absolute.name]
    return next((place / FILE for place in places if (place / FILE).is_file()), None)


def _read_predictions(path: Path) -> list[Record]:
    """Returns the records of dev; raises UserError for a file that is damaged."""
    import pyarrow
    import pyarrow.parquet

    try:
        names = set(pyarrow.parquet.read_schema(path).names)
        form = next((form for form in _FORMS if names.issuperset(form)), None)
        if form is None or "split" not in names:
            return []
        table = pyarrow.parquet.read_table(path, columns=[*form, "split"], filters=[("split", "=", "dev")])
    except (OSError, pyarrow.ArrowException) as error:
        raise UserError(f"{path} is damaged: {first_line(error)}") from error
    return list(_to_records(table, form))


def _to_records(table: "pyarrow.Table", form: tuple[str, ...]) -> list[Record]:
    rows = [tuple(row[name] for name in form) for row in table.to_pylist()]
    rows = [row for row in rows if all(_is_text(value) for value in row)]
    if form[0] in ("question", "query"):
        return [dict(zip(form, row, strict=True)) for row in rows]
    return [row[0] if len(row) == 1 else list(row) for row in rows]


def _is_text(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(text, str) for text in value))


def _read_task(run: Path, trust: Sequence[str]) -> list[Record]:
    """Returns the records of dev, read by the task of a run.

    Raises:
        UserError: if the run has no task that the command trusts, or its data are gone.
    """
    path = run / CONFIG
    if not path.is_file():
        raise UserError(f"{run} has no {CONFIG}, whose task reads dev")
    config = read_config(path)
    check_targets(config, source=path, trust=trust)
    task, cache_dir = build.instantiate(config.task), build.cache_dir(config)
    data = task.read(cache_dir)
    if task.info.raw_text:
        data = data.with_examples(task.encode(data, _load_tokenizer(run), cache_dir))
    return list(data.scored()["dev"].records())


def _load_tokenizer(run: Path) -> PreTrainedTokenizerBase:
    """Returns the tokenizer that is saved with the model of a run."""
    from transformers import AutoTokenizer

    saved = next((path for path in (run / "student", run / "teacher" / "model") if path.is_dir()), None)
    if saved is None:
        raise UserError(f"{run} has neither student nor teacher/model, whose tokenizer makes the sequences of dev")
    return AutoTokenizer.from_pretrained(saved, local_files_only=True)
