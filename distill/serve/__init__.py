"""A server of bundles over HTTP: `python -m distill.serve BUNDLE`."""
