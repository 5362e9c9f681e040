"""The students: one architecture a file, each built by `from_teacher(teacher, **options)`.

Importing the package tells transformers' auto classes of the architectures that it does not know.
"""

import students.modeling_bilstm  # noqa: F401
