"""The figures of a run as figures of matplotlib, which a notebook shows below each other."""

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, overload

from distill.records.figures import Figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas


class Plots(Sequence["Canvas"]):
    """Figures of matplotlib, which belong to the caller: pyplot does not know them.

    A notebook shows all of them, and each one by itself.

    Attributes:
        captions: of the figures.
    """

    def __init__(self, figures: Sequence[Figure]) -> None:
        self._figures = list(figures)
        self._canvases: dict[int, Canvas] = {}
        self.captions = [figure.caption for figure in self._figures]

    def __len__(self) -> int:
        return len(self._figures)

    @overload
    def __getitem__(self, index: int) -> "Canvas": ...

    @overload
    def __getitem__(self, index: slice) -> "list[Canvas]": ...

    def __getitem__(self, index: int | slice) -> "Canvas | list[Canvas]":
        """Returns a figure, always the same one, so that a caller may change it."""
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        number = range(len(self))[index]
        if number not in self._canvases:
            self._canvases[number] = self._figures[number].create_canvas()
        return self._canvases[number]

    def __repr__(self) -> str:
        lines = [f"  {number}  {caption}" for number, caption in enumerate(self.captions)]
        return "\n".join([f"{len(self)} figures", *lines])

    def _repr_html_(self) -> str:
        return "".join(
            f'<figure style="margin: 0 0 1em 0; max-width: 34em" aria-label="{escape(figure.caption)}">{figure.svg}'
            f"<figcaption>{escape(figure.caption)}</figcaption></figure>"
            for figure in self._figures
        )
