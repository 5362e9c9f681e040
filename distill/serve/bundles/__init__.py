"""The server of bundles."""
