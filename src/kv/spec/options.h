// Options are what the stages of a spec ask for, as types. There is one struct for each method and
// one variant for each axis. The parser fills them in (read_options.cc), and nothing after it reads
// a key as text.
#pragma once

#include <optional>
#include <variant>

#include "analysis/statistics/statistics.h"
#include "format/packed_layout.h"

namespace kvlathe {

// How far a basis cuts. With kAccuracy a tuned profile decides that (Spec::accuracy).
struct RankOptions {
  enum class Goal { kRate, kRatio, kAccuracy };
  enum class Choice { kAdaptive, kUniform, kFisher };
  Goal goal = Goal::kRate;
  double value = 0;  // of the goal
  Choice choice = Choice::kAdaptive;
  int round = 16;  // ranks are multiples of it

  bool has_rate() const { return goal == Goal::kRate; }
  bool has_ratio() const { return goal == Goal::kRatio; }
  friend bool operator==(const RankOptions&, const RankOptions&) = default;
};

// Which positions are sealed together.
struct RunOptions {
  int prompt_run = 0;         // so many positions of the prompt; 0: all of them
  int buffer = 0;             // so many positions while decoding
  int newest = 0;             // none of so many last positions is sealed
  bool newest_grows = false;  // or of more, where there are many (NewestEntries)

  friend bool operator==(const RunOptions&, const RunOptions&) = default;
};

// How many positions a method keeps, and by which keys it chooses them. Either `keep` or `n_kept`
// is set, or neither where a profile is to answer what keeps an accuracy.
struct BudgetOptions {
  double keep = 0;          // the share of positions that are kept
  int n_kept = 0;           // the number of positions that are kept
  bool of_prompt = false;   // whether the share is one of the prompt
  bool prunes_runs = true;  // whether it drops where runs of the prompt end, not only at its end
  bool reads_whole_keys = false;

