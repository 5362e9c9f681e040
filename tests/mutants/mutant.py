"""A mistake in the package, as the YAML lists beside this file have it."""

import ast
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("distill", "students", "teachers")
LISTS = sorted(Path(__file__).parent.glob("*.yaml"))


@dataclass(frozen=True)
class Mutant:
    """A mistake in one place.

    Args:
        room: name of the list that it stands in.
        file: from the root of the repository.
        old: text that occurs in this file alone, once.
        new: text in its place.
        wrong: consequence for a user.
    """

    room: str
    file: str
    old: str
    new: str
    wrong: str

    def plant(self, root: Path) -> str:
        """Writes the mistake into a copy of the repository; returns the text of the file before."""
        path = root / self.file
        before = path.read_text(encoding="utf-8")
        path.write_text(before.replace(self.old, self.new), encoding="utf-8")
        return before

    def lines(self) -> range:
        """Returns the numbers of the lines that the mistake changes, from 1."""
        text = (ROOT / self.file).read_text(encoding="utf-8")
        first = text[: text.index(self.old)].count("\n") + 1
        same = 0  # Lines of context before the change.
        for old, new in zip(self.old.splitlines(), self.new.splitlines(), strict=False):
            if old != new:
                break
            same += 1
        return range(first + same, first + self.old.count("\n") + 1) or range(first, first + 1)


def read_mutants() -> list[Mutant]:
    """Returns the mutants of all lists."""
    return [
        Mutant(room=path.stem, **values)
        for path in LISTS
        for values in yaml.safe_load(path.read_text(encoding="utf-8"))
    ]


def find_faults(mutants: list[Mutant]) -> list[str]:
    """Returns a line for each mutant whose text is not in its file once, or whose file is no Python with it."""
    paths = [path for package in PACKAGES for path in ROOT.glob(f"{package}/**/*.py")]
    texts = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths}
    found = []
    for mutant in mutants:
        count = sum(text.count(mutant.old) for text in texts.values())
        if mutant.file not in texts or mutant.old not in texts[mutant.file]:
            found.append(f"{mutant.file} has no text {mutant.old!r}, of {mutant.room}.yaml")
        elif count != 1:
            found.append(f"{mutant.old!r} of {mutant.room}.yaml occurs {count} times, expected once")
        else:
            try:
                ast.parse(texts[mutant.file].replace(mutant.old, mutant.new))
            except SyntaxError as error:
                found.append(f"{mutant.file} with {mutant.new!r} is no Python: {error}")
    return found
