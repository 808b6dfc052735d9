"""Which stages a recovery has, in their order; each is built only when the one before it has settled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from inventory.model import Method
from provision.pipeline import Stage, StageName

if TYPE_CHECKING:
    from gpuctl.link import Link
    from inventory.launch import Launch
    from provision.devices.consent import Consent

ORDER = tuple(StageName)


def span(first: StageName | None, last: StageName | None) -> tuple[StageName, ...]:
    """The stages from `first` to `last`; `connect` is always among them."""
    begin = ORDER.index(first) if first else 0
    end = ORDER.index(last) if last else len(ORDER) - 1
    return tuple(dict.fromkeys((StageName.CONNECT, *ORDER[begin : end + 1])))


def launch_of(link: Link, method: Method = Method.AUTO, tp: int | None = None) -> Launch:
    """The engine's command line for this container, its environment references resolved."""
    from bench.engines.registry import launch
    from inventory.errors import ConfigError
    from inventory.secret import is_reference, resolve

    engine = link.container.engine
    if engine is None:
        raise ConfigError(
            f"{link.name} has no engine in the inventory",
            hint=f"add containers.{link.name}.engine with kind, model and port",
        )
    made = launch(engine, method, engine.tp if tp is None else tp)
    base = link.base
    return made.with_env(
        {
            name: resolve(value, base=base).reveal() if is_reference(value) else value
            for name, value in made.env.items()
        }
    )


def stages(
    link: Link, names: tuple[StageName, ...], *, wait_s: float, consent: Consent | None = None
) -> Iterator[Stage]:
    """The stages of `names`; one without anything to do in the inventory (no weights, no engine) is left out.

    `consent`: what may be done to a container that runs; default: a restart where one is needed.
    """
    for name in names:
        stage = _build(link, name, wait_s, consent)
        if stage is not None:
            yield stage


def _build(link: Link, name: StageName, wait_s: float, consent: Consent | None) -> Stage | None:
    container = link.container
    match name:
        case StageName.CONNECT:
            from gpuctl.stages.connect import ConnectStage

            return ConnectStage(link, wait_s=wait_s)
        case StageName.HOST | StageName.DEVICES | StageName.CONTAINER:
            from provision.devices import stages as devices
            from provision.devices.consent import Consent

            limit_s = link.thresholds.start_timeout_s
            built = devices.stages(link.scout, container, container.vmid, limit_s, consent or Consent())
            return built[name]
        case StageName.WEIGHTS:
            return weights_stage(link)
        case StageName.PREFLIGHT:
            from gpuctl.stages.preflight import PreflightStage, expectations

            return PreflightStage(link.ct, expectations(container, link.thresholds))
        case StageName.ENGINE:
            if container.engine is None:
                return None
            from provision.engine.stage import EngineStage

            return EngineStage(link.ct, launch_of(link))
        case StageName.BENCH:
            if container.engine is None:
                return None
            from gpuctl.stages.bench import BenchStage

            return BenchStage(link, launch_of(link))


def weights_stage(link: Link) -> Stage | None:
    """Stage `weights`, its tokens resolved."""
    from inventory.secret import resolve
    from provision.weights.stage import WeightsStage

    weights = link.container.weights
    if not weights:
        return None
    tokens = tuple(resolve(w.token, base=link.base).reveal() if w.token else "" for w in weights)
    return WeightsStage(link.ct, weights, tokens)
