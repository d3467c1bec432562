"""What the study of retrofits trains and measures: Dynamic Memory Compression beside its baselines and variants, of one base and with
the same tokens (Nawrot et al., 2024, arXiv 2403.09636, Tables 1 and 3, Figures 4 and 13)."""

import dataclasses

TASKS = ("arithmetic", "sort", "code", "classify", "recall", "passkey")  # what the base has learned, "copy" (50%) left out
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
    is_short: bool = False  # with the stages of SHORT
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
    n_examples: int = 200  # of each task

    def mark(self):
        """What the run leaves when the model is there."""
        return f"{self.run}/cr-{self.compression:g}" if self.compression else self.run or "base"

    def folder(self):
        return f"{self.mark()}/step-{self.step}" if self.step else self.mark()


SHORT = {"ramp_steps": 50, "solidify_steps": 90}  # where the recipe has 120 and 150


def short(name, changes=None, **dmc):
    return Run(name, (4,), {"dmc": {"compression": 4, "save_at": [], **dmc}, **(changes or {})}, is_short=True)


CONTROL = {"distillation": 0}
ON_THE_WAY = (340, 410, 480)  # of the control, beside its last step
GQA_ON_THE_WAY = (140, 280, 420)
SHORT_RUN = short("short")  # what the variants are compared with, trained with the same tokens
VARIANTS = (
    short("consistent", consistent=True),
    short("shared", shared_decisions=True),
    short("per-layer", hinge="layer"),
    short("uniform", uniform_weights=True),
    short("immediate", immediate=True),
    short("first-channel", channel="first"),
)
RUNS = (
    Run("dmc", (2, 3, 4, 6, 8)),
    Run("grouped", (4,), {"dmc": {"compression": 4, "save_at": [], "solidify_steps": 450}}, is_grouped=True),
    Run("control", changes={**CONTROL, "save_at_steps": list(ON_THE_WAY)}, like=4),
    Run("gqa-4", kv_heads=1, changes={"save_at_steps": list(GQA_ON_THE_WAY)}, like=4),
    Run("gqa-2", kv_heads=2, like=2),
    Run("pool-4", changes={"pool": {"n": 4}}, like=4),
    SHORT_RUN,
    Run("gqa-4-short", kv_heads=1, is_short=True),
    Run("control-short", changes=CONTROL, is_short=True),
    *VARIANTS,
    *(short(f"short-seed-{seed}", {"seed": seed}) for seed in SEEDS[1:]),
    *(Run(f"gqa-4-short-seed-{seed}", changes={"seed": seed}, kv_heads=1, is_short=True) for seed in SEEDS[1:]),
    *(Run(f"control-short-seed-{seed}", changes={**CONTROL, "seed": seed}, is_short=True) for seed in SEEDS[1:]),
)

DMC = "dmc(sink=0)"
ALONE = ("kivi(bits=4,group=64)", *(f"lathe(ratio={ratio})" for ratio in (4, 8, 16, 32)))
BEHIND = ("kivi(bits=4,group=64)", "lathe(ratio=4)")  # what seals the entries that DMC leaves
DROPPING = ("h2o", "tova", "keyformer", "snapkv")
FEW = 60  # examples of a task where models are compared that differ little


def subjects():
    """In the order in which they are measured."""
    listed = [Subject("base", ""), Subject("control", "control")]
    listed += [Subject(f"dmc {c:g}", "dmc", DMC, c) for c in (2, 3, 4, 6, 8)]
    listed += [Subject("gqa 2", "gqa-2"), Subject("gqa 4", "gqa-4"), Subject("pool 4", "pool-4", "pool(n=4,sink=0)")]
    listed += [Subject("grouped base", "", is_grouped=True), Subject("grouped dmc 4", "grouped", DMC, 4, is_grouped=True)]
    listed += [Subject(f"{method} 4", "", f"{method}(keep=0.25)") for method in DROPPING]
    listed += [Subject(f"{method} {n}", "", f"{method}(keep={1 / n:g})", n_examples=FEW) for n in (2, 8) for method in ("h2o", "tova", "snapkv")]
    listed += [Subject(kv, "", kv, n_examples=FEW) for kv in ALONE]
    listed += [Subject(f"dmc {c:g} + {kv}", "dmc", f"{DMC}+{kv}", c, n_examples=FEW) for c in (2, 4, 8) for kv in BEHIND]
    listed += [Subject(f"{run.name} 4", run.name, DMC, 4, n_examples=FEW) for run in (SHORT_RUN, *VARIANTS)]
    listed += [Subject("gqa 4 short", "gqa-4-short", n_examples=FEW), Subject("control short", "control-short", n_examples=FEW)]
    listed += [Subject(f"control step {step}", "control", step=step, n_examples=FEW) for step in ON_THE_WAY]
    listed += [Subject(f"gqa 4 step {step}", "gqa-4", step=step, n_examples=FEW) for step in GQA_ON_THE_WAY]
    for seed in SEEDS[1:]:
        listed += [Subject(f"short 4 seed {seed}", f"short-seed-{seed}", DMC, 4, n_examples=FEW),
                   Subject(f"gqa 4 short seed {seed}", f"gqa-4-short-seed-{seed}", n_examples=FEW),
                   Subject(f"control short seed {seed}", f"control-short-seed-{seed}", n_examples=FEW)]
    return listed


def recipe_of(run, recipe):
    """The recipe of a run, from the one of the study (whose "training" has "dmc")."""
    training = {**recipe["training"], **run.changes}
    stages = {**recipe["training"]["dmc"], **(SHORT if run.is_short else {})}
    if run.is_dmc():
        training["dmc"] = {**stages, **run.changes.get("dmc", {})}
    else:
        steps = stages["zero_out_steps"] + round((run.like - 1) * stages["ramp_steps"]) + stages["solidify_steps"]
        del training["dmc"]
        training["total_tokens"] = steps * training["batch_tokens"]
    return {**recipe, "training": training}
