"""Caches of the ablations that papers have: what is left out or swept, at the settings that the tables of results have."""

# GEAR on KIVI at 2 bits: ranks of prompt and buffer, shares of exact entries, repairs of the prompt alone or of its newest part. Then the
# same at 4 bits, on KCVT.
RANKS = ((2, 1), (8, 4), (16, 8))  # (4, 2) is the default
SHARES = ("0.005", "0.01", "0.05")  # 0.02 is the default
GEAR = ["none", "token(bits=2,newest=32)", "kivi(bits=2,group=64,newest=32)", "gear-l(bits=2,newest=32)",
        *(f"gear-l(bits=2,prefill={prompt},decode={buffer},newest=32)" for prompt, buffer in RANKS),
        "gear-l(bits=2,decode=0,newest=32)", *(f"gear-l(bits=2,recent={share},newest=32)" for share in ("0.5", "0.25")),
        "outlier-aware(bits=2,newest=32)", *(f"outlier-aware(bits=2,share={share},newest=32)" for share in SHARES),
        "gear(bits=2,newest=32)", *(f"gear(bits=2,share={share},newest=32)" for share in SHARES), "gear(bits=2,decode=0,newest=32)",
        "token(bits=4,newest=32)", "kcvt(bits=4,newest=32)", "gear-l(bits=4,newest=32)",
        *(f"gear-l(bits=4,prefill={prompt},decode={buffer},newest=32)" for prompt, buffer in RANKS), "gear(bits=4,newest=32)"]

# Of whose errors the spectrum is looked at: GEAR's backbones at 2 and 4 bits, exact entries left in and taken out.
BACKBONES = ("token(bits={},newest=32)", "kcvt(bits={},newest=32)", "kivi(bits={},group=64,newest=32)")
RESIDUALS = [backbone.format(bits) + exact for bits in (2, 4) for backbone in BACKBONES for exact in ("", "+sparse")]

HEADS = ["zack(rate=0.25)", "zack(rate=0.5)"]

# Rotations of one calibration beside those of another, and caches with a basis from so many tokens of a text.
ROTATED = "zack(rate=0.25)"
N_TOKENS = (1024, 2048, 4096, 8192, 24576)
N_ROTATED = "4096"  # tokens of each text
FEW_TOKENS = ["zack(rate=0.25)", "palu(rate=0.25,round=16)", "lathe(ratio=8,context=2048)"]
N_WITH_GRADIENTS = 4096  # tokens up to which lathe is measured; docs/basis.md has it behind
