"""The chain of one run, from the plan to a measured bundle, without Hydra.

A row of a CSV file passes through the modules in this order:

1. `plan` holds the options, and refuses those that contradict each other before the file is opened.
2. `prepare` has the task read the row, prepares the teacher with it, and has `encoding` tokenize it, beside texts that
   only the teacher labels. `depth_search` chooses the student's depth within a budget, and `baseline` whether the same
   student is trained without the teacher too.
3. `train` shows the row to the student, in a batch with the teacher's outputs for it, until the best weights are saved.
   A row of dev or test is scored instead.
4. `deliver` exports the student, and each file must predict the rows of dev and test as the student does. A user's text
   then gets its prediction from the bundle, through `distill.edge`.

`distillation` is this whole program in one function. A run has a `TaskRun` for each task, which keeps its section of
run.json; `seeds` repeats the steps 3 and 4 for further students, and `summary` prints what is planned.
"""
