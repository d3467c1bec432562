"""The field's quantizers of 2026 beside those that were there, and lathe, from an eighth to a half of the bytes.

All keep 32 newest positions and 4 sinks where they can, so that the rows differ in their codes. What is published with other windows
stands in PUBLISHED_WINDOWS, on a text that is long enough for them.
"""

KVARN = ["kvarn(key_bits=4,value_bits=4,newest=32)", "kvarn(key_bits=4,value_bits=2,newest=32)", "kvarn(key_bits=2,value_bits=2,newest=32)"]
TURBOQUANT = [f"turboquant(bits={bits},newest=32)" for bits in (4, 3, 2)]
OSCAR = [f"oscar(bits={bits},heads=own,newest=32,sink=4)" for bits in (4, 3, 2)]
GGML = ["q8_0(hadamard=on,newest=32)", "q4_0(hadamard=on,newest=32)"]
OLDER = ["q8_0(newest=32)", "q4_0(newest=32)", "token(bits=2,hadamard=on,newest=32)",
         *(f"kivi(bits={bits},group=64,newest=32)" for bits in (4, 3, 2)), *(f"kvquant(bits={bits},newest=32)" for bits in (4, 3, 2))]
LATHE = [f"lathe(ratio={ratio},context=2048)" for ratio in (2, 3, 4, 5, 6, 8)]

RIVALS = ["none", *KVARN, *TURBOQUANT, *OSCAR, "oscar(bits=2,newest=32,sink=4)", *GGML, *OLDER, *LATHE]
RIVALS_ON_NEEDLES = ["none", *KVARN, *TURBOQUANT, *OSCAR, "q4_0(hadamard=on,newest=32)", "kivi(bits=4,group=64,newest=32)",
                     "kivi(bits=2,group=64,newest=32)", "kvquant(bits=3,newest=32)", "lathe(ratio=4,context=2048)", "lathe(ratio=8,context=2048)"]
PUBLISHED_WINDOWS = ["none", "oscar", "oscar(heads=own)", "kivi(bits=2,group=32,buffer=128,newest=128,sink=0)",
                     "kvarn(key_bits=4,value_bits=2)", "turboquant(bits=4)", "lathe(ratio=4)", "lathe(ratio=8)"]

# Of a model whose heads were taught what may leave (models/smollm2-dms): a half and a quarter of the entries, beside votes, and with codes behind.
DMS_HEADS = "models/smollm2-dms/smollm2.dms.safetensors"
HALF, QUARTER = "dms(offset=2.5)", "dms(offset=-6.2)"
LEARNED = ["none", HALF, QUARTER, *(f"{method}(keep={keep})" for method in ("snapkv", "kvzip") for keep in (0.5, 0.25)),
           *(f"h2o(keep={keep},recent=0.25)" for keep in (0.5, 0.25)), f"lathe(ratio=4)+{HALF}", f"lathe(ratio=4)+{QUARTER}",
           "lathe(ratio=8,context=2048)"]
