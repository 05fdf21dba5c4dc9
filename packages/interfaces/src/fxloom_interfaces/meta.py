"""Typed access to `node.meta`: the only way in which one package reads what another wrote there.

In: a node of a graph. Out: its fake value, source, place in the user's program, and what the user asked of the partitioner.
Invariant: the keys are a closed list (`KEYS`). `val` and `example_value` hold the same object: backends written for
torch.compile's FX convention look for one or the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fxloom_interfaces.errors import InternalError, Site

if TYPE_CHECKING:
    import torch.fx

    from fxloom_interfaces.sources import Source

KEYS = frozenset({"val", "example_value", "fxloom_source", "fxloom_static_address", "fxloom_sites", "fxloom_recompute"})


def has_fake(node: torch.fx.Node) -> bool:
    return "val" in node.meta


def get_fake(node: torch.fx.Node) -> Any:
    """The node's fake value: a FakeTensor, a (symbolic) number, or a nest of them. InternalError when there is none."""
    try:
        return node.meta["val"]
    except KeyError:
        raise InternalError("meta", "node has no fake value", node=str(node.format_node())) from None


def set_fake(node: torch.fx.Node, value: Any) -> None:
    node.meta["val"] = value
    node.meta["example_value"] = value


def get_source(placeholder: torch.fx.Node) -> Source | None:
    """Where a placeholder's value comes from; None where the graph was not made by capture."""
    return placeholder.meta.get("fxloom_source")


def set_source(placeholder: torch.fx.Node, source: Source) -> None:
    placeholder.meta["fxloom_source"] = source


def is_static_address(placeholder: torch.fx.Node) -> bool:
    """True when the input's storage stays where it is from call to call (parameters and buffers)."""
    return bool(placeholder.meta.get("fxloom_static_address", False))


def set_static_address(placeholder: torch.fx.Node, static: bool) -> None:
    placeholder.meta["fxloom_static_address"] = static


def get_sites(node: torch.fx.Node) -> tuple[Site, ...]:
    """The user's stack when the node was recorded, innermost last; empty when unknown."""
    return node.meta.get("fxloom_sites", ())


def set_sites(node: torch.fx.Node, sites: tuple[Site, ...]) -> None:
    node.meta["fxloom_sites"] = sites


def get_site(node: torch.fx.Node) -> Site | None:
    """The innermost place of the user's program."""
    sites = get_sites(node)
    return sites[-1] if sites else None


def get_recompute(node: torch.fx.Node) -> bool | None:
    """What the user asked of the partitioner: True recompute, False save, None no wish."""
    return node.meta.get("fxloom_recompute")


def set_recompute(node: torch.fx.Node, recompute: bool) -> None:
    node.meta["fxloom_recompute"] = recompute


def copy_origin(source: torch.fx.Node, target: torch.fx.Node) -> None:
    """Give `target` the user's stack of `source`."""
    if "fxloom_sites" in source.meta:
        target.meta["fxloom_sites"] = source.meta["fxloom_sites"]
