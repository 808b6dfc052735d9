"""`gpuctl bench --url`: load on a server that already runs, without an inventory."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bench.client import Address, get
from bench.load import Loader, Outcome, Plan
from bench.load_text import lines
from bench.prompts import DEFAULT, read
from gpuctl.answer import print_json
from inventory.errors import CannotLook, Exit, Failed, Refused, UsageError

if TYPE_CHECKING:
    from gpuctl.story import Story


def measure(
    *,
    url: str,
    model: str | None,
    requests: int | None,
    concurrency: tuple[int, ...],
    max_tokens: tuple[int, ...],
    prompt: str | None,
    prompts: Path | None,
    key: str | None,
    warmup: int | None,
    warm_cache: bool,
    timeout: float | None,
    think: str | None,
    out: Path | None,
    as_json: bool,
    quiet: bool,
) -> int:
    """One load for each length and concurrency; -> exit code: the worst of them."""
    from gpuctl.story import Story

    if prompt is not None and prompts is not None:
        raise UsageError("--prompt and --prompts exclude each other", hint="put the text into the file")
    asked = read(prompts) if prompts is not None else (prompt or DEFAULT,)
    try:
        address = Address.of(url)
    except ValueError as error:
        raise UsageError(str(error), hint="give an address like http://127.0.0.1:8000") from error
    headers = _headers(key)
    model = model or _only_model(address, headers)
    story, outcomes = Story(quiet=quiet), list[Outcome]()
    for length in max_tokens or (256,):
        for number in concurrency or (1,):
            plan = Plan(
                address=address,
                model=model,
                prompts=asked,
                max_tokens=length,
                requests=requests or max(10, 2 * number),
                concurrency=number,
                warmups=5 if warmup is None else warmup,
                think=None if think is None else think == "on",
                nonce="" if warm_cache else secrets.token_hex(4),
                timeout_s=timeout or 60.0 + 2.0 * length,
                headers=headers,
            )
            outcomes.append(_load(plan, story, out, say=not as_json))
            if outcomes[-1].interrupted:
                break
    if as_json:
        print_json({"loads": [outcome.to_json() for outcome in outcomes]})
    if any(outcome.interrupted for outcome in outcomes):
        return int(Exit.INTERRUPTED)
    codes = [_exit(outcome) for outcome in outcomes]
    return int(Exit.FAILED if Exit.FAILED in codes else max(codes))


def _load(plan: Plan, story: Story, out: Path | None, *, say: bool) -> Outcome:
    outcome = Loader(plan, story.emit).run()
    story.clear()
    if say:
        for line in lines(outcome):
            click.echo(line)
        click.echo()
    for warning in outcome.warnings:
        click.echo(f"warning: {warning}", err=True)
    for error in dict.fromkeys(one.sample.error for one in outcome.requests if one.sample.error):
        click.echo(f"failed: {error}", err=True)
    if out is not None:
        click.echo(f"kept in {_keep(outcome, out)}", err=True)
    return outcome


def _exit(outcome: Outcome) -> Exit:
    if not outcome.good:
        return Exit.FAILED
    return Exit.WARNING if outcome.warnings or len(outcome.good) < len(outcome.requests) else Exit.GOOD


def _headers(key: str | None) -> Mapping[str, str]:
    if key is None:
        return {}
    from inventory.secret import is_reference, resolve

    if not is_reference(key):
        raise UsageError(
            "--key takes the place of the key, never the key itself",
            hint="other users see a command line; use --key env:NAME or --key file:PATH",
        )
    return {"Authorization": f"Bearer {resolve(key, base=Path.cwd()).reveal()}"}


def _only_model(address: Address, headers: Mapping[str, str]) -> str:
    answer = get(address, "/v1/models", headers=headers)
    known = answer.json()
    data = known.get("data") if isinstance(known, Mapping) else None
    names = [str(one["id"]) for one in data or () if isinstance(one, Mapping) and "id" in one]
    if len(names) == 1:
        return names[0]
    if names:
        raise UsageError(f"which model? {address.netloc} serves {', '.join(names)}", hint="name one with --model")
    if answer.status == 0:
        raise CannotLook(f"no server to measure at {address.netloc}: {answer.text}", hint="is it running?")
    if answer.status in (401, 403):
        raise Refused(f"{address.netloc} refuses us: HTTP {answer.status}", hint="give its key: --key env:NAME")
    raise Failed(f"{address.netloc} lists no model (HTTP {answer.status})", hint="name it with --model")


def _keep(outcome: Outcome, out: Path) -> Path:
    """A folder with `result.json` and `requests.jsonl`, complete or not there at all."""
    name = (
        f"{datetime.now(UTC):%Y%m%dT%H%M%S.%f}"[:-3]
        + f"Z-load-{outcome.plan.concurrency}x{outcome.plan.max_tokens}"
    )
    staging = out / f".{name}.{os.getpid()}.tmp"
    try:
        staging.mkdir(parents=True)
        result: dict[str, Any] = {"schema_version": 1, "result": outcome.to_json()}
        (staging / "result.json").write_text(json.dumps(result, indent=2) + "\n")
        with (staging / "requests.jsonl").open("w") as file:
            file.writelines(json.dumps(one.to_json()) + "\n" for one in outcome.requests)
        return staging.rename(out / name)
    except OSError as error:
        import shutil

        shutil.rmtree(staging, ignore_errors=True)
        raise Failed(
            f"the result cannot be kept in {out}: {error.strerror}", hint="the numbers are above"
        ) from error
