"""From ``publish()`` to the driver: mailboxes, batches, and what a publisher has under way.

A caller's thread appends a message to the mailbox of its topic, and tells the library's thread of
it where that has something to do: there is no open batch, or the mailbox may hold what fills it.
All else here runs on the library's thread. A mailbox that was told of is emptied, so that nothing
that interrupts a caller can leave a message behind.
"""

from __future__ import annotations

import concurrent.futures
import functools
import math
import sys
import time
from collections.abc import Callable
from typing import Final

from hedged_pubsub._core import batching
from hedged_pubsub._core.batching import Limits
from hedged_pubsub._core.recent_topics import MAX_TOPICS
from hedged_pubsub._google.batch import PublishBatch
from hedged_pubsub._google.call_policy import CallPolicy
from hedged_pubsub._sync import greenlets
from hedged_pubsub._sync.driver import Driver
from hedged_pubsub._sync.flow_control import FlowControl
from hedged_pubsub._sync.future import PublishFuture, fail_after_fork
from hedged_pubsub._sync.library_thread import LibraryThread
from hedged_pubsub._sync.workers import Workers

_MAX_TURN: Final = 0.005
"""Seconds of sending after which timers and other mailboxes get their turn. Ten times that is how
late a hedge may be."""

TOLD: Final = sys.maxsize
"""What is wanted of a mailbox that the thread was told of and has not come to yet: no more."""


class Mailbox(batching.Mailbox[PublishBatch]):
    """The messages of one topic and one call policy that are in no batch yet, and the open batch.

    Callers append to its queue; the library's thread takes out. ``wanted`` is ``TOLD`` once the
    thread was told of it.
    """

    __slots__ = ("_sender", "key")

    def __init__(self, topic: str, policy: CallPolicy, sender: Sender) -> None:
        open_batch = functools.partial(
            sender.driver.open, topic, policy, has_extras=sender.has_extras
        )
        super().__init__(topic, sender.limits, open_batch)
        self.key = topic, policy
        self._sender = sender

    def reset_after_fork(self, error: BaseException) -> None:
        """Be empty in a forked child, where the messages have this error."""
        fail_after_fork(self.queue, error)
        self.clear()

    def take(self, *, is_idle: bool = False) -> None:
        """Put messages into batches and send those that are full, for a while.

        An ``is_idle`` one is put away, even if a timer runs that would send what comes.
        """
        sender = self._sender
        until = sender.clock() + _MAX_TURN
        is_in_time = True
        while is_in_time:
            is_in_time = not self.queue or self._move(until)
            if sender.refusal is not None and not self.queue:
                # It came while the publisher was stopped: nothing else comes to fill the batch.
                self._send_batch()
            if (is_idle and self.is_empty) or not sender.watches(self):
                self.wanted = 1
                is_idle = False
                sender.put_away(self)
            else:
                self.announce()
            # What came before this may have been measured by the last announcement.
            if not self.queue:
                return
        self.wanted = TOLD
        sender.library.put(self)

    def send_open(self, until: float) -> None:
        """Send all that there is, if that does not take longer than ``until``."""
        is_idle = self.is_empty
        if not self.queue or self._move(until):
            self._send_batch()
        self.take(is_idle=is_idle)  # what came meanwhile

    def _move(self, until: float) -> bool:
        """Put what is in the queue now into batches; return whether there was time for that."""
        sender = self._sender
        for full in self.fill():
            for batch in full:
                sender.send(batch)
            if sender.clock() >= until:
                return False
        return True

    def _send_batch(self) -> None:
        batch = self.close()
        if batch is not None:
            self._sender.send(batch)


