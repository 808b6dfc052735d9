"""A benchmark result with everything needed to doubt it, to and from JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Self

from bench.sample import Sample, Status
from bench.stats import Spread, spread

SCHEMA_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One measured request: which repeat it was, what came, and whether the answer was right."""

    repeat: int
    sample: Sample
    right: bool | None = None
    """None: not judged (failed, or no answer to judge)."""
    why: str = ""

    def to_json(self) -> dict[str, Any]:
        return {"repeat": self.repeat, "sample": self.sample.to_json(), "right": self.right, "why": self.why}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        sample = Sample.from_json(data["sample"])
        return cls(
            repeat=int(data["repeat"]), sample=sample, right=data.get("right"), why=str(data.get("why", ""))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """All runs of one task with one output length."""

    task: str
    prompt_version: int
    max_tokens: int
    warmup_s: float
    """Time of the warm-up request, not part of any rate."""
    runs: tuple[Run, ...]

    @property
    def good(self) -> tuple[Run, ...]:
        return tuple(run for run in self.runs if run.sample.status is Status.OK)

    @property
    def decode(self) -> Spread | None:
        """tok/s of the runs that have a rate."""
        return spread([run.sample.decode_tok_s for run in self.good if run.sample.decode_tok_s is not None])

    @property
    def ttft(self) -> Spread | None:
        """Seconds to the first token."""
        return spread([run.sample.ttft_s for run in self.good if run.sample.ttft_s is not None])

    def to_json(self) -> dict[str, Any]:
        decode, ttft = self.decode, self.ttft
        return {
            "task": self.task,
            "prompt_version": self.prompt_version,
            "max_tokens": self.max_tokens,
            "warmup_s": self.warmup_s,
            "decode_tok_s": decode.to_json() if decode else None,
            "ttft_s": ttft.to_json() if ttft else None,
            "runs": [run.to_json() for run in self.runs],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(
            task=str(data["task"]),
            prompt_version=int(data["prompt_version"]),
            max_tokens=int(data["max_tokens"]),
            warmup_s=float(data["warmup_s"]),
            runs=tuple(Run.from_json(run) for run in data["runs"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """Whether the method was really active, and how that is known."""

    proven: bool
    why: str
    before: Mapping[str, Any] = field(default_factory=dict)
    """`ReadBack` before the runs."""
    after: Mapping[str, Any] = field(default_factory=dict)
    drafts: Mapping[str, Any] = field(default_factory=dict)
    """Growth of the draft counters during the runs; empty: the engine counts none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One benchmark of one engine with one method. `lab` results are never GPU results."""

    run_id: str
    started_at: str
    """UTC, ISO 8601."""
    duration_s: float
    boot_id: str
    lab: bool
    kind: str
    engine_version: str
    url: str
    model: str
    """Path or repository as launched or as the engine names it."""
    served: str
    method: str
    tp: int
    think: bool | None
    temperature: float
    concurrency: int
    repeats: int
    nonce: str
    dropped: tuple[str, ...]
    """Request options that the server refused."""
    proof: Proof
    shapes: tuple[Shape, ...]
    cpu: Mapping[str, Any]
    """`model` and `cores`."""
    gpus: tuple[Mapping[str, Any], ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    context: Mapping[str, Any] = field(default_factory=dict)
    """What the caller knows besides (container, host, command line, weights revision)."""
    warnings: tuple[str, ...] = ()
    schema_version: int = SCHEMA_VERSION

    @property
    def runs(self) -> tuple[Run, ...]:
        return tuple(run for shape in self.shapes for run in shape.runs)

    @property
    def good(self) -> tuple[Run, ...]:
        return tuple(run for shape in self.shapes for run in shape.good)

    @property
    def per_repeat(self) -> tuple[float, ...]:
        """Decode tok/s of each repeat over all tasks and lengths: tokens by time, not a mean of rates."""
        return tuple(rate for number in range(self.repeats) if (rate := pooled(self.good, number)) is not None)

    @property
    def decode(self) -> Spread | None:
        """Median and spread over the repeats; None: no run has a rate."""
        return spread(self.per_repeat)

    @property
    def tokens(self) -> tuple[int, int]:
        """Counted tokens of all good runs, and how many of them were reasoning."""
        return sum(run.sample.n or 0 for run in self.good), sum(run.sample.reasoning or 0 for run in self.good)

    def to_json(self) -> dict[str, Any]:
        decode = self.decode
        data = {name: getattr(self, name) for name in self.__dataclass_fields__}
        data.update(
            proof=asdict(self.proof),
            shapes=[shape.to_json() for shape in self.shapes],
            gpus=[dict(gpu) for gpu in self.gpus],
            dropped=list(self.dropped),
            warnings=list(self.warnings),
            decode_tok_s=decode.to_json() if decode else None,
            decode_tok_s_per_repeat=list(self.per_repeat),
            failed=len(self.runs) - len(self.good),
        )
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild; raises KeyError, TypeError or ValueError when `data` is no result of this schema."""
        if data["schema_version"] != SCHEMA_VERSION:
            raise ValueError(f"result schema {data['schema_version']}, this gpuctl reads {SCHEMA_VERSION}")
        fields = {name: data[name] for name in cls.__dataclass_fields__ if name in data}
        fields["proof"] = Proof(**fields["proof"])
        fields["shapes"] = tuple(Shape.from_json(shape) for shape in fields["shapes"])
        for name in ("dropped", "gpus", "warnings"):
            fields[name] = tuple(fields.get(name, ()))
        return cls(**fields)


def pooled(runs: Sequence[Run], repeat: int) -> float | None:
    """Tokens after the first events by the time they took, over all runs of one repeat; None: none has a rate."""
    tokens = seconds = 0.0
    for run in runs:
        sample = run.sample
        if run.repeat != repeat or sample.decode_tok_s is None or sample.n is None or sample.n_first is None:
            continue
        tokens += sample.n - sample.n_first
        seconds += (sample.n - sample.n_first) / sample.decode_tok_s
    return tokens / seconds if seconds else None
