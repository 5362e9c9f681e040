"""The jobs over raw text: train a language model, from random weights or on a domain's text, and distil one."""

import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning as L
import torch
from omegaconf import DictConfig
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.console import console, notice, quiet, say
from distill.data import batching
from distill.errors import UserError
from distill.files import make_directory, write_text
from distill.jobs import build, preflight
from distill.losses import MaskedLanguageModelling, Objective, SegmentOrder, Term
from distill.models import checks
from distill.models.chunked_logits import logits_at_items, token_scores
from distill.models.forward import moved, run_encoder, run_head
from distill.records import report
from distill.records.record import Run
from distill.tasks import LanguageModelTask
from distill.teaching.finetune import Source, Teacher, adopt_special_tokens
from distill.teaching.outputs import ask_for_training, check_cache
from distill.text import sequences
from distill.training import fitting
from distill.training.module import DistillationModule
from distill.training.settings import Settings, check_budget, check_processes

ENOUGH = 0.98  # Of a teacher's probability, in what is kept of its answers.
VOCABULARY_TEXT = 50_000_000  # Characters that a new vocabulary is learned from.


def run_pretrain(config: DictConfig, run: Run) -> None:
    """The job `pretrain`: a language model from random weights, with a vocabulary of its own."""
    _train(config, run, from_scratch=True)


def run_finetune(config: DictConfig, run: Run) -> None:
    """The job `finetune` on text: a pre-trained encoder goes on with the domain's, and gets a head if it had none."""
    _train(config, run, from_scratch=False)


def run_distill(config: DictConfig, run: Run) -> None:
    """The job `distill` on text: from a language model to a smaller one."""
    settings, task = _settings(config)
    objective: Objective = build.instantiate(config.objective)
    cache = build.cache(config)
    if task.pair:
        raise UserError(f"task.pair={task.pair} is for job=pretrain: a student learns from its teacher's tokens alone")
    preflight.check_objective(objective, task)
    check_cache(cache, objective, task)
    teacher = _teacher(config, task, settings)
    L.seed_everything(config.seed, verbose=False)
    student = build.student(config, teacher.model)
    _check_student(config, teacher, student, objective, task)
    examples, loaders = _data(config, task, teacher.tokenizer, settings)
    teacher.metrics = score(teacher.answering(), task, loaders["dev"], device=settings.device())
    run.update(
        task=_task_record(task, examples), teacher=teacher.record(),
        objective=build.objective_record(config, objective),
    )  # fmt: skip
    answers, why_not = ask_for_training(
        teacher, objective, task, examples.get("train"), cache=cache, directory=build.cache_dir(config) / "outputs",
        epochs=math.ceil(settings.total_steps(len(loaders["train"])) / len(loaders["train"])),
    )  # fmt: skip
    if answers is not None and objective.reads_teacher_logits and answers.kept.mass() < ENOUGH:
        notice(
            f"the {cache.top_k} largest logits hold {answers.kept.mass():.1%} of the teacher's probability, and what "
            "it says beyond them is lost on the student: raise teacher.cache.top_k, or set teacher.cache.enabled=false"
        )
    module = build.module(student, objective, task, settings, loaders, teacher, answers)
    _preflight(
        module, loaders, settings,
        ("teacher", f"{teacher.resolved}, {task.metric} {teacher.metrics[task.metric]:.2f} on dev"),
        ("student", preflight.describe_student(teacher.model, student)),
        ("vocabulary", checks.check_vocabulary(teacher.model, student, teacher.tokenizer)),
        ("answers", preflight.describe_answers(module, why_not)),
    )  # fmt: skip
    if module.teacher is None:
        teacher.release()  # What it says is known, or nobody asks; it is loaded again to be compared with.
    fit = _fit(config, run, module, loaders, settings, "student", teacher=teacher.fingerprint)
    metrics = score(module.student, task, loaders["dev"], device=settings.device(), teacher=teacher.answering())
    run.update(
        training=build.training_record(fit, module, answers),
        student=build.student_record(config, student, metrics),
    )
    _close(run, module.student, teacher.tokenizer, run.directory / "student")


