"""Treadle: a self-hosted agent server that speaks the OpenAI Responses API."""

__version__ = "0.1.0"
