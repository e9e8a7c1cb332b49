"""An event loop whose time jumps to the next timer, and the processes that run on it.

Callbacks run in the order in which they became due, timers by time and then by the order of
their making. A callback belongs to the process in whose context it was scheduled: while that is
paused its callbacks wait, once it is dead they are dropped. A callback's exception ends the run.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import heapq
import sys
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Args = TypeVarTuple("Args")

START_S = 1000.0
"""Not zero: nothing may depend on a clock that begins there."""
TURN_S = 1e-6
"""How much later than asked for a timer fires. A clock that shows exactly what was asked for lets
those spin who round: it is not yet time, says one side, and now it is, the other."""
MOST_EVENTS = 1_000_000
"""In a second of virtual time."""

Context = contextvars.Context
PROCESS: contextvars.ContextVar[Process] = contextvars.ContextVar("process")


class SimulationFailed(Exception):
    """The run can't go on, or must not."""


class Stalled(SimulationFailed):
    """Nothing is ready and no timer is set: what is waited for can't happen any more."""


class Livelocked(SimulationFailed):
    """Callbacks go on and on while hardly any time passes."""


class TooLate(SimulationFailed):
    """The virtual deadline has passed."""


class CallbackFailed(SimulationFailed):
    """A callback or a task ended with an exception that nobody took."""


class Process:
    """A program that runs on a host; its callbacks can be held back or dropped."""

    def __init__(self, loop: SimLoop, name: str, host: str) -> None:
        self.loop = loop
        self.name = name
        self.host = host
        self.alive = True
        self.runs = True
        self.is_buried = False
        self.held: list[_Handle] = []
        self.at_end: list[Callable[[], None]] = []
        """What the kernel does when the process has gone."""
        self.tasks = _Tasks()
        self._pauses = 0
        self.context = Context()
        self.context.run(PROCESS.set, self)
        loop.processes[self] = None

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        return self.loop.create_task(work, context=self.context.copy())

    def pause(self) -> None:
        """Pauses add up: each needs its own `resume`."""
        self._pauses += 1
        self.runs = False

    def resume(self) -> None:
        self._pauses -= 1
        if self.alive and not self._pauses:
            self.runs = True
            self.loop.requeue(self.held)
            self.held = []

    def stall(self, seconds: float) -> None:
        """It is busy, or its caller is, in a call that blocks."""
        self.pause()
        self.loop.call_later(seconds, self.resume, context=Context())

    def kill(self) -> None:
        """From now on nothing of it runs, not even the rest of its `finally` clauses that would
        matter: the kernel takes its connections, and its disk doesn't listen any more."""
        if not self.alive:
            return
        self.alive = self.runs = False
        at_end, self.at_end = self.at_end, []
        for action in at_end:
            action()
        # Not at once: one of its own callbacks may be running.
        self.loop.call_soon(self.bury, context=Context())

    def bury(self) -> None:
        """End suspended coroutines here and now, not when memory happens to be collected."""
        self.alive = self.runs = False
        self.is_buried = True
        self.context.copy().run(self.tasks.close)
        self.held.clear()
        self.loop.processes.pop(self, None)


class _Tasks:
    """In the order of their making, and weakly held: a task that failed unseen shall be noticed."""

    def __init__(self) -> None:
        self._refs: list[weakref.ref[asyncio.Task[Any]]] = []
        self._prune_at = 64

    def add(self, task: asyncio.Task[Any]) -> None:
        self._refs.append(weakref.ref(task))
        if len(self._refs) > self._prune_at:
            self._refs = [ref for ref in self._refs if (it := ref()) and not it.done()]
            self._prune_at = max(64, 2 * len(self._refs))

    def close(self) -> None:
        refs, self._refs = self._refs, []
        for ref in refs:
            task = ref()
            if task is None or task.done():
                continue
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            coroutine = task.get_coro()
            if coroutine is not None:
                with contextlib.suppress(BaseException):
                    coroutine.close()


class _Handle(asyncio.TimerHandle):
    __slots__ = ("process",)

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: Context,
    ) -> None:
        # Without the base's own: it costs as much as the rest of an event.
        self._when = when
        self._callback = callback
        self._args = args
        self._context = context
        self._cancelled = False
        self.process: Process | None = context.get(PROCESS)

    def __repr__(self) -> str:
        return getattr(self._callback, "__qualname__", repr(self._callback))

    def cancel(self) -> None:
        self._cancelled = True
        self._callback = self._args = None  # type: ignore[assignment]

    def cancelled(self) -> bool:
        return self._cancelled

    def when(self) -> float:
        return self._when