def _train(config: DictConfig, run: Run, *, from_scratch: bool) -> None:
    """Masked language modelling with the `trainer`, and nobody to learn from."""
    settings, task = _settings(config)
    source = build.source(config.teacher)
    if source.weights.is_new != from_scratch:
        raise UserError(
            f"job=pretrain begins with random weights, and teacher {config.teacher.name} is trained already: "
            "job=finetune goes on with it"
            if from_scratch
            else f"job=finetune goes on with a trained model, and teacher {config.teacher.name} begins with random "
            "weights: job=pretrain trains it"
        )
    start = _load(config, source, task)
    model: PreTrainedModel = start.model
    if not from_scratch and not start.fits:
        notice(f"teacher {source.weights.resolved()} gets a language-model head, which begins at random")
    terms: dict[str, Term] = {"mlm": MaskedLanguageModelling()}
    if task.pair:
        terms[task.pair] = SegmentOrder()
    objective = Objective(name="masked_language_modelling", terms=terms)
    examples, loaders = _data(config, task, start.tokenizer, settings)
    run.update(
        task=_task_record(task, examples),
        objective={"name": objective.name, "terms": {name: {"weight": 1.0} for name in terms}},
    )
    before = score(model, task, loaders["dev"], device=settings.device()) if start.fits else None
    module = build.module(model, objective, task, settings, loaders, teacher=None, answers=None)
    _preflight(
        module, loaders, settings,
        ("model", f"{source.weights.resolved()}, {checks.count_parameters(model) / 1e6:.1f} M parameters"),
        ("vocabulary", f"{len(start.tokenizer):,} tokens"),
        *([("before", f"{task.metric} {before[task.metric]:.2f} on dev")] if before else []),
    )  # fmt: skip
    fit = _fit(config, run, module, loaders, settings, "teacher", start=source.weights.fingerprint())
    run.update(
        training=build.training_record(fit, module, answers=None),
        teacher={
            "requested": source.weights.name, "resolved": source.weights.resolved(), "substituted": False,
            "origin": "from random weights" if from_scratch else "adapted", "precision": source.weights.precision,
            "metrics": score(module.student, task, loaders["dev"], device=settings.device()), "before": before,
            "parameters": checks.count_parameters(model),
        },
    )  # fmt: skip
    _close(run, module.student, start.tokenizer, run.directory / "teacher" / "model")


def _settings(config: DictConfig) -> tuple[Settings, LanguageModelTask]:
    """The trainer and the task, and what can be wrong with them before anything is read."""
    settings: Settings = build.instantiate(config.trainer)
    task: LanguageModelTask = build.instantiate(config.task)
    if config.baseline:
        raise UserError(f"baseline=true is for other tasks than task={task.name}: +ablation=mlm_alone has no teacher")
    check_processes(settings, "trainer")
    check_budget(settings.batch_tokens, task, "trainer")
    return settings, task


def _teacher(config: DictConfig, task: LanguageModelTask, settings: Settings) -> Teacher:
    """A language model that teaches as it is.

    Raises:
        UserError: for one that is none.
    """
    source = build.source(config.teacher)
    if source.weights.is_new:
        raise UserError(
            f"teacher {config.teacher.name} begins with random weights: train it with python -m distill job=pretrain "
            f"task={task.name} +teacher={config.teacher.name} ..., and take what that leaves as teacher.path"
        )
    start = _load(config, source, task)
    if not start.fits:
        raise UserError(
            f"teacher {source.weights.resolved()} is no language model: {start.reason}; give it a head with "
            f"python -m distill job=finetune task={task.name} +teacher={config.teacher.name} ..., and take what that "
            "leaves as teacher.path"
        )
    return Teacher(
        requested=source.weights.name, resolved=source.weights.resolved(), substituted=False, origin="as it is",
        tokenizer=start.tokenizer, load=lambda: _load(config, source, task).model, precision=source.weights.precision,
        weights=source.weights.fingerprint(), device=settings.device(), seconds=0.0, model=start.model,
    )  # fmt: skip


def _check_student(
    config: DictConfig, teacher: Teacher, student: PreTrainedModel, objective: Objective, task: LanguageModelTask
) -> None:
    """UserError for a student that cannot follow this teacher over its vocabulary."""
    checks.check_vocabulary(teacher.model, student, teacher.tokenizer)
    checks.check_length(student, teacher.tokenizer, task, who="student")
    checks.check_outputs(objective, teacher=teacher.model, student=student)
    wanted, found = ([1, 4, teacher.model.config.vocab_size], list(checks.try_out(student).logits.shape))
    if found != wanted:
        raise UserError(
            f"student {config.student.name} ({type(student).__name__}) answers four tokens with logits of shape "
            f"{found}, expected {wanted}, one for each of the teacher's vocabulary: take +student=distilbert"
        )


def _load(config: DictConfig, source: Source, task: LanguageModelTask) -> Any:
    """The model with a head over its vocabulary, and one for the segments of a pair."""
    quiet()
    cache_dir = build.cache_dir(config)
    make_directory(cache_dir)
    source.weights.locate()
    torch.manual_seed(config.seed)  # Of a head that it lacks.
    start = source.weights.load(task.auto_class, None, _texts(task, cache_dir))
    adopt_special_tokens(start.model, start.tokenizer)
    checks.check_length(start.model, start.tokenizer, task, who="teacher")
    if task.pair and not hasattr(checks.try_out(start.model), "seq_relationship_logits"):
        raise UserError(
            f"task.pair={task.pair} wants a model with a head for two segments, as a BERT has, and a "
            f"{type(start.model).__name__} has none: set task.pair=null"
        )
    return start


def _texts(task: LanguageModelTask, cache_dir: Path) -> Iterator[str]:
    """The beginning of what is trained on, for a vocabulary."""
    size, corpus = 0, sequences.open_corpus(task, cache_dir)
    held_out = sequences.held_out_of(corpus, task)
    for document in corpus.read_documents(select=lambda key: not held_out(key)):
        yield from document.text.splitlines()
        size += len(document.text)
        if size > VOCABULARY_TEXT:
            return


