"""Student architectures, one per file, each built by `from_teacher(teacher, **options)`.

Importing the package registers the architectures that transformers does not include with its auto classes.
"""

import distill.models.modeling_bilstm  # noqa: F401
