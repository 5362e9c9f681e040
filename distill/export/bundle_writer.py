"""Writes a bundle: the float32 and int8 ONNX files with their tokenizer, scored through the edge runtime."""

import copy
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.core.console import ProgressMeter, print_line, print_notice
from distill.core.contracts import Data, Scores, Task, TaskInfo
from distill.core.errors import NumericalError, OptionError, UserError
from distill.core.files import hash_file, write_json
from distill.core.options import show_value
from distill.data.pool import read_texts
from distill.edge import bundle as edge
from distill.edge.bundle_files import ANY, FORMAT, count_bytes, list_with_encoder, session, weight_bits
from distill.edge.decoder import Record
from distill.edge.text_decoders import open_model
from distill.edge.words import TagScheme
from distill.export import gate
from distill.export.escalation import measure_escalation
from distill.export.graph import remove_model
from distill.export.onnx import describe_generation, export_model
from distill.export.quantization import FLOAT32, FORMATS, INT8, RECIPES, ExportSettings, RecipeInput, write_with_encoder
from distill.export.recipe_search import RecipeSearch
from distill.kinds.kind import Kind
from distill.kinds.scoring import Scoring, WritingSettings
from distill.kinds.seq2seq import find_frame
from distill.models.forward import fills_targets, input_names, output_logits
from distill.models.surgery.embeddings import CutVocabulary, choose_pieces
from distill.records.schema import BatchSensitivity, ExportedFile, RecipeAttempt
from distill.records.verdict import recommend
from distill.training.statistics import LEVEL

FILES = {name: FORMATS[name].file for name in (FLOAT32, INT8)}
CALIBRATION = 256  # Training texts on which ranges of activations are measured, if there are so many.
CALIBRATION_BATCH = 8
LOGITS_AT_ONCE = 2**26  # 256 MiB in float32.
COMPARED = 256  # Examples on which a file with another vocabulary is compared with torch.
FP32_LOGIT_DIFF = 1e-3
INPUTS = ("input_ids", "attention_mask")  # Of a model that writes text.
WRITTEN = 32  # Texts that are written between two lines of progress.
DIFFERS = gate.GateVerdict(gate.FAILED, "its logits are not those of the model in torch")
Texts = dict[str, list[Mapping[str, Any]]]


@dataclass(frozen=True)
class Exported:
    """The files of a bundle, and the recipes that led to them.

    Attributes:
        formats: the `export` of run.json.
        attempts: the `attempts` of run.json, every recipe that was tried.
        scores: of each file, by split.
        texts: the predictions of each file for the plain texts of each split, if the task has any.
    """

    formats: dict[str, ExportedFile]
    attempts: list[RecipeAttempt]
    scores: dict[str, dict[str, Scores]]
    texts: dict[str, Texts] = field(default_factory=dict)


