"""Parts of a model that a recipe keeps in 16 bits, as a text: attention+latent."""

from __future__ import annotations

PARTS = ("attention", "latent", "prediction")
PARTS_WORDS = f"parts of a model, each once and joined by +: {', '.join(PARTS)}; as in attention+latent"


def is_parts(text: str) -> bool:
    """Whether *text* names parts, each once."""
    parts = text.split("+")
    return set(parts) <= set(PARTS) and len(set(parts)) == len(parts)


def parts_of_text(text: str | None) -> frozenset[str]:
    """The parts that a checked *text* names."""
    return frozenset(text.split("+")) if text else frozenset()
