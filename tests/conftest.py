"""What holds for all tests: how Hypothesis draws its examples, and which signals the commands under test hear.

Hypothesis draws the same examples every time, and none too slow: on a loaded machine a single example may take long,
and that is no failure. A change is judged by the examples that the one before was judged by.
`pytest --hypothesis-profile search` draws others.

Whoever starts the tests in the background (`&`, nohup) has Ctrl-C and the end of the terminal ignored, and so would
every command that the tests start and interrupt.
"""

import signal

from hypothesis import HealthCheck, settings

settings.register_profile("search", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", settings.get_profile("search"), derandomize=True)
settings.load_profile("same")

for _name, _answer in (("SIGINT", signal.default_int_handler), ("SIGHUP", signal.SIG_DFL)):
    _number = getattr(signal, _name, None)  # Windows has no SIGHUP
    if _number is not None and signal.getsignal(_number) == signal.SIG_IGN:
        signal.signal(_number, _answer)
