// A codec without weights against the model that its rows come from.
#include "codec/row_codec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>

#include "base/cpu_features.h"
#include "captured_rows.h"
#include "codec/row_calibration.h"
#include "codec/row_shape.h"
#include "io/files.h"
#include "model_shapes.h"
#include "runtime/machines/machine_choice.h"

namespace kvlathe {
namespace {

using testing::CapturedText;
using testing::LargestDifference;
using testing::RandomModelShape;

constexpr int kTokens = 300, kPrompt = 220;
constexpr double kRounding = 2e-5;

class RowCodecTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::mt19937_64 random(5);
    for (int i = 0; i < kTokens; ++i) ids_.push_back(static_cast<int32_t>(random() % 97));
  }
  void TearDown() override {
    if (!directory_.empty()) std::filesystem::remove_all(directory_);
  }

  void Load(const RandomModelShape& shape) {
    directory_ = testing::FreshDirectory("row_codec");
    testing::WriteRandomModel(shape, directory_, 31);
    loaded_ = testing::LoadModel(directory_, DType::kF32, *SelectIsa());
  }

  // What a model with the cache of the spec computes, and the bytes of its cache in the end.
  CapturedText Capture(const char* spec_text, int64_t* n_bytes) {
    auto model = CreateModel(loaded_.weights, PartsOf(*Spec::Parse(spec_text)));
    EXPECT_TRUE(model.ok()) << model.status();
    testing::RowCapture capture((*model)->config());
    SequenceCache cache(&(*model)->layout(), loaded_.blocks.get());
    cache.set_n_prompt(kPrompt);
    for (int begin = 0; begin < kTokens;) {
      const int end = begin < kPrompt ? kPrompt : begin + 1;
      const auto n = static_cast<int>(std::min<int64_t>(end - begin, cache.max_step()));
      EXPECT_TRUE(cache.Extend(n).ok());
      const SequenceStep step{&cache, std::span<const int32_t>(ids_).subspan(begin, n)};
      EXPECT_TRUE((*model)->Forward({&step, 1}, &capture).ok());
      begin += n;
    }
    *n_bytes = cache.bytes().total();
    CapturedText text = capture.text();
    for (int l = 0; (*model)->config().has_sink_logits && l < (*model)->config().n_layers; ++l) {
      const auto& logits = loaded_.weights->layer(l).sink_logits.values();
      text.sink_logits.emplace_back(logits.begin(), logits.end());
    }
    return text;
  }

  std::unique_ptr<RowCodec> MakeCodec(const std::string& spec, DType row_type = DType::kF32) {
    auto codec = RowCodec::Create(
        *LoadAttentionConfig(directory_),
        {.spec = spec, .row_type = row_type, .statistics = statistics_, .weights = weights_},
        loaded_.machine);
    EXPECT_TRUE(codec.ok()) << codec.status();
    return codec.ok() ? *std::move(codec) : nullptr;
  }

  // The outputs of a codec that gets the prompt at once, in pieces or token by token.
  struct Outcome {
    std::vector<std::vector<float>> outputs;
    int64_t n_bytes = 0;
  };
  Outcome Run(RowCodec* codec, const CapturedText& text, int piece, bool are_turned) {
    Outcome outcome;
    const auto sequence = codec->NewSequence(kPrompt);
    for (int begin = 0; begin < kTokens;) {
      const int end = begin < kPrompt ? std::min(kPrompt, begin + piece) : begin + 1;
      const Status run =
          testing::AttendTo(text, begin, end, are_turned, codec, sequence.get(), &outcome.outputs);
      EXPECT_TRUE(run.ok()) << run;
      begin = end;
    }
    EXPECT_EQ(sequence->n_tokens(), kTokens);
    outcome.n_bytes = sequence->bytes().total();
    return outcome;
  }

  void TakesMeanBiasesOffKeys(const RandomModelShape& shape);
  // Of the model that is loaded.
  void ReadsBackWhatAttentionReads(const std::vector<const char*>& specs);
  void ReadsBackRows(const CapturedText& text, std::string_view spec, bool ends_turned,
                     RowCodec* codec);

