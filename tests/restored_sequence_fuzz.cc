// Damaged bytes of a saved sequence, of every kind of cache: they are refused in one line, or what
// they restore goes on, whatever its rows hold, without reading or writing outside its objects.
//
// An input names the cache, how much was generated when it was saved, and which bytes of the file
// are others: 3 bytes of place, 1 of how many (up to 8), the bytes, and so on.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "analysis/bases/hadamard.h"
#include "base/check.h"
#include "base/crc32c.h"
#include "kv/blocks/host_pool_fixture.h"
#include "kv/blocks/sequence_file.h"
#include "kv/quantizer/quantizer_methods.h"
#include "kv/retention/retention_methods.h"
#include "kv/spec/spec.h"
#include "model/model.h"
#include "model/planned_model.h"
#include "model/tensor_source.h"
#include "runtime/machines/machine_choice.h"

namespace {

using namespace kvlathe;

constexpr int kLayers = 2, kKvHeads = 2, kHeadDim = 32, kVocabulary = 16;
// Saved where the prompt ends and after every kStep tokens behind it; kMore tokens then follow, so
// that every block that fills, is sealed or opened again does so behind some restored sequence.
constexpr int kPrompt = 90, kStep = 16, kSaves = 8, kMore = kStep + 1;

constexpr const char* kSpecs[] = {
    "none",
    "int8(sink=2)",
    "q4_0(run=64)",
    "kcvt(bits=3,run=64)+lowrank(recent=0.5)+sparse(share=0.1)",
    "fdc+gear(bits=2,run=prompt,share=0.2)",
    "kvquant(bits=3,run=64,sink=2)",
    "fdc+kvquant(outliers=0.1)+lowrank",
    "lathe(ratio=4,scales=static,open=8,run=64)",
    "lathe(ratio=4,scales=static,open=16,run=64,sink=0)+lowrank",
    "lathe(ratio=4,scales=static,open=8,keys=before,run=64)",
    "lathe(ratio=4,scales=static,open=8,keys=block,run=64)",
    "svd-online",
    "window(size=90)+gear(bits=4,run=64)",
    "lathe(ratio=4,scales=static,open=8,run=64,sink=2)+window(size=70)",
    "h2o(keep=0.4)",
    "fdc+keyformer(keep=0.3,interval=4)",
    "palu+tova(budget=40,sink=0)",
    "h2o(keep=0.3)+gear(bits=4)",
    "tova(budget=80,sink=0)+kivi(bits=2)",
    "lathe(ratio=4,scales=static,keys=before)+h2o(keep=0.4)",
    "dmc",
    "pool(n=5,sink=2)",
    "pool(n=2)+kivi(bits=2,run=64)",
    "dmc+gear(bits=2,share=0.2)",
    "dms(run=32)",
    "dms(run=32)+kivi(bits=2)",
    "palu(group=2)+tova(budget=80)+token(bits=4)",
    "zack(online=on,sink=40)",  // saved before it has found its bases as well
    "fdc+h2o(keep=0.4,score=exact)",
    "fdc+snapkv(keep=0.5,window=8,score=exact)+kivi(bits=4)",
    "kvzip(keep=0.5,window=8)",
    "kvzip(keep=0.8,window=8)+kivi(bits=4)",
};

ModelConfig SmallConfig() {
  ModelConfig c;
  c.model_type = "llama";
  c.n_layers = kLayers;
  c.hidden_dim = 32;
  c.n_heads = 2 * kKvHeads;
  c.n_kv_heads = kKvHeads;
  c.head_dim = kHeadDim;
  c.ffn_dim = 32;
  c.vocab_size = kVocabulary;
  c.max_seq_len = 512;
  c.dmc = DmcConfig{.offset = 0};                // random weights merge half of the positions
  c.dms = DmsConfig{.window = 20, .offset = 0};  // and let half of them go
  return c;
}

// The same for rows of two heads side by side, of which each keeps its own.
void JoinHeads(ModelBasis* basis) {
  static_assert(kKvHeads == 2);
  const std::vector<float> nothing(kHeadDim * kHeadDim, 0.0f);
  for (size_t h = 0; h < basis->heads.size(); ++h) {
    HeadBasis& head = basis->heads[h];
    for (std::vector<float>* map :
         {&head.key_basis, &head.value_basis, &head.key_way_back, &head.output_basis}) {
      map->insert(h % 2 == 0 ? map->end() : map->begin(), nothing.begin(), nothing.end());
    }
  }
}

// Maps that change nothing, in the form that the spec wants.
std::optional<ModelBasis> BasisOf(const Spec& spec) {
  if (spec.basis() == nullptr || spec.basis_as<SvdOnlineOptions>() != nullptr) return std::nullopt;
  ModelBasis basis = IdentityBasis(kLayers, kKvHeads, kHeadDim);
  const SealingFacts sealing = FactsOf(spec.sealing());
  if (sealing.finds_bases) {
    const std::vector<double> gram(kHeadDim * kHeadDim, 0.5);
    basis.heads.assign(basis.heads.size(), {.rank_k = 16, .rank_v = kHeadDim});
    basis.keys = TurnedKeys{};
    basis.online = OnlineInputs{.output_grams{basis.heads.size(), gram}};
    return basis;
  }
  basis.keys = spec.keys();
  for (HeadBasis& head : basis.heads) {
    if (sealing.splits_bits) {
      head.bits.middle.k.channels = {16, 0, 0, 16, 0, 0};
      head.bits.middle.v.channels = {0, 16, 0, 0, 0, 16};
    }
    if (TurnWhenRead(spec.keys())) head.key_way_back = std::exchange(head.query_basis, {});
  }
  if (HeadsPerLatent(spec.keys()) == 2) JoinHeads(&basis);
  return basis;
}

std::string ReadAll(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

// One kind of cache: a model that has it and sequences that were saved.
class Case {
 public:
  explicit Case(const char* text) {
    const Spec spec = Spec::Parse(text).value();
    KVL_CHECK(CheckSupported(spec).ok());
    identity_ = {spec.ToString(), "a model"};
    const std::optional<ModelBasis> basis = BasisOf(spec);
    auto weights = ModelWeights::Load(SmallConfig(), DType::kBf16, MakeRandomSource(3),
                                      MakeMachine(&threads_, SelectIsa().value()))
                       .value();
    model_ = CreateModel(std::move(weights), PartsOf(spec, basis.has_value() ? &*basis : nullptr))
                 .value();
    model_->set_deterministic(true);  // no oneDNN, which would take most of the time
    SaveSequences();
  }

  const std::string& saved(int i) const { return saved_[i]; }

  // Restores what the bytes say, if they say it soundly, and goes on with it.
  void Run(const std::string& path) {
    HostPool pool(int64_t{64} << 20);
    SequenceCache cache(&model_->layout(), &pool);
    const auto state = RestoreSequence(path, {identity_, &model_->layout(), 400}, &cache);
    if (!state.ok()) {
      const std::string message = MessageOf(state.status());
      KVL_CHECK(message.starts_with(path));
      KVL_CHECK(std::ranges::all_of(message, [](char c) { return c >= 32 && c < 127; }));
      KVL_CHECK_EQ(cache.n_tokens(), 0);
      return;
    }
    // A token alone, then what is left of them as a chunk of a prompt is read.
    if (Feed(1, &cache).ok()) Feed(kMore - 1, &cache).IgnoreError();
  }

 private:
  Status Feed(int n_tokens, SequenceCache* cache) {
    while (n_tokens > 0) {
      const int n = static_cast<int>(std::min<int64_t>(n_tokens, cache->max_step()));
      std::vector<int32_t> ids(n);
      for (int i = 0; i < n; ++i) ids[i] = (cache->n_tokens() * 7 + i) % kVocabulary;
      if (cache->must_read_again()) {
        const std::vector<int32_t> prompt(static_cast<size_t>(cache->n_prompt()), 3);
        KVL_RETURN_IF_ERROR(model_->ReadPromptAgain(cache, prompt, kPrompt));
      }
      KVL_RETURN_IF_ERROR(cache->Extend(n));
      const SequenceStep step = {cache, ids, SequenceStep::Logits::kLast};
      KVL_RETURN_IF_ERROR(model_->Forward({&step, 1}));
      n_tokens -= n;
    }
    return OkStatus();
  }

  void SaveSequences() {
    const std::string path = std::filesystem::temp_directory_path() /
                             ("restored_sequence_fuzz-" + std::to_string(::getpid()));
    HostPool pool(int64_t{64} << 20);
    SequenceCache cache(&model_->layout(), &pool);
    cache.set_n_prompt(kPrompt, kStep * kSaves);
    KVL_CHECK(Feed(kPrompt, &cache).ok());
    for (int i = 0; i < kSaves; ++i) {
      KVL_CHECK(SaveSequence(cache, identity_, "state", path).ok());
      saved_.push_back(ReadAll(path));
      for (int t = 0; t < kStep; ++t) KVL_CHECK(Feed(1, &cache).ok());
    }
    std::filesystem::remove(path);
  }

  ThreadPool threads_{1};
  SequenceIdentity identity_;
  std::unique_ptr<Model> model_;
  std::vector<std::string> saved_;
};

Case& CaseOf(int i) {
  static std::unique_ptr<Case> cases[std::size(kSpecs)];
  if (cases[i] == nullptr) cases[i] = std::make_unique<Case>(kSpecs[i]);
  return *cases[i];
}

// Files are nearly all rows: half of the places are those of the header.
constexpr size_t kHeaderBytes = 512;

std::string Damaged(std::string file, const uint8_t* data, size_t n_bytes) {
  while (n_bytes >= 4) {
    const size_t place = data[0] | size_t{data[1]} << 8 | size_t{data[2] & 0x7fu} << 16;
    const bool is_header = data[2] >> 7 == 1;
    const size_t n = std::min<size_t>(1 + data[3] % 8, n_bytes - 4);
    data += 4;
    n_bytes -= 4;
    for (size_t i = 0; i < n; ++i) {
      file[(place + i) % (is_header ? std::min(kHeaderBytes, file.size()) : file.size())] =
          static_cast<char>(data[i]);
    }
    data += n;
    n_bytes -= n;
  }
  // The length and the checksum are set right, or little else would be read.
  constexpr size_t kLengthOffset = 12;
  const uint64_t length = file.size();
  std::memcpy(file.data() + kLengthOffset, &length, sizeof(length));
  const size_t n_checked = file.size() - sizeof(uint32_t);
  const uint32_t crc = ExtendCrc32c(0, std::as_bytes(std::span(file)).first(n_checked));
  std::memcpy(file.data() + n_checked, &crc, sizeof(crc));
  return file;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n_bytes) {
  if (n_bytes < 2) return 0;
  Case& c = CaseOf(data[0] % static_cast<int>(std::size(kSpecs)));
  const std::string file = Damaged(c.saved(data[1] % kSaves), data + 2, n_bytes - 2);
  static const int memory = ::memfd_create("saved sequence", MFD_CLOEXEC);
  KVL_CHECK(::ftruncate(memory, static_cast<off_t>(file.size())) == 0);
  KVL_CHECK(::pwrite(memory, file.data(), file.size(), 0) == std::ssize(file));
  c.Run("/proc/self/fd/" + std::to_string(memory));
  return 0;
}
