"""Runs workers on an arena while the nemesis does harm, and tells what the checkers find in what they wrote down."""

from __future__ import annotations

import json
import os
import queue
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path

from lockstead.runtimes import clock
from lockstead.testing.torture import worker
from lockstead.testing.torture.arena import Arena, Surroundings
from lockstead.testing.torture.checkers import Promises, Violation, check
from lockstead.testing.torture.history import History, Recorder
from lockstead.testing.torture.nemesis import Nemesis
from lockstead.testing.torture.register import Registers

CREW = (["threads"], ["asyncio"], ["uvloop"], ["threads"])
"""The drivers of each worker."""
ONE_PROCESS = (["threads", "asyncio"],)
ACTORS = 5
PATIENCE = 60.0
"""How long workers may take to finish once all is well again."""
START_TIMEOUT = 10.0
"""How long to wait for the first of them to have done something."""
NEMESIS = "nemesis"
JUMPS = (-3600.0, -5.0, -0.5, 0.5, 5.0, 3600.0)

PROGRAM = (worker.__name__,)

Say = Callable[[str], None]
ArenaMaker = Callable[[Path], AbstractContextManager[Arena]]
"""Prepares a store in a directory of its own. Its function's name is the arena's."""


@dataclass
class Report:
    """What came of one run."""

    arena: str
    seed: int
    seconds: float
    operations: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    violations: list[Violation] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    """What workers complained of themselves, and what else kept the torture from its course."""
    recoveries: dict[str, float] = field(default_factory=dict)
    """By fault, how long at the worst nobody was granted anything once it was over."""
    histories: Path | None = None
    """Where the histories are, if they were kept."""

    def __str__(self) -> str:
        verdict = "good" if self.is_good else f"{len(self.violations)} violations, {len(self.troubles)} troubles"
        done = f"{self.operations.total()} operations, {self.faults.total()} faults: {verdict}"
        where = [f"histories in {self.histories}"] if self.histories else []
        return "\n".join([f"{self.arena} seed {self.seed}: {done}", *self.troubles, *map(str, self.violations), *where])

    @property
    def is_good(self) -> bool:
        return not self.violations and not self.troubles

    @property
    def findings(self) -> set[str]:
        """Name the rules that were broken; and "troubles", if there were."""
        return {*(violation.rule for violation in self.violations), *(["troubles"] if self.troubles else [])}

    def discard(self) -> None:
        """Delete the histories, if they were kept."""
        if self.histories is not None:
            shutil.rmtree(self.histories.parent)
            self.histories = None

    @property
    def worst_recovery(self) -> tuple[float, str]:
        return max(((seconds, kind) for kind, seconds in self.recoveries.items()), default=(0.0, "none"))


