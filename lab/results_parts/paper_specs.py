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
