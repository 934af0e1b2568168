"""Readers of document formats: bytes in, blocks out. All of it runs in a child process (`worker`)."""