class SimLoop(asyncio.AbstractEventLoop):
    def __init__(self) -> None:
        self.events = 0
        self.processes: dict[Process, None] = {}
        self.observer: Callable[[Process | None], None] | None = None
        """Called after every event of whomever; raises if something is wrong."""
        self.on_failure: Callable[[str, BaseException | None], None] | None = None
        self._now = START_S
        self._ready: deque[_Handle] = deque()
        self._timers: list[tuple[float, int, _Handle]] = []
        self._made = 0
        self._milestone = MOST_EVENTS
        self._milestone_s = 0.0
        self._failure: SimulationFailed | None = None
        self._tasks_of_nobody = _Tasks()
        self._closed = False
        self._running = False

    # -- running -----------------------------------------------------------------------------

    def run_until(self, done: Callable[[], bool], *, within_s: float = float("inf")) -> None:
        """Run until the condition holds after an event; time stands still while events run."""
        deadline = self._now + within_s
        with self._as_running_loop():
            while not done():
                if not self._ready:
                    self._advance(deadline)
                self._run_ready(done)

    def run_until_complete(self, future: Any) -> Any:
        task: asyncio.Future[Any] = asyncio.ensure_future(future, loop=self)
        self.run_until(task.done)
        return task.result()

    def _run_ready(self, done: Callable[[], bool]) -> None:
        ready, observer = self._ready, self.observer
        while ready:
            handle = ready.popleft()
            if handle._cancelled:
                continue
            process = handle.process
            if process is not None and not process.runs:
                if not process.is_buried:  # till then tasks that never began are kept, too
                    process.held.append(handle)
                continue
            self.events += 1
            try:
                handle._context.run(handle._callback, *handle._args)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:
                self._failed(f"callback {handle!r}", error, process)
            if observer is not None and self._failure is None:
                observer(process)
            if self._failure is not None:
                raise self._failure
            if done():
                return
            if self.events > self._milestone:
                self._check_progress()

    def _check_progress(self) -> None:
        if self._now - self._milestone_s < 1.0:
            raise Livelocked(f"{MOST_EVENTS} events within a second at {self.elapsed():.6f} s")
        self._milestone = self.events + MOST_EVENTS
        self._milestone_s = self._now

    def _advance(self, deadline: float) -> None:
        timers = self._timers
        while timers and timers[0][2]._cancelled:
            heapq.heappop(timers)
        if not timers:
            raise Stalled(f"nothing will happen any more after {self.elapsed():.6f} s")
        when = timers[0][0]
        if when > deadline:
            self._now = deadline
            raise TooLate(f"not within the time given: it is {self.elapsed():.6f} s")
        self._now = max(self._now, when) + TURN_S
        while timers and timers[0][0] <= self._now:
            self._ready.append(heapq.heappop(timers)[2])

    @contextlib.contextmanager
    def _as_running_loop(self) -> Iterator[None]:
        if self._running:
            raise RuntimeError("the loop runs already")
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(finalizer=self._finish_generator)
        asyncio._set_running_loop(self)
        self._running = True
        try:
            yield
        finally:
            self._running = False
            asyncio._set_running_loop(None)
            sys.set_asyncgen_hooks(*hooks)

    def _finish_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        process = PROCESS.get(None)
        if not self._closed and (process is None or process.alive):
            self.call_soon(lambda: self.create_task(_closed(generator)))

    def close(self) -> None:
        """End everything that still waits, without letting it do anything."""
        if self._closed:
            return
        self._closed = True
        with self._as_running_loop():
            for process in list(self.processes):
                process.bury()
            self._tasks_of_nobody.close()
        self._ready.clear()
        self._timers.clear()

    # -- failures ----------------------------------------------------------------------------

    def fail(self, error: SimulationFailed) -> None:
        """End the run after this event, whoever catches what is raised meanwhile."""
        self._failure = self._failure or error

    def _failed(self, what: str, error: BaseException | None, process: Process | None) -> None:
        if process is not None and not process.alive:
            return  # its last words
        if self.on_failure is not None:
            self.on_failure(what, error)
        if isinstance(error, SimulationFailed):
            self.fail(error)
        else:
            who = f"{process.name}: " if process is not None else ""
            failure = CallbackFailed(f"{who}{what}: {type(error).__name__}: {error}")
            failure.__cause__ = error
            self.fail(failure)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self._closed:
            return
        future = context.get("task") or context.get("future")
        process = getattr(future, "process", None)
        self._failed(context.get("message", ""), context.get("exception"), process)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    # -- time and callbacks ------------------------------------------------------------------

    def time(self) -> float:
        return self._now

    def elapsed(self) -> float:
        return self._now - START_S

    def call_soon(
        self,
        callback: Callable[[*Args], object],
        *args: *Args,
        context: Context | None = None,
    ) -> _Handle:
        if context is None:
            context = contextvars.copy_context()
        handle = _Handle(self._now, callback, args, context)
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(
        self,
        callback: Callable[[*Args], object],
        *args: *Args,
        context: Context | None = None,
    ) -> _Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Args], object],
        *args: *Args,
        context: Context | None = None,
    ) -> _Handle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Args], object],
        *args: *Args,
        context: Context | None = None,
    ) -> _Handle:
        if context is None:
            context = contextvars.copy_context()
        handle = _Handle(when, callback, args, context)
        self._made += 1
        heapq.heappush(self._timers, (when, self._made, handle))
        return handle

    def requeue(self, handles: list[_Handle]) -> None:
        self._ready.extend(handles)

    # -- futures and tasks -------------------------------------------------------------------

    def create_future(self) -> asyncio.Future[Any]:
        future = _Future(loop=self)
        future.process = PROCESS.get(None)
        return future

    def create_task(
        self, coro: Any, *, name: object = None, context: Context | None = None
    ) -> asyncio.Task[Any]:
        task = _Task(coro, loop=self, name=None if name is None else str(name), context=context)
        task.process = context.get(PROCESS) if context is not None else PROCESS.get(None)
        owner = self._tasks_of_nobody if task.process is None else task.process.tasks
        owner.add(task)
        return task

    # -- what asyncio asks of a loop -----------------------------------------------------------

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    async def shutdown_asyncgens(self) -> None:
        return

    async def shutdown_default_executor(self) -> None:
        return


class _Future(asyncio.Future[Any]):
    """Knows whose it is: what a dead process leaves behind is nobody's concern."""

    process: Process | None = None


class _Task(asyncio.Task[Any]):
    process: Process | None = None


async def _closed(generator: AsyncGenerator[Any, Any]) -> None:
    await generator.aclose()
