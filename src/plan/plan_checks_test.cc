#include "plan/plan_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "analysis/bases/lathe.h"
#include "plan/basis_analyses.h"
#include "plan/shard_fixture.h"

namespace kvlathe {
namespace {

using ::testing::HasSubstr;

std::string RefusalOf(const char* kv, int n_kv_heads, int n_ranks) {
  const Status status = CheckSpec(*Spec::Parse(kv), FactsToCut(n_kv_heads, n_ranks));
  if (status.ok()) return "";
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status;
  return std::string(status.message());
}

TEST(CheckShards, LetsPassWhatIsOfOneHeadAndRefusesTheRest) {
  for (const int n_kv_heads : {3, 4}) {
    for (int n_ranks = 1; n_ranks <= n_kv_heads; ++n_ranks) {
      for (const char* kv : kOfOneHead) EXPECT_EQ(RefusalOf(kv, n_kv_heads, n_ranks), "") << kv;
      for (const char* kv : kOfAllHeads) {
        EXPECT_EQ(RefusalOf(kv, n_kv_heads, n_ranks).empty(), n_ranks == 1) << kv;
      }
    }
  }
}

// What joins heads, or has latents of several, passes where ranks have whole groups.
TEST(CheckShards, LetsGroupsPassThatRanksHaveWhole) {
  for (const char* kv : {"palu(rate=0.5,group=4)", "lathe(rate=0.25,heads=joint)",
                         "lathe(ratio=6,keys=block,maps=joint)"}) {
    EXPECT_EQ(RefusalOf(kv, 4, 1), "");
    EXPECT_THAT(RefusalOf(kv, 4, 2), HasSubstr("4 KV heads, ")) << kv;
    EXPECT_THAT(RefusalOf(kv, 4, 4), HasSubstr("4 KV heads, ")) << kv;
  }
  EXPECT_EQ(RefusalOf("palu(rate=0.5,group=2)", 4, 2), "");
  EXPECT_THAT(RefusalOf("palu(rate=0.5,group=2)", 4, 3), HasSubstr("2 KV heads, "));
  EXPECT_THAT(RefusalOf("palu(rate=0.5,group=3)", 3, 2), HasSubstr("3 KV heads, "));
  // 16 heads have maps of 512 channels each, of 16 heads.
  EXPECT_EQ(RefusalOf("lathe(rate=0.25,heads=joint)", 32, 2), "");
  EXPECT_EQ(RefusalOf("lathe(ratio=6,keys=block,maps=joint)", 16, 2), "");
  EXPECT_THAT(RefusalOf("lathe(ratio=6,keys=block,maps=joint)", 16, 4), HasSubstr("8 KV heads, "));
}

// Maps by heads=auto join as many heads as ranks have whole groups of.
TEST(CheckShards, LetsAutoJoinHeadsOfOneRank) {
  const auto n_joined = [](int n_kv_heads, int n_ranks, const char* kv) {
    const ModelFacts model = FactsToCut(n_kv_heads, n_ranks);
    const Keys keys = KeysOf(*Spec::Parse(kv), model);
    const BasisOptions options = BasisOptionsOf(*Spec::Parse(kv), model);
    EXPECT_EQ(HeadsPerMap({1, n_kv_heads, n_kv_heads, 32}, options.joint_channels),
              HeadsPerMap(keys));
    return HeadsPerMap(keys);
  };
  for (const char* kv : {"lathe(ratio=4)", "lathe(rate=0.25)", "lathe(ratio=4,keys=before)"}) {
    EXPECT_EQ(n_joined(4, 1, kv), 4);
    EXPECT_EQ(n_joined(4, 2, kv), 2);
    EXPECT_EQ(n_joined(4, 3, kv), 1);
    EXPECT_EQ(n_joined(4, 4, kv), 1);
    EXPECT_EQ(n_joined(3, 2, kv), 1);
    EXPECT_EQ(n_joined(12, 1, kv), 6);
    EXPECT_EQ(n_joined(12, 2, kv), 6);
    EXPECT_EQ(n_joined(12, 3, kv), 4);
    EXPECT_EQ(n_joined(16, 2, kv), 8);
  }
  EXPECT_EQ(n_joined(4, 2, "lathe(ratio=4,heads=own)"), 1);
  ModelFacts wide = FactsToCut(8, 4);
  wide.head_dim = 128;
  EXPECT_EQ(HeadsPerMap(KeysOf(*Spec::Parse("lathe(ratio=4)"), wide)), 2);
  wide.tensor_ranks = 1;
  EXPECT_EQ(HeadsPerMap(KeysOf(*Spec::Parse("lathe(ratio=4)"), wide)), 2);
  EXPECT_EQ(n_joined(4, 2, "lathe(ratio=4)+kivi"), 1);
}

TEST(CheckShards, SaysWhatToTakeInstead) {
  EXPECT_EQ(RefusalOf("none", 3, 4),
            "--tp 4: the model has 3 KV heads, and each rank takes at least one; choose --tp 3 or "
            "less, and --pp to divide its layers");
  EXPECT_EQ(RefusalOf("kcvt(bits=8)", 4, 2),
            "--kv 'kcvt(bits=8)': kcvt gives a token of V one scale in all heads of a layer, and "
            "--tp 2 gives ranks 2 of 4; take kivi(bits=8,group=64), or token, int8, q8_0, q4_0 or "
            "mxfp4");
  EXPECT_EQ(RefusalOf("gear", 3, 2),
            "--kv 'gear': kcvt gives a token of V one scale in all heads of a layer, and --tp 2 "
            "gives ranks 2 or 1 of 3; take kivi(bits=4,group=64)+lowrank, or token, int8, q8_0, "
            "q4_0 or mxfp4");
  EXPECT_EQ(RefusalOf("kvquant(bits=3)", 3, 3),
            "--kv 'kvquant(bits=3)': kvquant gives a token of V one scale in all heads of a layer, "
            "and --tp 3 gives ranks 1 of 3; take kivi(bits=3,group=64), or token, int8, q8_0, q4_0 "
            "or mxfp4");
  EXPECT_EQ(RefusalOf("gear(bits=2)", 4, 2),
            "--kv 'gear(bits=2)': sparse keeps the outermost values of a token over all heads of a "
            "layer, and --tp 2 gives ranks 2 of 4; leave sparse out: gear-l in place of gear, "
            "kivi(group=64) in place of outlier-aware");
  EXPECT_EQ(RefusalOf("tova(keep=0.5)", 4, 2),
            "--kv 'tova(keep=0.5)': tova keeps in all heads of a layer the entries that have the "
            "votes of all, and --tp 2 gives ranks 2 of 4; take heads=own");
  EXPECT_EQ(RefusalOf("kvzip", 4, 2),
            "--kv 'kvzip': with heads=joint kvzip compares the votes of all heads of all layers, "
            "and here several ranks have some each; take heads=own");
  EXPECT_EQ(RefusalOf("lathe(ratio=4,heads=joint)", 4, 2),
            "--kv 'lathe(ratio=4,heads=joint)': heads=joint has one map for 4 KV heads, and --tp 2 "
            "gives ranks 2 of 4; take heads=auto, which joins heads of one rank, or heads=own");
  EXPECT_EQ(RefusalOf("lathe(ratio=6,keys=block,maps=joint)", 4, 2),
            "--kv 'lathe(ratio=6,keys=block,maps=joint)': maps=joint makes one row of the keys and "
            "values of 4 KV heads, for whose moments the calibration is made, and --tp 2 gives "
            "ranks 2 of 4; leave maps out");
  EXPECT_EQ(RefusalOf("palu(rate=0.5,group=2)", 4, 3),
            "--kv 'palu(rate=0.5,group=2)': palu(group=2) has latents of 2 KV heads, and --tp 3 "
            "gives ranks 2 or 1 of 4; take group=1, or a --tp that gives ranks whole groups");
}

TEST(CheckShards, RefusesMoreStagesThanLayers) {
  ModelFacts model = FactsToCut(4);
  model.pipeline_stages = kLayersToCut;
  EXPECT_TRUE(CheckSpec(*Spec::Parse("gear"), model).ok());
  EXPECT_TRUE(CheckSpec(*Spec::Parse("kvzip(heads=own)"), model).ok());
  EXPECT_THAT(std::string(CheckSpec(*Spec::Parse("kvzip"), model).message()),
              HasSubstr("take heads=own"));
  model.pipeline_stages = kLayersToCut + 1;
  EXPECT_EQ(CheckSpec(*Spec::Parse("none"), model).message(),
            "--pp 4: the model has 3 layers, and each stage takes at least one; choose --pp 3 or "
            "less");
}

}  // namespace
}  // namespace kvlathe
