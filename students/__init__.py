"""The students: one architecture a file, each built by `from_teacher(teacher, **options)`."""