  friend bool operator==(const BudgetOptions&, const BudgetOptions&) = default;
};

// --- Basis ---

struct ZackOptions {
  RankOptions ranks;
  bool is_normalised = false;
  bool is_resident = false;  // all dimensions stay, so that a request may choose its own rate
  bool is_online = false;    // each sequence finds its rotations where its prompt ends
  friend bool operator==(const ZackOptions&, const ZackOptions&) = default;
};
struct FdcOptions {
  RankOptions ranks;
  bool is_whitened = true;
  bool is_resident = false;
  friend bool operator==(const FdcOptions&, const FdcOptions&) = default;
};
struct PaluOptions {
  RankOptions ranks;
  int heads_per_latent = 1;
  bool is_whitened = true;
  friend bool operator==(const PaluOptions&, const PaluOptions&) = default;
};
struct EigenOptions {
  RankOptions ranks;
  friend bool operator==(const EigenOptions&, const EigenOptions&) = default;
};
// All channels stay, so there are no ranks to choose.
struct SpectralOptions {
  enum class Centre { kAuto, kOn, kOff };
  RankOptions ranks;
  bool shares_heads = true;       // the KV heads of a layer have one rotation
  Centre centre = Centre::kAuto;  // which models' rows lose their means
  friend bool operator==(const SpectralOptions&, const SpectralOptions&) = default;
};
struct SvdOnlineOptions {
  double rate = 0;
  friend bool operator==(const SvdOnlineOptions&, const SvdOnlineOptions&) = default;
};
struct LatheOptions {
  enum class Bits { kAuto, kMixed, k16 };
  enum class OpenRows { kAuto, k8, k16 };
  enum class Heads { kAuto, kJoint, kOwn };
  // What is stored (format/keys.h).
  using KeyRows = kvlathe::KeyRows;
  RankOptions ranks;
  Heads heads = Heads::kAuto;  // which KV heads have a map together
  bool is_resident = false;
  bool is_centred = true;
  std::optional<KeyRows> keys;  // nothing: Spec::key_rows() chooses
  bool joins_values = false;    // keys and values have one map, and are stored once for both
  Bits bits = Bits::kAuto;
  // Of sealed blocks: scales of calibration alone, or one for K and one for V of each token too.
  StoredUnit unit = StoredUnit::kToken;
  OpenRows open = OpenRows::kAuto;
  bool has_classes = false;  // entries of a prompt have bits by what attends to them
  // The ratio whose bits runs get when they are sealed again because memory is short; 0: they are
  // not.
  double under_pressure = 0;
  int context = 0;  // positions at which a ratio counts bytes; 0: the model's context
  RunOptions runs;  // used where bits are split
  friend bool operator==(const LatheOptions&, const LatheOptions&) = default;
};
using BasisStage = std::variant<ZackOptions, FdcOptions, PaluOptions, EigenOptions, SpectralOptions,
                                SvdOnlineOptions, LatheOptions>;

// Null where ranks are not chosen beforehand (svd-online).
const RankOptions* RanksOf(const BasisStage& basis);
bool IsResident(const BasisStage& basis);

// --- Retention ---

struct H2oOptions {
  BudgetOptions budget;
  double recent = 0;  // the share of the kept positions that goes to the newest
  friend bool operator==(const H2oOptions&, const H2oOptions&) = default;
};
struct MasOptions {
  BudgetOptions budget;
  double recent = 0;  // as with h2o
  friend bool operator==(const MasOptions&, const MasOptions&) = default;
};
struct TovaOptions {
  BudgetOptions budget;
  bool shares_heads = true;
  friend bool operator==(const TovaOptions&, const TovaOptions&) = default;
};
struct KeyformerOptions {
  BudgetOptions budget;
  double recent = 0;
  double tau_init = 1, tau_end = 2;
  int interval = 1;
  friend bool operator==(const KeyformerOptions&, const KeyformerOptions&) = default;
};
struct SnapkvOptions {
  BudgetOptions budget;
  int window = 32;
  int kernel = 5;
  friend bool operator==(const SnapkvOptions&, const SnapkvOptions&) = default;
};
struct KvzipOptions {
  BudgetOptions budget;
  int window = 32;          // newest positions of the prompt, which stay
  int chunk = 2048;         // positions of the prompt that are read again at a time
  bool joins_heads = true;  // all heads have one budget
  friend bool operator==(const KvzipOptions&, const KvzipOptions&) = default;
};
struct WindowOptions {
  int size = 0;  // 0 where a profile is to answer
  int n_sink = 0;
  friend bool operator==(const WindowOptions&, const WindowOptions&) = default;
};
struct PoolOptions {
  int every = 0;  // how many positions become one entry; 0 where a profile is to answer
  friend bool operator==(const PoolOptions&, const PoolOptions&) = default;
};
struct DmcOptions {
  int window = 12;
  friend bool operator==(const DmcOptions&, const DmcOptions&) = default;
};
struct DmsOptions {
  int window = 0;                // 0: the model's
  std::optional<double> offset;  // none: the model's
  int run = 256;
  int interval = 64;
  friend bool operator==(const DmsOptions&, const DmsOptions&) = default;
};
using RetentionStage =
    std::variant<H2oOptions, MasOptions, TovaOptions, KeyformerOptions, SnapkvOptions, KvzipOptions,
                 WindowOptions, PoolOptions, DmcOptions, DmsOptions>;

// Null where no positions are chosen by votes.
const BudgetOptions* BudgetOf(const RetentionStage& retention);

// What others ask of a retention method.
struct RetentionFacts {
  bool moves_rows = false;       // entries are dropped or merged, so that rows change their places
  bool merges = false;           // positions are averaged into entries
  bool acts_on_later = false;    // it acts on positions behind the prompt too
  bool differs_by_head = false;  // heads of a layer may hold entries of other positions
  // The model decides what leaves, for each of its KV heads, and entries do not tell their
  // positions.
  bool model_decides = false;
  bool counts_by_head = false;      // heads of a layer may even hold other numbers of entries
  bool ends_prompt_as_run = false;  // what is left of the prompt is sealed at its end, as one run
  int window = 0;                   // so many newest positions are seen; 0: all that are kept
};
RetentionFacts FactsOf(const RetentionStage& retention);

// --- Quantizer --- (bits are 0 where a profile is to answer)

struct TokenOptions {
  int bits = 4;
  int group = 64;
  bool mixes_channels = false;  // whether a Hadamard matrix mixes channels before they are coded
  double key_clip = 1, value_clip = 1;  // PackedSide::clip
  RunOptions runs;
  friend bool operator==(const TokenOptions&, const TokenOptions&) = default;
};
struct KcvtOptions {
  int bits = 4;
  RunOptions runs;
  friend bool operator==(const KcvtOptions&, const KcvtOptions&) = default;
};
struct KiviOptions {
  int bits = 2;
  int group = 32;
  RunOptions runs;
  friend bool operator==(const KiviOptions&, const KiviOptions&) = default;
};
struct KvarnOptions {
  int key_bits = 4;
  int value_bits = 2;
  int group = 128;              // positions that are balanced together
  bool mixes_channels = false;  // as with TokenOptions
  RunOptions runs;
  friend bool operator==(const KvarnOptions&, const KvarnOptions&) = default;
};
struct KvquantOptions {
  int bits = 4;
  double outliers = 0;           // the share of entries that are kept exactly
  bool matches_moments = false;  // Q-Norm; qnorm=auto has become true or false
  RunOptions runs;
  friend bool operator==(const KvquantOptions&, const KvquantOptions&) = default;
};
// How channels are mixed by a Hadamard matrix where a quantizer mixes them (MixesChannels).
enum class MixingRule : uint8_t {
  kWhole,   // all of a head
  kGgml,    // as llama.cpp does
  kSigned,  // all of a head, some of which change their signs first
};

struct TurboquantOptions {
  static constexpr bool mixes_channels = true;
  static constexpr MixingRule mixing_rule = MixingRule::kSigned;
  int key_bits = 4, value_bits = 4;
  bool keys_have_signs = false;  // of the residuals; they count among key_bits
  bool corrects_norms = true;
  RunOptions runs;
  friend bool operator==(const TurboquantOptions&, const TurboquantOptions&) = default;
};
// The options of int8, q8_0 and all other methods whose codes leave nothing to choose.
struct FixedCodesOptions {
  PackedFormat format;
  bool mixes_channels = false;
  MixingRule mixing_rule = MixingRule::kWhole;
  RunOptions runs;
  friend bool operator==(const FixedCodesOptions&, const FixedCodesOptions&) = default;
};
using QuantizerStage = std::variant<TokenOptions, KcvtOptions, KiviOptions, KvquantOptions,
                                    FixedCodesOptions, TurboquantOptions, KvarnOptions>;

const RunOptions& RunsOf(const QuantizerStage& quantizer);
bool MixesChannels(const QuantizerStage& quantizer);
MixingRule MixingRuleOf(const QuantizerStage& quantizer);

// --- Residual ---

struct LowrankOptions {
  int prompt_rank = 4;
  int decode_rank = 2;
  double repaired_share = 1;  // the share of the prompt, its newest runs, that has factors
  int power_loops = 3;
  friend bool operator==(const LowrankOptions&, const LowrankOptions&) = default;
};
struct SparseOptions {
  double share = 0;
  friend bool operator==(const SparseOptions&, const SparseOptions&) = default;
};
using ResidualStage = std::variant<LowrankOptions, SparseOptions>;

// The options of any stage. A preset that waits for a profile's answer has none.
using StageOptions =
    std::variant<std::monostate, BasisStage, RetentionStage, QuantizerStage, ResidualStage>;

}  // namespace kvlathe
