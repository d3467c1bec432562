#include "kv/spec/spec.h"

#include <algorithm>

#include "base/check.h"

namespace kvlathe {
namespace {

const SpecValue* FindValue(const Stage& stage, std::string_view key) {
  for (const auto& [info, value] : stage.values) {
    if (info->name == key) return &value;
  }
  return nullptr;
}

// Whether what retention leaves can be sealed.
Status CheckSealsWhatStays(const Spec& spec) {
  const Stage* retention = spec.retention();
  const Stage* quantizer = spec.splits_bits() ? spec.basis() : spec.quantizer();
  if (retention == nullptr || quantizer == nullptr) return OkStatus();
  if (retention->name == "window") return OkStatus();
  if (retention->name == "dmc") {
    if (quantizer->name != "kcvt" && quantizer->name != "kvquant") return OkStatus();
    return Error(
        StatusCode::kInvalidArgument,
        "--kv '{}': {} gives a token of V one scale in all heads of a layer, and under dmc "
        "each head has tokens of its own; take kivi (as gear(bits=2) does), token, "
        "int8, q8_0 or q4_0",
        spec.text(), quantizer->name);
  }
  if (quantizer->name == "kvquant" && spec.basis() == nullptr) {
    return Error(
        StatusCode::kInvalidArgument,
        "--kv '{}': without a basis kvquant keeps keys before RoPE, whose positions {} does "
        "not leave in a row; add a basis or take another quantizer",
        spec.text(), retention->name);
  }
  return OkStatus();
}

// What latents go with that lie in the blocks of several heads.
Status CheckSharedLatents(const Spec& spec) {
  const Stage *basis = spec.basis(), *retention = spec.retention();
  if (!basis->Has("group") || basis->Integer("group") == 1) return OkStatus();
  const bool is_of_heads = retention != nullptr && retention->name != "window" &&
                           !(retention->Has("heads") && retention->Word("heads") == "shared");
  if (is_of_heads) {
    return Error(StatusCode::kInvalidArgument,
                 "--kv '{}': {} chooses entries of each head, and palu(group={}) needs those of {} "
                 "heads together; take group=1, tova or window",
                 spec.text(), retention->name, basis->Integer("group"), basis->Integer("group"));
  }
  if (spec.quantizer() != nullptr && spec.quantizer()->name == "kvquant") {
    return Error(StatusCode::kInvalidArgument,
                 "--kv '{}': codebooks of kvquant are fitted to channels of one head, and "
                 "palu(group={}) has latents of several; take group=1 or another quantizer",
                 spec.text(), basis->Integer("group"));
  }
  return OkStatus();
}

// What keys from before RoPE go with.
Status CheckLatents(const Spec& spec) {
  const Stage *basis = spec.basis(), *retention = spec.retention();
  if (!spec.has_latent_keys()) return OkStatus();
  if (retention != nullptr && (retention->name == "pool" || retention->name == "dmc")) {
    return Error(StatusCode::kInvalidArgument,
                 "--kv '{}': keys from before RoPE cannot be merged yet; leave out {} or {}",
                 spec.text(), basis->name, retention->name);
  }
  return CheckSharedLatents(spec);
}

// Votes by whole keys differ from others where a basis cuts keys that have turned.
Status CheckScore(const Spec& spec) {
  const Stage *basis = spec.basis(), *retention = spec.retention();
  if (retention == nullptr || !retention->Has("score") || retention->Word("score") != "exact") {
    return OkStatus();
  }
  if (basis == nullptr) {
    return Error(StatusCode::kInvalidArgument,
                 "--kv '{}': score=exact takes the votes of {} from keys that no basis has cut, "
                 "and without one they are whole; leave score out",
                 spec.text(), retention->name);
  }
  if (!spec.has_latent_keys()) return OkStatus();
  return Error(StatusCode::kInvalidArgument,
               "--kv '{}': {} keeps keys from before RoPE, for which score=exact is not built; "
               "leave score out or take fdc, zack or lathe(keys=after)",
               spec.text(), basis->name);
}

// A part of the prompt has factors where the prompt is more than one run.
Status CheckRepairedShare(const Spec& spec) {
  if (spec.lowrank() == nullptr || spec.lowrank()->Number("recent") == 1) return OkStatus();
  const Stage* const sealing = spec.splits_bits() ? spec.basis() : spec.quantizer();
  const Stage* const retention = spec.retention();
  if (sealing == nullptr) return OkStatus();
  std::string cause;
  if (sealing->Word("run") == "prompt") cause = "run=prompt";
  if (retention != nullptr && retention->name != "window" && retention->name != "pool") {
    cause = retention->name;
  }
  if (cause.empty()) return OkStatus();
  return Error(StatusCode::kInvalidArgument,
               "--kv '{}': recent={} chooses among runs, and with {} the prompt is one; leave out "
               "recent or {}",
               spec.text(), spec.lowrank()->Number("recent"), cause, cause);
}

// Its rows are those of sealed blocks.
Status CheckOnlineBasis(const Spec& spec) {
  if (!spec.finds_basis_online()) return OkStatus();
  const bool is_strawman = spec.basis()->name == "svd-online";
  const Stage* const other = spec.quantizer() != nullptr ? spec.quantizer() : spec.retention();
  if (other != nullptr) {
    return Error(StatusCode::kInvalidArgument,
                 "--kv '{}': {} is a baseline and goes alone; leave out {}", spec.text(),
                 is_strawman ? "svd-online" : "zack(online=on)", other->name);
  }
  if (is_strawman || !spec.basis()->Has("resident")) return OkStatus();
  return Error(StatusCode::kInvalidArgument,
               "--kv '{}': online=on folds nothing into the weights that resident=full could keep; "
               "leave out one of them",
               spec.text());
}

// Rows are made once for sequences of all ranks: of what is stored, only how much of a row may hang
// on them.
Status CheckResident(const Spec& spec) {
  const Stage *basis = spec.basis(), *quantizer = spec.quantizer();
  if (basis == nullptr || !basis->Has("resident")) return OkStatus();
  const char* cause = nullptr;
  if (spec.has_latent_keys()) cause = "keys=before reads latents of one rank back as keys";
  if (spec.splits_bits()) cause = "ratio chooses bits together with ranks; give rate, or bits=16";
  if (quantizer != nullptr && quantizer->name == "kvquant") {
    cause = "kvquant learns its codebooks for one choice of ranks; take another quantizer";
  }
  if (quantizer != nullptr && quantizer->Has("hadamard") && quantizer->Word("hadamard") == "on") {
    cause = "hadamard=on mixes the dimensions of one choice of ranks";
  }
  if (cause == nullptr) return OkStatus();
  return Error(StatusCode::kInvalidArgument, "--kv '{}': resident=full: {}", spec.text(), cause);
}

}  // namespace

bool Stage::Has(std::string_view key) const { return FindValue(*this, key) != nullptr; }

double Stage::Number(std::string_view key) const {
  const SpecValue* value = FindValue(*this, key);
  KVL_CHECK(value != nullptr);
  return value->number;
}

std::string_view Stage::Word(std::string_view key) const {
  const SpecValue* value = FindValue(*this, key);
  KVL_CHECK(value != nullptr);
  return value->word;
}

std::string Stage::ToString() const {
  std::string text(name);
  char separator = '(';
  for (const auto& [key, value] : values) {
    text += fmt::format("{}{}={}", separator, key->name, ValueText(value));
    separator = ',';
  }
  if (!values.empty()) text += ')';
  return text;
}

const Stage* Spec::Find(Axis axis) const {
  const auto it = std::ranges::find(stages_, axis, &Stage::axis);
  return it == stages_.end() ? nullptr : &*it;
}

const Stage* Spec::Find(std::string_view name) const {
  const auto it = std::ranges::find(stages_, name, &Stage::name);
  return it == stages_.end() ? nullptr : &*it;
}

int Spec::n_sink() const {
  for (const Stage& stage : stages_) {
    if (stage.Has("sink")) return stage.Integer("sink");
  }
  return 0;
}

std::optional<double> Spec::accuracy() const {
  for (const Stage& stage : stages_) {
    if (stage.Has("accuracy")) return stage.Number("accuracy");
  }
  return std::nullopt;
}

bool Spec::splits_bits() const {
  const Stage* stage = basis();
  if (stage == nullptr || !stage->Has("bits")) return false;
  const std::string_view bits = stage->Word("bits");
  return bits == "mixed" || (bits == "auto" && stage->Has("ratio") && quantizer() == nullptr);
}

bool Spec::has_latent_keys() const {
  const Stage* stage = basis();
  if (stage == nullptr) return false;
  return stage->name == "palu" || (stage->name == "lathe" && stage->Word("keys") == "before");
}

bool Spec::finds_basis_online() const {
  const Stage* stage = basis();
  return stage != nullptr && (stage->name == "svd-online" || stage->Has("online"));
}

std::string Spec::ToString() const {
  if (is_none()) return "none";
  std::string text;
  for (const Stage& stage : stages_) {
    if (!text.empty()) text += '+';
    text += stage.ToString();
  }
  return text;
}

Status CheckSupported(const Spec& spec) {
  if (spec.accuracy().has_value()) {
    return Error(StatusCode::kInvalidArgument,
                 "--kv '{}': accuracy is looked up in the profile of a model, and there is none "
                 "here; give rate, keep or bits",
                 spec.text());
  }
  if (spec.splits_bits() && spec.sparse() != nullptr) {
    return Error(
        StatusCode::kInvalidArgument,
        "--kv '{}': codes of {} have no scales that exact entries could stay out of; leave "
        "sparse out, or add a quantizer",
        spec.text(), spec.basis()->name);
  }
  KVL_RETURN_IF_ERROR(CheckLatents(spec));
  KVL_RETURN_IF_ERROR(CheckOnlineBasis(spec));
  KVL_RETURN_IF_ERROR(CheckResident(spec));
  KVL_RETURN_IF_ERROR(CheckScore(spec));
  KVL_RETURN_IF_ERROR(CheckRepairedShare(spec));
  return CheckSealsWhatStays(spec);
}

}  // namespace kvlathe
