"""Tests that a corpus is read completely and once, for all file formats, sizes and numbers of processes."""

import gzip
import hashlib
import json
import os
import shutil
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distill.core import storage
from distill.core.errors import UnreachableError, UserError
from distill.data import docstrings
from distill.data.prose import WebCleaner
from distill.text import corpus as corpus_module
from distill.text.corpus import Corpus, Document, Position, choose_held_out, is_held_out
from distill.text.masking import Masking
from distill.text.sequences import SequenceSettings, open_corpus
from tests.data.test_tables import write_hub_cache

# Texts that other readers split, join or lose.
TEXTS = ("one two", "caf\u00e9 \u2014 \u4f60\u597d", "form\x0cfeed", "line\u2028separator", "null", '"quoted"', "  led")


def make_corpus(path: Path | None, **options: Any) -> Corpus:
    return Corpus(data_dir=None if path is None else str(path), **options)


def write(path: Path, content: str | bytes | list[Any]) -> Path:
    """Writes rows in the format of the suffix, or the content itself; compressed for the suffix .gz."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet" and isinstance(content, list):
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = pa.table({"id": range(len(content)), "text": content, "more": [b"\xff"] * len(content)})
        pq.write_table(table, path, row_group_size=2)
        return path
    if isinstance(content, list):
        content = "".join(json.dumps({"id": index, "text": text}) + "\n" for index, text in enumerate(content))
    if isinstance(content, str):
        content = content.encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def join_documents(documents: Iterator[Document]) -> dict[str, str]:
    """Returns texts by key; asserts that the chunks of a document are consecutive and no key occurs twice."""
    texts: dict[str, str] = {}
    for key, parts in groupby(documents, key=lambda document: document.key):
        assert key not in texts
        listed = list(parts)
        assert [document.chunk for document in listed] == list(range(len(listed)))
        texts[key] = "".join(document.text for document in listed)
    return texts


def read(path: Path | None, **options: Any) -> dict[str, str]:
    return join_documents(make_corpus(path, **options).read_documents())


# Formats


@pytest.mark.parametrize("suffix", corpus_module.SUFFIXES)
def test_every_format_is_read_completely(tmp_path: Path, suffix: str):
    rows = suffix.startswith((".jsonl", ".parquet"))
    path = write(tmp_path / f"a{suffix}", list(TEXTS) if rows else "\ufeff" + "\n".join(TEXTS))
    expected = {f"a{suffix}#{number}": text for number, text in enumerate(TEXTS)}
    assert read(path, split_by="line") == expected
    assert read(tmp_path) == (expected if rows else {f"a{suffix}#0": "\n".join(TEXTS)})


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_text_file_is_split_into_documents(tmp_path: Path, end: str):
    text = "\n\none\n  two\n \t\nthree\n\n\n\nfour\n"
    write(tmp_path / "a.txt", text.replace("\n", end))
    assert read(tmp_path) == {"a.txt#0": text}
    assert list(read(tmp_path, split_by="paragraph").values()) == ["one\n  two", "three", "four"]
    assert list(read(tmp_path, split_by="line").values()) == ["one", "  two", "three", "four"]


def test_a_folder_is_read_in_the_order_of_its_paths(tmp_path: Path):
    for name in ("b.txt", "B.TXT", "a/z.md", "a/b/c.text", "a.txt", "c.jsonl", "ab/a.txt.gz"):
        write(tmp_path / name, [name] if name == "c.jsonl" else name)
    for name in ("notes.pdf", "a/table.csv", ".hidden.txt", ".git/a.txt", "a/._z.md"):
        write(tmp_path / name, b"\xff")
    names = ["B.TXT", "a.txt", "a/b/c.text", "a/z.md", "ab/a.txt.gz", "b.txt", "c.jsonl"]
    assert read(tmp_path) == {f"{name}#0": name for name in names}


def test_a_linked_folder_is_read_once(tmp_path: Path):
    write(tmp_path / "elsewhere" / "a.txt", "one")
    write(tmp_path / "root" / "b.txt", "two")
    (tmp_path / "root" / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "root" / "same").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "loop").symlink_to(tmp_path / "root")
    assert read(tmp_path / "root") == {"b.txt#0": "two", "link/a.txt#0": "one"}


def test_blank_documents_are_omitted(tmp_path: Path):
    write(tmp_path / "a.jsonl", ["", "one", " \n\t", "two"])
    write(tmp_path / "b.parquet", ["  ", "three"])
    write(tmp_path / "c.txt", "")
    write(tmp_path / "d.txt", " \n\n")
    write(tmp_path / "e.jsonl", '\n{"text": "four"}\n\n')
    expected = {"a.jsonl#0": "one", "a.jsonl#1": "two", "b.parquet#0": "three", "e.jsonl#0": "four"}
    assert read(tmp_path) == expected


def test_the_home_directory_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path / "texts" / "a.txt", "one")
    assert read(Path("~/texts")) == {"a.txt#0": "one"}


def test_the_built_in_sentences_are_those_of_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name, sentence in (("train.jsonl", "seen"), ("dev.jsonl", "unseen")):
        write(tmp_path / name, json.dumps({"sentence": sentence, "label": "torch"}) + "\n")
    monkeypatch.setattr(docstrings, "prepare_dataset", lambda cache_dir, *, seed: tmp_path)
    built_in = open_corpus(SequenceSettings(mask=Masking(), builtin=True), Path("no-cache"))
    assert join_documents(built_in.read_documents()) == {"train.jsonl#0": "seen"}
    assert built_in.describe() == "the built-in sentences"


# Long documents


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_module, "CHUNK_SIZE", 8)
    monkeypatch.setattr(corpus_module, "READ_BYTES", 3)


def read_chunks(path: Path, **options: Any) -> dict[str, list[str]]:
    """Returns the chunks of each document; asserts that they are numbered."""
    chunks: dict[str, list[str]] = {}
    for document in make_corpus(path, **options).read_documents():
        assert document.chunk == len(chunks.setdefault(document.key, []))
        chunks[document.key].append(document.text)
    return chunks


@pytest.mark.usefixtures("small_chunks")
def test_a_chunk_ends_after_a_line_or_else_after_a_word(tmp_path: Path):
    text = "ab\ncd\nefgh\nij klmnopq\nrstuvwxyz123\n"
    expected = ["ab\ncd\n", "efgh\n", "ij ", "klmnopq\n", "rstuvwxy", "z123\n"]
    assert read_chunks(write(tmp_path / "a.txt", text)) == {"a.txt#0": expected}
    rows = write(tmp_path / "rows" / "a.jsonl", [text, "next"])
    assert read_chunks(rows) == {"a.jsonl#0": expected, "a.jsonl#1": ["next"]}
    path = write(tmp_path / "b.txt", "ab cd ef gh\nij\nkl\nmn\n\nop\n")
    by_line = read_chunks(path, split_by="line")
    assert [*by_line.values()] == [["ab cd ", "ef gh"], ["ij"], ["kl"], ["mn"], ["op"]]
    by_paragraph = read_chunks(path, split_by="paragraph")
    assert by_paragraph == {"b.txt#0": ["ab cd ", "ef gh\n", "ij\nkl\n", "mn"], "b.txt#1": ["op"]}


TEXT = st.text(alphabet="ab \n\r\u00e9\u4f60\U0001f600", max_size=60)


@given(text=TEXT, size=st.integers(1, 20), step=st.integers(1, 9))
@settings(max_examples=150, deadline=None)
def test_chunk_boundaries_do_not_change_the_text(
    tmp_path_factory: pytest.TempPathFactory, text: str, size: int, step: int
):
    path = tmp_path_factory.getbasetemp() / "cut.txt"
    path.write_bytes(text.encode())
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus_module, "CHUNK_SIZE", size)
        patch.setattr(corpus_module, "READ_BYTES", step)
        blocks = list(corpus_module.read_blocks(path))
        assert "".join(blocks) == "\n".join(lines)
        assert max(map(len, blocks)) <= size
        documents = corpus_module._number_documents("cut", corpus_module._split_text(blocks, "line"))
        read_lines = ["".join(text.split()) for text in join_documents(documents).values()]
        assert read_lines == ["".join(line.split()) for line in lines if line.strip()]
        rows = corpus_module._number_documents("", corpus_module.split_rows([text]))
        assert all(len(document.text) <= size for document in rows)


@pytest.mark.parametrize(("name", "kind"), [("lines.txt.gz", "paragraph"), ("one_line.txt", "line")])
def test_memory_does_not_grow_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: str):
    monkeypatch.setattr(corpus_module, "CHUNK_SIZE", 2**15)
    monkeypatch.setattr(corpus_module, "READ_BYTES", 2**14)
    line = "some words of text " * 10 + ("\n" if name == "lines.txt.gz" else "")
    path = write(tmp_path / name, line * 10_000)
    tracemalloc.start()
    characters = sum(len(document.text) for document in make_corpus(path, split_by=kind).read_documents())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert characters > 1_800_000
    assert peak < 600_000


def test_memory_does_not_grow_with_a_table(tmp_path: Path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    text = [os.urandom(2000).hex() for _ in range(4000)]
    pq.write_table(pa.table({"text": text}), tmp_path / "a.parquet", row_group_size=len(text))
    before = pa.total_allocated_bytes()
    peak = 0
    for document in make_corpus(tmp_path).read_documents():
        assert len(document.text) == 4000
        peak = max(peak, pa.total_allocated_bytes() - before)
    assert peak < 12 * 2**20


# Several processes


def write_files(root: Path, count: int) -> Path:
    for number in range(count):
        write(root / f"{number:02}.txt", f"first {number}\n\nsecond {number}\n" if number % 5 else "\n")
    write(root / "rows.jsonl", [f"row {number}" for number in range(7)])
    write(root / "rows.parquet", [f"cell {number}" for number in range(5)])
    return root


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("kind", corpus_module.DOCUMENT_UNITS)
@pytest.mark.parametrize("count", [1, 11])
def test_each_document_goes_to_one_process(tmp_path: Path, count: int, kind: str):
    shared = make_corpus(write_files(tmp_path, count), split_by=kind)
    alone = join_documents(shared.read_documents())
    for world in (1, 2, 3, 40):
        by_rank = [join_documents(shared.read_documents(rank=rank, world_size=world)) for rank in range(world)]
        assert sum(map(len, by_rank)) == len(alone)
        assert {key: text for part in by_rank for key, text in part.items()} == alone


@pytest.mark.parametrize("kind", corpus_module.DOCUMENT_UNITS)
@pytest.mark.parametrize(("count", "world"), [(3, 1), (3, 2), (9, 2)])
def test_reading_resumes_from_a_position(tmp_path: Path, kind: str, count: int, world: int):
    shared = make_corpus(write_files(tmp_path, count), split_by=kind)
    for rank in range(world):
        share = {"rank": rank, "world_size": world, "select": lambda key: not key.endswith("1")}
        expected = list(shared.read_documents(**share))
        position = Position()
        for number, document in enumerate(shared.read_documents(**share, position=position), 1):
            assert document == expected[number - 1]
            assert list(shared.read_documents(**share, position=replace(position))) == expected[number:]


def test_with_many_files_a_process_opens_only_its_own(tmp_path: Path):
    for number in range(8):
        write(tmp_path / f"{number}.txt", b"\xff" if number % 2 else "one\ntwo")
    shared = make_corpus(tmp_path, split_by="line")
    read = join_documents(shared.read_documents(rank=0, world_size=2))
    assert list(read) == [f"{n}.txt#{d}" for n in (0, 2, 4, 6) for d in (0, 1)]
    with pytest.raises(UserError, match=r"1\.txt is not UTF-8"):
        list(shared.read_documents(rank=1, world_size=2))


# Errors


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"a" * 300_000 + b"\xc3\xa9\xff", r"a\.txt is not UTF-8 at byte 300002, expected text in UTF-8: con"),
        ("a.txt", b"\xef\xbb\xbfone \xc3", r"a\.txt is not UTF-8 at byte 7,"),
        ("a.txt.gz", b"caf\xe9", r"a\.txt\.gz is not UTF-8 at byte 3 when unpacked, expected"),
        ("a.jsonl", '["one"]\n', r"a\.jsonl, line 1 is \['one'\], expected an object such as \{\"text\": \.\.\.\}"),
        ("a.jsonl", '{"body": "two", "id": 3}', r"a\.jsonl, line 1 has no column text, its columns are: body, id; set"),
        ("a.jsonl", ["one", 2], r"a\.jsonl, line 2: column text is 2, expected a string"),
        ("a.jsonl", ["\ud800"], r"a\.jsonl, line 1: column text contains the unpaired surrogate '\\ud800'"),
        ("a.parquet", ["one", "", None], r"a\.parquet, row 3: column text is None, expected a string"),
        ("a.parquet", b"PAR1 no parquet PAR1", r"a\.parquet cannot be read: "),
        ("a.txt", " \n", r"task\.data_dir=.* contains no text, expected at least one word"),
        ("dev.txt", "text", r"has dev.txt, test.txt, which are dev and test by their names, and no"),
        ("a.pdf", "one", r"task\.data_dir=.* contains no text files, expected files with one of \.txt, \.text, \.md, "),
    ],
)
def test_an_invalid_file_is_named_in_the_error(tmp_path: Path, name: str, content: Any, message: str):
    write(tmp_path / name, content)
    if name == "dev.txt":
        write(tmp_path / "test.txt", content)
    for rank in range(2):
        with pytest.raises(UserError, match=message) as caught:
            list(make_corpus(tmp_path).read_documents(rank=rank, world_size=2))
        assert "\n" not in str(caught.value)
        assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: make_corpus(None), r"the task has no built-in text: set task\.data_dir=DIR with \.txt"),
        (lambda: make_corpus(Path("x"), split_by="page"), "split_by is 'page', expected one of file, paragraph, line"),
        (lambda: next(make_corpus(Path("x")).read_documents(rank=2, world_size=2)), "rank is 2, expected 0 to 1"),
        (lambda: is_held_out("a", fraction=1.0, seed=0), "fraction is 1.0, expected a number between 0 and 1"),
        (lambda: choose_held_out(["a.txt#0"], fraction=0.1, seed=0), r"a single document, a\.txt#0, .*documents=p"),
        (lambda: choose_held_out([], fraction=0.1, seed=0), "keys is empty, expected the keys of at least two doc"),
    ],
)
def test_invalid_arguments_raise(call: Callable[[], Any], message: str):
    with pytest.raises((ValueError, UserError), match=message):
        call()


@pytest.mark.parametrize("name", ["a.txt.gz", "a.jsonl.gz"])
def test_a_damaged_gzip_file_raises(tmp_path: Path, name: str):
    packed = write(tmp_path / name, [f"row {number}" for number in range(1000)]).read_bytes()
    for broken in (packed[:-20], packed[:200] + b"\xff" * 200 + packed[400:], b"no gzip", packed + b"more"):
        (tmp_path / name).write_bytes(broken)
        with pytest.raises(UserError, match=rf"{name} cannot be read: \w"):
            read(tmp_path)


def test_a_missing_file_raises(tmp_path: Path):
    with pytest.raises(UserError, match=r"task\.data_dir=/nowhere does not exist, expected a text file or a folder"):
        read(Path("/nowhere"))
    with pytest.raises(UserError, match=r"a\.csv has an unsupported suffix, expected one of \.txt, \.text, \.md, "):
        read(write(tmp_path / "a.csv", "one"))
    (tmp_path / "gone.txt").symlink_to(tmp_path / "nowhere")
    for method in (Corpus.compute_fingerprint, Corpus.count_bytes, lambda it: list(it.read_documents())):
        with pytest.raises(UserError, match=r"gone\.txt cannot be read: No such file"):
            method(make_corpus(tmp_path))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_folder_raises(tmp_path: Path):
    write(tmp_path / "a.txt", "one")
    (tmp_path / "closed").mkdir(mode=0)
    with pytest.raises(UserError, match=r"closed cannot be read: Permission denied"):
        read(tmp_path)


# The Hub

Loader = Callable[..., Any]


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch) -> Callable[[Loader], list[Any]]:
    """Replaces the Hub's loader by a function and records the arguments."""
    import datasets

    def install(loader: Loader) -> list[Any]:
        calls: list[Any] = []

        def load(*arguments: Any, **options: Any) -> Any:
            calls.append((arguments, options))
            return loader()

        monkeypatch.setattr(storage, "check_hub_file", lambda *arguments, **options: calls.append((arguments, options)))
        monkeypatch.setattr(datasets, "load_dataset", load)
        return calls

    return install


