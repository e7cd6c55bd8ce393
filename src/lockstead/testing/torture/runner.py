"""Runs workers on an arena while the nemesis injects faults, and reports what the checkers find in their histories."""

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
from lockstead.testing.torture.arena import JUMP_CLOCK, Arena, Surroundings
from lockstead.testing.torture.checkers import Promises, Violation, check
from lockstead.testing.torture.history import History, Recorder
from lockstead.testing.torture.nemesis import Nemesis
from lockstead.testing.torture.register import Registers

RUNTIMES = (["threads"], ["asyncio"], ["uvloop"], ["threads"])
"""The runtimes of each worker."""
ONE_PROCESS = (["threads", "asyncio"],)
ACTORS = 5
FINISH_TIMEOUT = 60.0
"""Seconds in which workers must finish after the last fault has ended."""
START_TIMEOUT = 10.0
"""Seconds to wait for the first operation of a worker."""
NEMESIS = "nemesis"
JUMPS = (-3600.0, -5.0, -0.5, 0.5, 5.0, 3600.0)

PROGRAM = (worker.__name__,)

Say = Callable[[str], None]
ArenaMaker = Callable[[Path], AbstractContextManager[Arena]]
"""Prepares a store in its own directory. The function's name is the arena's."""


@dataclass
class Report:
    """The result of one run."""

    arena: str
    seed: int
    seconds: float
    operations: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    violations: list[Violation] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    """Errors and hangs of workers, and everything else that kept the torture from running as planned."""
    recoveries: dict[str, float] = field(default_factory=dict)
    """By fault, the longest time without any grant after it ended, in seconds."""
    histories: Path | None = None
    """Where the histories are, if they were kept."""

    def __str__(self) -> str:
        verdict = "good" if self.is_good else f"{len(self.violations)} violations, {len(self.errors)} errors"
        done = f"{self.operations.total()} operations, {self.faults.total()} faults: {verdict}"
        where = [f"histories in {self.histories}"] if self.histories else []
        return "\n".join([f"{self.arena} seed {self.seed}: {done}", *self.errors, *map(str, self.violations), *where])

    @property
    def is_good(self) -> bool:
        return not self.violations and not self.errors

    @property
    def findings(self) -> set[str]:
        """The names of the violated rules; and "errors", if there were any."""
        return {*(violation.rule for violation in self.violations), *(["errors"] if self.errors else [])}

    def discard(self) -> None:
        """Delete the histories, if they were kept."""
        if self.histories is not None:
            shutil.rmtree(self.histories.parent)
            self.histories = None

    @property
    def worst_recovery(self) -> tuple[float, str]:
        return max(((seconds, kind) for kind, seconds in self.recoveries.items()), default=(0.0, "none"))


class ClientProcesses:
    """The workers of an arena. One that was killed is replaced under another name, and so as another client."""

    def __init__(self, arena: Arena, directory: Path, seed: int, registers: str, program: Sequence[str]) -> None:
        self._arena = arena
        self._workloads = sorted(arena.carried())
        self._directory = directory
        self._chance = random.Random(seed)
        self._registers = registers
        self._program = program
        self._mutex = threading.Lock()
        self._processes: dict[str, ClientProcess] = {}
        self.errors: list[str] = []

    def start(self) -> None:
        for number, runtimes in enumerate(ONE_PROCESS if self._arena.one_process else RUNTIMES):
            self._start(f"w{number}", runtimes, generation=1)

    def names(self) -> list[str]:
        with self._mutex:
            clients = list(self._processes.items())
        return [name for name, client in clients if not client.is_over and client.process.poll() is None]

    def kill(self, name: str) -> None:
        """Kill a worker, and return when it is dead."""
        client = self._processes[name]
        client.was_killed = client.process.poll() is None
        client.process.kill()
        client.process.wait()

    def pause(self, name: str) -> None:
        """Stop a worker, and return when all its threads are stopped."""
        process = self._processes[name].process
        process.send_signal(signal.SIGSTOP)
        while process.poll() is None and not _is_stopped(process.pid):
            time.sleep(0.001)

    def resume(self, name: str) -> None:
        self._processes[name].process.send_signal(signal.SIGCONT)

    def inject(self, name: str, fault: str) -> None:
        """Inject a fault into a worker, and return when it has ended."""
        client = self._processes[name]
        if fault == JUMP_CLOCK:
            client.surroundings.step_clock(self._chance.choice(JUMPS))
        else:
            with suppress(BrokenPipeError):
                client.send(fault)
                client.answer()

    def replace_killed(self) -> None:
        """Start replacements for killed workers, and report those that ended without having been killed."""
        for name, client in list(self._processes.items()):
            if client.is_over or client.process.poll() is None:
                continue
            client.is_over = True
            if client.was_killed:
                self._start(client.slot, client.runtimes, client.generation + 1)
            else:
                self._add_error(name, client)

    def finish(self) -> None:
        """Have all workers release their locks and close their clients; the processes stay for a last inspection."""
        deadline = time.monotonic() + FINISH_TIMEOUT
        for name in self.names():
            with suppress(BrokenPipeError):
                self._processes[name].send("finish")
        for name in self.names():
            if not self._processes[name].has_finished(deadline):
                self._processes[name].process.send_signal(signal.SIGABRT)  # faulthandler then prints where it hangs
                self._processes[name].process.wait()
        self.replace_killed()

    def inspect(self) -> list[str]:
        """List what the workers find in a store that exists only in their process."""
        return [place for name in self.names() for place in self._processes[name].inspect()]

    def dispose(self) -> None:
        for client in self._processes.values():
            client.dispose()

    def _start(self, slot: str, runtimes: list[str], generation: int) -> None:
        name = f"{slot}.{generation}"
        config = worker.WorkerConfig(
            client=name,
            history=str(self._directory),
            url=self._arena.url,
            module=self._arena.module,
            options=dict(self._arena.options),
            workloads=self._workloads,
            runtimes=runtimes,
            actors=ACTORS,
            seed=self._chance.getrandbits(32),
            registers=self._registers,
        )
        own = self._directory / name
        own.mkdir()
        command = [sys.executable, "-X", "faulthandler", "-m", *self._program, config.dump()]
        client = ClientProcess(slot, generation, runtimes, command, own, self._arena.surround(own))
        with self._mutex:
            self._processes[name] = client

    def _add_error(self, name: str, client: ClientProcess) -> None:
        words = client.errors.read_text(errors="replace").splitlines()
        self.errors.append("\n  ".join([f"{name} ended with {client.process.returncode}:", *words[-30:]]))


