"""One file per resource: path, method, types. No rules."""
