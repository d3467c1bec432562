// What closed entries are worth once each head has sealed its own, against the literal decoder and
// the literal quantiser.
#include <algorithm>
#include <set>

#include "merged_model.h"
#include "random_model.h"

namespace kvlathe {
namespace {

using testing::Matrix;
using testing::ReferenceQuantizer;

const MergedCase kSealedCases[] = {
    {"dmc(sink=0)+kivi(bits=2,group=32)",
     {0, 12},
     0,
     kCode,
     2,
     false,
     ReferenceQuantizer{.name = "kivi", .bits = 2, .group = 32}},
    {"dmc(sink=3)+token(bits=3,group=16,buffer=128,newest=20)",
     {0, 12},
     3,
     kPaper,
     4,
     false,
     ReferenceQuantizer{
         .name = "token", .bits = 3, .group = 16, .buffer = 128, .newest = 20, .n_sink = 3}},
    {"dmc(window=0,sink=4)+q4_0",
     {0, 0},
     4,
     kCode,
     2,
     false,
     ReferenceQuantizer{.name = "q4_0", .bits = 4, .n_sink = 4}},
    // Exact entries of V are those of its own head: 3 at either end of 32 channels.
    {"fdc(sink=1)+dmc+kivi(bits=2,group=64)+sparse(share=0.2)",
     {0, 12},
     1,
     kPaper,
     2,
     true,
     ReferenceQuantizer{.name = "kivi", .bits = 2, .group = 64, .n_sink = 1, .sparse_share = 0.2}},
};

// Codes of every other kind, and what repairs them. These run on one instruction set.
const MergedCase kOtherCodes[] = {
    {"dmc(sink=1)+int8",
     {0, 12},
     1,
     kCode,
     2,
     false,
     ReferenceQuantizer{.name = "int8", .bits = 8, .n_sink = 1}},
    {"dmc(sink=0)+q8_0(newest=9)",
     {0, 12},
     0,
     kPaper,
     2,
     false,
     ReferenceQuantizer{.name = "q8_0", .bits = 8, .newest = 9}},
    {"fdc(sink=2)+dmc+mxfp4",
     {0, 12},
     2,
     kCode,
     2,
     true,
     ReferenceQuantizer{
         .name = "table",
         .bits = 4,
         .group = 32,
         .n_sink = 2,
         .table = {0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6}}},
    {"dmc(sink=2)+turboquant(bits=4,value_bits=3,keys=product)",
     {0, 12},
     2,
     kCode,
     2,
     false,
     ReferenceQuantizer{.name = "sphere",
                        .n_sink = 2,
                        .sphere = {{{10, 31, 55, 88}, 2.151945705 / 88},
                                   {{10, 31, 55, 88}, 2.151945705 / 88},
                                   true}}},
    {"dmc(sink=0)+kivi(bits=4,group=64,buffer=128)",
     {0, 12},
     0,
     kPaper,
     4,
     false,
     ReferenceQuantizer{.name = "kivi", .bits = 4, .group = 64, .buffer = 128}},
    {"dmc(sink=0)+outlier-aware(bits=2,share=0.1)",
     {0, 12},
     0,
     kCode,
     2,
     false,
     ReferenceQuantizer{.name = "kivi", .bits = 2, .group = 64, .sparse_share = 0.1}},
    {"dmc(sink=4)+gear(bits=2,prefill=32,decode=32)",
     {0, 12},
     4,
     kCode,
     2,
     false,
     ReferenceQuantizer{.name = "kivi", .bits = 2, .group = 64, .n_sink = 4},
     true},
    {"fdc(sink=0)+dmc+token(bits=2,group=16)+lowrank(prefill=32,decode=32)",
     {0, 12},
     0,
     kPaper,
     2,
     true,
     ReferenceQuantizer{.name = "token", .bits = 2, .group = 16},
     true},
    {"dmc(sink=1)+mxfp4+lowrank(prefill=32,decode=32)+sparse(share=0.1)",
     {0, 12},
     1,
     kCode,
     2,
     false,
     ReferenceQuantizer{
         .name = "table",
         .bits = 4,
         .group = 32,
         .n_sink = 1,
         .table = {0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6}},
     true},
    {"lathe(ratio=4,scales=static,newest=7,sink=2)+dmc",
     {0, 12},
     2,
     kCode,
     2,
     true,
     ReferenceQuantizer{.name = "split", .newest = 7, .n_sink = 2}},
    {"lathe(ratio=4,scales=token,newest=7,sink=2)+dmc",
     {0, 12},
     2,
     kCode,
     2,
     true,
     ReferenceQuantizer{.name = "split", .newest = 7, .n_sink = 2, .has_token_scales = true}},
};

// On which instruction sets, and how near: a share of what codes lose, and what F32 loses besides.
struct Closeness {
  std::vector<Isa> isas;
  std::vector<int> chunks;
  double of_loss, least;
};

class SealedMergedModel : public MergedModel {
 protected:
  void ExpectSealedAsLiterally(const Closeness& how);

