"""How the ranks are started: the launcher's command line, and an environment with nothing in it by chance."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from workers.config import BASE_DIR, Config
from workers.contract.messages import AttemptSpec
from workers.recipes.registry import Recipe
from workers.run_folder import RunFolder, atomic_write_json
from workers.supervisor import leash, processes

SHIM = BASE_DIR / "workers" / "rank.py"

# Nothing else reaches a rank: above all not REDIS_URL. Paddle's launcher even writes the whole
# environment into its log folder, in clear.
_ALLOWED = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|TMPDIR|TZ|LANG|LC_\w+|LD_LIBRARY_PATH|VIRTUAL_ENV|"
    r"PYTHONDONTWRITEBYTECODE|PYTHONPYCACHEPREFIX|PYTHONHASHSEED|EVENKEEL_RECIPES|"
    r"(CUDA|NVIDIA|NCCL|GLOO|FLAGS|OMP|MKL|KMP|OPENBLAS)_\w+|"
    r"HF_HOME|HF_HUB_CACHE|HF_ENDPOINT|PPNLP_HOME|PADDLE_HOME|XDG_CACHE_HOME"
)
_PROXIES = re.compile(r"(https?|no|all)_proxy", re.IGNORECASE)


def environment(spec: AttemptSpec, config: Config) -> dict[str, str]:
    """The environment of the launcher and, through it, of the ranks."""
    env = {name: value for name, value in os.environ.items() if _ALLOWED.fullmatch(name)}
    # Paddle takes a host with this variable, even an empty one, for a GPU host.
    if spec.device_kind == "cpu":
        env.pop("CUDA_VISIBLE_DEVICES", None)
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(BASE_DIR), os.environ.get("PYTHONPATH")]))
    env["MODEL_ROOTS"] = ",".join(map(str, config.model_roots))
    env["ALLOW_PICKLE_MODELS"] = str(config.allow_pickle_models).lower()
    env["HUB_ALLOWED"] = str(config.hub_allowed).lower()
    if config.hub_allowed:
        env |= {name: value for name, value in os.environ.items() if _PROXIES.fullmatch(name)}
    else:
        env["HF_HUB_OFFLINE"] = "1"
    if spec.nodes > 1 and spec.device_kind == "cpu" and "GLOO_SOCKET_IFNAME" not in env:
        interface = _interface_of(config.host_address)
        if interface:
            env["GLOO_SOCKET_IFNAME"] = interface
    env[processes.MARKER] = mark(spec)
    return env


def mark(spec: AttemptSpec) -> str:
    """The marker by which every process of this attempt on this host is found."""
    return f"{spec.attempt}/{spec.node}"


def command(folder: RunFolder, spec: AttemptSpec, recipe: Recipe, host_address: str) -> list[str]:
    """Paddle's launcher (or the recipe's own) with one shim per rank."""
    options = ["--nproc_per_node", str(len(spec.devices)), "--log_dir", str(folder.launcher_folder)]
    if spec.device_kind == "gpu":
        options += ["--devices", ",".join(map(str, spec.devices))]
    if spec.nodes > 1:
        # Without --host the launcher takes what the host's name resolves to, often 127.0.0.1.
        options += ["--nnodes", str(spec.nodes), "--rank", str(spec.node), "--job_id", spec.attempt]
        options += ["--master", spec.master or "", "--host", host_address]
    else:
        options += ["--host", "127.0.0.1"]
    return [sys.executable, *recipe.launcher, *options, str(SHIM), str(folder.path)]


def launch(
    folder: RunFolder, spec: AttemptSpec, recipe: Recipe, config: Config, host_address: str
) -> subprocess.Popen[bytes]:
    """Start the launcher, which dies with the calling thread: call it from the main one."""
    folder.launcher_folder.mkdir(exist_ok=True, mode=0o700)
    atomic_write_json(folder.launch, {"trainer": list(recipe.trainer)})
    leashed = [sys.executable, "-I", "-S", str(Path(leash.__file__)), str(os.getpid())]
    with folder.launcher_log.open("ab") as log:
        return subprocess.Popen(
            [*leashed, *command(folder, spec, recipe, host_address)],
            cwd=folder.path,
            env=environment(spec, config),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _interface_of(address: str) -> str | None:
    import psutil

    for name, addresses in psutil.net_if_addrs().items():
        if any(entry.address == address for entry in addresses):
            return str(name)
    return None
