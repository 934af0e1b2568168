"""Use cases: a scope and a typed request in, a typed result or a stream of events out. No HTTP, no SQL."""
