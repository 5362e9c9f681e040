"""Mistakes that the tests must find, and a command that plants each and runs the tests of its lines."""
