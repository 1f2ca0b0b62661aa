"""Residuals of runs that nobody made, for tests of bands: how far off each is, is given."""

from hdpsim.experiments.bands.band import Residual, View
from hdpsim.experiments.bands.features import Features

RUN = Features(
    gpu="h100-80gb", generation="hopper", bits=16, sharded=False, experts=False, recompute="none", dynamic=False,
    missing=False, gpus=64, parameters=8e9, sequence_tokens=8192, tp=2, pp=1, cp=1, ep=1,
)  # fmt: skip


def some(
    errors: list[float], features: Features = RUN, source: str = "lab", *, view: View = "published"
) -> list[Residual]:
    """One run of a source for every log error, all of the same features."""
    return [
        Residual(
            features=features,
            key=f"{source}{i}",
            source=source,
            complete=True,
            log_error=error,
            view=view,
        )
        for i, error in enumerate(errors)
    ]
