"""Flow control: the limits, first come, first served, and what interruptions must not break."""

from __future__ import annotations

import functools
import itertools
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, NoneType
from typing import Any

import pytest
from google.cloud.pubsub_v1.publisher.exceptions import FlowControlLimitError
from google.cloud.pubsub_v1.publisher.flow_controller import FlowController
from google.cloud.pubsub_v1.types import LimitExceededBehavior, PublishFlowControl
from google.pubsub_v1 import types
from hypothesis import given
from hypothesis import strategies as st

from hedged_pubsub._core.flow_control import (
    ADMITTED,
    NEW,
    RELEASED,
    WAITING,
    FlowControl,
    Permit,
    merge,
)
from hedged_pubsub._google import options
from hedged_pubsub._sync import flow_control as threads
from tests.system.interruptions.places import interrupt, interrupt_collection

BLOCK, ERROR = LimitExceededBehavior.BLOCK, LimitExceededBehavior.ERROR


def limited(
    *, messages: int = 100, size: int = 100, behavior: LimitExceededBehavior = BLOCK
) -> PublishFlowControl:
    """Make the settings with these limits."""
    return PublishFlowControl(
        message_limit=messages, byte_limit=size, limit_exceeded_behavior=behavior
    )


def make(**limits: Any) -> FlowControl:
    """Make flow control with these limits."""
    return options.flow_control(limited(**limits))


def admitted(flow: FlowControl, size: int = 1) -> Permit:
    """Return a permit that was admitted at once."""
    permit = Permit(size)
    assert flow.admit(permit)
    return permit


def queued(flow: FlowControl, size: int = 1) -> Permit:
    """Return a permit that waits."""
    permit = Permit(size)
    assert not flow.admit(permit)
    return permit


# --- The limits.


def test_it_counts_unless_it_is_to_ignore() -> None:
    """By default there are no limits, and then everything is admitted."""
    assert not options.flow_control(PublishFlowControl()).counts
    assert make(behavior=BLOCK).counts
    assert make(behavior=ERROR).counts
    flow = FlowControl(message_limit=1)
    assert flow.counts
    admitted(flow)
    queued(flow)
    flow = make(messages=0, size=0, behavior=LimitExceededBehavior.IGNORE)
    assert not flow.counts
    assert flow.admit(Permit(10**9))


def test_a_second_time_changes_nothing() -> None:
    """A permit counts once, has one place in the queue, and is released once in any state."""
    flow = make(messages=1)
    first, second = admitted(flow), queued(flow)
    assert flow.admit(first)
    assert not flow.admit(second)
    assert flow.release(first) == [second]
    assert flow.admit(second)
    assert flow.messages == 1
    assert flow.pump() == [], "whom admit has told need not be woken"
    for permit in (queued(flow), second, Permit(1)):
        for _ in range(3):
            flow.release(permit)
            assert permit.state == RELEASED
    assert not flow.admit(second), "a released one is never admitted"
    assert (flow.messages, flow.bytes) == (0, 0)


def test_a_permit_is_returned_until_its_owner_is_woken() -> None:
    """If a driver was interrupted, the next release brings what it had not come to."""
    flow = make(messages=2)
    held = [admitted(flow), admitted(flow)]
    first, second = queued(flow), queued(flow)
    assert first.wake is None, "nobody waits for it"
    assert flow.release(held[0]) == [first]
    assert flow.release(held[1]) == [first, second]
    flow.woken(first)
    assert flow.pump() == [second]
    flow.woken(second)
    assert flow.pump() == []
    third = queued(flow)
    flow.woken(third)
    assert third.state == WAITING, "one that waits cannot be woken"
    assert flow.release(first) == [third]


