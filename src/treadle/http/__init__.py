"""Transport only: HTTP and server-sent events around the use cases, with no rules of their own."""
