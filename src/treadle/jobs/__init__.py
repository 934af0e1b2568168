"""Doing jobs: an edge, which starts use cases as HTTP does."""