def write_bundle(
    directory: Path,
    *,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
    splits: Data,
    scores: Mapping[str, Scores],
    settings: ExportSettings,
    retrain: Callable[[], PreTrainedModel] | None = None,
    taught_by: Mapping[str, Scores] | None = None,
    entries: Mapping[str, Any] | None = None,
) -> Exported:
    """Writes a bundle to `directory`: the float32 file, and those of the other formats, int8 by a `RecipeSearch`.

    Each file is scored through ONNX Runtime, from raw text, and compared with `scores`, those of the torch model.

    Args:
        retrain: returns a copy of the model after quantization-aware distillation; None if it cannot be trained.
        taught_by: the scores of the teacher, whose recalls files must keep, and who gets texts and searched documents.
        entries: of bundle.json: `teacher`, its name and metrics to be shown beside those of the student, and `space`,
            its fingerprint where the vectors of the student are among its own.
    """
    fp32, is_cut = directory / FILES["fp32"], settings.vocabulary == "task"
    splits = begin_texts(task, splits, tokenizer)
    export = partial(export_float32, tokenizer=tokenizer, settings=settings, data=splits, info=task.info)
    exported, reader = export(model, fp32)
    manifest = Manifest.create(directory, model=exported, tokenizer=reader, task=task, splits=splits)
    decoding = manifest.content["decoding"] | scores["dev"].decoding | settings.describe_patterns()
    manifest.content.update({"teacher": None, **(entries or {})}, decoding=decoding)
    manifest.write({FLOAT32: fp32.name})
    bundle = edge.Bundle(directory, model=FLOAT32, threads=torch.get_num_threads())
    scorer = Scorer(bundle, splits, scores, settings, taught_by=taught_by or {})
    scorer, fp32_scores = _score_float32(scorer, fp32, is_cut=is_cut)
    retrained = None if retrain is None else lambda path: export(retrain(), path)
    files, attempts = _quantize(fp32, scorer, retrained)
    files |= _convert(fp32, [name for name in dict.fromkeys(settings.formats) if name not in files], scorer)
    smaller = _score_files(directory, files, scorer)
    files = {FLOAT32: _File(fp32.name, FORMATS[FLOAT32].recipe), **{name: files[name] for name in smaller}}
    file_scores = {FLOAT32: fp32_scores, **smaller}
    _report_reading(fp32_scores, pieces=f"{len(reader):,} of {len(tokenizer):,} pieces")
    manifest.write({name: entry.file for name, entry in files.items()})  # A bundle with them reads plain texts.
    texts = {name: scorer.predict_texts(name) for name in files}
    formats = {name: scorer.describe(entry, file_scores[name], texts[name]) for name, entry in files.items()}
    if not is_cut or not scorer.equals(fp32, exported):
        verdict = DIFFERS if is_cut else gate.judge_float32(formats[FLOAT32], settings)
        formats[FLOAT32]["gate"], formats[FLOAT32]["reason"] = verdict
    manifest.content.update(_summarize(formats))
    manifest.write({name: entry.file for name, entry in files.items()})
    return Exported(formats, attempts, file_scores, texts)


def _score_float32(scorer: "Scorer", path: Path, *, is_cut: bool) -> "tuple[Scorer, dict[str, Scores]]":
    """Returns the scores of the float32 file, and a scorer that marks the items which a cut vocabulary reads anew."""
    scores = scorer.score_splits(path)
    if weak := gate.list_weak(scorer.torch.compare_recalls(scores["dev"]), share := scorer.settings.min_type_recall):
        print_notice(
            f"by recall on dev the student finds less than {share:g} of the teacher's {', '.join(weak.values())}; its "
            "files are compared with the student there: train it longer, or on more examples of these types"
        )
    if not is_cut:
        return scorer, scores
    scorer = scorer.marking_reread(scores)
    return scorer, {split: scorer.mark(split, of_split) for split, of_split in scores.items()}


@dataclass(frozen=True)
class Manifest:
    """The content of bundle.json in its directory."""

    directory: Path
    content: dict[str, Any]

    @classmethod
    def create(
        cls, directory: Path, *, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, task: Task, splits: Data
    ) -> "Manifest":
        """Writes tokenizer.json, and returns the manifest without its models and what follows from their scores."""
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise TypeError(f"{type(tokenizer).__name__} has no fast version, and a bundle needs tokenizer.json")
        backend.save(str(directory / "tokenizer.json"))
        info, scoring = task.info, splits.scoring
        about, optional = scoring.describe(splits), dict[str, Any]()
        decoding = {} if info.max_target is None else _describe_targets(model, tokenizer, info.max_target)
        if about.get("prompts"):
            optional["prompts"] = about["prompts"]
        if about.get("prefix"):
            decoding["prefix"] = about["prefix"]
        if info.generates:
            beams = None if scoring.writing is None else scoring.writing.beams  # Of texts that are scored.
            optional["generation"] = describe_generation(model, backend, beams=beams, max_target=info.max_target)
        return cls(directory, {
            "format": FORMAT, "kind": info.kind, "decoder": info.decoder, "task": info.name, "pair": info.pair,
            "labels": about["labels"], "positive": about.get("positive"), **scoring.describe_functions(),
            "max_length": info.max_length, "decoding": decoding, "truncation_side": tokenizer.truncation_side,
            "doc_stride": about.get("doc_stride"), **optional,
            "inputs": [name for name in input_names(model, tokenizer) if name in INPUTS or not info.generates],
            "padding": {
                "input_ids": tokenizer.pad_token_id, "attention_mask": 0,
                "token_type_ids": tokenizer.pad_token_type_id,
            },
            "padding_side": tokenizer.padding_side, "models": {}, **_summarize({}), "files": {},
        })  # fmt: skip

    def write(self, models: Mapping[str, str]) -> None:
        """Writes bundle.json with the names of the models, and the SHA-256 of every file."""
        paths = [path for file in models.values() for path in list_with_encoder(self.directory / file)]
        self.content["models"] = dict(models)
        self.content["files"] = {path.name: hash_file(path) for path in (*paths, self.directory / "tokenizer.json")}
        write_json(self.directory / "bundle.json", self.content)


