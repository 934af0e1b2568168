"""Adapters that read documents, cut them into chunks, and index and search the chunks."""