  std::vector<std::vector<float>> KeyBiases() {
    const ModelConfig& c = loaded_.model->config();
    const int64_t d = c.head_dim;
    std::vector<std::vector<float>> biases;
    for (int l = 0; l < c.n_layers; ++l) {
      const float* const of_keys = loaded_.weights->layer(l).qk_bias.data() + c.n_heads * d;
      for (int g = 0; g < c.n_kv_heads; ++g) {
        biases.emplace_back(of_keys + g * d, of_keys + (g + 1) * d);
      }
    }
    return biases;
  }

  // What a Calibrator makes of the text.
  void Calibrate(const CapturedText& text) {
    const ModelConfig& c = loaded_.model->config();
    RowCalibration calibration(c, loaded_.pool.get(), *SelectIsa());
    for (int l = 0; l < c.n_layers; ++l) {
      const Status added = calibration.Add({.layer_idx = l,
                                            .n_tokens = kTokens,
                                            .q = text.q[l].data(),
                                            .k = text.k[l].data(),
                                            .v = text.v[l].data()});
      ASSERT_TRUE(added.ok()) << added;
    }
    auto statistics = calibration.Finish();
    ASSERT_TRUE(statistics.ok()) << statistics.status();
    statistics_ = {std::make_shared<const CalibrationStatistics>(*std::move(statistics)), "given"};
  }

  std::vector<int32_t> ids_;
  std::string directory_;
  testing::LoadedModel loaded_;
  NamedStatistics statistics_;
  GivenWeights weights_;
};

// One method of each axis whose values no model folds a map into.
TEST_F(RowCodecTest, ComputesWhatTheModelDoes) {
  for (const RandomModelShape& shape :
       {RandomModelShape{.n_heads = 4, .n_kv_heads = 2, .head_dim = 32},
        RandomModelShape{
            .model_type = "mistral", .n_heads = 4, .n_kv_heads = 4, .head_dim = 32, .window = 100},
        RandomModelShape{.model_type = "gpt2", .n_heads = 4, .n_kv_heads = 4, .head_dim = 32},
        testing::GptOssWithoutWindows(0.5)}) {
    SCOPED_TRACE(shape.model_type);
    Load(shape);
    if (shape.attention_bias) weights_.key_biases = KeyBiases();
    for (const char* spec :
         {"none", "kivi(bits=4,run=64)", "kcvt(bits=2,run=128)", "kivi(bits=2,group=32)+sparse",
          "token(bits=4,group=16)+lowrank", "mxfp4", "h2o(keep=0.4)", "snapkv(budget=100)",
          "window(size=80)", "tova(budget=80)+kivi(bits=4)"}) {
      SCOPED_TRACE(spec);
      // Plans refuse models with windows that drop entries besides.
      if (shape.window > 0 && Spec::Parse(spec)->retention() != nullptr) continue;
      int64_t n_bytes = 0;
      const CapturedText text = Capture(spec, &n_bytes);
      const auto codec = MakeCodec(spec);
      ASSERT_NE(codec, nullptr);
      // With a window, steps decide which blocks are left where a run is sealed.
      const bool hangs_on_steps = shape.window > 0 && codec->layout().seal.has_value();
      for (const int piece : {kPrompt, 37, 1}) {
        if (hangs_on_steps && piece != kPrompt) continue;
        for (const bool are_turned : {true, false}) {
          SCOPED_TRACE(std::to_string(piece) + (are_turned ? " turned" : ""));
          const Outcome outcome = Run(codec.get(), text, piece, are_turned);
          EXPECT_EQ(outcome.n_bytes, n_bytes);
          for (int l = 0; l < loaded_.model->config().n_layers; ++l) {
            EXPECT_LT(LargestDifference(outcome.outputs[l], text.outputs[l]), kRounding) << l;
          }
        }
      }
    }
    std::filesystem::remove_all(directory_);
  }
}