Online = Callable[[Loader], list[Any]]


def stream(rows: Callable[[], Iterator[Any]]) -> Loader:
    import datasets

    return lambda: datasets.IterableDataset.from_generator(rows)


def hub_key(text: str, split: str) -> str:
    """Returns the key of a Hub row, which does not depend on its index."""
    return f"{split}/{hashlib.sha256(text.encode()).hexdigest()[:20]}#0"


def test_a_data_set_of_the_hub_is_streamed(online: Online):
    calls = online(stream(lambda: iter({"body": text, "id": 3} for text in (*TEXTS, "", "last"))))
    shared = make_corpus(None, hub_id="owner/books:small", column="body", split="test")
    expected = {hub_key(text, "test"): text for text in (*TEXTS, "last")}
    assert join_documents(shared.read_documents()) == expected
    by_rank = [join_documents(shared.read_documents(rank=rank, world_size=3)) for rank in range(3)]
    assert [list(documents) for documents in by_rank] == [list(expected)[rank::3] for rank in range(3)]
    assert calls == [
        (("owner/books", ".gitattributes"), {"kind": "dataset", "revision": None}),
        (("owner/books", "small"), {"split": "test", "streaming": True}),
    ]
    assert shared.count_bytes() is None
    assert shared.describe() == "data set owner/books:small"
    names = [("owner/books", "train"), ("owner/books:small", "train"), ("owner/books", "test")]
    assert len({make_corpus(None, hub_id=name, split=split).compute_fingerprint() for name, split in names}) == 3


