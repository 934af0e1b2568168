"""The loop that makes a response: pure, handed ports, with no I/O of its own."""
