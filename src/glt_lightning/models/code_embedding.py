"""Learned vectors for columns of integer codes: categories with too many values for one column each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from glt_lightning.base import DataError, NodeType, OptionError

CODES, EDGE_CODES = "x_codes", "edge_codes"
NumCategories = list[int] | dict[str, list[int]] | None


class CodeEmbedding(nn.Module):
    """The sum of one learned vector per column of codes.

    A linear layer over the one-hot form of the columns gives the same sum. Code 0 stands for values that no row had when the
    codes were made. No training row has it, so its vector starts as zeros and stays so: such a value adds nothing.

    num_categories: number of codes of each column, C numbers.  name: the attribute that has the codes.
    """

    def __init__(self, num_categories: Sequence[int], width: int, name: str = CODES) -> None:
        super().__init__()
        self._name = name
        self.num_categories = list(num_categories)
        if not self.num_categories or any(type(count) is not int or count < 1 for count in self.num_categories):
            raise OptionError(f"num_categories: expected integers >= 1, one per column of codes; got {num_categories}.")
        tables = [nn.Embedding(count, width) for count in self.num_categories]
        for table in tables:
            nn.init.zeros_(table.weight[0])
        self.columns = nn.ModuleList(tables)

    def forward(self, of: str, store: Any) -> Tensor:
        """Returns float [N, width], the sums for the codes [N, C] in ``store``. of: node or edge type, for errors."""
        codes = store.get(self._name)
        if codes is None or codes.dim() != 2 or codes.size(1) != len(self.columns):
            found = "there are none" if codes is None else f"got {list(codes.shape)}"
            kind = "node" if self._name == CODES else "edge"
            raise DataError(
                f"{self._name} of {kind} type {of!r}: the model was built for codes [N, {len(self.columns)}], but "
                f"{found}. Set num_categories to match the data."
            )
        return torch.stack([table(codes[:, c]) for c, table in enumerate(self.columns)]).sum(0)


def categories_of(num_categories: NumCategories, node_type: NodeType) -> list[int]:
    """The numbers of codes of one node type's columns; empty for a type without codes."""
    if isinstance(num_categories, Mapping):
        return list(num_categories.get(node_type) or [])
    return list(num_categories or [])
