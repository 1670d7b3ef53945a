"""Serves the console: its page at `/` and its files. A Content-Security-Policy lets the page call only this server."""

from __future__ import annotations

import os
from pathlib import Path

from fastapi import FastAPI, Request
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

BUNDLE = Path(__file__).parent / "bundle"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",  # file names stay the same across versions, so browsers must ask for changes
}


class ConsoleBundle(StaticFiles):
    """Static files of the console, served with security headers."""

    def file_response(
        self, full_path: str | os.PathLike[str], stat_result: os.stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        response = super().file_response(full_path, stat_result, scope, status_code)
        response.headers.update(HEADERS)
        return response


def mount_console(app: FastAPI, folder: Path = BUNDLE) -> None:
    """Add routes to `app` that serve the console's page at `/`, and the files in `folder` under `/console`."""
    files = ConsoleBundle(directory=folder, check_dir=False)
    app.mount("/console", files)

    @app.get("/", include_in_schema=False)
    async def page(request: Request) -> Response:
        return await files.get_response("index.html", request.scope)
