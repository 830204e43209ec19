"""This host as the web side sees it: name, address, devices, versions, disk. Imports no Paddle."""

from __future__ import annotations

import csv
import functools
import importlib.metadata
import os
import platform
import re
import shutil
import socket
import subprocess
from urllib.parse import urlsplit

from workers import usage
from workers.config import BASE_DIR, Config
from workers.contract.messages import Device, HostBeat, HostUsage

_NVIDIA_FIELDS = "index,name,memory.total,compute_cap,driver_version"


class Usage:
    """What the host uses, from beat to beat."""

    def __init__(self, devices: list[Device]) -> None:
        self._cpu = usage.Cpu()
        self._indices = {device.index for device in devices if device.kind == "gpu"}
        self._gpus = usage.Gpus() if self._indices else None

    def now(self) -> HostUsage:
        return HostUsage(
            cpu=self._cpu.fraction(),
            memory_available_bytes=usage.memory_available_bytes(),
            gpus=[gpu for gpu in self._gpus.read() if gpu.index in self._indices] if self._gpus else [],
        )


def beat(config: Config, devices: list[Device], boot: str, seq: int, attempts: list[str], used: HostUsage) -> HostBeat:
    config.scratch_root.mkdir(parents=True, exist_ok=True, mode=0o700)
    disk = shutil.disk_usage(config.scratch_root)
    return HostBeat(
        name=config.host_name,
        address=address(config),
        boot=boot,
        seq=seq,
        devices=devices,
        versions=versions(gpu=any(device.kind == "gpu" for device in devices)),
        disk_total_bytes=disk.total,
        disk_free_bytes=disk.free,
        memory_total_bytes=memory_bytes(),
        load1=os.getloadavg()[0],
        usage=used,
        attempts=attempts,
    )


def devices(config: Config) -> list[Device]:
    """What DEVICES says: GPUs as nvidia-smi lists them, or so many CPU slots. ValueError if a GPU is not there."""
    kind, _, which = config.devices.partition(":")
    if kind in ("auto", "gpu"):
        found = parse_nvidia_smi(nvidia_smi())
        if which:
            wanted = {int(index) for index in which.split(",")}
            found = [gpu for gpu in found if gpu.index in wanted]
            if len(found) < len(wanted):
                raise ValueError(f"DEVICES names the GPUs {which}, but nvidia-smi lists only {len(found)} of them.")
        if found:
            return found
        if kind == "gpu":
            raise ValueError("DEVICES=gpu, but nvidia-smi lists no GPU.")
    slots = int(which) if which else os.cpu_count() or 1
    memory = memory_bytes() // slots
    name = processor()
    return [Device(index=index, kind="cpu", name=name, memory_bytes=memory) for index in range(slots)]


def nvidia_smi() -> str:
    """Its list of GPUs as CSV, empty where there is none. Unverified: no GPU was at hand when this was written."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return ""
    query = [command, f"--query-gpu={_NVIDIA_FIELDS}", "--format=csv,noheader,nounits"]
    try:
        return subprocess.run(query, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def parse_nvidia_smi(text: str) -> list[Device]:
    """One Device per line `index, name, MiB, compute capability, driver`; "[N/A]" and the like are unknown."""
    found = []
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        if len(row) < 4 or not row[0].strip().isdigit():
            continue
        memory, capability = row[2].strip(), row[3].strip()
        found.append(
            Device(
                index=int(row[0]),
                kind="gpu",
                name=row[1].strip(),
                memory_bytes=int(float(memory) * 2**20) if re.fullmatch(r"[\d.]+", memory) else 0,
                compute_capability=capability if re.fullmatch(r"\d+\.\d+", capability) else None,
            )
        )
    return found


@functools.cache
def versions(*, gpu: bool) -> dict[str, str]:
    """Of what decides a run: from the packages' metadata, so that nothing is imported."""
    found = {"python": platform.python_version(), "evenkeel": _own_version()}
    for package in ("paddlepaddle", "paddlepaddle-gpu", "paddlenlp", "numpy", "safetensors"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    if gpu:
        rows = list(csv.reader(nvidia_smi().splitlines(), skipinitialspace=True))
        if rows and len(rows[0]) >= 5:
            found["driver"] = rows[0][4].strip()
    return found


def _own_version() -> str:
    try:
        return importlib.metadata.version("evenkeel")
    except importlib.metadata.PackageNotFoundError:
        pass
    try:
        found = re.search(r'^version = "(.+)"', (BASE_DIR / "pyproject.toml").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1] if found else "unknown"


def address(config: Config) -> str:
    """Under which other hosts reach this one: HOST_ADDRESS, or the address of the way to Redis."""
    if config.host_address:
        return config.host_address
    target = urlsplit(config.redis_url)
    if target.scheme == "unix" or not target.hostname:
        return "127.0.0.1"
    try:
        family, _, _, _, where = socket.getaddrinfo(target.hostname, target.port or 6379, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            # Sends nothing: only asks the kernel for the route.
            probe.connect(where)
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"


def memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:  # noqa: PTH123
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()