def test_the_next_message_makes_up_for_an_interrupted_release(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where an exception came before those that fit were admitted, they are when another comes."""
    flow = make(messages=2)
    held, _ = admitted(flow), admitted(flow)
    first = queued(flow)
    with monkeypatch.context() as interrupted:
        interrupted.setattr(FlowControl, "pump", None)  # calling it raises
        with pytest.raises(TypeError):
            flow.release(held)
    assert first.state == WAITING
    queued(flow)
    assert first.state == ADMITTED
    assert flow.pump() == [first]


def test_merged_messages_are_released_at_once() -> None:
    """They count as before, and then they do not, whatever is released on its own.

    Nobody needs to be woken for one that is merged before; the others are, as they came.
    """
    flow = make(messages=4)
    held = [admitted(flow) for _ in range(4)]
    first, second, third, fourth = (queued(flow, size) for size in (10, 20, 30, 40))
    for permit in held:
        flow.release(permit)
    merge(second, first)
    assert (flow.messages, flow.bytes) == (4, 100)
    assert flow.pump() == [first, third, fourth]
    assert flow.release(second) == [first, third, fourth]
    merge(third, first)
    fifth = queued(flow, 40)
    assert (flow.messages, flow.bytes) == (4, 100)
    assert flow.release(first) == [fourth, fifth]
    assert (flow.messages, flow.bytes) == (2, 80)
    merge(fourth, first)
    assert fourth.state == ADMITTED, "there is nothing left to count it with"
    assert flow.release(fourth) == [fifth]
    flow.release(fifth)
    assert (flow.messages, flow.bytes) == (0, 0)


@pytest.mark.parametrize("step", [1, -1, 7], ids=["in order", "backwards", "from the middle"])
def test_leaving_the_queue_takes_the_same_time_from_any_place(step: int) -> None:
    """Twice as many waiting messages that are taken back are twice the work; none is too deep."""

    def steps(count: int) -> int:
        flow = make(messages=1)
        admitted(flow)
        waiting = [queued(flow) for _ in range(count)]
        lines = itertools.count()

        def trace(frame: FrameType, event: str, _: Any) -> Any:
            next(lines)
            return trace

        with tracer_restored():
            sys.settrace(trace)
            for number in range(count):
                flow.release(waiting[number * step % count])
        assert flow.messages == 1
        return next(lines)

    assert steps(1200) < 2.1 * steps(600)


# --- Whatever comes, and against the official one.


def operations(most: int) -> Any:
    """Admit messages of so many bytes, and release those of these numbers."""
    admit = st.tuples(st.just("admit"), st.integers(0, most))
    return st.lists(admit | st.tuples(st.just("release"), st.integers(0, 40)), max_size=60)


@given(messages=st.integers(1, 5), operations=operations(30))
def test_first_come_first_served(messages: int, operations: list[tuple[str, int]]) -> None:
    """Whoever fits is admitted, from the front of the queue alone; a release says who was."""
    flow = make(messages=messages, size=30)
    permits: list[Permit] = []
    released: set[Permit] = set()
    for operation, value in operations:
        if operation == "admit":
            permits.append(Permit(value))
            waiting = ring(flow._waiting)
            fits = not waiting and flow.messages < messages and flow.bytes + value <= 30
            assert flow.admit(permits[-1]) == fits
            assert ring(flow._waiting) == [*waiting, *[permits[-1]] * (not fits)]
        elif permits:
            permit = permits[value % len(permits)]
            waiting = [one for one in ring(flow._waiting) if one is not permit]
            to_wake = flow.release(permit)
            assert [*to_wake, *ring(flow._waiting)] == waiting
            for one in to_wake:
                flow.woken(one)
            released.add(permit)
        check(flow, permits)
        assert {permit for permit in permits if permit.state == RELEASED} == released


@given(st.sampled_from([BLOCK, ERROR]), st.integers(0, 4), operations(40))
def test_it_does_what_the_official_flow_controller_does(
    behavior: LimitExceededBehavior, messages: int, operations: list[tuple[str, int]]
) -> None:
    """The same messages are accepted, the same are refused, and the texts say the same."""
    settings = limited(messages=messages, size=30, behavior=behavior)
    ours, officials = options.flow_control(settings), FlowController(settings)
    accepted: list[tuple[Permit, types.PubsubMessage]] = []
    for operation, value in operations:
        if operation == "admit":
            message = types.PubsubMessage(data=bytes(value))
            permit = Permit(message._pb.ByteSize())
            could_wait = behavior == BLOCK and permit.size <= 30 and messages > 0
            if could_wait and officials._would_overflow(message):  # and block this thread
                assert not ours.admit(permit)
                ours.release(permit)
                continue
            refusal = _refusal(ours.admit, permit)
            # The official text has what is set aside for threads that wait, too.
            numbers = (
                text.replace(" (reserved: 0)", "")
                for text in (refusal, _refusal(officials.add, message))
            )
            assert len({*numbers}) == 1
            if not refusal:
                accepted.append((permit, message))
            else:
                assert permit.state == NEW
                assert ours.release(permit) == ()
        elif accepted:
            permit, message = accepted.pop(value % len(accepted))
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                officials.release(message)
            assert ours.release(permit) == ()
        assert ours.messages == officials._message_count
        assert ours.bytes == officials._total_bytes


def _refusal(add: Callable[[Any], object], message: object) -> str:
    try:
        add(message)
    except FlowControlLimitError as error:
        return str(error)
    return ""


# --- Interruptions: whatever a signal handler does, wherever it runs.


class Interruption(BaseException):
    """Raised by a signal handler, as Ctrl-C is."""


class Waiting(Exception):
    """Raised where a thread would wait."""


class Driver(threads.FlowControl):
    """Flow control on threads, used as a publisher does; whoever would wait goes on instead."""

    def add(self, permit: Permit) -> None:
        try:
            super().add(permit)
        except Waiting:
            pass
        except BaseException:
            super().release(permit)
            raise

    def release(self, *permits: Permit) -> None:
        for permit in permits:
            try:
                super().release(permit)
            except BaseException:
                super().release(permit)
                raise

    def merge(self, permits: list[Permit]) -> None:
        try:
            for permit in permits[1:]:
                merge(permit, permits[0])
        except BaseException:
            self.release(*permits)
            raise


@pytest.fixture
def _nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    def wait_for(*_: object) -> None:
        raise Waiting

    monkeypatch.setattr("hedged_pubsub._sync.threads.wait_for", wait_for)


class Scene:
    """Flow control with three messages under way and four that wait, and two that are to come.

    Where nobody waits, the new one just fits, and so does the signal handler's, but not beside it.
    """

    def __init__(self, *, waiting: bool = True) -> None:
        self.driver = Driver(limited(messages=4, size=60))
        self.flow = self.driver._limits
        self.held = [admitted(self.flow, size) for size in (10, 20, 25)]
        self.waiting = [Permit(size) for size in ((25, 5, 10, 50) if waiting else ())]
        for permit in self.waiting:
            self.driver.add(permit)
            assert permit.state == WAITING
        self.new = Permit(20 if waiting else 5)
        self.handlers = Permit(3)
        self.permits = [*self.held, *self.waiting, self.new, self.handlers]

    def check(self) -> None:
        """Everything adds up, and everybody who is to go on has been woken."""
        check(self.flow, self.permits)
        for permit in self.waiting:
            if permit.state == ADMITTED:
                assert not permit.wake.locked(), "a message was admitted in secret"


def check_consistency(flow: FlowControl, permits: list[Permit]) -> None:
    """The counts are those of the admitted permits, within limits; the rings hold the others."""
    counted = [permit for permit in permits if permit.state == ADMITTED]
    assert flow.messages == sum(permit.messages for permit in counted) <= flow._message_limit
    assert flow.bytes == sum(permit.size for permit in counted) <= flow._byte_limit
    waiting = [permit for permit in permits if permit.state == WAITING]
    assert set(ring(flow._waiting)) == set(waiting)
    assert all(permit.state == ADMITTED for permit in ring(flow._admitted))


def check(flow: FlowControl, permits: list[Permit]) -> None:
    """As above, and the first of those that wait does not fit."""
    check_consistency(flow, permits)
    first = flow._waiting._next
    if first.state == WAITING:
        has_room = flow.messages < flow._message_limit
        assert not has_room or flow.bytes + first.size > flow._byte_limit, "it waits for nothing"


def ring(head: Permit) -> list[Permit]:
    """Return what a ring holds; both ways round it is the same."""
    forward: list[Permit] = []
    backward: list[Permit] = []
    for permits, step in ((forward, "_next"), (backward, "_previous")):
        permit = getattr(head, step)
        while permit is not head:
            permits.append(permit)
            permit = getattr(permit, step)
    assert forward == backward[::-1]
    return forward


Operation = Callable[[Scene], object]

OPERATIONS: dict[str, tuple[bool, Operation]] = {
    "admitted at once": (False, lambda scene: scene.driver.add(scene.new)),
    "has to wait": (True, lambda scene: scene.driver.add(scene.new)),
    "released, nobody waits": (False, lambda scene: scene.driver.release(scene.held[0])),
    "released, nobody fits": (True, lambda scene: scene.driver.release(scene.held[0])),
    "released, three fit": (True, lambda scene: scene.driver.release(scene.held[2])),
    "first leaves, two fit": (
        True,
        lambda scene: scene.driver.release(scene.held[0], scene.waiting[0]),
    ),
    "one in the middle leaves": (True, lambda scene: scene.driver.release(scene.waiting[1])),
    "last leaves": (True, lambda scene: scene.driver.release(scene.waiting[3])),
    "merged": (True, lambda scene: scene.driver.merge(scene.held)),
    "released before it was added": (True, lambda scene: scene.driver.release(scene.new)),
}

HANDLERS: dict[str, Operation] = {
    "does nothing": lambda scene: None,
    "publishes": lambda scene: scene.driver.add(scene.handlers),
    "releases": lambda scene: scene.driver.release(*scene.held),
    "takes back": lambda scene: scene.driver.release(*scene.waiting),
}


def interrupted(how: Callable[..., Any], operation: str, number: int, handler: str) -> Any:
    """Let a handler, which may raise, run in the middle of an operation; return its end."""
    waiting, operate = OPERATIONS[operation]
    scene = Scene(waiting=waiting)

    def handle(_: str) -> None:
        check_consistency(scene.flow, scene.permits)
        HANDLERS[handler.removesuffix(" and raises")](scene)
        if handler.endswith(" and raises"):
            raise Interruption

    with tracer_restored():
        end = how(functools.partial(operate, scene), number, handle)
    assert isinstance(end.raised, (Interruption, NoneType))
    assert not end.lost, end.place
    scene.check()
    while held := [permit for permit in scene.permits if permit.state == ADMITTED]:
        scene.driver.release(held[0])
        scene.check()
    assert {permit.state for permit in scene.permits} <= {RELEASED, NEW}
    assert (scene.flow.messages, scene.flow.bytes) == (0, 0)
    return end


@pytest.mark.usefixtures("_nobody_waits")
@pytest.mark.parametrize("handler", [*HANDLERS, *(f"{name} and raises" for name in HANDLERS)])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_whatever_a_signal_handler_does_wherever_it_runs(operation: str, handler: str) -> None:
    """At each place where one can run: all was in order there, and all is in the end."""
    places = itertools.count(1)
    while interrupted(interrupt, operation, next(places), handler).place is not None:
        pass
    assert next(places) > 4


@pytest.mark.usefixtures("_nobody_waits")
@pytest.mark.parametrize("handler", ["publishes", "releases", "takes back"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_whatever_runs_in_a_garbage_collection(operation: str, handler: str) -> None:
    """As above, in each collection that the operation's allocations cause."""
    for number in itertools.count():
        end = interrupted(interrupt_collection, operation, number, handler)
        assert end.raised is None
        if number and end.place is None:
            break


@contextmanager
def tracer_restored() -> Iterator[None]:
    """Restore the tracer, which is the coverage's, after another one."""
    tracer = sys.gettrace()
    try:
        yield
    finally:
        sys.settrace(tracer)