// Where positions merge, what a model shows is merged already, so the rows of its first layer are
// those of the model without it.
TEST_F(RowCodecTest, MergesAsTheModelDoes) {
  Load({.n_layers = 1, .n_heads = 4, .n_kv_heads = 2, .head_dim = 32});
  int64_t n_plain = 0, n_bytes = 0;
  const CapturedText rows = Capture("none", &n_plain);
  for (const char* spec : {"pool(n=2)", "pool(n=4)+kivi(bits=4)"}) {
    SCOPED_TRACE(spec);
    const CapturedText merged = Capture(spec, &n_bytes);
    const auto codec = MakeCodec(spec);
    ASSERT_NE(codec, nullptr);
    for (const bool are_turned : {true, false}) {
      const Outcome outcome = Run(codec.get(), rows, kPrompt, are_turned);
      EXPECT_EQ(outcome.n_bytes, n_bytes);
      EXPECT_LT(LargestDifference(outcome.outputs[0], merged.outputs[0]), kRounding);
    }
  }
}

// Attention of the last position over rows that are read back, as its definition has it.
std::vector<float> AttendLiterally(const CapturedText& text, const StoredEntries& entries,
                                   int layer_idx, const ModelConfig& c) {
  const int64_t d = c.head_dim, position = kTokens - 1;
  std::vector<float> out(c.n_heads * d);
  for (int64_t h = 0; h < c.n_heads; ++h) {
    const int64_t g = h / c.gqa_group();
    const float* const q = &text.q[layer_idx][(position * c.n_heads + h) * d];
    std::vector<double> sums(d), scores;
    for (int64_t e = 0; e < entries.n_entries; ++e) {
      double score = 0;
      const float* const k = &entries.k[(e * entries.n_heads + g) * d];
      for (int64_t i = 0; i < d; ++i) score += static_cast<double>(q[i]) * k[i];
      scores.push_back(score / std::sqrt(static_cast<double>(d)));
    }
    const double most = *std::ranges::max_element(scores);
    double sum = 0;
    for (int64_t e = 0; e < entries.n_entries; ++e) {
      const double weight = std::exp(scores[e] - most);
      sum += weight;
      const float* const v = &entries.v[(e * entries.n_heads + g) * d];
      for (int64_t i = 0; i < d; ++i) sums[i] += weight * v[i];
    }
    for (int64_t i = 0; i < d; ++i) out[h * d + i] = static_cast<float>(sums[i] / sum);
  }
  return out;
}

// Attention is that over the rows that the codec reads back, and a codec that keeps all dimensions
// gives the rows that came.
void RowCodecTest::ReadsBackWhatAttentionReads(const std::vector<const char*>& specs) {
  int64_t n_plain = 0;
  const CapturedText text = Capture("none", &n_plain);
  Calibrate(text);
  for (const char* spec : specs) {
    SCOPED_TRACE(spec);
    const auto codec = MakeCodec(spec);
    ASSERT_NE(codec, nullptr);
    for (const bool ends_turned : {false, true})
      ReadsBackRows(text, spec, ends_turned, codec.get());
  }
}

// Every second row comes turned, and the last one as `ends_turned` says.
void RowCodecTest::ReadsBackRows(const CapturedText& text, std::string_view spec, bool ends_turned,
                                 RowCodec* codec) {
  SCOPED_TRACE(ends_turned ? "turned" : "before RoPE");
  const ModelConfig& c = loaded_.model->config();
  std::vector<std::vector<float>> outputs;
  const auto sequence = codec->NewSequence(kPrompt);
  ASSERT_TRUE(testing::AttendTo(text, 0, kPrompt, true, codec, sequence.get(), &outputs).ok());
  for (int t = kPrompt; t < kTokens; ++t) {
    const bool is_turned = ((kTokens - 1 - t) % 2 == 0) == ends_turned;
    ASSERT_TRUE(testing::AttendTo(text, t, t + 1, is_turned, codec, sequence.get(), &outputs).ok());
  }
  EXPECT_EQ(sequence->bytes().total(), codec->BytesAt(kTokens, kPrompt));
  if (codec->layout().MergesEntries()) {
    EXPECT_EQ(codec->Read(*sequence, 0).status().code(), StatusCode::kUnimplemented);
    return;
  }
  for (int l = 0; l < c.n_layers; ++l) {
    const auto entries = codec->Read(*sequence, l);
    ASSERT_TRUE(entries.ok()) << entries.status();
    const std::vector<float> want = AttendLiterally(text, *entries, l, c);
    const int64_t width = std::ssize(want);
    EXPECT_LT(LargestDifference(std::span(outputs[l]).last(width), want), kRounding) << l;
    if (spec != "none" && spec != "fdc(rate=0)") continue;
    EXPECT_LT(LargestDifference(entries->k, text.k[l]), kRounding);
    EXPECT_LT(LargestDifference(entries->v, text.v[l]), kRounding);
  }
}

