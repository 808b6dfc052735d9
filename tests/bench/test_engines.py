"""Command lines of every engine and method, refusals, and what running engines say about themselves."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.engines import llama_cpp, serve_llama, sglang, vllm
from bench.engines.prometheus import parse
from bench.engines.registry import ADAPTERS, launch
from inventory import reentry
from inventory.errors import ConfigError, Refused
from inventory.launch import HOME, Launch
from inventory.model import Engine, EngineKind, Method

STREAMS = Path(__file__).parent / "streams"
MODEL = "/dev/shm/models/m"
DRAFT = "/dev/shm/models/d"


def engine(kind: EngineKind, **more: Any) -> Engine:
    return Engine(kind=kind, model=MODEL, port=8123, **more)


def words(made: Launch) -> str:
    return " ".join(made.argv)


def test_every_kind_has_its_adapter() -> None:
    assert set(ADAPTERS) == set(EngineKind)
    assert all(adapter.KIND is kind for kind, adapter in ADAPTERS.items())


def test_llama_in_a_venv_runs_our_launcher_with_that_python() -> None:
    made = launch(engine(EngineKind.LLAMA_CPP, venv="/opt/engine", served_name="x"), Method.AUTO, 1)
    assert made.argv[0] == "/opt/engine/bin/python"
    at = made.argv.index(HOME)
    assert made.argv[at + 1] == "bench.engines.serve_llama"
    flags = serve_llama.parser().parse_args(list(made.argv[at + 2 :]))
    assert (flags.model, flags.port, flags.host, flags.alias) == (MODEL, 8123, "127.0.0.1", "x")
    assert (flags.parallel, flags.metrics, flags.slots, flags.props, flags.spec_type) == (
        1,
        True,
        True,
        True,
        "none",
    )
    assert flags.threads == serve_llama.threads_default() >= 1
    assert (made.url, made.ready_path, made.port, made.paths) == (
        "http://127.0.0.1:8123",
        "/health",
        8123,
        (MODEL,),
    )


def test_llama_without_venv_is_llama_server_and_a_command_replaces_it() -> None:
    assert launch(engine(EngineKind.LLAMA_CPP), Method.AUTO, 1).argv[0] == "llama-server"
    own = launch(engine(EngineKind.LLAMA_CPP, command=("/usr/bin/ls-cuda", "-ngl", "99")), Method.AUTO, 1)
    assert own.argv[:3] == ("/usr/bin/ls-cuda", "-ngl", "99")


@pytest.mark.parametrize(
    ("kind", "method", "expected"),
    [
        (EngineKind.LLAMA_CPP, Method.NGRAM, "--spec-type ngram-mod"),
        (EngineKind.LLAMA_CPP, Method.MTP, "--spec-type draft-mtp --draft-max 3"),
        (EngineKind.LLAMA_CPP, Method.DFLASH, f"--spec-type draft-dflash --model-draft {DRAFT}"),
        (EngineKind.LLAMA_CPP, Method.DRAFT, f"--spec-type draft-simple --model-draft {DRAFT} --draft-max 4"),
        (
            EngineKind.VLLM,
            Method.AUTO,
            f"vllm serve {MODEL} --host 127.0.0.1 --port 8123 --tensor-parallel-size 2",
        ),
        (EngineKind.VLLM, Method.MTP, '--speculative-config {"method": "mtp", "num_speculative_tokens": 3}'),
        (EngineKind.VLLM, Method.DFLASH, f'"model": "{DRAFT}"}} --attention-backend flash_attn'),
        (EngineKind.VLLM, Method.NGRAM, '"prompt_lookup_max": 4'),
        (EngineKind.SGLANG, Method.AUTO, f"-m sglang.launch_server --model-path {MODEL}"),
        (EngineKind.SGLANG, Method.AUTO, "--tp-size 2 --enable-metrics"),
        (EngineKind.SGLANG, Method.MTP, "--speculative-algorithm NEXTN --speculative-num-steps 3"),
        (EngineKind.SGLANG, Method.DFLASH, f"--speculative-draft-model-path {DRAFT}"),
        (EngineKind.SGLANG, Method.EAGLE3, "--speculative-algorithm EAGLE3"),
    ],
)
def test_command_line(kind: EngineKind, method: Method, expected: str) -> None:
    assert expected in words(launch(engine(kind, draft=DRAFT), method, 2))


def test_lucebox_does_trees_on_one_gpu() -> None:
    made = launch(engine(EngineKind.LUCEBOX, draft=DRAFT), Method.DDTREE, 1)
    assert words(made).startswith(f"dflash_server {MODEL} --draft {DRAFT}")
    assert "--ddtree --ddtree-budget 22" in words(made)
    assert made.paths == (MODEL, DRAFT)
    with pytest.raises(Refused, match="cannot do method auto"):
        launch(engine(EngineKind.LUCEBOX, draft=DRAFT), Method.AUTO, 1)
    with pytest.raises(Refused) as caught:
        launch(engine(EngineKind.LUCEBOX, draft=DRAFT), Method.DDTREE, 2)
    assert "one GPU" in caught.value.message + caught.value.hint


@pytest.mark.parametrize("kind", [EngineKind.LLAMA_CPP, EngineKind.VLLM, EngineKind.SGLANG])
def test_ddtree_is_refused_with_what_the_engine_can_and_who_else_could(kind: EngineKind) -> None:
    with pytest.raises(Refused) as caught:
        launch(engine(kind, draft=DRAFT), Method.DDTREE, 1)
    assert f"{kind} cannot do method ddtree; it can do auto, " in caught.value.message
    assert "lucebox" in caught.value.hint


@pytest.mark.parametrize("kind", [EngineKind.LLAMA_CPP, EngineKind.VLLM, EngineKind.SGLANG, EngineKind.LUCEBOX])
def test_a_draft_method_without_a_draft_model_is_refused(kind: EngineKind) -> None:
    with pytest.raises(Refused, match="needs a draft model"):
        launch(engine(kind), Method.DFLASH, 1)


@pytest.mark.parametrize("kind", list(EngineKind))
def test_the_inventory_arguments_and_environment_come_last_and_win(kind: EngineKind) -> None:
    method = Method.DDTREE if kind is EngineKind.LUCEBOX else Method.AUTO
    more = {"args": ("--port", "1"), "env": {"PYTHONUNBUFFERED": "0"}, "command": ("prog",), "draft": DRAFT}
    made = launch(engine(kind, **more), method, 1)
    assert made.argv[0] == "prog"
    assert made.argv[-2:] == ("--port", "1")
    assert made.env["PYTHONUNBUFFERED"] == "0"


def test_a_custom_command_gets_its_values_and_must_exist() -> None:
    made = launch(
        engine(EngineKind.CUSTOM, command=("s", "--m={model}", "{port}"), args=("{tp}",)), Method.AUTO, 4
    )
    assert made.argv == ("s", f"--m={MODEL}", "8123", "4")
    with pytest.raises(ConfigError, match="needs a command"):
        launch(engine(EngineKind.CUSTOM), Method.AUTO, 1)


def test_the_key_knows_what_makes_another_engine_and_nothing_else() -> None:
    plain = engine(EngineKind.VLLM, draft=DRAFT, env={"HF_TOKEN": "env:A"})
    first = launch(plain, Method.AUTO, 1)
    assert launch(plain, Method.AUTO, 1).key == first.key
    assert first.with_env({"HF_TOKEN": "secret"}).key == first.key
    assert replace(first, ready_timeout_s=1.0).key == first.key
    others = [
        launch(plain, Method.MTP, 1),
        launch(plain, Method.AUTO, 2),
        launch(replace(plain, port=8124), Method.AUTO, 1),
        launch(replace(plain, env={"HF_TOKEN": "env:B"}), Method.AUTO, 1),
        launch(replace(plain, args=("--x",)), Method.AUTO, 1),
    ]
    assert len({first.key, *(other.key for other in others)}) == 6


def test_a_launch_crosses_the_wire_and_keeps_secrets_out_when_told() -> None:
    made = launch(engine(EngineKind.SGLANG), Method.AUTO, 2).with_env({"T": "secret"})
    assert Launch.from_json(json.loads(json.dumps(made.to_json()))) == made
    assert "secret" not in json.dumps(made.to_json(env=False)) + repr(made)


def slots(spec: str, speculative: bool) -> list[dict[str, Any]]:
    return [{"id": 0, "n_ctx": 4096, "speculative": speculative, "params": {"speculative.types": spec}}]


@pytest.mark.parametrize(
    ("spec", "on", "method"),
    [
        ("none", False, "auto"),
        ("draft-mtp", True, "mtp"),
        ("ngram-mod", True, "ngram"),
        ("draft-simple", True, "draft"),
        ("brand-new", True, "brand-new"),
    ],
)
def test_llama_tells_its_method_in_slots_only(spec: str, on: bool, method: str) -> None:
    props = {"total_slots": 1, "model_path": MODEL, "build_info": "b0-unknown"}
    shown = llama_cpp.read_back({"slots": slots(spec, on), "props": props})
    assert (shown.method, shown.native_method, shown.context, shown.parallel) == (method, spec, 4096, 1)
    assert (shown.model, shown.version) == (MODEL, "")
    models = {"data": [{"id": "x", "tags": ["", "xllamacpp 2026.1"]}]}
    assert llama_cpp.read_back({"props": props, "models": models}).version == "xllamacpp 2026.1"
    assert llama_cpp.read_back({"props": {"build_info": "b9000-abc"}}).version == "b9000-abc"


@pytest.mark.parametrize(
    "bodies",
    [{}, {"slots": [], "props": {}}, {"slots": [{"id": 0}]}, {"slots": {"error": 1}, "props": [1], "models": []}],
)
def test_llama_that_does_not_tell_has_no_method(bodies: Any) -> None:
    assert llama_cpp.read_back(bodies).method == ""


def test_vllm_tells_its_method_in_server_info() -> None:
    info = json.loads((STREAMS / "vllm_server_info.json").read_text())
    shown = vllm.read_back({"server_info": info, "version": {"version": "0.32.0"}})
    assert (shown.method, shown.native_method, shown.tp, shown.context) == ("ngram", "ngram", 1, 2048)
    assert (shown.version, shown.model) == ("0.32.0", "tiny-qwen3")
    info["vllm_config"]["speculative_config"] = None
    assert vllm.read_back({"server_info": info}).method == "auto"
    assert vllm.read_back({}).method == ""


def test_sglang_reports_nextn_as_eagle_which_is_mtp() -> None:
    info = {"speculative_algorithm": "EAGLE", "tp_size": 8, "version": "0.5.23", "model_path": MODEL}
    assert sglang.read_back({"server_info": info}).method == "mtp"
    assert sglang.read_back({"server_info": {**info, "speculative_algorithm": None}}).method == "auto"
    assert sglang.read_back({}).method == ""


VLLM_METRICS = """# HELP vllm:spec_decode_num_drafts_total x
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="tiny, \\"x\\""} 37.0
vllm:spec_decode_num_draft_tokens_total{engine="0"} 138.0
vllm:spec_decode_num_accepted_tokens_total{engine="0"} 5.5e1
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 24.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="1"} 17.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="3"} 6.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="2"} 8.0 1700000000
not a sample
vllm:bad NaNope
"""


def test_vllm_counters_of_the_recorded_run() -> None:
    found = vllm.drafts(parse(VLLM_METRICS))
    assert found is not None
    assert (found.steps, found.drafted, found.accepted) == (37, 138, 55)
    assert found.per_position == (24, 17, 8, 6)
    assert found.tau == pytest.approx(2.486, abs=0.001)
    assert vllm.drafts(parse("vllm:other 1")) is None


def test_counters_grow_from_one_look_to_the_next() -> None:
    early = vllm.drafts(parse(VLLM_METRICS.replace("37.0", "30.0").replace("5.5e1", "40")))
    late = vllm.drafts(parse(VLLM_METRICS))
    assert early is not None
    assert late is not None
    growth = late.since(early)
    assert (growth.steps, growth.accepted, growth.per_position) == (7, 15, (0, 0, 0, 0))


def test_sglang_and_llama_counters() -> None:
    text = (
        "sglang:spec_verify_calls_total 100\nsglang:generation_tokens_total 250\nsglang:spec_num_draft_tokens 4\n"
    )
    found = sglang.drafts(parse(text))
    assert found is not None
    assert found.tau == 2.5
    assert sglang.drafts(parse("sglang:generation_tokens_total 250")) is None
    text = "llamacpp:spec_decode_num_drafts_total 46\nllamacpp:spec_decode_num_draft_tokens_total 138\n"
    counted = llama_cpp.drafts(parse(text + "llamacpp:spec_decode_num_accepted_tokens_total 80\n"))
    assert counted is not None
    assert counted.tau == pytest.approx(2.739, abs=0.001)


def test_the_launcher_refuses_a_method_its_build_does_not_know() -> None:
    class Build:
        __version__ = "1"

        class common_speculative_type:  # noqa: N801 - its name in xllamacpp
            COMMON_SPECULATIVE_TYPE_NGRAM_MOD = 7

        class CommonParams:
            def __init__(self) -> None:
                self.model = self.cpuparams = self.cpuparams_batch = Draft()
                self.speculative = Draft()

    class Draft:
        pass

    argv = ["--model", "m", "--port", "1", "--spec-type"]
    made = serve_llama.configure(serve_llama.parser().parse_args([*argv, "ngram-mod"]), Build)
    assert made.speculative.types == [7]
    assert made.model_tags == {"xllamacpp 1"}
    with pytest.raises(SystemExit, match="does not know --spec-type draft-new"):
        serve_llama.configure(serve_llama.parser().parse_args([*argv, "draft-new"]), Build)


def test_the_launcher_runs_from_inside_a_zip_file(tmp_path: Path) -> None:
    home = Path(reentry.home())
    target = tmp_path / "agent.pyz"
    with zipfile.ZipFile(target, "w") as bundle:
        for package in ("bench", "inventory"):
            for path in (home / package).rglob("*.py"):
                bundle.write(path, str(path.relative_to(home)))
    made = launch(engine(EngineKind.LLAMA_CPP, venv="/opt/engine"), Method.AUTO, 1)
    argv = [str(target) if word == HOME else word for word in made.argv[1:]]
    done = subprocess.run(
        [sys.executable, *argv, "--help"], capture_output=True, text=True, timeout=60, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "usage: serve_llama" in done.stdout
