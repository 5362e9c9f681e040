"""Writes predictions.parquet: the predictions of every model of a run on every split that is scored.

One row an example. The columns are `split`, `index`, those of the texts, `label`, and for each model NAME
`NAME_prediction` and `NAME_probability`. A task gives the last three in the form of its own: names of classes, numbers,
lists of labels or of tags, or indices of choices. The texts are `text` and `second_text`, or `question`, `context` and
`choices`. Of models that write texts there are the `references` and for each model `NAME_written`, its text.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from distill.contracts import Data, RawSplit, Scores
from distill.records.settings import RecordSettings
from distill.storage.files import atomic_file

if TYPE_CHECKING:
    import pyarrow

FILE = "predictions.parquet"
REFERENCES, WRITTEN = "references", "_written"  # The column of references, and the ending of those of written texts.


def write_predictions(
    directory: Path,
    models: Mapping[str, Mapping[str, Scores]],
    *,
    splits: Data,
    settings: RecordSettings,
    written: Mapping[str, Mapping[str, Sequence[object]]] = MappingProxyType({}),
) -> None:
    """Writes the predictions of `models`, whose scores are by split and in the order of the examples.

    Args:
        written: the columns of written texts of each split.
    """
    import pyarrow
    import pyarrow.parquet

    tables = [
        _create_table(
            name, split, {model: scores[name] for model, scores in models.items()}, splits, settings,
            written.get(name, {}),
        )
        for name, split in splits.scored().items()
    ]  # fmt: skip
    table = pyarrow.concat_tables(
        tables, promote_options="default"
    )  # One split may have values where another has none.
    schema = [field.with_type(pyarrow.float64()) if field.type == pyarrow.null() else field for field in table.schema]
    with atomic_file(directory / FILE) as temporary:
        pyarrow.parquet.write_table(table.cast(pyarrow.schema(schema)), temporary)


def _create_table(
    name: str,
    split: RawSplit,
    models: Mapping[str, Scores],
    splits: Data,
    settings: RecordSettings,
    written: Mapping[str, Sequence[object]],
) -> "pyarrow.Table":
    """Returns the rows of one split."""
    import pyarrow

    count = len(split)
    columns: dict[str, Sequence[object]] = {"split": [name] * count, "index": range(count)}
    if settings.texts:
        columns |= {**split.text_columns(), **written}
    for model, scores in models.items():
        predictions = splits.scoring.tabulate(scores, splits, examples=count)
        columns.setdefault("label", predictions["label"])
        columns |= {f"{model}_{column}": predictions[column] for column in ("prediction", "probability")}
    return pyarrow.table({column: pyarrow.array(values) for column, values in columns.items()})
