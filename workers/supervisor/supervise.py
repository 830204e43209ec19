"""The life of an attempt on one host, from the claim to the last byte that is stored elsewhere."""

from __future__ import annotations

import errno
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from workers import environment, host
from workers.config import Config
from workers.contract.messages import AttemptSpec, Kind, Request
from workers.contract.states import EndReason
from workers.contract.texts import Text, clause
from workers.recipes import registry
from workers.run_folder import RunFolder, atomic_write_json, read_json
from workers.supervisor import processes
from workers.supervisor.claim import Devices, claim, try_lock
from workers.supervisor.launch import launch, mark
from workers.supervisor.lifeline import Lifeline
from workers.supervisor.prepare import Preparation
from workers.supervisor.publish import Publisher
from workers.supervisor.relay import Relay, ranks_of, sources
from workers.supervisor.report import Report
from workers.supervisor.sampler import Sampler
from workers.supervisor.verdict import Facts, RankExit, guilty, judge

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
TICK_S = 0.05
NOTICED_LATE_S = 0.2
# What Paddle's launcher gives the other ranks when one failed.
OTHERS_S = 3.0
LOCK_PATIENCE_S = 2.0
# What a controller that has told us to go has not stored by then, it never will.
UNWANTED_S = 3600.0
LOG_TAIL_BYTES = 64 * 2**10
# Given back to a full disk when the ranks are gone, so that their end can still be written down.
BALLAST_BYTES = 2**20
FULL_BYTES = 256 * 2**10
# Above this much free space it is not plain that the disk is full.
LITTLE_BYTES = 64 * 2**20

# Stages of state.json after which nothing is left to do in a run folder.
FINAL = ("done", "refused")


def start(folder: RunFolder, incoming: Path, config: Config) -> None:
    """Act on a start message, once; a second message of the same placement changes nothing."""
    lock = try_lock(folder.lock, patience_s=LOCK_PATIENCE_S)
    spec = AttemptSpec.model_validate_json(incoming.read_bytes())
    if lock is None or folder.newest_claim >= spec.placement or not claim(folder, spec.placement):
        incoming.unlink()
        return
    incoming.replace(folder.spec)
    supervisor = Supervisor(folder, spec, config)
    busy = supervisor.devices.take()
    if busy is None:
        supervisor.run()
    else:
        supervisor.refuse(
            Text("Device %(device)s of %(host)s is in use by another attempt.", device=busy, host=config.host_name)
        )


def is_over(folder: RunFolder) -> bool:
    """Whether nothing is left to do for the newest placement that was acted on here."""
    state = read_json(folder.state)
    return state is not None and state["stage"] in FINAL and state["placement"] == folder.newest_claim


def recover(folder: RunFolder, config: Config) -> None:
    """Bring to its end what a dead supervisor left behind."""
    lock = try_lock(folder.lock, patience_s=LOCK_PATIENCE_S)
    if lock is None or is_over(folder):
        return
    spec = AttemptSpec.model_validate(read_json(folder.spec)) if folder.spec.exists() else None
    if spec is None or spec.placement != folder.newest_claim:
        # It died between its claim and its first word: the message, sent again, may start it.
        folder.claim(folder.newest_claim).unlink()
        return
    supervisor = Supervisor(folder, spec, config)
    if supervisor.report.lines and supervisor.report.lines[-1]["kind"] == "refused":
        supervisor.refuse(None)
    else:
        supervisor.recover()