// With maps too.
TEST_F(RowCodecTest, ReadsBackWhatAttentionReads) {
  Load({.n_heads = 4, .n_kv_heads = 2, .head_dim = 32});
  ReadsBackWhatAttentionReads({"none", "kivi(bits=4)", "int8(hadamard=on)", "turboquant(bits=3)",
                               "q8_0", "kvarn", "fdc(rate=0)", "fdc(rate=0.4)", "palu(rate=0.4)",
                               "zack(rate=0.3)+kivi(bits=4)", "pool(n=2)", "snapkv(budget=100)",
                               "kcvt(bits=4)+sparse"});
}

// Queries that come after RoPE have grown already, also where they are turned back first.
TEST_F(RowCodecTest, QueriesOfMinistral3GrowOnce) {
  directory_ = testing::FreshDirectory("row_codec_growth");
  const std::string golden = KVLATHE_SOURCE_DIR "/tests/golden/ministral3/";
  std::filesystem::copy_file(golden + "model.safetensors", directory_ + "/model.safetensors");
  auto config = ReadJsonFile(golden + "config.json");
  ASSERT_TRUE(config.ok()) << config.status();
  (*config)["text_config"]["max_position_embeddings"] = 512;
  std::ofstream(directory_ + "/config.json") << config->dump();
  loaded_ = testing::LoadModel(directory_, DType::kF32, *SelectIsa());
  ASSERT_GT(loaded_.model->config().attention.of(0).GrowthAt(kTokens), 1.5);
  for (int32_t& id : ids_) id %= loaded_.model->config().vocab_size;
  ReadsBackWhatAttentionReads(
      {"none", "kivi(bits=4)", "fdc(rate=0.4)", "palu(rate=0.4)", "pool(n=2)"});
}

// Where it is told the biases of keys it stores what the model stores, and gives keys back with
// them.
void RowCodecTest::TakesMeanBiasesOffKeys(const RandomModelShape& shape) {
  SCOPED_TRACE(shape.model_type);
  Load(shape);
  const ModelConfig& c = loaded_.model->config();
  for (const char* spec : {"kivi(bits=4)", "token(bits=4,group=16)", "int8", "mxfp4"}) {
    SCOPED_TRACE(spec);
    int64_t n_bytes = 0;
    const CapturedText text = Capture(spec, &n_bytes);
    weights_.key_biases = {};
    const auto untold = MakeCodec(spec);
    weights_.key_biases = KeyBiases();
    const auto codec = MakeCodec(spec);
    ASSERT_TRUE(untold != nullptr && codec != nullptr);
    const double large = 50 * kRounding;  // rows are as much larger
    double of_untold = 0;
    const Outcome without = Run(untold.get(), text, kPrompt, true);
    for (const bool are_turned : {true, false}) {
      const Outcome outcome = Run(codec.get(), text, kPrompt, are_turned);
      EXPECT_EQ(outcome.n_bytes, n_bytes);
      for (int l = 0; l < c.n_layers; ++l) {
        EXPECT_LT(LargestDifference(outcome.outputs[l], text.outputs[l]), large) << l;
        of_untold = std::max(of_untold, LargestDifference(without.outputs[l], text.outputs[l]));
      }
    }
    EXPECT_GT(of_untold, 10 * large);

    const auto sequence = codec->NewSequence();
    std::vector<std::vector<float>> outputs;
    ASSERT_TRUE(
        testing::AttendTo(text, 0, kTokens, true, codec.get(), sequence.get(), &outputs).ok());
    const int64_t n = std::ssize(text.k[0]);
    std::vector<float> k(n * c.n_layers), v(n * c.n_layers);
    ASSERT_TRUE(codec->Decode(*sequence, k.data(), v.data()).ok());
    for (int l = 0; l < c.n_layers; ++l) {
      double error = 0, size = 0;
      for (int64_t i = 0; i < n; ++i) {
        error += std::pow(k[l * n + i] - text.k[l][i], 2);
        size += std::pow(text.k[l][i], 2);
      }
      EXPECT_LT(error, 0.01 * size) << l;
    }
    const auto bytes = codec->Save(*sequence);
    ASSERT_TRUE(bytes.ok());
    EXPECT_TRUE(codec->Load(std::as_bytes(std::span(*bytes))).ok());
    EXPECT_EQ(untold->Load(std::as_bytes(std::span(*bytes))).status().code(),
              StatusCode::kDataLoss);
  }
}

