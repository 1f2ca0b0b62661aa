"""SIGINT, SIGTERM and SIGHUP end a command alike: as a KeyboardInterrupt, which everything already knows how to end by.

Ctrl-C is a person; SIGTERM is a batch system or a container, SIGHUP a terminal that was closed. Only the exit code (128
plus the number) and the message say which it was.
"""

import os
import signal
import sys

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP")
_AGAIN_S = 0.05


class _State:
    last: int = 0
    holds: int = 0
    waiting: bool = False


def listen() -> None:
    """Raise KeyboardInterrupt when one of the three arrives; one that the parent ignores (nohup) stays ignored."""
    for name in _NAMES:
        number = getattr(signal, name, None)  # Windows has no SIGHUP
        if number is not None and signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _arrived)
    sys.unraisablehook = _unraisable


def stop() -> None:
    """Listen no more: while Python ends, a KeyboardInterrupt would only be in the way."""
    for name in _NAMES:
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is _arrived:
            signal.signal(number, signal.SIG_DFL)
    # Python ends by SIGINT after a KeyboardInterrupt in exec(), as of dataclasses, unless another exec follows.
    exec("")


def received() -> bool:
    """Whether one of the three has arrived since `listen`."""
    return _State.last != 0


def exit_code() -> int:
    """What a shell reports for a program that was ended by the last of the three."""
    return 128 + (_State.last or int(signal.SIGINT))


def message() -> str:
    """The message: one word, and the signal where it was not Ctrl-C."""
    last = _State.last or signal.SIGINT
    return "interrupted" if last == signal.SIGINT else f"interrupted ({signal.Signals(last).name})"


class held:  # noqa: N801 - used as a function, `with held():`
    """Keeps interrupts waiting until the block has ended: for the few steps that must not be torn apart."""

    def __enter__(self) -> None:
        _State.holds += 1

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        _State.holds -= 1
        if _State.holds == 0 and _State.waiting:
            _State.waiting = False
            raise KeyboardInterrupt


def _arrived(number: int, frame: object) -> None:
    _State.last = number
    if _State.holds:
        _State.waiting = True
    else:
        raise KeyboardInterrupt


def _unraisable(problem: "sys.UnraisableHookArgs") -> None:
    """Try again an interrupt that came while Python was cleaning up and could not be raised there."""
    if not isinstance(problem.exc_value, KeyboardInterrupt):
        sys.__unraisablehook__(problem)
        return
    import threading

    timer = threading.Timer(_AGAIN_S, os.kill, (os.getpid(), _State.last or signal.SIGINT))
    timer.daemon = True
    timer.start()
