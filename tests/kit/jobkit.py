"""An engine for the job of a benchmark: what it was asked, and arguments that lead to it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

BOOT = "11111111-aaaa-bbbb-cccc-000000000001"
OTHER = "22222222-aaaa-bbbb-cccc-000000000002"


def ignore(event: Mapping[str, Any]) -> None:
    del event


class Engine:
    """Scripts an OpenAI-compatible server that looks like llama.cpp with a given method."""

    def __init__(self, wire: Any, *, spec: str = "none", drafts: Sequence[tuple[int, int]] = ((0, 0),)) -> None:
        self.wire = wire
        self.spec = spec
        self.drafts = list(drafts)
        self.refuse: Callable[[Any], bytes | None] = lambda body: None
        self.chats = 0

    def __call__(self, method: str, path: str, body: Any) -> Any:
        wire = self.wire
        if path == "/v1/models":
            return [(0.0, wire.answer("200 OK", b'{"data": [{"id": "tiny"}]}'))]
        if path == "/slots":
            slot = {"n_ctx": 512, "speculative": self.spec != "none", "params": {"speculative.types": self.spec}}
            return [(0.0, wire.answer("200 OK", json.dumps([slot]).encode()))]
        if path == "/metrics":
            steps, accepted = self.drafts.pop(0) if len(self.drafts) > 1 else self.drafts[0]
            text = (
                f"llamacpp:spec_decode_num_drafts_total {steps}\n"
                f"llamacpp:spec_decode_num_draft_tokens_total {3 * steps}\n"
                f"llamacpp:spec_decode_num_accepted_tokens_total {accepted}\n"
            )
            return [(0.0, wire.answer("200 OK", text.encode(), "text/plain"))]
        if path != "/v1/chat/completions":
            return [(0.0, wire.answer("404 Not Found", b"{}"))]
        self.chats += 1
        if refused := self.refuse(body):
            return [(0.0, refused)]
        n = body["max_tokens"]
        steps_ = [(0.0, wire.HEAD), *((0.002 * k, wire.token(f"w{k} ")) for k in range(n))]
        return [*steps_, (0.002 * n, wire.finish("length", n))]


def arguments(url: str, folder: Path, **more: Any) -> dict[str, Any]:
    return {
        "url": url, "kind": "llama.cpp", "model": "/dev/shm/m/Tiny-1B-Instruct.Q4_1.gguf", "method": "auto",
        "tasks": ["arith", "json"], "max_tokens": [8, 16], "repeats": 3, "results": str(folder), "lab": True,
        "boot_id": BOOT, "nonce": "n", **more,
    }  # fmt: skip
