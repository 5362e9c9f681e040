"""The overview of a task before its data is read: its kind, its columns and where its rows come from."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from distill.contracts import TaskInfo
from distill.data.sources import TableSource
from distill.edge.overview import Overview, Shown, describe_call

if TYPE_CHECKING:
    from collections.abc import Mapping, Sized


class ShownTask(Shown):
    """A kind of task that a notebook shows as its overview."""

    info: TaskInfo

    def __repr__(self) -> str:
        return describe_call(type(self).__name__, name=self.info.name, data=_describe_origin(self))

    def overview(self) -> Overview:
        """Returns the name and the kind of the task, the columns that it reads, and the source of its rows."""
        info, source = self.info, find_source(self)
        rows = {
            "name": info.name, "kind": info.kind, "data": _describe_origin(self),
            "columns": "" if source is None else ", ".join(source.wanted),
            "longest input": f"{info.max_length} tokens" + (" of two texts" if info.pair else ""),
            "texts without labels": {"none": "", "given": "given", "auto": "chosen from the data"}[info.unlabelled],
        }  # fmt: skip
        return Overview(type(self).__name__, [(name, value) for name, value in rows.items() if value])


def find_source(task: object) -> TableSource | None:
    """Returns the source of the rows of a task; None for raw text."""
    found = getattr(getattr(task, "rows", task), "source", None)
    return found if isinstance(found, TableSource) else None


def _describe_origin(task: ShownTask) -> str:
    """Returns the path, the Hub's name or the sizes of the tables that a task reads."""
    source = find_source(task) or getattr(task, "settings", None)
    tables: Mapping[str, Sized] | None = getattr(source, "tables", None)
    if tables is not None:
        return ", ".join(f"{name} {len(table):,} rows" for name, table in tables.items())
    names: Iterator[object] = (getattr(source, name, None) for name in ("data_dir", "hub_id"))
    found = next((str(name) for name in names if name), "")
    return found or ("built in" if task.info.builtin else "")
