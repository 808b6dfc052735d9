"""The types of an inventory: hosts, containers, weights, engines, expectations. Frozen and free of I/O.

`inventory.loader` builds them from YAML with pydantic; nothing here imports it, so the same types work
inside a container where only the standard library and our zip application exist.
Attribute docstrings become the descriptions in the published JSON Schema.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final

from annotated_types import Ge, Gt, Le, MinLen

_STRICT: Final[dict[str, Any]] = {"extra": "forbid", "use_attribute_docstrings": True}

Port = Annotated[int, Ge(1), Le(65535)]


class EngineKind(StrEnum):
    """Inference servers gpuctl can drive."""

    LLAMA_CPP = "llama.cpp"
    VLLM = "vllm"
    SGLANG = "sglang"
    LUCEBOX = "lucebox"
    CUSTOM = "custom"


class Method(StrEnum):
    """How the engine decodes."""

    AUTO = "auto"
    MTP = "mtp"
    DFLASH = "dflash"
    DDTREE = "ddtree"
    EAGLE3 = "eagle3"
    NGRAM = "ngram"
    DRAFT = "draft"


class Task(StrEnum):
    """The fixed, versioned prompts of a benchmark."""

    FIB = "fib"
    QSORT = "qsort"
    ARITH = "arith"
    JSON = "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """How to reach the Proxmox VE API. Either a password user or a token; TLS is always verified."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    url: Annotated[str, MinLen(1)]
    """https address of the node, for example `https://pve1:8006`."""
    user: str = ""
    """User with realm, for example `root@pam` or `gpuctl@pve`."""
    password: str = ""
    """Password by reference: `env:NAME`, `file:PATH` or `command:ARGV`."""
    token_name: str = ""
    """Name of an API token of `user` (the part after `!`)."""
    token_value: str = ""
    """Secret of the token by reference: `env:NAME`, `file:PATH` or `command:ARGV`."""
    ca_file: str = ""
    """PEM file with the CA that signed the node's certificate."""
    fingerprint: str = ""
    """SHA-256 fingerprint of the node's certificate, as Proxmox shows it (`AA:BB:...`)."""
    timeout_s: Annotated[float, Gt(0)] = 35.0
    """Limit of one request; the proxy in Proxmox itself gives up after 30 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ssh:
    """How to reach a machine over SSH. The host key must be known beforehand."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    address: Annotated[str, MinLen(1)]
    """Host name, address, or an alias of `~/.ssh/config`."""
    user: str = ""
    """Login name; default from `~/.ssh/config`, else root."""
    port: Port | None = None
    """TCP port; default from `~/.ssh/config`, else 22."""
    key: str = ""
    """Private key file; without it the agent and the default keys are tried."""
    known_hosts: str = ""
    """known_hosts file; default `~/.ssh/known_hosts`."""
    jump: str = ""
    """Jump host as `[user@]host[:port]`."""
    connect_timeout_s: Annotated[float, Gt(0)] = 10.0
    """Limit for the TCP connection, the banner and the login, each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A Proxmox VE node."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    api: Api
    """The Proxmox API of the node (or of any node of its cluster)."""
    ssh: Ssh
    """Root login on the node that owns the containers."""
    node: str = ""
    """Node name in the cluster; default: asked from the API."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpus:
    """The GPUs a container is expected to have."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    count: Annotated[int, Ge(0)] = 1
    """How many."""
    name: str = ""
    """Exact NVML product name; empty: not checked."""
    uuids: tuple[str, ...] = ()
    """Their UUIDs; empty: not checked."""
    power_limit_w: Annotated[float, Gt(0)] | None = None
    """Expected power limit in watts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """The device nodes a container needs beyond one `/dev/nvidiaN` per GPU."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    wanted: tuple[str, ...] = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")
    """Names below /dev."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """One model repository and where its files belong."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    repo: Annotated[str, MinLen(1)]
    """Hugging Face repository, `owner/name`."""
    revision: str = "main"
    """Branch, tag or commit; resolved once to a commit."""
    include: tuple[str, ...] = ()
    """Glob patterns of files to take; empty: all."""
    exclude: tuple[str, ...] = ()
    """Glob patterns of files to leave out."""
    to: Annotated[str, MinLen(1)]
    """Target folder in the container, normally below /dev/shm."""
    cache: str = ""
    """Folder on the container's disk that survives a reboot; empty: no cache."""
    endpoint: str = ""
    """Hub address when it is not huggingface.co (a mirror)."""
    token: str = ""
    """Access token by reference: `env:NAME`, `file:PATH` or `command:ARGV`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """The inference server of a container."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    kind: EngineKind
    """Which server."""
    model: Annotated[str, MinLen(1)]
    """What it loads: a path in the container, normally below a weights target."""
    draft: str = ""
    """Draft model for speculative methods: a path in the container."""
    venv: str = ""
    """Virtual environment in the container that has the engine installed."""
    command: tuple[str, ...] = ()
    """Program and first arguments instead of the ones derived from `venv` (needed for `custom`)."""
    served_name: str = ""
    """Name under which the model is served; default: the engine's own."""
    port: Port = 8000
    """TCP port on the container's loopback."""
    env: dict[str, str] = field(default_factory=dict)
    """Environment of the engine; values may be `env:`, `file:` or `command:` references."""
    args: tuple[str, ...] = ()
    """Extra arguments, after ours: they win."""
    tp: Annotated[int, Ge(1)] = 1
    """Tensor-parallel size that `recover` starts with."""
    ready_timeout_s: Annotated[float, Gt(0)] = 900.0
    """Ceiling for the start."""
    stall_timeout_s: Annotated[float, Gt(0)] = 180.0
    """Give up when the log has not grown for so long and the engine is not ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchPlan:
    """What to measure."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    methods: tuple[Method, ...] = (Method.AUTO,)
    """Decoding methods."""
    tp: tuple[Annotated[int, Ge(1)], ...] = (1,)
    """Tensor-parallel sizes."""
    tasks: tuple[Task, ...] = (Task.FIB, Task.QSORT, Task.ARITH, Task.JSON)
    """Prompts."""
    max_tokens: tuple[Annotated[int, Ge(1)], ...] = (256,)
    """Output lengths in tokens."""
    concurrency: tuple[Annotated[int, Ge(1)], ...] = (1,)
    """Requests in flight."""
    repeats: Annotated[int, Ge(1)] = 3
    """Measured runs per task and length, after the warm-up."""
    think: bool | None = None
    """Switch reasoning on or off in the chat template; default: the model's own."""
    results: str = "/var/lib/gpuctl/results"
    """Folder in the container where results are written, one folder a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """An LXC guest that serves models."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    host: Annotated[str, MinLen(1)]
    """Name of its host in this inventory."""
    vmid: Annotated[int, Ge(100), Le(999_999_999)]
    """Proxmox VMID."""
    ssh: Ssh | None = None
    """Its own sshd; without it everything goes through `pct exec` on the host."""
    gpus: Gpus = field(default_factory=Gpus)
    """Expected GPUs."""
    devices: Devices = field(default_factory=Devices)
    """Device nodes it needs."""
    weights: tuple[Weights, ...] = ()
    """Models to hold in memory."""
    engine: Engine | None = None
    """The inference server."""
    bench: BenchPlan = field(default_factory=BenchPlan)
    """What to measure after a reboot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Limits that decide between good and not."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    shm_free_min_mib: Annotated[int, Ge(0)] = 1024
    """Least free space in /dev/shm per serving process with TP > 1, in MiB (NCCL needs it)."""
    connect_wait_s: Annotated[float, Ge(0)] = 0.0
    """How long `recover` waits for a host that is still booting."""
    start_timeout_s: Annotated[float, Gt(0)] = 120.0
    """Limit for a container start or stop task."""
    baseline_drop_pct: Annotated[float, Gt(0)] = 10.0
    """A result so many percent below the stored baseline is a warning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """Everything that exists, as written by the user."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    hosts: dict[str, Host] = field(default_factory=dict)
    """Proxmox nodes by name."""
    containers: dict[str, Container] = field(default_factory=dict)
    """Containers by name, for example `ct200`."""
    thresholds: Thresholds = field(default_factory=Thresholds)
    """Limits."""
    lab: bool = False
    """True only for the embedded host: everything measured is marked as lab."""
