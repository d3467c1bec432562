"""What the study of retrofits trains and measures: Dynamic Memory Compression beside its baselines and variants, of one base and with
the same tokens (Nawrot et al., 2024, arXiv 2403.09636, Tables 1 and 3, Figures 4 and 13)."""

import dataclasses

TASKS = ("arithmetic", "copy", "sort", "code", "classify", "recall", "passkey")  # what models/README.md says it has learned
SEEDS = (1, 2, 3)


@dataclasses.dataclass(frozen=True)
class Run:
    """Something that is trained. `changes` are laid over the "training" of the recipe, key by key. All but the control, which would have
    nothing to learn from it, have the base as their teacher."""

    name: str
    compressions: tuple = ()  # of a retrofit with DMC: a model each; otherwise one model
    changes: dict = dataclasses.field(default_factory=dict)
    kv_heads: int = 0  # of a conversion to grouped queries
    like: float = 4  # otherwise: trained with the tokens of DMC at this compression
    ramp_steps: int = 0  # and of this ramp; 0: the recipe's
    is_grouped: bool = False  # of the model that the base was made from, which has grouped queries already

    def is_dmc(self):
        return bool(self.compressions)


@dataclasses.dataclass(frozen=True)
class Subject:
    """Something that is measured: a model of a run, or the base, with a cache."""

    label: str
    run: str  # "" for the base
    kv: str = "none"
    compression: float = 0
    step: int = 0  # of the models on the way; 0: the last
    is_grouped: bool = False  # KL is measured to the model that the base was made from

    def mark(self):
        """What the run leaves when the model is there."""
        return f"{self.run}/cr-{self.compression:g}" if self.compression else self.run or "base"

    def folder(self):
        return f"{self.mark()}/step-{self.step}" if self.step else self.mark()


def variant(name, **changes):
    return Run(name, (4,), {"dmc": {"compression": 4, "save_at": [], **changes}})


SHORT, LONG = 100, 400  # steps of a ramp for each unit of CR, where the recipe has 200
ON_THE_WAY = (690, 740, 790)  # of the control, beside its last step
VARIANTS = (
    variant("consistent", consistent=True),
    variant("shared", shared_decisions=True),
    variant("per-layer", hinge="layer"),
    variant("uniform", uniform_weights=True),
    variant("immediate", immediate=True),
    variant("short", ramp_steps=SHORT),
    variant("long", ramp_steps=LONG),
    variant("first-channel", channel="first"),
    variant("released", hinge="sequence"),
)
RUNS = (
    Run("dmc", (2, 3, 4, 6, 8)),
    Run("grouped", (4,), {"dmc": {"compression": 4, "save_at": []}}, is_grouped=True),
    Run("control", changes={"distillation": 0, "save_at_steps": list(ON_THE_WAY)}, like=4),
    Run("gqa-4", kv_heads=1, like=4),
    Run("gqa-2", kv_heads=2, like=2),
    Run("pool-4", changes={"pool": {"n": 4}}, like=4),
    Run("pool-2", changes={"pool": {"n": 2}}, like=2),
    *VARIANTS,
    Run("gqa-4-short", kv_heads=1, ramp_steps=SHORT),
    Run("gqa-4-long", kv_heads=1, ramp_steps=LONG),
    *(Run(f"dmc-seed-{seed}", (4,), {"seed": seed, "dmc": {"compression": 4, "save_at": []}}) for seed in SEEDS[1:]),
    *(Run(f"gqa-4-seed-{seed}", changes={"seed": seed}, kv_heads=1, like=4) for seed in SEEDS[1:]),
    *(Run(f"control-seed-{seed}", changes={"distillation": 0, "seed": seed}, like=4) for seed in SEEDS[1:]),
)

DMC = "dmc(sink=0)"
ALONE = ("kivi(bits=4,group=64)", "kivi(bits=2,group=64)", *(f"lathe(ratio={ratio})" for ratio in (4, 8, 12, 16, 24, 32)))
BEHIND = ("kivi(bits=4,group=64)", "lathe(ratio=4)", "lathe(ratio=6)")  # what seals the entries that DMC leaves


DROPPING = ("h2o", "tova", "keyformer", "snapkv")


def subjects():
    """In the order in which they are measured."""
    listed = [Subject("base", ""), Subject("control", "control")]
    listed += [Subject(f"dmc {c:g}", "dmc", DMC, c) for c in (2, 3, 4, 6, 8)]
    listed += [Subject("gqa 2", "gqa-2"), Subject("gqa 4", "gqa-4")]
    listed += [Subject(f"pool {n}", f"pool-{n}", f"pool(n={n},sink=0)") for n in (2, 4)]
    for n in (2, 4, 8):
        keep = f"keep={1 / n:g}"
        listed += [Subject(f"{method} {n}", "", f"{method}({keep})") for method in DROPPING]
    listed += [Subject(kv, "", kv) for kv in ALONE]
    listed += [Subject(f"dmc {c:g} + {kv}", "dmc", f"{DMC}+{kv}", c) for c in (2, 4, 8) for kv in BEHIND]
    listed += [Subject(f"{run.name} 4", run.name, DMC, 4) for run in VARIANTS]
    listed += [Subject("gqa 4 short", "gqa-4-short"), Subject("gqa 4 long", "gqa-4-long")]
    listed += [Subject(f"control step {step}", "control", step=step) for step in ON_THE_WAY]
    listed += [Subject("grouped base", "", is_grouped=True), Subject("grouped dmc 4", "grouped", DMC, 4, is_grouped=True)]
    for seed in SEEDS[1:]:
        listed += [Subject(f"dmc 4 seed {seed}", f"dmc-seed-{seed}", DMC, 4), Subject(f"gqa 4 seed {seed}", f"gqa-4-seed-{seed}"),
                   Subject(f"control seed {seed}", f"control-seed-{seed}")]
    return listed


def recipe_of(run, recipe):
    """The recipe of a run, from the one of the study (whose "training" has "dmc")."""
    training = {**recipe["training"], **run.changes}
    stages = recipe["training"]["dmc"]
    if run.is_dmc():
        training["dmc"] = {**stages, **run.changes.get("dmc", {})}
    else:
        ramp_steps = run.ramp_steps or stages["ramp_steps"]
        steps = stages["zero_out_steps"] + round((run.like - 1) * ramp_steps) + stages["solidify_steps"]
        del training["dmc"]
        training["total_tokens"] = steps * training["batch_tokens"]
    return {**recipe, "training": training}
