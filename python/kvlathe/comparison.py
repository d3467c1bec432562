"""What LLM.compare and LLM.tune find, in rows, and as data frames where pandas is there."""

from __future__ import annotations

import html
import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped,unused-ignore]

_SHOWN = {
    "kv": "kv",
    "kv_fraction": "KV size",
    "perplexity": "perplexity",
    "perplexity_change": "change",
    "kl": "KL nats/token",
    "top1_agreement": "top-1 agreement",
    "tbt_ms": "ms/token",
}


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a row that are numbers or texts, those of its parts by part.field."""
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            flat.update({f"{name}.{inner}": one for inner, one in value.items() if not isinstance(one, (list, dict))})
        elif not isinstance(value, list):
            flat[name] = value
    return flat


def frame_of(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """A data frame with a line for each row; needs pandas."""
    return importlib.import_module("pandas").DataFrame([_flat(row) for row in rows])


@dataclass(frozen=True)
class ComparisonRow:
    """One cache on the text of a comparison."""

    kv: str
    """The cache as it was named."""
    kv_resolved: str
    """The same with all defaults."""
    kv_fraction: float
    """Its bytes at a window's end over those of 16-bit rows."""
    perplexity: float
    kl: float
    """Nats per token from the uncompressed model."""
    kl_stderr: float
    top1_agreement: float
    """Share of the tokens whose likeliest is that of the uncompressed model."""
    fields: Mapping[str, Any]
    """All that kvlathe compare --json says of it (docs/evaluation.md)."""


@dataclass(frozen=True)
class Comparison:
    """Several caches on one text."""

    model: str
    text: str
    """Its path, or "text"."""
    n_tokens: int
    """That were scored."""
    rows: list[ComparisonRow]

    @staticmethod
    def from_json(json: Mapping[str, Any]) -> Comparison:
        """Of what kvlathe compare --json prints."""
        rows = [
            ComparisonRow(
                kv=row["kv"],
                kv_resolved=row["kv_resolved"],
                kv_fraction=row["kv_fraction"],
                perplexity=row["perplexity"],
                kl=row["kl"],
                kl_stderr=row["kl_stderr"],
                top1_agreement=row["top1_agreement"],
                fields=row,
            )
            for row in json["rows"]
        ]
        return Comparison(json["model"], json["text"], json["tokens"], rows)

    def __iter__(self) -> Iterator[ComparisonRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, which: int | str) -> ComparisonRow:
        """A row by its number or its cache."""
        if isinstance(which, int):
            return self.rows[which]
        for row in self.rows:
            if which in (row.kv, row.kv_resolved):
                return row
        raise KeyError(which)

    def to_frame(self) -> pd.DataFrame:
        """A data frame with a line for each cache; needs pandas."""
        return frame_of([dict(row.fields) for row in self.rows])

    def _table(self) -> list[list[str]]:
        shown = {name: title for name, title in _SHOWN.items() if any(row.fields[name] is not None for row in self.rows)}
        lines = [list(shown.values())]
        for row in self.rows:
            values = [row.fields[name] for name in shown]
            lines.append([f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value) for value in values])
        return lines

    def __str__(self) -> str:
        lines = self._table()
        widths = [max(len(line[c]) for line in lines) for c in range(len(lines[0]))]
        return "\n".join(
            "  ".join(cell.ljust(w) if c == 0 else cell.rjust(w) for c, (cell, w) in enumerate(zip(line, widths)))
            for line in lines
        )

    def _repr_html_(self) -> str:
        head, *body = self._table()
        cells = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
        rows = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in line) + "</tr>" for line in body
        )
        return f"<table><thead><tr>{cells}</tr></thead><tbody>{rows}</tbody></table>"


@dataclass(frozen=True)
class Profile:
    """What LLM.tune has measured and found."""

    path: str
    """The file, which caches with accuracy=... are answered from."""
    fields: Mapping[str, Any]
    """All that the file says: goals, points, targets, front."""

    @property
    def points(self) -> list[dict[str, Any]]:
        """The caches that were measured, the uncompressed one first."""
        return list(self.fields["points"])

    @property
    def front(self) -> list[str]:
        """The caches that no other one beats in size, accuracy and time together."""
        return list(self.fields["front"])

    def best(self, accuracy: float) -> str | None:
        """The smallest cache that keeps this share of the accuracy, of those that were searched
        for at it."""
        methods = [
            method
            for target in self.fields["targets"]
            if target["accuracy"] == accuracy
            for method in target["methods"]
            if method["kv"]
        ]
        return min(methods, key=lambda method: method["kv_fraction"])["kv"] if methods else None

    def to_frame(self) -> pd.DataFrame:
        """A data frame with a line for each point; needs pandas."""
        return frame_of(self.points)