def test_each_process_reads_its_own_shards_of_the_hub(online: Online):
    import datasets

    shards: list[int] = []

    def rows(part: list[int]) -> Iterator[dict[str, str]]:
        for number in part:
            shards.append(number)
            yield from ({"text": f"shard {number}, row {row}"} for row in range(3))

    online(lambda: datasets.IterableDataset.from_generator(rows, gen_kwargs={"part": list(range(8))}))
    shared = make_corpus(None, hub_id="owner/books")
    everything = {hub_key(f"shard {number}, row {row}", "train") for number in range(8) for row in range(3)}
    assert set(join_documents(shared.read_documents())) == everything
    by_rank = []
    for rank in range(2):
        shards.clear()
        by_rank.append(set(join_documents(shared.read_documents(rank=rank, world_size=2))))
        assert shards == list(range(rank, 8, 2))
    assert by_rank[0] | by_rank[1] == everything
    assert not by_rank[0] & by_rank[1]
    position = Position()
    reading = shared.read_documents(position=position)
    for _ in range(7):  # Two shards, and a row.
        next(reading)
    shards.clear()
    rest = [document.text for document in shared.read_documents(position=replace(position))]
    assert rest[:2] == ["shard 2, row 1", "shard 2, row 2"]
    assert shards == list(range(2, 8))
    wrong = [{"text": "a"}, {"text": 3}]
    online(lambda: datasets.IterableDataset.from_generator(lambda part: iter(part), gen_kwargs={"part": wrong}))
    with pytest.raises(UserError, match=r"owner/books, row 1 of shard 2 of 2: column text is 3, expected a string"):
        read(None, hub_id="owner/books")