TEST_F(RowCodecTest, TakesMeanBiasesOffKeysAsTheModelDoes) {
  TakesMeanBiasesOffKeys(
      {.model_type = "qwen2", .n_heads = 4, .n_kv_heads = 2, .head_dim = 32, .bias_deviation = 50});
}

TEST_F(RowCodecTest, TakesMeanBiasesOffKeysBesideSinkLogits) {
  TakesMeanBiasesOffKeys(testing::GptOssWithoutWindows(50));
}

TEST_F(RowCodecTest, StoresWithoutQueriesWhatItStoresWithThem) {
  Load({.n_heads = 4, .n_kv_heads = 2, .head_dim = 32});
  int64_t n_plain = 0;
  const CapturedText text = Capture("none", &n_plain);
  Calibrate(text);
  const ModelConfig& c = loaded_.model->config();
  for (const char* spec : {"kivi(bits=4)", "fdc(rate=0.4)+kivi(bits=4)", "palu(rate=0.3)"}) {
    SCOPED_TRACE(spec);
    const auto codec = MakeCodec(spec);
    const auto with = codec->NewSequence(), without = codec->NewSequence();
    std::vector<std::vector<float>> outputs;
    ASSERT_TRUE(testing::AttendTo(text, 0, kTokens, true, codec.get(), with.get(), &outputs).ok());
    for (int l = 0; l < c.n_layers; ++l) {
      const CodecStep step = {without.get(), kTokens};
      std::vector<Status> failures;
      ASSERT_TRUE(
          codec
              ->Run({&step, 1},
                    {.layer_idx = l, .k = text.k[l].data(), .v = text.v[l].data(), .scale = {}},
                    &failures)
              .ok());
      ASSERT_TRUE(failures.front().ok()) << failures.front();
    }
    EXPECT_EQ(*codec->Save(*with), *codec->Save(*without));
  }
}

