"""On what: the cluster that a name means, whether it is that of a cluster, a node or a GPU."""

from __future__ import annotations

from hdpsim.cost_models.hardware import catalog
from hdpsim.errors import UserInputError
from hdpsim.quoting import did_you_mean, quoted


def machine_names() -> tuple[str, ...]:
    """Every name that is understood, clusters first."""
    return (*catalog.names("cluster"), *catalog.names("node"), *catalog.names("gpu"))


def machine(name: str, option: str = "--cluster") -> tuple[str | dict[str, object], int | None]:
    """The key `cluster` of a scenario for a shipped name, and the GPUs it has by itself (None: any number).

    Raises:
        UserInputError: nothing shipped is called so.
    """
    if name in catalog.names("cluster"):
        return name, catalog.cluster(name).gpus
    if name in catalog.names("node"):
        return {"node": name}, None
    if name in catalog.names("gpu") or name in catalog.aliases("gpu"):
        return {"node": catalog.node_with(catalog.gpu(name).name).name}, None
    hint = did_you_mean(name, machine_names())
    raise UserInputError(
        f"{option}: {quoted(name)} is no shipped cluster, node or GPU{hint}; shipped: {', '.join(machine_names())}"
    )
