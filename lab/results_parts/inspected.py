"""What `inspect` says of a cache, as a row of results: the spectrum of its errors, how its heads differ, how rotations do."""

RANKS = (1, 2, 4, 8, 16)  # of a repair
SIDES = ("k", "v")
DIGITS = 4  # of what is kept for each layer
OF_HEADS = ("largest_qk", "largest_v", "rank_k", "rank_v")
OF_ROTATIONS = ("kept", "lost", "overlap", "element_difference")


def mean(numbers):
    return sum(numbers) / len(numbers)


def residuals(layers):
    """The error of each side over its rows, and the share of it in the first singular values, beside that of white noise: means of layers,
    and each layer's."""
    row, by_layer = {}, {}
    for side in SIDES:
        of = [layer[side] for layer in layers]
        row[f"{side}_error"] = mean([layer["relative"] for layer in of])
        by_layer[f"{side}_error"] = [round(layer["relative"], DIGITS) for layer in of]
        for rank in RANKS:
            shares = [layer["shares"][min(rank, len(layer["shares"])) - 1] for layer in of]
            row[f"{side}_rank{rank}"] = mean(shares)
            row[f"{side}_white{rank}"] = mean([layer["white_shares"][min(rank, len(layer["shares"])) - 1] for layer in of])
            by_layer[f"{side}_rank{rank}"] = [round(share, DIGITS) for share in shares]
    return {**row, "layers": by_layer}


def heads(basis):
    """How much heads of a layer differ: standard deviation over mean of largest singular values and of ranks, means of layers."""
    layers = basis["variation_by_layer"]
    return {"removed": basis["removal_rate"], **{f"cv_{name}": mean([layer[name] for layer in layers]) for name in OF_HEADS},
            "cv_all_largest_qk": basis["cv_largest_qk"], "cv_all_largest_v": basis["cv_largest_v"],
            "layers": {name: [round(layer[name], DIGITS) for layer in layers] for name in OF_HEADS}}


def figures(printed):
    """The row of what was asked for: errors on a text, else rotations beside others, else heads."""
    row = {"kv": printed["kv"], "kv_resolved": printed["kv_resolved"], "kv_fraction": printed["kv_bytes"]["kv_fraction"]}
    if "stored_errors" in printed:
        return row | residuals(printed["stored_errors"])
    if "similarity" in printed:
        return row | {f"{side}_{name}": printed["similarity"][side][name] for side in ("qk", "v") for name in OF_ROTATIONS}
    return row | heads(printed["basis"])