TEST_F(RowCodecTest, SavedSequencesGoOnAsTheyWould) {
  Load({.n_heads = 4, .n_kv_heads = 2, .head_dim = 32});
  int64_t n_plain = 0;
  const CapturedText text = Capture("none", &n_plain);
  for (const char* spec : {"kivi(bits=4,run=64)", "snapkv(budget=100)", "pool(n=2)"}) {
    SCOPED_TRACE(spec);
    const auto codec = MakeCodec(spec);
    std::vector<std::vector<float>> before, of_first, of_copy, of_loaded;
    const auto sequence = codec->NewSequence(kPrompt);
    ASSERT_TRUE(testing::AttendTo(text, 0, 250, true, codec.get(), sequence.get(), &before).ok());
    const auto copy = codec->Copy(*sequence);
    const auto bytes = codec->Save(*sequence);
    ASSERT_TRUE(copy.ok() && bytes.ok());
    const auto loaded = codec->Load(std::as_bytes(std::span(*bytes)));
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_EQ((*loaded)->bytes().total(), sequence->bytes().total());
    const auto go_on = [&](CodecSequence* s, std::vector<std::vector<float>>* outputs) {
      EXPECT_TRUE(testing::AttendTo(text, 250, 280, true, codec.get(), s, outputs).ok());
    };
    go_on(sequence.get(), &of_first);
    go_on(copy->get(), &of_copy);
    go_on(loaded->get(), &of_loaded);
    EXPECT_EQ(of_copy, of_first);
    EXPECT_EQ(of_loaded, of_first);

    const auto other = MakeCodec("kivi(bits=3)");
    EXPECT_EQ(other->Load(std::as_bytes(std::span(*bytes))).status().code(), StatusCode::kDataLoss);
    for (const size_t n :
         {size_t{0}, size_t{9}, size_t{30}, bytes->size() / 2, bytes->size() - 1}) {
      EXPECT_EQ(codec->Load(std::as_bytes(std::span(*bytes)).first(n)).status().code(),
                StatusCode::kDataLoss)
          << n;
    }
  }
}

// A batch is the sequences apart, and one whose rows are not finite fails alone.
TEST_F(RowCodecTest, SequencesOfABatchDoNotHarmEachOther) {
  Load({.n_heads = 4, .n_kv_heads = 2, .head_dim = 32});
  int64_t n_plain = 0;
  CapturedText text = Capture("none", &n_plain);
  const ModelConfig& c = loaded_.model->config();
  const auto codec = MakeCodec("kivi(bits=4,run=64)");
  const int lengths[] = {150, 100};  // of 250 rows
  const int64_t q = int64_t{c.n_heads} * c.head_dim, k = int64_t{c.n_kv_heads} * c.head_dim;
  for (const bool is_broken : {false, true}) {
    if (is_broken) text.k[1][10 * k] = std::numeric_limits<float>::quiet_NaN();
    const auto a = codec->NewSequence(), b = codec->NewSequence(), alone = codec->NewSequence();
    for (int l = 0; l < c.n_layers; ++l) {
      const CodecStep steps[] = {{a.get(), lengths[0]}, {b.get(), lengths[1]}};
      std::vector<float> out(250 * q), want(100 * q);
      CodecRows rows = {.layer_idx = l,
                        .q = text.q[l].data(),
                        .k = text.k[l].data(),
                        .v = text.v[l].data(),
                        .scale = {},
                        .out = out.data()};
      std::vector<Status> failures;
      const bool fails = is_broken && l == 1;
      ASSERT_TRUE(codec->Run(steps, rows, &failures).ok());
      EXPECT_EQ(failures[0].code(), fails ? StatusCode::kDataLoss : StatusCode::kOk);
      EXPECT_TRUE(failures[1].ok()) << failures[1];
      const CodecStep one = {alone.get(), lengths[1]};
      rows.q += 150 * q;
      rows.k += 150 * k;
      rows.v += 150 * k;
      rows.out = want.data();
      ASSERT_TRUE(codec->Run({&one, 1}, rows, &failures).ok());
      EXPECT_LT(LargestDifference(std::span(out).last(want.size()), want), kRounding);
    }
    EXPECT_EQ(b->n_tokens(), 100);
    EXPECT_EQ(a->failure().ok(), !is_broken);
    EXPECT_EQ(*codec->Save(*b), *codec->Save(*alone));
    if (!is_broken) continue;
    EXPECT_EQ(codec->Save(*a).status().code(), StatusCode::kFailedPrecondition);
    a->Clear(0);
    EXPECT_TRUE(a->failure().ok());
    EXPECT_EQ(a->bytes().total(), 0);
  }
}

