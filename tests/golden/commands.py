"""The twelve golden commands: each kind of result once, at toy size, without a choice that a clock or machine makes."""

from collections.abc import Iterable, Sequence

# Of every command. The precision, the target of int8 and the baseline would otherwise depend on the machine.
COMMON = (
    "trainer.max_steps=3 trainer.batch_size=8 trainer.precision=32-true trainer.accelerator=cpu "
    "teacher.accept_weak=true export.target=avx2 export.recipes=[dynamic] export.max_drop=1.0 "
    "export.min_agreement=0.0 export.max_probability_diff=1.0 export.max_ece_rise=1.0 "
    "benchmark.batches=[1] benchmark.lengths=[16] benchmark.seconds=0.001 baseline=false task.max_length=32"
)
ENCODER = "+teacher=pretrained teacher.path=toys/encoder"
FINETUNE = (
    "teacher.finetune.max_steps=2 teacher.finetune.batch_size=8 teacher.finetune.precision=32-true "
    "teacher.finetune.accelerator=cpu"
)
STUDENT = "+student=distilbert student.depth=1"
# An int8 file that fails its gate leaves the fp32 file recommended.
STRICT = "export.max_probability_diff=1e-9"

COMMANDS: dict[str, str] = {
    "classes": (
        f"-m +teacher=pretrained teacher.path=toys/classifier1 teacher.finetune=false {STUDENT} task=sst2 "
        "task.data_dir=toys/classes objective=hinton objective.terms.soft.temperature=1,2 seeds=2 augment=tang "
        "trainer.max_steps=2"
    ),
    "labels": (
        f"{ENCODER} {FINETUNE} {STUDENT} task=classification task.data_dir=toys/labels task.multi_label=true "
        "objective=hinton baseline=true benchmark.teacher=false"
    ),
    "pairs": (
        f"{ENCODER} {FINETUNE} +student=cnn student.hidden_dim=12 task=stsb task.data_dir=toys/pairs objective=hinton "
        "benchmark.teacher=false"
    ),
    "tags": (
        f"{ENCODER} {FINETUNE} {STUDENT} task=token_classification task.data_dir=toys/tags {STRICT} "
        "benchmark.teacher=false"
    ),
    "answers": (
        f"{ENCODER} {FINETUNE} {STUDENT} task=question_answering task.data_dir=toys/questions task.doc_stride=8"
    ),
    "choices": (
        f"{ENCODER} {FINETUNE} {STUDENT} task=multiple_choice task.data_dir=toys/choices objective=logit_mse "
        "benchmark.teacher=false"
    ),
    "vectors": (
        f"{ENCODER} {FINETUNE} {STUDENT} task=retrieval task.data_dir=toys/retrieval objective=embedding "
        "export.dimensions=[8,16]"
    ),
    "multi": (
        f"{ENCODER} {FINETUNE} {STUDENT} task=multi task.tasks=[sst2,stsb] task.tasks.sst2.data_dir=toys/classes "
        "task.tasks.stsb.data_dir=toys/pairs task.tasks.sst2.max_length=32 task.tasks.stsb.max_length=32"
    ),
    "ensemble": (
        "+teacher=ensemble teacher.paths=[toys/classifier1,toys/classifier2] teacher.weights=[2,1] "
        f"teacher.finetune=false {STUDENT} task=sst2 task.data_dir=toys/classes export.formats=[fp32]"
    ),
    "text": (
        f"{ENCODER} {STUDENT} task=mlm task.data_dir=toys/corpus objective=language_model "
        "task.dev_fraction=0.2 benchmark.teacher=false"
    ),
    "decoder": (
        "+teacher=pretrained teacher.path=toys/gpt2 +student=layers student.depth=1 task=clm "
        "task.data_dir=toys/corpus objective=causal_language_model task.dev_fraction=0.2 benchmark.teacher=false"
    ),
    "seq2seq": (
        f"+teacher=pretrained teacher.path=toys/bart {FINETUNE} "
        f"{STUDENT} student.decoder_depth=1 task=seq2seq "
        "task.data_dir=toys/targets objective=seq2seq task.max_target=16 task.scored_texts=6"
    ),
}


def list_options(name: str) -> list[str]:
    """Returns the options of a command with the common ones."""
    options = replace_options(COMMON, COMMANDS[name])
    if name == "multi":  # Each of its tasks has a length of its own.
        options.remove("task.max_length=32")
    return [*options, f"output_dir=runs/{name}", f"cache_dir=cache/{name}"]


def replace_options(common: str, own: str) -> list[str]:
    """Returns own options, and those common ones whose names these do not have."""
    return merge_options(common.split(), own.split())


def merge_options(common: Iterable[str], own: Sequence[str]) -> list[str]:
    """Returns the same of options that may have spaces."""
    given = {option.partition("=")[0] for option in own}
    return [*own, *(option for option in common if option.partition("=")[0] not in given)]