def begin_texts(task: Task, splits: Data, tokenizer: PreTrainedTokenizerBase) -> Data:
    """Returns the splits whose texts begin with the prompts of the tokenizer, where they have roles."""
    begun: Data = task.prompted(splits, tokenizer) if isinstance(task, Kind) else splits
    return begun


def wrap_file(
    directory: Path, file: Path, *, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, task: Task, splits: Data
) -> None:
    """Makes `directory` a bundle of one float32 file, which it links to, so that it can be scored from raw text."""
    splits = begin_texts(task, splits, tokenizer)
    for path in list_with_encoder(file):
        (directory / path.name).symlink_to(path.absolute())
    manifest = Manifest.create(directory, model=model, tokenizer=tokenizer, task=task, splits=splits)
    manifest.write({FLOAT32: file.name})


def export_float32(
    model: PreTrainedModel,
    path: Path,
    *,
    tokenizer: PreTrainedTokenizerBase,
    settings: ExportSettings,
    data: Data,
    info: TaskInfo,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Writes a float32 file; returns the model and the tokenizer whose vocabulary it has.

    Args:
        settings: whether the vocabulary is cut, and further texts that it is cut for.
        data: the data whose texts it is cut for.
        info: of the task.
    """
    if settings.vocabulary == "task":
        cut = choose_vocabulary(model, tokenizer, settings, data)
        model, tokenizer = cut.apply(model), cut.tokenizer
    export_model(model, path, tokenizer=tokenizer, generates=info.writes, with_states=settings.layout == "hub")
    return model, tokenizer


def choose_vocabulary(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, settings: ExportSettings, data: Data
) -> CutVocabulary:
    """Returns the vocabulary of the texts of `data`, and of further ones that the settings name."""
    further = read_texts(settings.vocabulary_texts, "export.vocabulary_texts")
    labelled = itertools.chain(data.labelled_texts(), further)
    return choose_pieces(model, tokenizer, labelled, data.unlabelled_texts())


def _summarize(formats: Mapping[str, ExportedFile]) -> dict[str, Any]:
    """Returns the fields of bundle.json that follow from the scores of the files."""
    gates = {name: f"{row['gate']}: {row['reason']}" for name, row in formats.items() if row["gate"] != gate.PASSED}
    # Of the smaller forms of the vectors of a file.
    shown = ("dimensions", "precision", "rescore", "documents", "gate", "kept")
    vectors = {
        file: [{name: value for name, value in form.items() if name in shown} for form in row["vectors"]]
        for file, row in formats.items()
        if row["vectors"]
    }
    # The confidences below which shares of dev lie.
    escalate = {
        name: [[entry["share"], entry["threshold"]] for entry in row["escalate"]]
        for name, row in formats.items()
        if row["escalate"]
    }
    return {
        "recommended": recommend(formats),
        "metrics": {name: row["metrics"] for name, row in formats.items()},
        "gates": gates,
        "thresholds": {name: row["abstain"]["threshold"] for name, row in formats.items() if row["abstain"]},
        "targets": {name: row["target"] for name, row in formats.items() if row["target"] != ANY},
        "batch_sensitivity": {name: row["batch_sensitivity"] for name, row in formats.items()},
        "batch_sizes": {name: row["batch_size"] for name, row in formats.items() if row["batch_size"] is not None},
        **({"escalate": escalate} if escalate else {}),
        **({"vectors": vectors} if vectors else {}),
    }


@dataclass(frozen=True)
class _File:
    """The file of a model, its recipe in words, the processors that it is for, and the confidence that it needs."""

    file: str
    recipe: str
    target: str = ANY
    confidence: float = LEVEL


def _quantize(
    fp32: Path, scorer: "Scorer", retrain: Callable[[Path], object] | None
) -> tuple[dict[str, _File], list[RecipeAttempt]]:
    """Writes the best int8 file for each target beside `fp32`; returns the files by name, and all attempts."""
    files, attempts, settings = dict[str, _File](), list[RecipeAttempt](), scorer.settings
    if INT8 not in settings.formats:
        return files, attempts
    feeds, decoder = scorer.calibration(), scorer.bundle.decoder
    for number, (bits, target) in enumerate(_list_targets(settings).items()):
        int8 = f"{INT8}-{target}" if number else INT8
        material = RecipeInput(fp32, bits, feeds, ties=decoder.generates or decoder.targets)
        search = RecipeSearch(material, target, scorer.torch, scorer.score, settings, retrain)
        tried = search.run(fp32.with_name(f"model.{int8}.onnx"), fp32.with_name(FORMATS["fp16"].file))
        for attempt in (attempt for attempt in tried if attempt["chosen"]):
            format = RECIPES[attempt["recipe"]].format
            name, file_target = (int8, target) if format == INT8 else (format, ANY)
            files[name] = _File(f"model.{name}.onnx", attempt["words"], file_target, attempt["confidence"])
        attempts += tried
    return files, attempts


def _convert(fp32: Path, formats: Sequence[str], scorer: "Scorer") -> dict[str, _File]:
    """Writes the files of formats that have one recipe beside `fp32`; returns them by name."""
    bits, target = min(_list_targets(scorer.settings).items())
    material = RecipeInput(fp32, bits, lambda: scorer.calibration()())
    files = {}
    for name, format in ((name, FORMATS[name]) for name in formats):
        if format.write is not None:
            path = fp32.with_name(format.file)
            write_with_encoder(format.write, material, path)
            print_line(f"  {count_bytes(path) / 1e6:.1f} MB: {format.recipe}")
            files[name] = _File(format.file, format.recipe, target if format.has_target else ANY)
    return files


def _score_files(directory: Path, files: Mapping[str, _File], scorer: "Scorer") -> dict[str, dict[str, Scores]]:
    """Returns the scores of each file; removes those whose outputs are not finite, as float16 may have them."""
    scores = {}
    for name, entry in files.items():
        try:
            scores[name] = scorer.score_splits(directory / entry.file)
        except NumericalError as error:
            print_notice(f"{error}, and it is left out")
            remove_model(directory / entry.file)
    return scores


@dataclass(frozen=True)
class Scorer:
    """Scores files with the tokenizer and the decoder of a bundle, on the splits of `scores`, those of torch.

    Args:
        reread: for each split the items `[n]` that a smaller vocabulary reads as other pieces; they get the column
            `REREAD`.
        taught_by: as in `write_bundle`.
    """

    bundle: edge.Bundle
    splits: Data
    scores: Mapping[str, Scores]
    settings: ExportSettings = ExportSettings()  # noqa: RUF009  # It is frozen.
    reread: Mapping[str, np.ndarray] = field(default_factory=dict)
    taught_by: Mapping[str, Scores] = field(default_factory=dict)

    @property
    def scoring(self) -> Scoring:
        return self.splits.scoring

    @cached_property
    def torch(self) -> gate.TorchScores:
        """The scores of the torch model, which are compared with those of the files."""
        return gate.TorchScores(self.scoring, self.scores, self.taught_by)

    def describe(self, file: _File, scores: Mapping[str, Scores], texts: Texts) -> ExportedFile:
        """Returns the entry of a file of the bundle in run.json's `export`."""
        settings, path = self.settings, self.bundle.directory / file.file
        comparison = self.torch.compare(scores)
        verdict = gate.judge(comparison, settings, target=file.target, confidence=file.confidence)
        share, sensitivity = settings.abstain, self.compare_batches(path)
        return {
            "file": file.file, "bytes": count_bytes(path), **comparison,
            "metrics": {**comparison["metrics"], **text_metrics(self.splits, texts)},
            "gate": verdict.gate, "reason": verdict.reason, "confidence": file.confidence,
            "recipe": file.recipe, "target": file.target,
            "abstain": None if share is None else gate.measure_abstention(scores, scoring=self.scoring, share=share),
            "escalate": measure_escalation(scores, self.taught_by, scoring=self.scoring),
            "batch_sensitivity": sensitivity,
            "batch_size": 1 if sensitivity["max_probability_diff"] > settings.max_batch_diff else None,
            "vectors": self.torch.measure_vectors(scores, settings),
        }  # fmt: skip

    def marking_reread(self, fp32_scores: Mapping[str, Scores]) -> "Scorer":
        """Returns a scorer that marks the items which a smaller vocabulary reads as other pieces.

        They are those with other logits from the float32 file than from torch: the same pieces have the same logits.
        """
        reread = {}
        for split, reference in self.scores.items():
            logits, expected = fp32_scores[split].columns["logits"], reference.columns["logits"]
            reread[split] = ~np.isclose(logits, expected, atol=FP32_LOGIT_DIFF).all(axis=-1)
        return replace(self, reread=reread)

    def score(self, path: Path, split: str = "dev") -> Scores:
        """Returns the scores of a file on the raw examples of a split.

        A smaller vocabulary may have more pieces in an example, so that items are truncated that torch has. They have
        the prediction that the decoder gives them, and are marked in the column `TRUNCATED`.

        Raises:
            NumericalError: if a logit is NaN or infinite.
            ValueError: if an example has other items than in the torch model for another reason.
        """
        records = self.splits.scored()[split].records()
        expected = self.scores[split]
        scores = self._score(self._load(path), records, expected, title=f"{path.name} on {split}")
        if len(scores.labels) != len(expected.labels):
            raise ValueError(f"the bundle has {len(scores.labels)} items, expected {len(expected.labels)} as in torch")
        return self.mark(split, scores)

    def predict_texts(self, model: str) -> Texts:
        """Returns the predictions of a model of the bundle for the plain texts of every split that has any.

        They are those of `Bundle.predict`, or of `Bundle.generate_all` of a model that writes text.
        """
        splits = self.splits.scored()
        texts = {split: found for split in self.scores if (found := self.scoring.plain_texts(splits[split]))}
        if not texts:
            return {}
        bundle = edge.Bundle(self.bundle.directory, model=model, threads=self.bundle.threads)
        writing = self.scoring.writing
        if writing is None:
            return {split: list(bundle.predict(of)) for split, of in texts.items()}
        return {split: _write(bundle, of, writing, title=f"{model} writes for {split}") for split, of in texts.items()}

    def mark(self, split: str, scores: Scores) -> Scores:
        """Returns the scores of a split with the column `REREAD`, if the vocabulary is smaller."""
        marks = {gate.REREAD: self.reread[split]} if split in self.reread else {}
        return replace(scores, columns={**scores.columns, **marks})

    def compare_batches(self, path: Path) -> BatchSensitivity:
        """Returns how far the predictions of a file for the beginning of dev depend on the batch.

        The values are those of the grouping with the largest difference. A batch has neighbours of dev, with texts of
        all lengths as a server has them, or texts of similar length as in one call of `predict`.
        """
        bundle = self._load(path)
        records = take_first(bundle, self.splits.scored()["dev"].records(), gate.SAMPLED)
        score = partial(self._score, bundle, records, self.scores["dev"], title=f"{path.name} in other batches")
        alone = score(batch_size=1)
        groupings = [score(batch_size=gate.BATCH, together=together) for together in (gate.BATCH, None)]
        return {
            "max_probability_diff": max(self.scoring.probability_diff(together, alone) for together in groupings),
            "changed": max(1 - self.scoring.agreement(together, alone) for together in groupings),
            "examples": len(records), "batch": min(gate.BATCH, len(records)),
        }  # fmt: skip

    def _score(
        self,
        bundle: edge.Bundle,
        records: Sequence[Record],
        reference: Scores,
        *,
        title: str,
        batch_size: int | None = None,
        together: int | None = None,
    ) -> Scores:
        """Returns the scores of a bundle on records, in the place of those of `reference`.

        Args:
            title: of the progress.
            batch_size: records in a forward pass.
            together: neighbouring records that are sorted into batches together; None for as many as have logits that
                fit into memory at once.
        """
        together = self._count_together(bundle, reference) or len(records) if together is None else together
        parts, rows = list[Scores](), 0
        with ProgressMeter(title, len(records), unit="examples", transient=True) as meter:
            for first in range(0, len(records), together):
                chunk = records[first : first + together]
                report = partial(_show_share, meter, first=first, size=len(chunk))
                logits = bundle.item_logits(chunk, batch_size=batch_size, report=report)
                broken = sum(not np.isfinite(row).all() for row in logits)
                if broken:
                    raise NumericalError(
                        f"{bundle.model} has outputs for {broken} of {len(logits)} texts that are not finite"
                    )
                own = reference.select((reference.example_id >= rows) & (reference.example_id < rows + len(logits)))
                placed = self._place(logits, replace(own, example_id=own.example_id - rows))
                parts.append(replace(placed, example_id=own.example_id))
                rows += len(logits)
        if any(gate.TRUNCATED in part.columns for part in parts):
            none = [{gate.TRUNCATED: np.zeros(len(part.labels), dtype=bool)} for part in parts]
            parts = [replace(part, columns=of | dict(part.columns)) for of, part in zip(none, parts, strict=True)]
        return Scores.join(parts)

    def _count_together(self, bundle: edge.Bundle, reference: Scores) -> int | None:
        """Returns the number of examples whose logits fit into memory at once; None for all."""
        width = next(value.shape[-1] for value in bundle.session.get_outputs() if value.name == "logits")
        decoder = self.bundle.decoder
        if not (decoder.at_positions or decoder.generates) or not isinstance(width, int):
            return None
        items = len(reference.labels) / (int(reference.example_id.max()) + 1)
        return max(1 if decoder.generates else gate.BATCH, int(LOGITS_AT_ONCE / (items * width)))

    def _load(self, path: Path) -> edge.Bundle:
        """Returns the bundle with another file."""
        bundle = copy.copy(self.bundle)
        bundle.model, bundle.session = path.name, open_model(path, bundle.threads)
        return bundle

    def _place(self, rows: Sequence[np.ndarray], reference: Scores) -> Scores:
        """Returns the logits of each row in the place of those of `reference`."""
        expected = np.bincount(reference.example_id, minlength=len(rows)).tolist()
        if [len(row) for row in rows] == expected:
            return self.scoring.rescore(reference, rows)
        filled, truncated = zip(*map(self._fill, itertools.count(1), rows, expected), strict=True)
        scores = self.scoring.rescore(reference, filled)
        return replace(scores, columns={**scores.columns, gate.TRUNCATED: np.concatenate(truncated)})

    def _fill(self, example: int, logits: np.ndarray, expected: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns logits `[expected, C]` of an example, and which of them `[expected]` are those of truncated items."""
        missing, filling = expected - len(logits), self.bundle.decoder.truncated_item()
        if missing < 0 or (missing and filling is None):
            raise ValueError(
                f"the bundle has {len(logits)} items in example {example}, expected {expected} as in torch"
            )
        if not missing:
            return logits, np.zeros(expected, dtype=bool)
        parts = [(logits, False), (np.tile(np.asarray(filling), (missing, 1)), True)]
        if self.bundle.truncation_side == "left":
            parts.reverse()
        truncated = np.concatenate([np.full(len(part), is_truncated) for part, is_truncated in parts])
        return np.concatenate([part for part, _ in parts]), truncated

    def equals(self, path: Path, model: PreTrainedModel) -> bool:
        """Returns whether a file and the model in torch give the same logits for the beginning of dev."""
        run, names = session(path, self.bundle.threads), self.bundle.manifest["inputs"]
        model = model.cpu().float().eval()
        for feed in self.bundle.inputs(self.splits.scored()["dev"].records()[:COMPARED]):
            inputs = {name: torch.from_numpy(feed[name]) for name in names}
            with torch.inference_mode():
                logits = output_logits(model, model(**inputs), inputs["attention_mask"]).numpy()
            if not np.allclose(run.run(["logits"], feed)[0], logits, atol=FP32_LOGIT_DIFF):
                return False
        return True

    def score_splits(self, path: Path) -> dict[str, Scores]:
        """Returns the scores of a file on every split."""
        return {split: self.score(path, split) for split in self.scores}

    def calibration(self) -> Callable[[], Iterator[dict[str, np.ndarray]]]:
        """Returns a function that yields batches of training text, the same in every run.

        Raises:
            UserError: if there is less text than the user asked for.
        """
        records, wanted = self.splits.training().records(), self.settings.calibration
        check_calibration(len(records), self.settings)
        number = min(CALIBRATION, len(records)) if wanted is None else wanted
        chosen = np.sort(np.random.default_rng(0).choice(len(records), size=number, replace=False))
        return lambda: self.bundle.inputs([records[row] for row in chosen], batch_size=CALIBRATION_BATCH)


def _write(
    bundle: edge.Bundle, sources: Sequence[str], writing: WritingSettings, *, title: str
) -> list[Mapping[str, Any]]:
    """Returns the text that a bundle writes for each source, and shows the progress."""
    written: dict[int, Mapping[str, Any]] = {}
    order = sorted(range(len(sources)), key=lambda number: len(sources[number]))
    with ProgressMeter(title, len(sources), unit="texts", transient=True) as meter:
        for first in range(0, len(order), WRITTEN):
            rows = order[first : first + WRITTEN]
            texts = writing.write(bundle, [sources[row] for row in rows])
            written |= dict(zip(rows, texts, strict=True))
            meter.advance(len(rows))
    return [written[row] for row in range(len(sources))]


def _show_share(meter: ProgressMeter, share: float, *, first: int, size: int) -> None:
    """Shows that a share of `size` examples is done, after `first` ones before."""
    meter.show(first + round(share * size))


def take_first(bundle: edge.Bundle, records: Sequence[Record], most: int) -> Sequence[Record]:
    """Returns the first `most` records, or where a record has a row for each document those with so many, and one."""
    if not bundle.decoder.ranks:
        return records[:most]
    rows = np.cumsum([len(bundle.decoder.read(record).sequences()) for record in records[:most]])
    return records[: max(1, int((rows <= most).sum()))]


def _report_reading(scores: Mapping[str, Scores], *, pieces: str) -> None:
    """Prints the size of a smaller vocabulary, and how many items it reads as other pieces, or truncates.

    Args:
        pieces: the size of the vocabulary in words.
    """
    reread = {split: of.columns[gate.REREAD] for split, of in scores.items() if gate.REREAD in of.columns}
    if reread:
        shares = ", ".join(f"{split} {int(items.sum()):,} of {len(items):,}" for split, items in reread.items())
        print_line(f"  vocabulary: {pieces}; items read as other pieces: {shares}")
    for split, split_scores in scores.items():
        truncated = int(split_scores.columns.get(gate.TRUNCATED, np.zeros(0)).sum())
        if truncated:
            print_notice(
                f"export.vocabulary=task reads texts by more pieces, which truncates {truncated:,} of "
                f"{len(split_scores.labels):,} items of {split}; they count as missed: raise task.max_length, or set "
                "export.vocabulary=full"
            )


def check_calibration(examples: int, settings: ExportSettings) -> None:
    """Raises UserError if there is less training text than the user wants to measure activations on."""
    if settings.calibration is not None and settings.calibration > examples:
        raise UserError(
            f"got export.calibration={settings.calibration}, and the task has {examples:,} training texts: set it to "
            "at most that, or to null"
        )


def check_patterns(labels: Sequence[str], settings: ExportSettings) -> None:
    """Raises OptionError for a pattern of a type that the tags have, because a type has one source."""
    patterns, types = settings.patterns or {}, TagScheme(labels).types
    if clash := [name for name in patterns if name in types]:
        expected = f"another name than the types of the tags ({', '.join(types)}), which the model finds"
        raise OptionError(f"export.patterns.{clash[0]}", show_value(patterns[clash[0]]), expected)


def text_metrics(data: Data, texts: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, float]:
    """Returns the metrics of predictions for the plain texts of each split by their names in run.json."""
    splits, metrics = data.scored(), dict[str, float]()
    for split, predictions in texts.items():
        values = data.scoring.text_metrics(splits[split], predictions)
        metrics |= {name if split == "dev" else f"{split}/{name}": value for name, value in values.items()}
    return metrics


def _list_targets(settings: ExportSettings) -> dict[int, str]:
    """Returns the first target for each number of weight bits, because others with that number need no file."""
    targets: dict[int, str] = {}
    for target in settings.targets():
        targets.setdefault(weight_bits(target), target)
    return targets


def _describe_targets(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, max_target: int) -> dict[str, Any]:
    """Returns what a decoder needs to tokenize a target: the tokens around it, and the tokens that it is cut to."""
    if fills_targets(model):
        return find_frame(tokenizer, max_target).describe()
    start = int(model.config.decoder_start_token_id)
    return {"start": start, "end": tokenizer.eos_token_id, "max_target": max_target}