class ClientProcess:
    """One worker: a process in its own surroundings."""

    def __init__(
        self, slot: str, generation: int, runtimes: list[str], command: list[str], own: Path, surroundings: Surroundings
    ) -> None:
        self.slot = slot
        self.generation = generation
        self.runtimes = runtimes
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
        threading.Thread(target=self._read_answers, daemon=True).start()

    def send(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def answer(self, timeout: float = FINISH_TIMEOUT) -> str:
        """Wait for an answer; empty if there is none in time, or the process has ended."""
        with suppress(queue.Empty):
            return self._answers.get(timeout=max(timeout, 0.0))
        return ""

    def has_finished(self, deadline: float) -> bool:
        while answer := self.answer(deadline - time.monotonic()):
            if answer == "finished":
                return True
        return False

    def inspect(self) -> list[str]:
        self.send("inspect")
        left: list[str] = json.loads(self.answer())
        return left

    def dispose(self) -> None:
        """Kill it, and the processes it forked."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()

    def _read_answers(self) -> None:
        assert self.process.stdout is not None
        with suppress(ValueError):  # closed
            for line in self.process.stdout:
                self._answers.put(line.strip())
        self._answers.put("")


def _is_stopped(pid: int) -> bool:
    """Return whether all threads of a process are stopped."""
    try:
        states = [task.read_text().rpartition(")")[2].split()[0] for task in Path(f"/proc/{pid}/task").glob("*/stat")]
    except OSError:  # a thread has just ended, so they are not stopped
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
    """Torture an arena's store for `seconds`, and check the histories; they are kept if something was wrong.

    Any other failure, such as a store that does not recover, is one of the report's errors. `program` is what the
    workers run, `promises` may change what the arena promises, and `say` is called with progress.
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
        report.errors.append(traceback.format_exc())
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
        clients = ClientProcesses(arena, histories, report.seed, registers.address, program)
        nemesis = Nemesis(arena, clients, recorder, random.Random(report.seed))
        report.faults, report.errors = nemesis.done, clients.errors
        stack.callback(clients.dispose)
        clients.start()
        progress = Progress(histories)
        _wait_until(lambda: bool(progress.operations()), START_TIMEOUT)  # or the first fault would affect no operation
        with _in_background(lambda: nemesis.run(clock.now() + report.seconds)) as is_over:
            while not is_over(1.0):
                clients.replace_killed()
                say(f"{progress.operations()} operations, {nemesis.done.total()} faults")
        clients.replace_killed()
        say("settling")
        arena.settle()
        clients.finish()
        time.sleep(_settle_time(arena.promises))
        number = recorder.inspect()
        recorder.inspected(number, clients.inspect() if arena.one_process else arena.inspect())


def _wait_until(condition: Callable[[], bool], timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)


def _settle_time(promises: Promises) -> float:
    """Return the seconds after which nothing may be left in the store."""
    return promises.longest_ttl + 0.1 if promises.longest_ttl < inf else 0.0


@contextmanager
def _in_background(work: Callable[[], None]) -> Iterator[Callable[[float], bool]]:
    """Run in a thread, and yield a function that waits for its end; the block's end raises what the work raised."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    def is_over(timeout: float) -> bool:
        thread.join(timeout)
        return not thread.is_alive()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield is_over
    thread.join()
    if failures:
        raise failures[0]


class Progress:
    """Counts completed operations, reading only what was added since the last call."""

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
    counts["rate requests allowed"] = sum(one.allowed for one in history.consumes)
    counts["rate requests refused"] = sum(one.is_known and not one.allowed for one in history.consumes)
    return +counts


def recoveries(history: History) -> dict[str, float]:
    """Return, for each kind of fault of the store, the longest time without any grant after it ended.

    If another fault began before the next grant, the time counts until then.
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