TEST_F(RowCodecTest, RefusesStepsOutOfOrder) {
  Load({.n_heads = 4, .n_kv_heads = 2, .head_dim = 32});
  const ModelConfig& c = loaded_.model->config();
  const auto codec = MakeCodec("kivi(bits=4)");
  const std::vector<float> numbers(int64_t{8} * c.n_heads * c.head_dim, 0.5f);
  std::vector<float> out(numbers.size());
  const auto run = [&](CodecSequence* sequence, int layer, int n_new) {
    const CodecStep step = {sequence, n_new};
    std::vector<Status> failures;
    return codec
        ->Run({&step, 1},
              {.layer_idx = layer,
               .q = numbers.data(),
               .k = numbers.data(),
               .v = numbers.data(),
               .scale = {},
               .out = out.data()},
              &failures)
        .code();
  };
  const auto sequence = codec->NewSequence();
  EXPECT_EQ(run(sequence.get(), 1, 8), StatusCode::kInvalidArgument);
  EXPECT_EQ(run(sequence.get(), -1, 8), StatusCode::kInvalidArgument);
  EXPECT_EQ(run(sequence.get(), c.n_layers, 8), StatusCode::kInvalidArgument);
  EXPECT_EQ(run(sequence.get(), 0, 0), StatusCode::kInvalidArgument);
  EXPECT_EQ(run(sequence.get(), 0, 8), StatusCode::kOk);
  EXPECT_EQ(run(sequence.get(), 0, 8), StatusCode::kInvalidArgument);
  EXPECT_EQ(run(sequence.get(), 1, 7), StatusCode::kInvalidArgument);
  EXPECT_EQ(codec->Save(*sequence).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(run(sequence.get(), 1, 8), StatusCode::kOk);
  EXPECT_EQ(sequence->n_tokens(), 8);
}

TEST_F(RowCodecTest, RefusesWhatRowsDoNotShow) {
  Load({.n_heads = 4, .n_kv_heads = 2, .head_dim = 32});
  const ModelConfig config = *LoadAttentionConfig(directory_);
  const auto code = [&](const char* spec, int max_positions = 0) {
    return RowCodec::Create(config, {.spec = spec, .max_positions = max_positions}, loaded_.machine)
        .status()
        .code();
  };
  EXPECT_EQ(code("kvzip"), StatusCode::kUnimplemented);
  EXPECT_EQ(code("dmc"), StatusCode::kInvalidArgument);
  EXPECT_EQ(code("dms"), StatusCode::kInvalidArgument);
  EXPECT_EQ(code("lathe(ratio=4)"), StatusCode::kInvalidArgument);
  EXPECT_EQ(code("fdc"), StatusCode::kInvalidArgument);
  EXPECT_EQ(code("no such method"), StatusCode::kInvalidArgument);
  EXPECT_EQ(code("none", 1 << 20), StatusCode::kInvalidArgument);
  EXPECT_EQ(code("none", 100), StatusCode::kOk);
}

TEST(RowShapeTest, SaysWhatCannotBe) {
  const RowShape good = {.n_layers = 2,
                         .n_heads = 4,
                         .n_kv_heads = 2,
                         .head_dim = 32,
                         .max_positions = 100,
                         .rope_theta = 10000,
                         .windows = {0, 50}};
  const auto config = ConfigOf(good);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->attention.Windows(2), (std::vector<int>{0, 50}));
  EXPECT_EQ(config->rope_dim(), 32);
  RowShape bad = good;
  bad.head_dim = 20;
  EXPECT_EQ(ConfigOf(bad).status().code(), StatusCode::kInvalidArgument);
  bad = good;
  bad.n_kv_heads = 3;
  EXPECT_EQ(ConfigOf(bad).status().code(), StatusCode::kInvalidArgument);
  bad = good;
  bad.windows = {1};
  EXPECT_EQ(ConfigOf(bad).status().code(), StatusCode::kInvalidArgument);
  bad = good;
  bad.rope_theta = NAN;
  EXPECT_EQ(ConfigOf(bad).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(ReadAttentionConfig("{", "here").status().code(), StatusCode::kDataLoss);
}

}  // namespace
}  // namespace kvlathe
