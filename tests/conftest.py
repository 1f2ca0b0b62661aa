"""How Hypothesis draws its examples, for all tests: the same ones every time, and none too slow.

On a loaded machine a single example may take long; that is no failure. A change is judged by the examples that the one
before was judged by. `pytest --hypothesis-profile search` draws others.
"""

from hypothesis import HealthCheck, settings

settings.register_profile("search", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", settings.get_profile("search"), derandomize=True)
settings.load_profile("same")
