// What a program says when it opens a model, and what it is told while it uses the model.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "evaluation/quality.h"
#include "machine/attention/schedule.h"
#include "machine/weight_type.h"
#include "runtime/machines/device_choice.h"
#include "tensor/dtype.h"

namespace kvlathe {

struct RankGroup;

// One line for the person who uses the program. The library prints nothing itself.
struct Note {
  enum class Kind {
    kNote,     // what a person should know
    kWarning,  // what will probably not be what a person wants
    kBegun,    // work that takes long has begun, and how it is done beforehand
    kDone,     // what came of such work, and where it lies
  };
  Kind kind = Kind::kNote;
  std::string text;  // without a newline
};

// Called on the thread that opens the model or makes a cache.
using NoteSink = std::function<void(const Note&)>;

struct OpenOptions {
  std::string model;  // a Hugging Face directory, a .gguf file, or a name (FindModel)
  // Caches that will be made of the model (KvCacheSpec strings such as "lathe(ratio=4)"). They are
  // checked before weights are read, and what they need of a calibration is gathered at once. Other
  // caches can be made too.
  std::vector<std::string> kv;
  // A file of what a retrofit with DMS learned; empty: the one beside the model, if there is one
  // (DmsPathBeside).
  std::string dms;
  std::string basis;    // a file of statistics; empty: the model's, the kept one, or a calibration
  std::string profile;  // what `kvlathe tune` wrote; empty: the model's or the kept one
  std::string pre;      // pre-tokenizer, TokenizerOptions::pre
  DeviceChoice device;  // where the model runs, its weights and its caches are
  int64_t device_bytes = 0;  // of a GPU's memory, that all of it may take; 0: what is free
  // Of all caches; 0: half of the free memory, or what a GPU has left behind weights and a step.
  int64_t kv_budget_bytes = 0;
  // Tokens of a step for which a GPU keeps memory before caches get theirs. Larger steps take what
  // they find.
  int step_tokens = 512;
  DType row_type = DType::kBf16;  // of activations and cache rows: BF16, or F32 (exact, slower)
  // What weights become while they are loaded; none: blocks of a GGUF file stay as they are, all
  // else becomes row_type.
  std::optional<WeightType> weights;
  // Products with weights in blocks do not round rows to 8 bits: slower, and what caches are
  // compared with.
  bool exact_rows = false;
  // Attention does not round queries and probabilities to 7 bits where they meet codes of few bits.
  bool exact_attention = false;
  Schedule schedule = Schedule::kBalanced;
  int ctx_size = 0;            // positions, at most the model's; 0: the model's
  int n_threads = 0;           // workers; 0: as many as processors
  bool pin_threads = false;    // bind each worker to a processor of its own
  bool deterministic = false;  // identical bits whatever runs beside a sequence; slower prompts
  // The ranks that share the model, of which this process is one; outlives it. Null: none.
  RankGroup* ranks = nullptr;
  // Asked while the model is opened and used (ModelWeights::set_interrupt); may be empty.
  std::function<Status()> interrupt;
  Progress progress;  // may be empty
  NoteSink on_note;   // may be empty: nobody is told
};

// As keys of kept files and profiles name it: "bf16" or "f32".
inline std::string RowTypeName(DType row_type) { return row_type == DType::kF32 ? "f32" : "bf16"; }

}  // namespace kvlathe
