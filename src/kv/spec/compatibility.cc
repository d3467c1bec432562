#include "kv/spec/compatibility.h"

namespace kvlathe {
namespace {

constexpr StatusCode kRefused = StatusCode::kInvalidArgument;

// What keys from before RoPE go with.
Status CheckLatents(const Spec& spec) {
  const RetentionFacts retention = spec.retention_facts();
  if (!TurnWhenRead(spec.keys()) || (!retention.merges && !retention.model_decides)) {
    return OkStatus();
  }
  return Error(kRefused,
               "--kv '{}': keys from before RoPE cannot be {} yet, as attention would have to "
               "turn each by the position of its entry; leave out {} or {}, or take fdc, zack or "
               "lathe(keys=after)",
               spec.text(), retention.merges ? "merged" : "dropped by each head for itself",
               spec.NameOf(Axis::kBasis), spec.NameOf(Axis::kRetention));
}

// What latents go with that lie in the blocks of several heads.
Status CheckSharedLatents(const Spec& spec) {
  const int heads_per_latent = HeadsPerLatent(spec.keys());
  if (heads_per_latent == 1) return OkStatus();
  if (spec.retention_facts().differs_by_head) {
    return Error(kRefused,
                 "--kv '{}': {} chooses entries of each head, and palu(group={}) needs those of {} "
                 "heads together; take group=1, tova or window",
                 spec.text(), spec.NameOf(Axis::kRetention), heads_per_latent, heads_per_latent);
  }
  if (spec.quantizer_as<KvquantOptions>() != nullptr) {
    return Error(kRefused,
                 "--kv '{}': codebooks of kvquant are fitted to channels of one head, and "
                 "palu(group={}) has latents of several; take group=1 or another quantizer",
                 spec.text(), heads_per_latent);
  }
  return OkStatus();
}

// What one map for several KV heads goes with.
Status CheckJoinedHeads(const Spec& spec) {
  if (!spec.joins_heads()) return OkStatus();
  const RetentionFacts retention = spec.retention_facts();
  if (retention.merges || retention.model_decides) {
    return Error(kRefused,
                 "--kv '{}': {} {} the rows of each KV head, and heads=joint stores those of "
                 "several as one; take heads=own",
                 spec.text(), spec.NameOf(Axis::kRetention), retention.merges ? "merges" : "drops");
  }
  if (spec.quantizer_as<KvquantOptions>() != nullptr) {
    return Error(kRefused,
                 "--kv '{}': codebooks of kvquant are fitted to channels of one head, and "
                 "heads=joint has rows of several; take heads=own or another quantizer",
                 spec.text());
  }
  return OkStatus();
}

// What classes of entries go with: bits that they can have more or fewer of, and entries that stay
// once the prompt has ended.
Status CheckClasses(const Spec& spec) {
  if (!spec.basis_as<LatheOptions>()->has_classes) return OkStatus();
  if (!FactsOf(spec.sealing()).splits_bits) {
    return Error(kRefused,
                 "--kv '{}': classes=3 shares out the bits of a ratio, and here there are none to "
                 "share; give ratio and no quantizer, or leave classes out",
                 spec.text());
  }
  if (spec.retention_facts().acts_on_later) {
    return Error(kRefused,
                 "--kv '{}': classes=3 sorts the entries that are there where the prompt ends, and "
                 "{} drops or merges later ones too; take snapkv, or leave classes out",
                 spec.text(), spec.NameOf(Axis::kRetention));
  }
  if (spec.retention_facts().counts_by_head) {
    return Error(kRefused,
                 "--kv '{}': classes=3 seals as many blocks of every head, and with heads=joint {} "
                 "keeps other numbers of entries in each; take heads=own, or leave classes out",
                 spec.text(), spec.NameOf(Axis::kRetention));
  }
  if (spec.retention() != nullptr && TurnWhenRead(spec.keys())) {
    return Error(
        kRefused,
        "--kv '{}': classes=3 keeps positions of the entries that it sorts, and behind them "
        "{} leaves gaps that keys=before would have to know; take keys=after, or leave "
        "classes out",
        spec.text(), spec.NameOf(Axis::kRetention));
  }
  if (spec.lowrank() != nullptr) {
    return Error(kRefused,
                 "--kv '{}': lowrank repairs runs of neighbouring positions, which classes=3 puts "
                 "in another order; leave out one of them",
                 spec.text());
  }
  return OkStatus();
}

// Runs that are sealed again have fewer bits than before, and nothing besides.
Status CheckPressure(const Spec& spec) {
  const auto& lathe = *spec.basis_as<LatheOptions>();
  if (lathe.under_pressure == 0) return OkStatus();
  if (!FactsOf(spec.sealing()).splits_bits) {
    return Error(kRefused,
                 "--kv '{}': under_pressure={} seals again what has bits of its own by ratio, and "
                 "nothing has here; leave out bits=16 and the quantizer, or under_pressure",
                 spec.text(), lathe.under_pressure);
  }
  std::string_view other;
  if (lathe.has_classes) other = "classes=3";
  if (spec.lowrank() != nullptr) other = "lowrank";
  if (spec.retention() != nullptr) other = spec.NameOf(Axis::kRetention);
  if (other.empty()) return OkStatus();
  return Error(kRefused,
               "--kv '{}': under_pressure={} seals whole runs again in fewer bits and nothing "
               "besides, and {} makes something else of them; leave one of the two out",
               spec.text(), lathe.under_pressure, other);
}

// What queries add for the mean that keys have lost is known by position, not by entry.
Status CheckKeysByPosition(const Spec& spec) {
  const KeyRows rows = spec.key_rows();
  if (rows != KeyRows::kBlock && rows != KeyRows::kCentred) return OkStatus();
  const bool has_classes = spec.basis_as<LatheOptions>()->has_classes;
  if (spec.retention() == nullptr && !has_classes) return OkStatus();
  return Error(kRefused,
               "--kv '{}': keys={} finds the position of an entry by its place, and {} leaves "
               "entries elsewhere; take keys=after or keys=before",
               spec.text(), NameOf(rows),
               has_classes ? "classes=3" : spec.NameOf(Axis::kRetention));
}

// What one map for keys and values goes with: rows that are codes from the first on.
Status CheckJoinedValues(const Spec& spec) {
  const auto& lathe = *spec.basis_as<LatheOptions>();
  if (!lathe.joins_values) return OkStatus();
  if (spec.key_rows() != KeyRows::kBlock) {
    return Error(kRefused,
                 "--kv '{}': maps=joint reads keys and values from the same codes, which pays "
                 "where keys turn in frames; give keys=block in place of keys={}",
                 spec.text(), NameOf(spec.key_rows()));
  }
  std::string_view other;
  if (!FactsOf(spec.sealing()).splits_bits || lathe.bits == LatheOptions::Bits::k16) {
    other = spec.quantizer() != nullptr ? spec.NameOf(Axis::kQuantizer) : "bits=16 or rate";
  } else if (spec.quantizer() != nullptr) {
    other = spec.NameOf(Axis::kQuantizer);
  } else if (lathe.open == LatheOptions::OpenRows::k16) {
    other = "open=16";
  } else if (lathe.heads == LatheOptions::Heads::kOwn) {
    other = "heads=own";
  } else if (lathe.heads == LatheOptions::Heads::kJoint) {
    other = "heads=joint";
  } else if (spec.lowrank() != nullptr) {
    other = "lowrank";
  }
  if (other.empty()) return OkStatus();
  return Error(kRefused,
               "--kv '{}': maps=joint keeps codes of one row for a key and its value, with bits by "
               "ratio and the heads of heads=auto together, and {} would keep something else; "
               "leave one of the two out",
               spec.text(), other);
}

// Rows whose basis is found online are those of sealed blocks.
Status CheckGoesAlone(const Spec& spec, std::string_view what) {
  const Axis axis = spec.quantizer() != nullptr ? Axis::kQuantizer : Axis::kRetention;
  if (spec.stage(axis) == nullptr) return OkStatus();
  return Error(kRefused, "--kv '{}': {} is a baseline and goes alone; leave out {}", spec.text(),
               what, spec.NameOf(axis));
}

// Rows are made once for sequences of all ranks: of what is stored, only how much of a row may hang
// on them.
Status CheckResident(const Spec& spec) {
  if (!IsResident(*spec.basis())) return OkStatus();
  const char* cause = nullptr;
  if (TurnWhenRead(spec.keys())) cause = "keys=before reads latents of one rank back as keys";
  if (spec.key_rows() == KeyRows::kBlock) {
    cause = "keys=block has queries of one rank; take keys=after";
  }
  if (FactsOf(spec.sealing()).splits_bits)
    cause = "ratio chooses bits together with ranks; give rate, or bits=16";
  if (spec.quantizer_as<KvquantOptions>() != nullptr) {
    cause = "kvquant learns its codebooks for one choice of ranks; take another quantizer";
  }
  if (spec.quantizer() != nullptr && MixesChannels(*spec.quantizer())) {
    cause = spec.quantizer_as<TurboquantOptions>() == nullptr
                ? "hadamard=on mixes the dimensions of one choice of ranks"
                : "turboquant mixes the dimensions of one choice of ranks";
  }
  if (cause == nullptr) return OkStatus();
  return Error(kRefused, "--kv '{}': resident=full: {}", spec.text(), cause);
}

}  // namespace

Status CheckBasis(const Spec& spec) {
  KVL_RETURN_IF_ERROR(CheckLatents(spec));
  KVL_RETURN_IF_ERROR(CheckSharedLatents(spec));
  KVL_RETURN_IF_ERROR(CheckJoinedHeads(spec));
  return CheckResident(spec);
}

Status CheckZack(const Spec& spec) {
  const auto& zack = *spec.basis_as<ZackOptions>();
  if (zack.is_online) {
    KVL_RETURN_IF_ERROR(CheckGoesAlone(spec, "zack(online=on)"));
    if (zack.is_resident) {
      return Error(kRefused,
                   "--kv '{}': online=on folds nothing into the weights that resident=full could "
                   "keep; leave out one of them",
                   spec.text());
    }
  }
  return CheckBasis(spec);
}

Status CheckSvdOnline(const Spec& spec) { return CheckGoesAlone(spec, "svd-online"); }

Status CheckLathe(const Spec& spec) {
  KVL_RETURN_IF_ERROR(CheckKeysByPosition(spec));
  KVL_RETURN_IF_ERROR(CheckJoinedValues(spec));
  KVL_RETURN_IF_ERROR(CheckPressure(spec));
  KVL_RETURN_IF_ERROR(CheckLatents(spec));
  KVL_RETURN_IF_ERROR(CheckJoinedHeads(spec));
  KVL_RETURN_IF_ERROR(CheckClasses(spec));
  return CheckResident(spec);
}

// Votes by whole keys differ from others where a basis cuts keys that have turned.
Status CheckVoting(const Spec& spec) {
  if (!BudgetOf(*spec.retention())->reads_whole_keys) return OkStatus();
  if (spec.basis() == nullptr) {
    return Error(kRefused,
                 "--kv '{}': score=exact takes the votes of {} from keys that no basis has cut, "
                 "and without one they are whole; leave score out",
                 spec.text(), spec.NameOf(Axis::kRetention));
  }
  if (!TurnWhenRead(spec.keys())) return OkStatus();
  return Error(kRefused,
               "--kv '{}': {} keeps keys from before RoPE, for which score=exact is not built; "
               "leave score out or take fdc, zack or lathe(keys=after)",
               spec.text(), spec.NameOf(Axis::kBasis));
}

Status CheckKcvt(const Spec& spec) {
  if (!spec.retention_facts().counts_by_head) return OkStatus();
  const auto* const kcvt = spec.quantizer_as<KcvtOptions>();
  const int bits = kcvt != nullptr ? kcvt->bits : spec.quantizer_as<KvquantOptions>()->bits;
  return Error(kRefused,
               "--kv '{}': {} gives a token of V one scale in all heads of a layer, and under {} "
               "each head has tokens of its own; take kivi(bits={},group=64){}{}, or token, int8, "
               "q8_0, q4_0 or mxfp4",
               spec.text(), spec.NameOf(Axis::kQuantizer), spec.NameOf(Axis::kRetention), bits,
               spec.lowrank() != nullptr ? "+lowrank" : "",
               spec.sparse() != nullptr ? "+sparse" : "");
}

Status CheckKvquant(const Spec& spec) {
  KVL_RETURN_IF_ERROR(CheckKcvt(spec));  // its scales of V are the same
  if (spec.basis() != nullptr || !spec.retention_facts().moves_rows) return OkStatus();
  return Error(kRefused,
               "--kv '{}': without a basis kvquant keeps keys before RoPE, whose positions {} does "
               "not leave in a row; add a basis or take another quantizer",
               spec.text(), spec.NameOf(Axis::kRetention));
}

// What codes lose is known under the balance of their tile, and repairs add to whole rows.
Status CheckKvarn(const Spec& spec) {
  std::string_view repairs;
  if (spec.lowrank() != nullptr) repairs = "lowrank";
  if (spec.sparse() != nullptr) repairs = repairs.empty() ? "sparse" : "lowrank and sparse";
  if (repairs.empty()) return OkStatus();
  return Error(kRefused,
               "--kv '{}': kvarn balances rows before they become codes, and repairing what those "
               "lose is not built; leave out {}, or take kivi in place of kvarn",
               spec.text(), repairs);
}

// A part of the prompt has factors where the prompt is more than one run.
Status CheckTurboquant(const Spec& spec) {
  if (spec.lowrank() != nullptr || spec.sparse() != nullptr) {
    return Error(kRefused,
                 "--kv '{}': a random rotation leaves what codes lose no large entries and no few "
                 "directions that {} could hold; leave it out, or take kivi or token",
                 spec.text(), spec.NameOf(Axis::kResidual));
  }
  if (spec.quantizer_as<TurboquantOptions>()->keys_have_signs && spec.basis() != nullptr) {
    return Error(kRefused,
                 "--kv '{}': keys=product estimates products with whole keys, and {} stores them "
                 "otherwise; leave out one of the two",
                 spec.text(), spec.NameOf(Axis::kBasis));
  }
  return OkStatus();
}

Status CheckLowrank(const Spec& spec) {
  if (spec.lowrank()->repaired_share == 1) return OkStatus();
  std::string_view cause;
  if (spec.runs()->prompt_run == 0) cause = "run=prompt";
  if (spec.retention_facts().ends_prompt_as_run) {
    cause = spec.NameOf(Axis::kRetention);
  }
  if (cause.empty()) return OkStatus();
  return Error(kRefused,
               "--kv '{}': recent={} chooses among runs, and with {} the prompt is one; leave out "
               "recent or {}",
               spec.text(), spec.lowrank()->repaired_share, cause, cause);
}

Status CheckSparse(const Spec& spec) {
  if (!FactsOf(spec.sealing()).splits_bits) return OkStatus();
  return Error(kRefused,
               "--kv '{}': codes of {} have no scales that exact entries could stay out of; leave "
               "sparse out, or add a quantizer",
               spec.text(), spec.NameOf(Axis::kBasis));
}

}  // namespace kvlathe