@pytest.mark.parametrize(
    ("rows", "kind", "message"),
    [
        ([{"body": "a"}], UserError, r"owner/books, row 1 has no column text, its columns are: body; set task"),
        ([{"text": "a"}, {"text": None}], UserError, r"owner/books, row 2: column text is None, expected a string"),
        ([{"text": " "}], UserError, r"data set owner/books contains no text, expected at least one word"),
        ([{"text": "one"}, ConnectionError("cut")], UnreachableError, r"the download failed after row 1 \(cut\): run"),
        ([{"text": "one"}, ValueError("a\nb")], UserError, r"owner/books cannot be read after row 1: a$"),
        (ConnectionError("no"), UnreachableError, r"owner/books is not in the cache and cannot be downloaded"),
        (ValueError("Bad\nmore"), UserError, r"owner/books, split train, cannot be loaded: Bad"),
    ],
)
def test_an_error_of_the_hub_names_the_data_set(online: Online, rows: Any, kind: type[Exception], message: str):
    def generate() -> Iterator[Any]:
        for row in rows:
            if isinstance(row, Exception):
                raise row
            yield row

    def load() -> Any:
        if isinstance(rows, Exception):
            raise rows
        return stream(generate)()

    online(load)
    with pytest.raises(kind, match=message):
        read(None, hub_id="owner/books")


