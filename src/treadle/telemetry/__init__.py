"""The Observer port over OpenTelemetry: traces and metrics after the GenAI conventions, and their way to a collector.

Nothing here is imported unless telemetry is switched on: the libraries under it cost start-up time and memory.
"""
