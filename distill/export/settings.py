"""Settings of an export."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt
from pydantic.dataclasses import dataclass

from distill.edge.processor import Target, this_target
from distill.errors import OptionError
from distill.export.formats import FLOAT32, FORMATS
from distill.export.quantization import RECIPES
from distill.options import STRICT, Dimensions, raise_option_errors, show_value

Share = Annotated[float, Field(ge=0, le=1)]
DEFAULT_RECIPES = tuple(name for name, recipe in RECIPES.items() if recipe.by_default)
if TYPE_CHECKING:
    RecipeName = str
    FormatName = str
else:
    RecipeName = Literal[*RECIPES]
    FormatName = Literal[*FORMATS]


@raise_option_errors
@dataclass(frozen=True, config=STRICT)
class ExportSettings:
    """Settings of an export, the keys of `conf/export`.

    Args:
        enabled: whether the trained model is exported; `auto` for a student, and not for a language model without a
            teacher.
        max_drop: largest drop of the task's metric on dev with which an exported file passes; a share of the metric
            where less of it is better.
        min_agreement: smallest share of the items on which an int8 file and the torch model predict alike.
        max_probability_diff: largest difference of a probability of an int8 file; of numbers, a share of their range.
        max_ece_rise: largest increase of the expected calibration error of an int8 file.
        formats: files of the bundle. `fp32` is one of them, because the others are made from it.
        recipes: recipes of quantization for `int8`, in the order in which they are tried until one passes.
        search_evaluations: evaluations of the student with which `mixed` looks for the matrices that stay in float.
        calibration: training texts on which ranges of activations are measured; None for as many as 256.
        qat_epochs: epochs of quantization-aware distillation in the recipe `qat`; 0 leaves it out.
        target: processors that int8 files are written for; `auto` for the one of this machine. The first one counts.
        vocabulary: `full`, or `task` to drop the rows of the embedding that the task's texts do not need; `trained`
            drops them before the training, so that teacher and student read the pieces of the file.
        vocabulary_texts: files or directories with texts, such as those of other languages, whose pieces stay too.
        max_batch_diff: largest difference of a probability between a text alone and in a batch with others; above it
            the bundle recommends to run texts one by one.
        model2vec: whether a static student's vectors are also written as a directory of model2vec.
        dimensions: numbers of first dimensions, increasing, with which the vectors of texts are scored and gated too.
        max_vector_drop: largest drop of the task's metric on dev with which fewer dimensions, and the int8 and binary
            vectors of an index, pass.
        abstain: share of dev with the lowest confidence on which an exported file gives no label; None for none.
    """

    enabled: Literal["auto"] | bool = "auto"
    max_drop: NonNegativeFloat = 0.01
    min_agreement: Share = 0.97
    max_probability_diff: Share = 0.3
    max_ece_rise: Share = 0.02
    formats: Annotated[tuple[FormatName, ...], Field(strict=False)] = ("fp32", "int8")
    recipes: Annotated[tuple[RecipeName, ...], Field(strict=False, min_length=1)] = DEFAULT_RECIPES
    search_evaluations: PositiveInt = 40
    calibration: PositiveInt | None = None
    qat_epochs: NonNegativeInt = 1
    target: Literal["auto"] | Target | Annotated[tuple[Target, ...], Field(strict=False, min_length=1)] = "auto"
    vocabulary: Literal["full", "task", "trained"] = "full"
    vocabulary_texts: Annotated[tuple[str, ...], Field(strict=False)] = ()
    max_batch_diff: Share = 0.1
    model2vec: bool = False
    dimensions: Dimensions = ()
    max_vector_drop: NonNegativeFloat = 0.03
    abstain: Annotated[float, Field(gt=0, lt=1)] | None = None

    def __post_init__(self) -> None:
        if FLOAT32 not in self.formats:
            complete = f"[{','.join((FLOAT32, *self.formats))}]"
            raise OptionError(
                "formats", f"[{','.join(self.formats)}]", f"{FLOAT32} too, from which others are made: {complete}"
            )
        if self.vocabulary_texts and self.vocabulary == "full":
            raise OptionError(
                "vocabulary_texts", show_value(self.vocabulary_texts), "[], because vocabulary=full keeps every piece"
            )

    def cut_at_export(self) -> "ExportSettings":
        """Returns the settings of an export that cuts the vocabulary, for a student that has not been trained."""
        return replace(self, vocabulary="task") if self.vocabulary == "trained" else self

    def targets(self) -> tuple[str, ...]:
        """Returns the processors that int8 files are written for, each once."""
        if isinstance(self.target, str):
            return (this_target() if self.target == "auto" else self.target,)
        return tuple(dict.fromkeys(self.target))