def test_a_data_set_of_the_hub_is_loaded_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hub")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    options = {"hub_id": "owner/films:toy", "column": "sentence"}
    with pytest.raises(UnreachableError, match="owner/films:toy is not in the cache and cannot be .* go online"):
        read(None, **options)
    write_hub_cache(tmp_path / "hub", {"train": [(text, 0) for text in TEXTS], "test": [("a", -1)]})
    assert list(read(None, **options).values()) == list(TEXTS)
    assert read(None, **options, split="test") == {hub_key("a", "test"): "a"}
    with pytest.raises(UserError, match=r"owner/films:toy, row 1: column label is 0, expected a string"):
        read(None, **options | {"column": "label"})


# Fingerprints


def test_the_fingerprint_depends_on_the_content_and_not_on_the_folder(tmp_path: Path):
    first = write_files(tmp_path / "first", 2)
    fingerprints = [
        make_corpus(first).compute_fingerprint(),
        make_corpus(first, column="body").compute_fingerprint(),
        make_corpus(first, split_by="line").compute_fingerprint(),
        make_corpus(first / "rows.jsonl").compute_fingerprint(),
    ]
    shutil.copytree(first, tmp_path / "second")
    assert make_corpus(tmp_path / "second").compute_fingerprint() == fingerprints[0]
    assert make_corpus(tmp_path / "second" / "rows.jsonl").compute_fingerprint() == fingerprints[3]
    write(tmp_path / "second" / "notes.pdf", "no text")
    assert make_corpus(tmp_path / "second").compute_fingerprint() == fingerprints[0]
    assert make_corpus(tmp_path / "second").count_bytes() == make_corpus(first).count_bytes() > 100
    write(tmp_path / "second" / "01.txt", "FIRST 1\n\nsecond 1\n")
    fingerprints.append(make_corpus(tmp_path / "second").compute_fingerprint())
    (tmp_path / "second" / "01.txt").rename(tmp_path / "second" / "02.txt")
    fingerprints.append(make_corpus(tmp_path / "second").compute_fingerprint())
    assert len(set(fingerprints)) == len(fingerprints)
    assert all(len(digest) == 64 for digest in fingerprints)


