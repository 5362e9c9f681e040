"""The chain of one run, from the plan to a measured bundle, without Hydra.

A row of a CSV file passes through the modules in this order:

1. `plan` holds the options, and refuses those that contradict each other before the file is opened.
2. `distillation` has the task read the row, prepares the teacher with it, and has `encoding` tokenize it, beside texts
   that only the teacher labels. `student_setup` chooses the student's depth within a budget, `student_search` the
   layers that it starts from, and `encoding` whether the same student is trained without the teacher too.
3. `train` shows the row to the student, in a batch with the teacher's outputs for it, until the best weights are saved.
   A row of dev or test is scored instead.
4. `task_run` exports the student, and each file must predict the rows of dev and test as the student does. A user's
   text then gets its prediction from the bundle, through `distill.edge`.

`distillation.distill` is this whole program in one function. A run has a `TaskRun` for each task, which keeps its
section of run.json; `breakdowns` has the metrics in parts and over the seeds, for each of which the steps 3 and 4 are
repeated.
"""
