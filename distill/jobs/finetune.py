"""The job `finetune`, which fine-tunes a teacher and saves it in the run's directory."""

from omegaconf import DictConfig

from distill.chain import seeds
from distill.chain.lengths import break_down_by_length
from distill.chain.task_run import save_model, task_record
from distill.console import print_line, silence_libraries
from distill.errors import UserError
from distill.jobs import build, pretrain
from distill.records.predictions import write_predictions
from distill.records.record import Run
from distill.records.run_report import write_report
from distill.storage.cache import open_cache
from distill.tasks.multi import Tasks
from distill.teaching import preparation as teaching
from distill.teaching.source import check_source, locate
from distill.training.settings import TrainerSettings


def run_finetune(config: DictConfig, run: Run) -> None:
    """Fine-tunes the teacher if its head does not fit. On raw text, trains a pre-trained model further."""
    tasks = Tasks.of(build.instantiate(config.task))
    if len(tasks) > 1:
        raise UserError(
            f"job=finetune trains a teacher for one task, and task={tasks.name} has {', '.join(tasks)}: run it for "
            "each, or leave it to job=distill"
        )
    [task] = tasks.values()
    if task.info.raw_text:
        pretrain.train_language_model(config, run, from_scratch=False)
        return
    silence_libraries()
    requested, cache_dir = build.single_source(config), build.cache_dir(config)
    check_source(requested, task)
    settings: TrainerSettings = requested.finetune or build.instantiate(config.trainer)
    open_cache(cache_dir)
    with run.timed("data"):
        data = task.read(cache_dir)
    source, substituted = locate(requested, task)
    preparation = teaching.Preparation(
        task=task, splits=data, cache_dir=cache_dir, run_directory=run.directory, device=settings.device(),
        resume=bool(config.resume), dry_run=config.dry_run,
    )  # fmt: skip
    with run.timed("teacher"):
        teacher = teaching.prepare(source, preparation, requested=requested.weights.name, substituted=substituted)
    if config.dry_run:
        print_line(f"Teacher {teacher.resolved} ({teacher.origin})")
        return
    with run.timed("data"):
        examples = task.encode(data, teacher.tokenizer, cache_dir)
    with run.timed("teacher"):
        teaching.score(teacher, task, data.scoring, examples, source=source, directory=cache_dir / "outputs")
    by_length = break_down_by_length({"teacher": teacher.scores}, data, teacher.tokenizer)
    parts = seeds.measure(data.scoring, {"teacher": teacher.scores})
    run.update(task=task_record(task, data, examples), teacher=teacher.record(), lengths=by_length, parts=parts)
    write_predictions(
        run.directory, {"teacher": teacher.scores}, splits=data, settings=build.instantiate(config.record)
    )
    metrics = ", ".join(f"{name} {value:.4f}" for name, value in teacher.metrics.items())
    print_line(f"Teacher {teacher.resolved} on {task.info.name} ({teacher.origin}): dev {metrics}")
    directory = run.directory / "teacher" / "model"
    save_model(teacher.model, teacher.tokenizer, directory)
    print_line(f"Report in {write_report(run.directory, {**run.record, 'status': 'finished'})}")
    print_line(f"Saved in {directory}")
