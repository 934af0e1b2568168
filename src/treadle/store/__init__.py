"""SQL only: the database port, its SQLite engine, and the statements behind the store ports.

Start reading at `connect.py` (from a URL to a database), then `threads.py`: everything stored is a span of a thread.
"""
