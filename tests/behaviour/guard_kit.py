"""A moderation service for tests, on a loopback port."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Self


class FakeModeration:
    """Flags texts that hold one of the words, and answers with `status`. After `good` answers it is down."""

    def __init__(self, *words: str, status: int = 200, good: int = 1000) -> None:
        self.words, self.status, self.good = words, status, good
        self.asked: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []

    @property
    def texts(self) -> list[str]:
        return [body["input"] for body in self.asked]

    def __enter__(self) -> Self:
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                fake.asked.append(body)
                fake.headers.append({name.lower(): value for name, value in self.headers.items()})
                flagged = any(word in body["input"] for word in fake.words)
                result = {
                    "flagged": flagged,
                    "categories": {"violence": flagged, "hate/threatening": False},
                    "category_scores": {"violence": 0.9 if flagged else 0.1, "hate/threatening": 0.0},
                }
                data = json.dumps({"id": "modr-1", "model": "judge-1", "results": [result]}).encode()
                self.send_response(fake.status if len(fake.asked) <= fake.good else 503)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                """Tests read their own output."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def line(self) -> str:
        """The setting that names it."""
        return (
            f'responses: {{moderation_endpoint: "http://127.0.0.1:{self._server.server_port}/v1/moderations", '
            'moderation_headers: {Authorization: "Bearer hush"}}'
        )
