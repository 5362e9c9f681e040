"""Teacher models, loaded from a directory or the Hub or new, one source per file.

Python finds them as `distill.builtin.teachers`. As `teachers`, where a checkout is installed with `pip install -e`, the
folder leaves room for a folder `teachers` of the working directory.
"""

from pkgutil import extend_path

__path__ = extend_path(__path__, __name__)