def _data(
    config: DictConfig, task: LanguageModelTask, tokenizer: PreTrainedTokenizerBase, settings: Settings
) -> tuple[dict[str, sequences.Sequences], dict[str, DataLoader[Any]]]:
    """The sequences, of which a stream keeps dev alone, and their loaders."""
    examples, corpus = sequences.read(task, tokenizer, cache_dir=build.cache_dir(config))
    if corpus is None:
        return examples, batching.loaders(examples, **settings.batches())  # type: ignore[arg-type]
    if settings.max_steps is None:
        raise UserError(f"{corpus.describe()} is streamed, and nobody knows how long it is: give trainer.max_steps")
    if settings.checkpoint_steps is None and settings.evaluations == 1:
        notice("a stream is scored and kept at its very end only: trainer.checkpoint_steps=n keeps it every n steps")
    train = sequences.stream_loader(corpus, task, tokenizer, steps=settings.max_steps, **settings.batches())
    return examples, {"train": train, **batching.evaluation_loaders(examples)}  # type: ignore[arg-type]


def _preflight(module: DistillationModule, loaders: dict[str, Any], settings: Settings, *rows: tuple[str, str]) -> None:
    train, dev = loaders["train"], loaders["dev"].dataset
    size = "streamed" if train.batch_sampler is None else f"{len(train.dataset):,} train"
    seconds = fitting.estimate_seconds(module, train, loaders["dev"], settings)
    preflight.show(
        [
            *rows,
            ("sequences", f"{size}, {len(dev):,} dev, of at most {module.task.max_length} tokens"),
            ("batches", preflight.describe_batches(train, settings)),
            ("objective", f"{module.objective.name}: {', '.join(module.objective.names)}"),
            ("training", preflight.describe_training(module, settings, seconds)),
        ]
    )  # fmt: skip


def _fit(
    config: DictConfig,
    run: Run,
    module: DistillationModule,
    loaders: dict[str, Any],
    settings: Settings,
    title: str,
    **identity: str,
) -> fitting.Fit:
    return fitting.fit(
        module, loaders["train"], loaders["dev"], settings=settings, checkpoints=run.directory / "checkpoints",
        logger=build.logger(config, run.directory), title=title,
        identity={"data": run.record["task"]["sha256"], **identity}, resume=bool(config.resume),
    )  # fmt: skip


@torch.inference_mode()
def score(
    model: PreTrainedModel,
    task: LanguageModelTask,
    dev: DataLoader[Any],
    *,
    device: torch.device,
    teacher: PreTrainedModel | None = None,
) -> dict[str, float]:
    """The task's metrics on dev, and with a teacher how often the two agree at the masked tokens.

    `agreement_top1` is the share of them at which the student's first choice is the teacher's too, `agreement_top5` at
    which it is among the teacher's first five. The model moves to the device; its mode is kept.
    """
    was_training = model.training
    model.eval().to(device)
    scores, agreed, in_order = [], [], []
    for batch in itertools.chain.from_iterable(dev):
        batch = moved(batch, device)
        said = run_encoder(model, batch)
        output = run_head(model, said, said.last_hidden_state[batch["items"]])
        logits = output.logits[0]
        scores.append(token_scores(logits, batch["labels"][batch["items"]]).cpu())
        if "pair_labels" in batch:
            in_order.append((output.seq_relationship_logits.argmax(dim=-1) == batch["pair_labels"]).cpu())
        if teacher is not None:
            first = logits.argmax(dim=-1, keepdim=True)
            best = logits_at_items(teacher, moved(batch, teacher.device)).topk(5, dim=-1).indices.to(device)
            agreed.append(torch.stack([best[:, 0] == first[:, 0], (best == first).any(dim=-1)], dim=-1).cpu())
    model.train(was_training)
    metrics = task.metrics(torch.cat(scores).numpy(), None)
    if in_order:
        metrics[f"{task.pair}_accuracy"] = float(torch.cat(in_order).double().mean())
    if agreed:
        top1, top5 = torch.cat(agreed).double().mean(dim=0).tolist()
        metrics |= {"agreement_top1": top1, "agreement_top5": top5}
    return metrics


def _task_record(task: LanguageModelTask, examples: dict[str, sequences.Sequences]) -> dict[str, Any]:
    return {
        "name": task.name, "kind": task.kind, "answer": task.answer, "metric": task.metric,
        "packing": task.packing, "masking": task.masking, "max_length": task.max_length,
        "examples": {name: len(split) for name, split in examples.items()},
        "sha256": "-".join(split.digest for split in examples.values()),
    }  # fmt: skip


def _close(run: Run, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, directory: Path) -> None:
    build.save(model.eval().cpu(), tokenizer, directory)
    write_text(run.directory / "report.md", report.language_model(run.record))
    console.print()
    console.print(report.language_model_table(run.record))
    say(f"Report  {run.directory / 'report.md'}")
    say(f"Model   {directory}")