def test_the_fingerprint_of_a_large_corpus_uses_modification_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = write(tmp_path / "a.txt", "one")
    os.utime(path, ns=(0, 1))
    by_content = make_corpus(tmp_path).compute_fingerprint()
    monkeypatch.setattr(corpus_module, "MAX_HASHED_BYTES", 2)
    by_time = make_corpus(tmp_path).compute_fingerprint()
    assert by_time != by_content
    write(path, "two")
    os.utime(path, ns=(0, 1))
    assert make_corpus(tmp_path).compute_fingerprint() == by_time
    os.utime(path, ns=(0, 2))
    assert make_corpus(tmp_path).compute_fingerprint() != by_time


# Splits by name


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("train.txt dev.txt", "train dev"),
        ("train.txt valid.txt test.txt README.md", "train dev - -"),
        ("wiki.train.tokens wiki.valid.tokens wiki.test.tokens", "train dev -"),
        ("data/train-0-of-2.parquet data/train-1-of-2.parquet data/validation-0-of-1.parquet", "train train dev"),
        ("train/a.txt train/test.txt dev/b.jsonl.gz", "train train dev"),
        ("en-train.txt en-dev.txt de-train.txt", "train dev train"),
        ("VAL.txt one.txt two.txt", "dev train train"),
        ("train.txt test.txt", "train -"),  # Dev is held out of train.
        ("test.md a.md b.md", "- train train"),
        # The names tell nothing.
        ("train.txt notes.txt", ""),
        ("the-train-to-rome.txt a-test-of-time.txt other.txt", ""),
        ("guide/dev.md guide/user.md", ""),
        ("test-1.txt test-2.txt", ""),
        ("training.txt train_test.txt strain.txt", ""),
    ],
)
def test_the_names_of_files_tell_their_splits(
    names: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    for name in names.split():
        write(tmp_path / name, [f"text of {name}"] if ".parquet" in name or ".jsonl" in name else f"text of {name}")
    corpus = make_corpus(tmp_path)
    wanted = dict(zip(names.split(), (expected or " ".join(["train"] * 9)).split(), strict=bool(expected)))
    read = {key.rpartition("#")[0]: "dev" if corpus.is_of_dev(key) else "train" for key in corpus.read_keys()}
    assert read == {name: split for name, split in wanted.items() if split != "-"}
    assert corpus.has_dev == ("dev" in wanted.values())
    if corpus.has_dev:  # A cache of earlier versions, with train for dev, is not read.
        plain = make_corpus(tmp_path)
        plain.__dict__["_splits"] = {}
        assert plain.compute_fingerprint() != corpus.compute_fingerprint()
    notice = " ".join(capsys.readouterr().out.split())
    assert ("files are of splits by their names" in notice) == bool(expected)
    left_out = sorted(name for name, split in wanted.items() if split == "-")
    assert ("not read are" in notice) == bool(left_out)
    assert all(name in notice for name in left_out)


# Held out


def test_the_held_out_share_is_near_the_fraction():
    fraction = 0.1
    keys = [f"a/b.txt#{number}" for number in range(20_000)]
    held = {key for key in keys if is_held_out(key, fraction=fraction, seed=0)}
    spread = (fraction * (1 - fraction) / len(keys)) ** 0.5
    assert abs(len(held) / len(keys) - fraction) < 4 * spread
    assert held == choose_held_out(keys, fraction=fraction, seed=0)
    assert held == choose_held_out(keys[::-1], fraction=fraction, seed=0)
    both = held & choose_held_out(keys, fraction=fraction, seed=1)
    assert abs(len(both) / len(keys) - fraction**2) < 4 * fraction * len(keys) ** -0.5
    # Computed once: with another hash, a resumed run would train on documents that it held out before.
    of_thirty = choose_held_out([f"a.txt#{number}" for number in range(30)], fraction=0.1, seed=0)
    assert of_thirty == {"a.txt#13", "a.txt#15", "a.txt#23"}


@given(keys=st.sets(st.text(), min_size=2, max_size=6), fraction=st.floats(0.001, 0.999), seed=st.integers(0, 9))
@settings(max_examples=50, deadline=None)
def test_at_least_one_document_is_held_out_and_one_is_not(keys: set[str], fraction: float, seed: int):
    held = choose_held_out(sorted(keys), fraction=fraction, seed=seed)
    assert 0 < len(held) < len(keys)
    drawn = {key for key in keys if is_held_out(key, fraction=fraction, seed=seed)}
    assert held == drawn or len(drawn) in (0, len(keys))


def test_a_file_name_that_is_not_utf8_has_a_key(tmp_path: Path):
    write(Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.txt")), "one\ntwo")
    odd = make_corpus(tmp_path, split_by="line")
    assert len(choose_held_out(list(join_documents(odd.read_documents())), fraction=0.1, seed=0)) == 1
    assert odd.compute_fingerprint() == make_corpus(tmp_path, split_by="line").compute_fingerprint()


def test_keys_are_read_without_the_rest_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("One.\n\nTwo.")
    (tmp_path / "b.txt").write_text(" \n")
    (tmp_path / "c.jsonl").write_text('{"text": "three"}\n{"text": "four"}\n')
    for kind in corpus_module.DOCUMENT_UNITS:
        read = make_corpus(tmp_path, split_by=kind)
        assert list(read.read_keys()) == [document.key for document in read.read_documents() if document.chunk == 0]
    (tmp_path / "a.txt").write_bytes(b"word\n" * corpus_module.CHUNK_SIZE + b"\xff")  # Invalid far from its beginning.
    assert next(iter(make_corpus(tmp_path).read_keys())) == "a.txt#0"


# Cleaned while it is read

PAGE = "Home | About\nThe first sentence has five words.\nMore of this text stands here.\nRead on..."
PROSE = "The first sentence has five words.\nMore of this text stands here."
SPAN = "One span of three sentences. It is the second here. And this is its end."


def write_pages(directory: Path, **pages: str) -> Corpus:
    for name, text in pages.items():
        (directory / f"{name}.txt").write_text(text)
    return Corpus(data_dir=str(directory), clean="web")


def test_documents_are_cleaned_and_empty_ones_left_out(tmp_path: Path):
    corpus = write_pages(tmp_path, a=PAGE, b="Menu\nContact", c=SPAN)
    assert [(d.key, d.text) for d in corpus.read_documents()] == [("a.txt#0", PROSE), ("c.txt#0", SPAN)]
    assert list(corpus.read_keys()) == ["a.txt#0", "b.txt#0", "c.txt#0"]


def test_spans_are_known_across_files_with_a_cleaner(tmp_path: Path):
    corpus = write_pages(tmp_path, a=SPAN, b=SPAN, c=PAGE)
    cleaner = WebCleaner()
    assert [d.key for d in corpus.read_documents(cleaner=cleaner)] == ["a.txt#0", "c.txt#0"]
    assert (cleaner.lines, cleaner.kept) == (6, 3)
    # A reading that may begin at any file knows those of the file alone.
    assert [d.key for d in corpus.read_documents()] == ["a.txt#0", "b.txt#0", "c.txt#0"]


@pytest.mark.parametrize("world", [1, 2])
def test_a_reading_that_goes_on_gives_the_same_text(tmp_path: Path, world: int):
    paragraphs = [SPAN, PROSE, SPAN, "Menu", f"{SPAN} With one more sentence at the end.", "A last line of some words."]
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("\n\n".join(paragraphs))
    corpus = Corpus(data_dir=str(tmp_path), split_by="paragraph", clean="web")
    for rank in range(world):
        whole = list(corpus.read_documents(rank=rank, world_size=world))
        for read in range(1, len(whole)):
            position = Position()
            documents = corpus.read_documents(rank=rank, world_size=world, position=position)
            first = [next(documents) for _ in range(read)]
            rest = list(corpus.read_documents(rank=rank, world_size=world, position=position))
            assert first + rest == whole


def test_a_corpus_of_which_nothing_is_left_names_the_rule(tmp_path: Path):
    corpus = write_pages(tmp_path, a="Menu\nHome\nToo short this.", b="Contact")
    expected = rf"^task.clean=web leaves nothing of task.data_dir={tmp_path}: of its 4 lines are dropped 3 .*; set task"
    with pytest.raises(UserError, match=expected):
        list(corpus.read_documents())


def test_the_fingerprint_depends_on_the_cleaning(tmp_path: Path):
    cleaned = write_pages(tmp_path, a=PAGE).compute_fingerprint()
    assert cleaned != Corpus(data_dir=str(tmp_path)).compute_fingerprint()
