"""Services outside the process: one file for each, and the guarded way out to addresses that callers name."""