 private:
  ReferenceQuantizer Literal(const MergedCase& c);
};
class OtherCodesMergedModel : public SealedMergedModel {};

// With the bits of every head, where the basis splits them.
ReferenceQuantizer SealedMergedModel::Literal(const MergedCase& c) {
  ReferenceQuantizer literal = *c.quantizer;
  if (literal.name != "split") return literal;
  ModelBasis basis = testing::ToModelBasis(reference_, bases_);
  const testing::DrawnBits bits = testing::DrawSplitBits(&basis);
  literal.key_bits = bits.of_keys;
  literal.value_bits = bits.of_values;
  return literal;
}

void SealedMergedModel::ExpectSealedAsLiterally(const Closeness& how) {
  const MergedCase& c = GetParam();
  Write(c);
  std::vector<int> lengths;
  const Matrix unsealed = Literally(c, &c.merging, nullptr, &lengths);
  const ReferenceQuantizer literal = Literal(c);
  SealClosedLiterally seal(literal, reference_);
  Matrix want = Literally(c, &c.merging, &seal, &lengths);
  const double loss = testing::RootMeanSquare(want, unsealed);
  ASSERT_GT(loss, 20 * how.least);
  if (c.is_repaired) {
    ReferenceQuantizer whole = literal;
    whole.name = "whole";
    seal = SealClosedLiterally(whole, reference_);
    want = Literally(c, &c.merging, &seal, &lengths);
  }
  std::set<int> n_sealed;
  for (const std::vector<int>& layer : seal.n_sealed()) n_sealed.insert(layer.begin(), layer.end());
  ASSERT_GT(n_sealed.size(), 1u);  // heads differ
  ASSERT_GE(*n_sealed.rbegin(), 64 + c.quantizer->buffer);
  for (const Isa isa : how.isas) {
    std::unique_ptr<Model> model = Load(isa, DType::kF32, c.spec);
    for (const int chunk : how.chunks) {
      SCOPED_TRACE(std::string(IsaName(isa)) + " chunk " + std::to_string(chunk));
      const std::unique_ptr<SequenceCache> cache = NewCache(*model, c);
      Matrix logits;
      Read(model.get(), cache.get(), c.n_tokens(), chunk, &logits);
      if (HasFatalFailure()) return;
      EXPECT_EQ(Lengths(*cache, model->layout()), lengths);
      EXPECT_LT(testing::RootMeanSquare(logits, want), how.of_loss * loss + how.least);
      for (int l = 0; l < reference_.n_layers; ++l) {
        for (int g = 0; g < c.n_kv_heads; ++g) {
          EXPECT_EQ(cache->head(l, g).merged_length().n_sealed_blocks * 64, seal.n_sealed()[l][g]);
        }
      }
    }
  }
}

TEST_P(SealedMergedModel, SealsWhatIsClosedAsTheLiteralMethodDoes) {
  ExpectSealedAsLiterally({AvailableIsas(), {512, 1, 23}, 0.02, 0});
}
TEST_P(SealedMergedModel, BatchesMergeAndSealTheSame) { ExpectBatchesMergeTheSame(); }
TEST_P(OtherCodesMergedModel, SealsWhatIsClosedAsTheLiteralMethodDoes) {
  ExpectSealedAsLiterally({{AvailableIsas().back()}, {512, 23}, 0.05, 1e-5});
}

INSTANTIATE_TEST_SUITE_P(Specs, SealedMergedModel, ::testing::ValuesIn(kSealedCases), NameOfCase);
INSTANTIATE_TEST_SUITE_P(Specs, OtherCodesMergedModel, ::testing::ValuesIn(kOtherCodes),
                         NameOfCase);

}  // namespace
}  // namespace kvlathe