class Crew:
    """The workers of an arena. Whoever was killed comes back under another name, and so as another client."""

    def __init__(self, arena: Arena, directory: Path, seed: int, registers: str, program: Sequence[str]) -> None:
        self._arena = arena
        self._workloads = sorted(arena.carried())
        self._directory = directory
        self._chance = random.Random(seed)
        self._registers = registers
        self._program = program
        self._mutex = threading.Lock()
        self._members: dict[str, Member] = {}
        self.troubles: list[str] = []

    def start(self) -> None:
        for number, drivers in enumerate(ONE_PROCESS if self._arena.one_process else CREW):
            self._hire(f"w{number}", drivers, life=1)

    def names(self) -> list[str]:
        with self._mutex:
            members = list(self._members.items())
        return [name for name, member in members if not member.is_over and member.process.poll() is None]

    def kill(self, name: str) -> None:
        """Kill a worker; it is dead when this returns."""
        member = self._members[name]
        member.was_killed = member.process.poll() is None
        member.process.kill()
        member.process.wait()

    def pause(self, name: str) -> None:
        """Stop a worker; it does nothing any more when this returns."""
        process = self._members[name].process
        process.send_signal(signal.SIGSTOP)
        while process.poll() is None and not _is_stopped(process.pid):
            time.sleep(0.001)

    def resume(self, name: str) -> None:
        self._members[name].process.send_signal(signal.SIGCONT)

    def tell(self, name: str, order: str) -> None:
        """Have something befall a worker, and return when it is over."""
        member = self._members[name]
        if order == "jump clock":
            member.surroundings.step_clock(self._chance.choice(JUMPS))
        else:
            with suppress(BrokenPipeError):
                member.say(order)
                member.answer()

    def replace_killed(self) -> None:
        """Let others come for those who were killed, and note who ended without having been."""
        for name, member in list(self._members.items()):
            if member.is_over or member.process.poll() is None:
                continue
            member.is_over = True
            if member.was_killed:
                self._hire(member.post, member.drivers, member.life + 1)
            else:
                self._complain(name, member)

    def finish(self) -> None:
        """Have all of them release what they hold and close their clients; the processes stay for a last look."""
        deadline = time.monotonic() + PATIENCE
        for name in self.names():
            with suppress(BrokenPipeError):
                self._members[name].say("finish")
        for name in self.names():
            if not self._members[name].has_finished(deadline):
                self._members[name].process.send_signal(signal.SIGABRT)  # by which faulthandler tells where it hangs
                self._members[name].process.wait()
        self.replace_killed()

    def look(self) -> list[str]:
        """Tell what the workers see of a store that only they see."""
        return [place for name in self.names() for place in self._members[name].look()]

    def dispose(self) -> None:
        for member in self._members.values():
            member.dispose()

    def _hire(self, post: str, drivers: list[str], life: int) -> None:
        name = f"{post}.{life}"
        orders = worker.WorkerConfig(
            client=name,
            history=str(self._directory),
            url=self._arena.url,
            module=self._arena.module,
            options=dict(self._arena.options),
            workloads=self._workloads,
            drivers=drivers,
            actors=ACTORS,
            seed=self._chance.getrandbits(32),
            registers=self._registers,
        )
        own = self._directory / name
        own.mkdir()
        command = [sys.executable, "-X", "faulthandler", "-m", *self._program, orders.dump()]
        member = Member(post, life, drivers, command, own, self._arena.surround(own))
        with self._mutex:
            self._members[name] = member

    def _complain(self, name: str, member: Member) -> None:
        words = member.errors.read_text(errors="replace").splitlines()
        self.troubles.append("\n  ".join([f"{name} ended with {member.process.returncode}:", *words[-30:]]))


