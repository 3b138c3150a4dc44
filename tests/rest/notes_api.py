"""An API that assigns the ids, and lists in three styles: by link, by page and by offset.

Titles are not unique. The API adds fields to a note (``created``, ``config.owner``) that are never
declared.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

from aiohttp import web

Note = dict[str, Any]


class NotesApi:
    """Notes in the order of their ids."""

    def __init__(self) -> None:
        self.notes: dict[int, Note] = {}
        self.before_page: Callable[[int], None] = lambda _number: None
        self.max_page_size = 1000
        self.next_page = ""
        self._ids = itertools.count(1)
        self._pages = 0

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[str]:
        app = web.Application()
        app.router.add_get("/notes", self._list)
        app.router.add_post("/notes", self._create)
        app.router.add_get("/notes/{id}", self._read)
        app.router.add_put("/notes/{id}", self._update)
        app.router.add_patch("/notes/{id}", self._patch)
        app.router.add_delete("/notes/{id}", self._delete)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()

    def add(self, note: Note) -> Note:
        number = next(self._ids)
        config = {"owner": "the API", **note.get("config", {})}
        self.notes[number] = {**note, "config": config, "id": number, "rev": 1, "created": "now"}
        return self.notes[number]

    async def _create(self, request: web.Request) -> web.Response:
        return web.json_response({"note": self.add(await request.json())}, status=201)

    async def _read(self, request: web.Request) -> web.Response:
        return web.json_response(self._find_note(request))

    async def _update(self, request: web.Request) -> web.Response:
        note, expected = self._find_note(request), await request.json()
        if expected.get("rev") != note["rev"]:
            raise web.HTTPConflict(text="another revision")
        note.update(expected, rev=note["rev"] + 1)
        return web.json_response(note)

    async def _patch(self, request: web.Request) -> web.Response:
        note = self._find_note(request)
        _merge_patch(note, await request.json())
        note["rev"] += 1
        return web.json_response(note)

    async def _delete(self, request: web.Request) -> web.Response:
        del self.notes[self._find_note(request)["id"]]
        return web.Response(status=204)

    def _find_note(self, request: web.Request) -> Note:
        text = request.match_info["id"]
        note = self.notes.get(int(text)) if text.isdigit() else None
        if note is None:
            raise web.HTTPNotFound(text="no such note")
        return note

    async def _list(self, request: web.Request) -> web.Response:
        self._pages += 1
        self.before_page(self._pages)
        query, notes = request.query, list(self.notes.values())
        size = min(int(query.get("size", "1000")), self.max_page_size)
        start = int(query.get("offset", "0")) + (int(query.get("page", "1")) - 1) * size
        page: list[Note] = notes[start : start + size]
        headers: dict[str, str] = {}
        if start + size < len(notes):
            link = self.next_page or f"/notes?size={size}&offset={start + size}"
            headers["Link"] = f'</notes>; rel="first", <{link}>; rel="next"'
        return web.json_response(page, headers=headers)


def _merge_patch(target: Note, patch: Note) -> None:
    """Merge a document as RFC 7396 defines it."""
    for name, value in patch.items():
        if value is None:
            target.pop(name, None)
        elif isinstance(value, dict) and isinstance(target.get(name), dict):
            _merge_patch(target[name], cast("Note", value))
        else:
            target[name] = value
