"""Latency of every exported file."""