class Member:
    """One worker: a process of its own, in surroundings of its own."""

    def __init__(
        self, post: str, life: int, drivers: list[str], command: list[str], own: Path, surroundings: Surroundings
    ) -> None:
        self.post = post
        self.life = life
        self.drivers = drivers
        self.surroundings = surroundings
        self.errors = own.with_name(f"{own.name}.err")
        self.was_killed = self.is_over = False
        self._answers: queue.Queue[str] = queue.Queue()
        with self.errors.open("w") as stderr:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **surroundings.environment},
                start_new_session=True,
            )
        threading.Thread(target=self._listen, daemon=True).start()

    def say(self, order: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(order + "\n")
        self.process.stdin.flush()

    def answer(self, patience: float = PATIENCE) -> str:
        """Wait for an answer; empty if there will be none."""
        with suppress(queue.Empty):
            return self._answers.get(timeout=max(patience, 0.0))
        return ""

    def has_finished(self, deadline: float) -> bool:
        while answer := self.answer(deadline - time.monotonic()):
            if answer == "finished":
                return True
        return False

    def look(self) -> list[str]:
        self.say("look")
        left: list[str] = json.loads(self.answer())
        return left

    def dispose(self) -> None:
        """End it, and whatever it forked."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        with suppress(ValueError):  # closed
            for line in self.process.stdout:
                self._answers.put(line.strip())
        self._answers.put("")


def _is_stopped(pid: int) -> bool:
    """Tell whether all threads of a process are."""
    try:
        states = [task.read_text().rpartition(")")[2].split()[0] for task in Path(f"/proc/{pid}/task").glob("*/stat")]
    except OSError:  # a thread has just ended, so they are not
        return False
    return all(state in "TZX" for state in states)


def torture(
    arena: ArenaMaker,
    seconds: float,
    seed: int,
    *,
    program: Sequence[str] = PROGRAM,
    promises: Callable[[Promises], Promises] = lambda promises: promises,
    say: Say = lambda line: None,
    keep: bool = False,
) -> Report:
    """Torture an arena's store for so long, and check what happened. Histories are kept if something was wrong.

    Whatever goes wrong besides, such as a store that does not recover, is one of the troubles. The program is what the
    workers run.
    """
    name = arena.__name__
    directory = Path(tempfile.mkdtemp(prefix=f"lockstead-torture-{name}-"))
    report = Report(name, seed, seconds)
    histories = directory / "histories"
    histories.mkdir()
    (directory / "arena").mkdir()
    recorder = Recorder(histories / f"{NEMESIS}.jsonl", NEMESIS)
    promised = Promises()
    try:
        with arena(directory / "arena") as place:
            promised = promises(place.kept())
            _run(place, report, histories, recorder, program=program, say=say)
    except Exception:
        report.troubles.append(traceback.format_exc())
    recorder.close()
    history = read(histories)
    report.violations = check(history, replace(promised, grace=worker.STOPPING))
    report.operations = _count(history)
    report.recoveries = recoveries(history)
    report.histories = histories
    shutil.rmtree(directory / "arena", ignore_errors=True)
    if report.is_good and not keep:
        report.discard()
    return report


def read(histories: Path) -> History:
    return History.read(sorted(histories.glob("*.jsonl")))


def _run(
    arena: Arena, report: Report, histories: Path, recorder: Recorder, *, program: Sequence[str], say: Say
) -> None:
    with Registers() as registers, ExitStack() as stack:
        crew = Crew(arena, histories, report.seed, registers.address, program)
        nemesis = Nemesis(arena, crew, recorder, random.Random(report.seed))
        report.faults, report.troubles = nemesis.done, crew.troubles
        stack.callback(crew.dispose)
        crew.start()
        progress = Progress(histories)
        _until(lambda: bool(progress.operations()), START_TIMEOUT)  # else the first harm would be done to nobody
        with _in_background(lambda: nemesis.run(clock.now() + report.seconds)) as is_over:
            while not is_over(1.0):
                crew.replace_killed()
                say(f"{progress.operations()} operations, {nemesis.done.total()} faults")
        crew.replace_killed()
        say("settling")
        arena.settle()
        crew.finish()
        time.sleep(_rest(arena.promises))
        number = recorder.inspect()
        recorder.inspected(number, crew.look() if arena.one_process else arena.inspect())


def _until(condition: Callable[[], bool], patience: float) -> None:
    deadline = time.monotonic() + patience
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)


def _rest(promises: Promises) -> float:
    """Tell how long to wait until nothing may be left."""
    return promises.longest_ttl + 0.1 if promises.longest_ttl < inf else 0.0


@contextmanager
def _in_background(work: Callable[[], None]) -> Iterator[Callable[[float], bool]]:
    """Run in a thread, and give what waits for it to end; what it raises is raised at the end of the block."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    def is_over(patience: float) -> bool:
        thread.join(patience)
        return not thread.is_alive()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield is_over
    thread.join()
    if failures:
        raise failures[0]


class Progress:
    """Counts what was completed, reading on where it left off."""

    def __init__(self, histories: Path) -> None:
        self._histories = histories
        self._read: dict[Path, int] = defaultdict(int)
        self._counted = 0

    def operations(self) -> int:
        for path in self._histories.glob("w*.jsonl"):
            with path.open("rb") as file:
                file.seek(self._read[path])
                data = file.read()
            self._read[path] += len(data)
            self._counted += data.count(b'"event": "end"')
        return self._counted


def _count(history: History) -> Counter[str]:
    counts = Counter(f"{one.kind} {one.outcome}" for one in history.acquires)
    counts["register writes"] = len(history.writes)
    counts["register writes refused"] = sum(one.outcome == "refused" for one in history.writes)
    counts["register reads"] = len(history.reads)
    counts["rates spent"] = sum(one.allowed for one in history.consumes)
    counts["rates refused"] = sum(one.is_known and not one.allowed for one in history.consumes)
    return +counts


def recoveries(history: History) -> dict[str, float]:
    """Tell, for each kind of harm done to the store, how long at worst nobody was granted anything once it was over.

    If the store was harmed again, or otherwise, before that, it counts until then.
    """
    granted = sorted(one.completed for one in history.acquires if one.is_granted)
    worst: dict[str, float] = defaultdict(float)
    for fault in history.faults:
        if fault.target or not fault.is_known:
            continue
        healed = fault.completed
        number = bisect_right(granted, healed)
        if number < len(granted):
            others = [one for one in history.harm(None, "", healed, granted[number]) if one is not fault]
            until = min([granted[number], *(max(one.invoked, healed) for one in others)])
            worst[fault.name] = max(worst[fault.name], until - healed)
    return dict(worst)
