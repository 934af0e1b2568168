"""Adapters for the tools that the server runs itself."""