class Supervisor:
    def __init__(self, folder: RunFolder, spec: AttemptSpec, config: Config) -> None:
        self.folder = folder
        self.spec = spec
        self.config = config
        self.report = Report(folder)
        self.devices = Devices(config.scratch_root, spec)
        # Earlier placements may have been refused here or elsewhere: on the wire the report goes on where
        # they ended. This supervisor's predecessor has written down where its file began.
        state = read_json(folder.state)
        if state is not None and state["placement"] == spec.placement:
            self.report_base: int = state["report_base"]
        else:
            self.report_base = max(0, spec.report_offset - self.report.size_at_start)
        self.mark = mark(spec)
        self.world = ranks_of(spec)
        self.address = host.address(config)

        # Everything below is what is known so far.
        self.ended_pids: dict[int, int] = {}
        self.launcher_pid: int | None = None
        self.launcher_exit: int | None = None
        self.event_offsets = dict.fromkeys(self.world, 0)
        self.ready: set[int] = set()
        self.lost_shims: dict[int, float] = {}
        self.killed: set[int] = set()
        self.imposed: tuple[EndReason, str] | None = None
        self.grace_over = False
        self.free_bytes = FULL_BYTES
        self.recovering = False
        self.oom_kills = processes.oom_kills()

    def enter(self, stage: str) -> None:
        me = os.getpid()
        state = {
            "pid": me,
            "started": processes.start_time(me),
            "stage": stage,
            "placement": self.spec.placement,
            "report_base": self.report_base,
        }
        atomic_write_json(self.folder.state, state)
        if hasattr(self, "lifeline"):
            self.lifeline.stage = stage

    # --- the three ways to live ---

    def run(self) -> None:
        self.connect()
        try:
            self.enter("claimed")
            self.take_ballast()
            self.report.say(
                "claimed",
                node=self.spec.node,
                host=self.config.host_name,
                pid=os.getpid(),
                devices=self.spec.devices,
                **environment.of_host(self.spec, self.config),
            )
            self.prepare()
            if not self.must_stop():
                self.launch()
            if self.launcher_pid is not None:
                self.sampler.start()
                self.watch()
        except OSError as error:
            if error.errno not in DISK_FULL:
                raise
            self.imposed = self.imposed or (EndReason.DISK_FULL, "")
        self.end()

    def recover(self) -> None:
        self.recovering = True
        self.connect()
        self.end()

    def refuse(self, detail: str | None) -> None:
        """Say that nothing was started; return when the controller knows."""
        self.enter("refusing")
        if detail is not None:
            self.report.say("refused", node=self.spec.node, host=self.config.host_name, detail=detail)
        streams = [s for s in sources(self.folder, self.spec, 0, self.report_base) if s.kind is Kind.REPORT]
        relay = Relay(streams, self.spec, self.config.redis_url, self.config.host_name)
        while not relay.drained():
            time.sleep(TICK_S)
        relay.close()
        self.enter("refused")

    # --- its parts, in their order ---

    def connect(self) -> None:
        redis_url, name = self.config.redis_url, self.config.host_name
        self.lifeline = Lifeline(self.folder, self.spec, redis_url, name)
        self.streams = sources(self.folder, self.spec, self.config.log_cap_bytes, self.report_base)
        self.relay = Relay(self.streams, self.spec, redis_url, name)
        self.publisher = Publisher(self.folder, self.spec, self.config.storage_root, self.report)
        self.sampler = Sampler(self.folder, self.spec, self.world, self.config.scratch_root)

    def take_ballast(self) -> None:
        with self.folder.ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, BALLAST_BYTES)

    def prepare(self) -> None:
        self.enter("preparing")
        preparation = Preparation(self.folder, self.spec, self.config.storage_root)
        while not preparation.done and not self.must_stop():
            time.sleep(TICK_S)
        preparation.stop()
        self.imposed = self.imposed or preparation.failure

    def must_stop(self) -> bool:
        """Whether the attempt is over whatever the ranks do; with no rank ready yet, a request is enough."""
        if self.imposed is None and self.lifeline.lost:
            self.imposed = (
                EndReason.HOST_LOST,
                Text(
                    "%(host)s could not reach Redis for almost the whole lease of %(lease)g s; the ranks were stopped "
                    "before someone else could be given their place.",
                    host=self.config.host_name,
                    lease=self.spec.lease_s,
                ),
            )
        leave = self.lifeline.control.leave
        unheard = leave not in (None, Request.FINISH) and len(self.ready) < len(self.world)
        return self.imposed is not None or unheard

    def launch(self) -> None:
        self.enter("launching")
        try:
            recipe = registry.recipe(self.spec.recipe)
            self.launcher = launch(self.folder, self.spec, recipe, self.config, self.address)
        except ValueError as error:
            self.imposed = (
                EndReason.LAUNCH_FAILED,
                Text("On %(host)s %(error)s.", host=self.config.host_name, error=str(error)),
            )
        except OSError as error:
            reason = EndReason.DISK_FULL if error.errno in DISK_FULL else EndReason.LAUNCH_FAILED
            self.imposed = (
                reason,
                Text("The launcher could not be started: %(error)s.", error=clause(error.strerror or str(error))),
            )
        else:
            self.launcher_pid = self.launcher.pid
            self.report.say("started", node=self.spec.node, launcher_pid=self.launcher.pid)

    def watch(self) -> None:
        """Until the launcher has ended, or everything has to be killed."""
        leave: Request | None = None
        leave_by = stop_by = float("inf")
        while not self.must_stop():
            self.reap()
            self.read_events()
            if self.launcher_pid in self.ended_pids:
                return
            now = time.monotonic()

            asked = self.lifeline.control.leave
            if asked != leave:
                leave = asked
                # To finish means to evaluate and to export, which takes as long as it takes.
                leave_by = now + self.spec.grace_s if leave not in (None, Request.FINISH) else float("inf")
            if now > leave_by:
                self.grace_over = True
                return

            if stop_by == float("inf"):
                failed = [exit for exit in self.exits().values() if exit.failed]
                if failed:
                    # One that ends on purpose may have others who still save something.
                    on_purpose = all(self.folder.outcome(exit.rank).exists() for exit in failed)
                    stop_by = now + (self.spec.grace_s if on_purpose else OTHERS_S)
            if now > stop_by:
                return
            time.sleep(TICK_S)

    def end(self) -> None:
        self.lifeline.stage = "stopping"
        self.sampler.stop()
        self.stop_processes()
        self.folder.ballast.unlink(missing_ok=True)
        self.enter("stopping")
        self.read_events()
        if not self.report.said("ended"):
            self.tell_end()
        if not self.report.said("complete"):
            self.tell_complete()
        self.enter("relaying")
        while not self.relay.drained() and not self.is_unwanted():
            time.sleep(TICK_S)
        self.relay.close()
        self.enter("done")
        self.lifeline.close()

    def stop_processes(self) -> None:
        exits = self.exits()
        self.killed = {rank for rank in self.world if rank not in exits}
        launcher_lives = self.launcher_pid is not None and self.launcher_pid not in self.ended_pids
        processes.kill_all(self.mark, self.ended_pids)
        if self.launcher_pid is not None:
            code = self.ended_pids.get(self.launcher_pid)
            self.launcher.returncode = code
            self.launcher_exit = None if launcher_lives else code
        disk = os.statvfs(self.folder.path)
        self.free_bytes = disk.f_bavail * disk.f_frsize

    def tell_end(self) -> None:
        exits = self.exits()
        first = guilty(exits, self.outcomes())
        told = {line["rank"] for line in self.report.said("rank_exit")}
        for exit in sorted(exits.values(), key=lambda exit: exit.clock):
            if exit.rank not in told:
                self.report.say(
                    "rank_exit",
                    rank=exit.rank,
                    pid=exit.pid,
                    exit_code=exit.exit_code,
                    signal=exit.signal,
                    first=exit is first,
                )
        torn_before = {(line["rank"], line["stream"]) for line in self.report.said("torn_tail")}
        for stream in self.streams:
            if stream.kind is not Kind.REPORT:
                torn = stream.close()
                if torn and (stream.rank, str(stream.kind)) not in torn_before:
                    self.report.say("torn_tail", rank=stream.rank, stream=str(stream.kind), bytes=torn)

        self.enter("publishing")
        self.wait_for_publications()
        verdict = judge(self.facts(exits))
        if verdict.reason is EndReason.TIME_LIMIT:
            verdict = replace(verdict, detail=self.at_the_limit(), rank=None)
        elif verdict.reason is EndReason.DISK_FULL:
            verdict = replace(verdict, detail=Text.joined(verdict.detail, self.of_the_disk()))
        self.devices.release()
        self.report.say(
            "ended",
            node=self.spec.node,
            end_reason=str(verdict.reason),
            detail=verdict.detail,
            rank=verdict.rank,
            step=verdict.step,
            processes_left=0,
        )

    def at_the_limit(self) -> str:
        late = Text("The ranks did not leave in time and were killed.") if self.grace_over else ""
        steps = [line["step"] for line in self.report.said("checkpoint_published") if line["good"]]
        saved = (
            Text("The newest good checkpoint is of step %(step)d.", step=max(steps))
            if steps
            else Text("There is no good checkpoint.")
        )
        return Text.joined(self.lifeline.time_limit.in_words(self.lifeline.control), late, saved)

    def of_the_disk(self) -> Text:
        where = {
            "host": self.config.host_name,
            "folder": str(self.config.scratch_root),
            "free": self.free_bytes / 2**20,
        }
        if self.free_bytes < LITTLE_BYTES:
            return Text(
                "On host %(host)s there were %(free).1f MB free in %(folder)s. Make room there, then retry.", **where
            )
        return Text(
            "On host %(host)s there were still %(free).0f MB free in %(folder)s: what had to be written did not fit, or a "
            "quota is used up. Make room there, then retry.",
            **where,
        )

    def tell_complete(self) -> None:
        for stream in self.streams:
            if stream.kind is not Kind.REPORT:
                stream.close()
        for folder in (self.folder.dataset, self.folder.model, self.folder.start):
            shutil.rmtree(folder, ignore_errors=True)
        self.report.say(
            "complete",
            node=self.spec.node,
            bytes={stream.name: stream.end() for stream in self.streams if stream.kind is not Kind.REPORT},
        )

    def wait_for_publications(self) -> None:
        deadline = time.monotonic() + self.config.publish_bound_s
        while self.publisher.busy and time.monotonic() < deadline:
            if self.lifeline.control.leave in (Request.CANCEL, Request.SUPERSEDE):
                deadline = min(deadline, time.monotonic() + self.spec.grace_s)
            time.sleep(TICK_S)
        self.publisher.finish()

    def is_unwanted(self) -> bool:
        """Whether the controller says that another attempt took over, or that it knows none like this, and stores nothing."""
        superseded = self.lifeline.control.leave is Request.SUPERSEDE and not self.lifeline.lost
        return superseded and self.relay.idle_s > UNWANTED_S

    # --- what is known ---

    def reap(self) -> None:
        self.ended_pids.update(processes.reap())
        for rank in self.world:
            process = read_json(self.folder.process(rank))
            if process and rank not in self.lost_shims and not processes.alive(process["shim"]):
                # Survivors notice at once, and would seem to have been first.
                self.lost_shims[rank] = time.time() - NOTICED_LATE_S

    def exits(self) -> dict[int, RankExit]:
        """How ranks ended, as their shims wrote it down; a shim that was killed itself counts as its rank."""
        found = {}
        for rank in self.world:
            written = read_json(self.folder.exit(rank))
            process = read_json(self.folder.process(rank))
            if written is not None:
                found[rank] = RankExit(
                    rank,
                    written["pid"],
                    written["exit_code"],
                    written["signal"],
                    written["clock"],
                    consequence=rank in self.killed,
                    tail=_tail(self.folder.log(rank)),
                    step=_last_step(self.folder.steps(rank)),
                )
            elif process is not None and (rank in self.lost_shims or not processes.alive(process["shim"])):
                status = self.ended_pids.get(process["trainer"], -9)
                # Of a launcher that the supervisor has killed itself, the exit is not kept.
                with_launcher = self.launcher_exit is not None and self.launcher_exit < 0
                found[rank] = RankExit(
                    rank,
                    process["trainer"],
                    status if status >= 0 else None,
                    -status if status < 0 else None,
                    self.lost_shims.get(rank, time.time() - NOTICED_LATE_S),
                    consequence=rank in self.killed or with_launcher or self.recovering,
                    tail=_tail(self.folder.log(rank)),
                    step=_last_step(self.folder.steps(rank)),
                )
        return found

    def outcomes(self) -> dict[int, dict[str, Any]]:
        return {
            rank: read_json(path) | {"clock": path.stat().st_mtime}
            for rank in self.world
            if (path := self.folder.outcome(rank)).exists()
        }

    def facts(self, exits: dict[int, RankExit]) -> Facts:
        return Facts(
            world=self.world,
            exits=exits,
            outcomes=self.outcomes(),
            request=self.lifeline.control.leave,
            grace_over=self.grace_over,
            imposed=self.imposed,
            supervisor_lost=self.recovering,
            launcher_exit=self.launcher_exit,
            launcher_tail=_tail(self.folder.launcher_log),
            any_ready=bool(self.ready),
            oom_kills=processes.oom_kills() - self.oom_kills,
            disk_full=self.free_bytes < FULL_BYTES,
        )

    def read_events(self) -> None:
        """Follow what the ranks say: who is ready, and what is there to publish."""
        for rank in self.world:
            for event in self.new_events(rank):
                if event.get("kind") == "ready":
                    self.ready.add(rank)
                    if len(self.ready) == len(self.world) and not self.report.said("running"):
                        self.enter("running")
                        self.report.say("running", node=self.spec.node)
                elif event.get("kind") in ("checkpoint", "artifact") and not self.is_published(event):
                    self.publisher.announce(event)

    def is_published(self, event: dict[str, Any]) -> bool:
        if not self.recovering:
            return False
        if event["kind"] == "checkpoint":
            return any(line["step"] == event["step"] for line in self.report.said("checkpoint_published"))
        return any(line["name"] == event["name"] for line in self.report.said("artifact_published"))

    def new_events(self, rank: int) -> list[dict[str, Any]]:
        path, offset = self.folder.events(rank), self.event_offsets[rank]
        try:
            if path.stat().st_size <= offset:
                return []
            with path.open("rb") as file:
                file.seek(offset)
                content = file.read()
        except FileNotFoundError:
            return []
        whole = content.rfind(b"\n") + 1
        self.event_offsets[rank] += whole
        events = []
        for line in content[:whole].splitlines():
            try:
                event = orjson.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict):
                events.append(event)
        return events


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - LOG_TAIL_BYTES))
            return file.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return ""


def _last_step(path: Path) -> int | None:
    """Of the last whole record."""
    lines = _tail(path).split("\n")[:-1]
    try:
        return int(orjson.loads(lines[-1])["step"])
    except (IndexError, ValueError, KeyError, TypeError):
        return None
