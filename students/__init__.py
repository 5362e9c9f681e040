"""Student architectures, one per file, each built by `from_teacher(teacher, **options)`.

Python finds them as `distill.builtin.students`. As `students`, where a checkout is installed with `pip install -e`, the
folder leaves room for a folder `students` of the working directory.
"""

from pkgutil import extend_path

__path__ = extend_path(__path__, __name__)
