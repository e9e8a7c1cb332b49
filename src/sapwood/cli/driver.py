"""The process that runs one pipeline: Spark lives and dies in it, and nowhere else.

`sapwood pipeline run` starts it with the run's folder; the supervisor of `up` adds the address of
its cluster. What Spark says goes to stderr, which is the run's log; how it is
going, to the folder's status. SIGTERM, or the end of stdin, stops it in good order.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from sapwood.node.lock import DirectoryLock, DirectoryLocked
from sapwood.spark.explaining import explain
from sapwood.spark.pipelines import PIPELINES, load
from sapwood.spark.pipelines.own import own_pipeline
from sapwood.spark.pipelines.published import Publisher
from sapwood.spark.pipelines.state import Request, RunFolder, Status
from sapwood.spark.pipelines.words import Outcome, PipelineFailed, Run, Start
from sapwood.spark.session import build_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from sapwood.spark.watching import ProgressListener

REPORT_EVERY_S = 0.5
LOOK_EVERY_S = 0.1
STARTS = 5
NO_CALL_BACK = "Python worker failed to connect back"


class Driver:
    """One run, from the session's start to the last word in its status."""

    def __init__(self, folder: RunFolder, request: Request) -> None:
        self._folder = folder
        self._request = request
        self._stopping = threading.Event()
        self._over = threading.Event()
        self._session: SparkSession | None = None
        self._listener: ProgressListener | None = None
        self._publisher: Publisher | None = None
        self._said = b""
        self._status = Status(
            name=request.name,
            pipeline=request.pipeline,
            pid=os.getpid(),
            once=request.once,
            started_ms=time.time_ns() // 1_000_000,
        )

    def stop(self) -> None:
        self._stopping.set()

    def run(self) -> int:
        """The exit status. Whatever happens, the folder's status says it in a line."""
        self._folder.save_status(self._status)
        reporter = threading.Thread(target=self._report, name="reporter", daemon=True)
        reporter.start()
        try:
            outcome = self._work()
            self._status.state = "stopped" if self._stopping.is_set() else "finished"
        except Exception as error:
            outcome = self._failed(error)
        self._over.set()
        reporter.join()
        self._tell(is_last=True)
        if outcome.message:
            with contextlib.suppress(OSError):
                print(outcome.message, flush=True)
        if self._session is not None:
            with contextlib.suppress(Exception):  # all is said and done
                self._session.stop()
        return outcome.status

    def _failed(self, error: Exception) -> Outcome:
        if self._stopping.is_set():  # what is stopped in the middle of its work complains
            self._status.state = "stopped"
            return Outcome()
        traceback.print_exc()
        self._status.state = "failed"
        self._status.error = explain(error)
        pipeline = self._request.pipeline
        failed = load(pipeline).failed_status if pipeline in PIPELINES else 1
        return Outcome(
            status=max(failed, error.status) if isinstance(error, PipelineFailed) else failed
        )

    def _work(self) -> Outcome:
        request = self._request
        folder = self._folder
        os.environ["SAPWOOD_BOOTSTRAP"] = request.bootstrap  # for files that name no cluster
        if request.pipeline not in PIPELINES and Path(request.pipeline).is_dir():
            return self._work_declared()
        ready_made = load(request.pipeline) if request.pipeline in PIPELINES else None
        start = ready_made.start if ready_made else own_pipeline(Path(request.pipeline))
        self._session = session = build_session(
            f"sapwood pipeline {request.name}",
            folder.path / "spark",
            master=request.master,
            memory=request.memory,
            settings={
                "spark.sql.streaming.checkpointLocation": folder.run(request).checkpoint("own"),
                **request.spark,
            },
        )
        from sapwood.spark.watching import ProgressListener

        listener = ProgressListener()
        session.streams.addListener(listener)
        self._listener = listener
        self._publisher = Publisher(request.bootstrap)
        if self._stopping.is_set():
            return Outcome()
        self._status.state = "running"
        run = folder.run(request)
        outcome = self._patiently(session, start, run, STARTS if ready_made else 1)
        if ready_made and ready_made.finish and not self._stopping.is_set():
            ready_made.finish(run)
        return outcome

    def _patiently(self, session: SparkSession, start: Start, run: Run, attempts: int) -> Outcome:
        """A machine may be too busy for Spark, which gives a new Python ten seconds to call back.

        Then a ready-made pipeline is started again: each goes on where it was.
        """
        while True:
            attempts -= 1
            try:
                done = start(session, run)
                if isinstance(done, Outcome):
                    return done
                self._wait_for(done)
                return Outcome()
            except Exception as error:
                if NO_CALL_BACK not in str(error) or not attempts or self._stopping.is_set():
                    raise
                traceback.print_exc()

    def _work_declared(self) -> Outcome:
        from sapwood.spark.pipelines.declarative import run_declarative

        request = self._request
        self._publisher = Publisher(request.bootstrap)
        self._status.state = "running"
        run = self._folder.run(request)
        memory = {} if request.memory is None else {"spark.driver.memory": request.memory}
        settings = {**memory, **request.spark}
        return run_declarative(run, self._stopping, remote=request.remote, settings=settings)

    def _wait_for(self, queries: Sequence[StreamingQuery]) -> None:
        """Until all have ended, or one has failed; the reporter stops them if it is told to."""
        while active := [query for query in queries if query.isActive]:
            if any(query.exception() is not None for query in queries if query not in active):
                break
            time.sleep(LOOK_EVERY_S)
        for query in queries:
            if query.isActive:
                query.stop()
            if self._listener is not None:
                for said in query.recentProgress:
                    self._listener.hear(said)
            if (failure := query.exception()) is not None:
                raise failure

    def _report(self) -> None:
        """In a thread of its own: tells how it is going, and stops what is to be stopped."""
        while not self._over.wait(REPORT_EVERY_S):
            self._tell()
            if self._stopping.is_set() and self._session is not None:
                with contextlib.suppress(Exception):  # it is ending anyway, and says how itself
                    for query in self._session.streams.active:
                        query.stop()
                    self._session.sparkContext.cancelAllJobs()

    def _tell(self, *, is_last: bool = False) -> None:
        if self._listener is not None:
            self._status.queries = self._listener.progress()
            self._count_tasks()
        words = msgspec.json.encode(self._status)
        if words == self._said and not is_last:
            return
        self._said = words
        with contextlib.suppress(OSError):  # a full disk doesn't end what still goes
            self._folder.save_status(self._status)
        if self._publisher is not None:
            self._publisher.publish(self._status)

    def _count_tasks(self) -> None:
        status, session = self._status, self._session
        status.tasks = status.tasks_done = 0
        if status.queries or session is None or self._over.is_set():
            return
        with contextlib.suppress(Exception):  # Spark may be ending at this moment
            tracker = session.sparkContext.statusTracker()
            for stage in map(tracker.getStageInfo, tracker.getActiveStageIds()):
                if stage is not None:
                    status.tasks += stage.numTasks
                    status.tasks_done += stage.numCompletedTasks


def _watch_parent(driver: Driver) -> None:
    while sys.stdin.buffer.read(1):
        pass
    driver.stop()


def main(arguments: list[str]) -> int:
    """FOLDER, and BOOTSTRAP if nobody sits at a terminal and all that is said is for the log."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    folder = RunFolder(Path(arguments[0]))
    try:
        lock = DirectoryLock(folder.lock)
        request = folder.request()
    except (DirectoryLocked, PipelineFailed, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if arguments[1:]:
        request.bootstrap = arguments[1]
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    driver = Driver(folder, request)
    for name in ("SIGTERM", "SIGINT", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), lambda *_: driver.stop())
    threading.Thread(target=_watch_parent, args=(driver,), daemon=True).start()
    try:
        return driver.run()
    finally:
        lock.release()


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # threads of Spark's may still wait for something