class Sender:
    """What one publisher has accepted and not stored yet, and the way it takes.

    Attributes:
        usual: The mailboxes that ``publish()`` may put a plain message into without further ado.
        is_traced: Whether messages have spans.
        has_extras: Whether messages have a permit or spans.
        refusal: Why no more messages are taken; ``None`` while they are.
    """

    def __init__(
        self,
        *,
        limits: Limits,
        flow_control: FlowControl,
        is_traced: bool,
        driver: Driver,
        library: LibraryThread,
        workers: Workers,
        clock: Callable[[], float],
    ) -> None:
        self.limits = limits
        self.flow_control = flow_control
        self.driver = driver
        self.library = library
        self._workers = workers
        self._made_for_greenlets = greenlets.are_threads()
        self.clock = clock
        self.usual: dict[str, Mailbox] = {}
        self.refusal: str | None = None
        self.is_traced = is_traced
        self.has_extras = flow_control.counts or is_traced
        self._mailboxes: dict[tuple[str, CallPolicy], Mailbox] = {}
        # The library thread's, as is all below: those that the timer or a flush has to send.
        self._watched: dict[Mailbox, None] = {}
        self._timer_runs = False
        self._held_back: list[PublishBatch] | None = None

    # --- On callers' threads.

    def mailbox(self, topic: str, policy: CallPolicy) -> Mailbox:
        """Return the mailbox for messages of a topic and a policy, or raise the refusal."""
        if self.refusal is not None:
            raise RuntimeError(self.refusal)
        if self.driver.rpc.is_parents:
            self.driver.rpc.renew()
        key = (topic, policy)
        mailbox = self._mailboxes.get(key)
        if mailbox is None:
            mailbox = self._mailboxes.setdefault(key, Mailbox(topic, policy, self))
        return mailbox

    def make_usual(self, topic: str, mailbox: Mailbox) -> None:
        """Let ``publish()`` put plain messages into a mailbox, unless no more are taken."""
        self.usual.setdefault(topic, mailbox)
        if self.refusal is not None:
            self.usual.clear()

    def refuse(self, refusal: str) -> None:
        """Take no more messages: a later ``publish()`` raises the refusal."""
        self.refusal = refusal
        self.usual.clear()

    def send_soon(self) -> None:
        """Send what is open. Returns at once."""
        self._soon(self._send_open)

    def finish(self) -> None:
        """Close the publisher's own connections once all is decided. Returns at once."""
        self._soon(self.driver.when_decided, self.driver.rpc.close_soon)

    def _soon(self, function: Callable[..., object], *args: object) -> None:
        self.library.post(function, *args)
        if not self.library.start():
            self.library.run_once()

    def end(self) -> None:
        """Send what is open, and let go of the connections once all is decided. Returns at once.

        For a publisher that was dropped, on whatever thread that happens: it may be in a garbage
        collection.
        """
        if self.library.ident is not None or self._mailboxes or self.driver.undecided:
            self.library.post(self._end)
            self.library.start()
        else:  # it was never used
            self.driver.rpc.release()

    def send_all(self) -> list[PublishFuture]:
        """Send what is open, and return the futures of all that is undecided."""
        futures: list[PublishFuture] = self.library.ask(self._send_all)
        return futures

    def flush(self, timeout: float | None) -> None:
        """Send what was accepted and wait until it is decided; see ``HedgedPublisher.flush``."""
        accepted = self.send_all()
        undecided = undecided_after(accepted, timeout)
        if undecided:
            raise concurrent.futures.TimeoutError(
                f"{undecided} of {len(accepted)} messages are not decided after {timeout:g} s"
            )

    def abandon(self, error: BaseException) -> None:
        """End all that is under way with an error."""
        self.library.ask(self._abandon, error)

    def hold_back(self) -> list[PublishBatch]:
        """Return the batches that are not sent yet, for the caller to send."""
        batches: list[PublishBatch] = self.library.ask(self._hold_back)
        return batches

    def reset_after_fork(self) -> None:
        """Start empty in a forked child: what is under way is the parent's to send."""
        error = RuntimeError(
            "the message was accepted before this process was forked: its parent sends it"
        )
        self.usual.clear()
        self._timer_runs = False
        self._held_back = None
        mailboxes = {*self._mailboxes.values(), *self._watched}
        self._watched = {}
        self.flow_control.reset_after_fork()
        for mailbox in mailboxes:
            mailbox.reset_after_fork(error)
        self.driver.reset_after_fork(error)

    # --- On the library's thread.

    def watches(self, mailbox: Mailbox) -> bool:
        """Tell whether a mailbox will be sent, in time for its batch if it has one."""
        if mailbox.batch is None and not mailbox.queue and not self._timer_runs:
            return False
        self._watched[mailbox] = None
        if not self._timer_runs and self.limits.max_latency < math.inf:
            self._timer_runs = True
            self.library.call_at(self.clock() + self.limits.max_latency, self._latency_is_over)
        return True

    def send(self, batch: PublishBatch) -> None:
        """Send a batch that takes no more messages."""
        driver = self.driver
        if self._held_back is not None:
            self._held_back.append(batch)
        elif driver.runs_users_code(batch):
            # It may block. So neither ``publish()`` nor another batch waits for it, as in the
            # official client, where each batch has a thread.
            self._workers.submit_urgent(driver.submit, batch)
        elif self.library.is_stand_in:
            driver.send_and_wait(batch, self.clock() + batch.total_timeout)
        elif greenlets.deadlocks(made_for_greenlets=self._made_for_greenlets):
            deadline = self.clock() + batch.total_timeout
            self._workers.submit_urgent(driver.send_and_wait, batch, deadline)
        else:
            driver.submit(batch)

    def put_away(self, mailbox: Mailbox) -> None:
        """Forget a mailbox that has nothing in it, unless it is one of the usual ones.

        Neither a new ``Retry`` for each message nor a new topic must make this grow. A caller may
        have it at hand; a message that it gets now comes all the same.
        """
        if self.usual.get(mailbox.key[0]) is not mailbox:
            self._forget(mailbox)
        elif len(self.usual) > MAX_TOPICS:
            for topic in list(self.usual)[: MAX_TOPICS // 2]:
                usual = self.usual.pop(topic, None)
                # One that has something in it is forgotten when it is put away.
                if usual is not None and usual.is_empty:
                    self._forget(usual)

    def _forget(self, mailbox: Mailbox) -> None:
        if self._mailboxes.get(mailbox.key) is mailbox:
            del self._mailboxes[mailbox.key]

    def _latency_is_over(self) -> None:
        self._timer_runs = False
        self._send_open(self.clock() + _MAX_TURN)

    def _send_open(self, until: float = math.inf) -> None:
        """Send all that is open, if that does not take longer than ``until``.

        What was accepted before this was asked for is in there: the thread was told of each
        mailbox before, so that it is watched, or has been emptied.
        """
        watched, self._watched = self._watched, {}
        for mailbox in watched:
            mailbox.send_open(until)

    def _end(self) -> None:
        self._send_open()
        self._mailboxes.clear()
        self.driver.when_decided(self.driver.rpc.release)

    def _send_all(self) -> list[PublishFuture]:
        self._send_open()
        return [future for batch in self.driver.undecided.copy() for future in batch.messages]

    def _hold_back(self) -> list[PublishBatch]:
        held_back: list[PublishBatch] = []
        self._held_back = held_back
        self._send_open()
        return held_back

    def _abandon(self, error: BaseException) -> None:
        self._send_open()
        self.driver.abandon(error)


def undecided_after(accepted: list[PublishFuture], timeout: float | None) -> int:
    """Wait for futures, one after the other, and return how many have no outcome in time.

    ``concurrent.futures.wait`` would hold the conditions of all of them at once.
    """
    give_up = None if timeout is None else time.monotonic() + timeout
    for future in accepted:
        if not future.done() and not future.wait(
            None if give_up is None else max(0.0, give_up - time.monotonic())
        ):
            break
    return sum(not future.done() for future in accepted)
