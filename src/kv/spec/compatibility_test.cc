// Which stages go together.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kv/quantizer/quantizer_methods.h"
#include "kv/spec/spec.h"

namespace kvlathe {
namespace {

using testing::HasSubstr;

// Every quantizer, with and without what repairs it (kvarn goes without), seals entries that merge,
// or is refused with what to take in its place.
TEST(CheckSupported, WhatMergesIsQuantizedOrRefusedWithAnAlternative) {
  int n_quantizers = 0;
  for (const StageInfo& stage : AllStages()) {
    if (stage.axis != Axis::kQuantizer) continue;
    ++n_quantizers;
    const bool shares_scales = stage.name == "kcvt" || stage.name == "kvquant";
    for (const char* merging : {"pool(n=2)", "dmc", "dms", "fdc+pool", "fdc+dmc", "fdc+dms"}) {
      for (const char* residual : {"", "+lowrank", "+sparse", "+lowrank+sparse"}) {
        const std::string text = fmt::format("{}+{}{}", merging, stage.name, residual);
        const auto spec = Spec::Parse(text);
        ASSERT_TRUE(spec.ok()) << text << ": " << spec.status();
        const Status status = CheckSupported(*spec);
        const bool counts_by_head = spec->retention_facts().counts_by_head;
        if (counts_by_head && shares_scales) {
          EXPECT_THAT(MessageOf(status),
                      HasSubstr(fmt::format("take kivi(bits=4,group=64){}, or", residual)))
              << text;
        } else if (stage.name == "kvquant" && spec->basis() == nullptr) {
          EXPECT_THAT(MessageOf(status), HasSubstr("add a basis or take another quantizer"))
              << text;
        } else if (stage.name == "kvarn" && !std::string_view(residual).empty()) {
          EXPECT_THAT(MessageOf(status), HasSubstr("or take kivi in place of kvarn")) << text;
        } else if (stage.name == "turboquant" && residual[0] != '\0') {
          EXPECT_THAT(MessageOf(status), HasSubstr("leave it out, or take kivi or token")) << text;
        } else {
          EXPECT_TRUE(status.ok()) << text << ": " << status;
        }
      }
    }
  }
  EXPECT_GE(n_quantizers, 8);
}

TEST(CheckSupported, TakesWhatRunsTogetherAndNamesWhatDoesNot) {
  EXPECT_TRUE(CheckSupported(*Spec::Parse("none")).ok());
  EXPECT_TRUE(CheckSupported(*Spec::Parse("fdc(rate=0.6)")).ok());
  EXPECT_TRUE(CheckSupported(*Spec::Parse("fdc+gear(bits=2)")).ok());
  EXPECT_TRUE(CheckSupported(*Spec::Parse("kf-f")).ok());
  EXPECT_TRUE(CheckSupported(*Spec::Parse("svd-online")).ok());
  EXPECT_TRUE(CheckSupported(*Spec::Parse("zack(online=on,normalise=on,ranks=uniform)")).ok());
  EXPECT_THAT(std::string(CheckSupported(*Spec::Parse("zack(online=on,resident=full)")).message()),
              HasSubstr("folds nothing into the weights"));
  EXPECT_FALSE(Spec::Parse("fdc(online=on)").ok());
  for (const char* text :
       {"svd-online+h2o", "svd-online+int8", "zack(online=on)+window", "zack(online=on)+kivi"}) {
    const Status status = CheckSupported(*Spec::Parse(text));
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("goes alone")) << text;
  }
  for (const char* text :
       {"dmc+kcvt", "fdc+dmc+kvquant", "pool+kvquant", "lathe(ratio=4)+sparse", "dms+kcvt",
        "palu(rate=0.5)+dms", "lathe(rate=0.5,keys=before)+dms", "lathe(ratio=4,heads=joint)+dms",
        "lathe(ratio=4,classes=3)+dms", "lathe(ratio=4,under_pressure=8)+dms",
        "lathe(ratio=4,keys=centred)+dms"}) {
    EXPECT_EQ(CheckSupported(*Spec::Parse(text)).code(), StatusCode::kInvalidArgument) << text;
  }
  for (const char* text :
       {"fdc+dmc", "window+kivi", "window+kvquant", "pool+int8", "fdc+pool+kvquant",
        "lathe(ratio=4)+window", "lathe(ratio=4)+h2o+lowrank", "lathe(ratio=4)+dmc",
        "dmc+gear(bits=2)", "fdc+dmc+q4_0", "fdc+h2o+turboquant", "dmc+turboquant(keys=product)",

        "dmc+gear(bits=2)", "fdc+dmc+q4_0", "lathe(ratio=4)+dms", "dms+gear(bits=2)",
        "zack+dms+mxfp4"}) {
    EXPECT_TRUE(CheckSupported(*Spec::Parse(text)).ok()) << text;
  }
  EXPECT_THAT(std::string(CheckSupported(*Spec::Parse("dmc+gear(bits=4)")).message()),
              ::testing::AllOf(HasSubstr("kcvt gives a token of V one scale in all heads"),
                               HasSubstr("take kivi(bits=4,group=64)+lowrank+sparse, or")));
  for (const char* text : {"turboquant+lowrank", "turboquant+sparse"}) {
    EXPECT_THAT(std::string(CheckSupported(*Spec::Parse(text)).message()),
                HasSubstr("a random rotation leaves"))
        << text;
  }
  EXPECT_THAT(std::string(CheckSupported(*Spec::Parse("fdc+turboquant(keys=product)")).message()),
              HasSubstr("keys=product estimates products with whole keys, and fdc"));
  EXPECT_TRUE(CheckSupported(*Spec::Parse("kvq-f")).ok());
  EXPECT_TRUE(CheckSupported(*Spec::Parse("fdc+h2o+kvquant")).ok());
  EXPECT_EQ(CheckSupported(*Spec::Parse("h2o+kvquant")).code(), StatusCode::kInvalidArgument);
  for (const char* text :
       {"palu", "palu+token(hadamard=on)", "kf-p", "kvq-p", "palu+h2o+kivi", "palu+window+int8"}) {
    EXPECT_TRUE(CheckSupported(*Spec::Parse(text)).ok()) << text;
  }
  for (const char* text :
       {"palu(group=4)", "palu(group=2)+token(hadamard=on)", "palu(group=8)+tova",
        "palu(group=2)+window", "palu(group=2)+window+gear", "palu(group=2)+tova+kivi"}) {
    EXPECT_TRUE(CheckSupported(*Spec::Parse(text)).ok()) << text;
  }
  for (const char* stage : {"h2o", "snapkv", "kvzip", "keyformer", "tova(heads=own)"}) {
    const std::string text = fmt::format("palu(group=2)+{}", stage);
    EXPECT_THAT(std::string(CheckSupported(*Spec::Parse(text)).message()),
                HasSubstr("chooses entries of each head"))
        << text;
  }
  EXPECT_THAT(std::string(CheckSupported(*Spec::Parse("palu(group=2)+kvquant")).message()),
              HasSubstr("take group=1 or another quantizer"));
  EXPECT_THAT(std::string(CheckSupported(*Spec::Parse("palu+pool")).message()),
              HasSubstr("leave out palu or pool"));
  for (const char* text :
       {"lathe(rate=0.5,keys=before)", "lathe(ratio=8,keys=before)+lowrank",
        "lathe(keys=before)+kvquant", "lathe(keys=before)+h2o", "lathe(ratio=8,keys=before)+h2o"}) {
    EXPECT_TRUE(CheckSupported(*Spec::Parse(text)).ok()) << text;
    EXPECT_TRUE(TurnWhenRead(Spec::Parse(text)->keys()));
  }
  for (const char* text : {"lathe(rate=0.5,keys=block)", "lathe(ratio=8,keys=block)+lowrank",
                           "lathe(keys=block,heads=own)+kivi"}) {
    EXPECT_TRUE(CheckSupported(*Spec::Parse(text)).ok()) << text;
    EXPECT_TRUE(HasFrames(Spec::Parse(text)->keys()));
  }
  // auto: keys lose their mean where bits are mixed and entries keep their places.
  for (const auto& [text, rows] :
       {std::pair("lathe(ratio=8,keys=auto)", KeyRows::kCentred),
        std::pair("lathe(ratio=8,heads=own,keys=auto)+lowrank", KeyRows::kCentred),
        std::pair("lathe(rate=0.5,keys=centred)+kivi", KeyRows::kCentred),
        std::pair("lathe(ratio=8)", KeyRows::kAfterRope),
        std::pair("lathe(rate=0.5,keys=auto)", KeyRows::kAfterRope),
        std::pair("lathe(ratio=8,bits=16,keys=auto)", KeyRows::kAfterRope),
        std::pair("lathe(ratio=8,keys=auto)+kivi", KeyRows::kAfterRope),
        std::pair("lathe(ratio=8,keys=auto)+h2o", KeyRows::kAfterRope),
        std::pair("lathe(ratio=8,classes=3,keys=auto)", KeyRows::kAfterRope)}) {
    EXPECT_EQ(Spec::Parse(text)->key_rows(), rows) << text;
  }
  // auto: KV heads have one map where no quantizer follows and entries keep their places.
  for (const auto& [text, joins] :
       {std::pair("lathe(ratio=8)", true), std::pair("lathe(rate=0.5)", true),
        std::pair("lathe(rate=0.5,keys=before)", true), std::pair("lathe(ratio=8,bits=16)", true),
        std::pair("lathe(rate=0.5,heads=own)", false), std::pair("lathe(rate=0.5)+kivi", false),
        std::pair("lathe(rate=0.5)+h2o", false), std::pair("lathe(ratio=8)+tova", false)}) {
    EXPECT_EQ(Spec::Parse(text)->joins_heads(), joins) << text;
  }
  for (const char* text :
       {"lathe(ratio=8,keys=block,maps=joint)", "lathe(ratio=4,keys=block,maps=joint)",
        "lathe(ratio=4,keys=block,maps=joint,under_pressure=8)"}) {
    const Spec spec = *Spec::Parse(text);
    EXPECT_TRUE(CheckSupported(spec).ok()) << text;
    EXPECT_TRUE(HasFrames(spec.keys()) && JoinsValues(spec.keys())) << text;
  }
  for (const auto& [text, cause] :
       {std::pair("lathe(ratio=8,keys=after,maps=joint)", "in place of keys=after"),
        std::pair("lathe(ratio=8,keys=before,maps=joint)", "in place of keys=before"),
        std::pair("lathe(keys=block,maps=joint)", "bits=16 or rate"),
        std::pair("lathe(keys=block,maps=joint)+kivi", "kivi would keep"),
        std::pair("lathe(ratio=8,keys=block,maps=joint,open=16)", "open=16 would keep"),
        std::pair("lathe(ratio=8,keys=block,maps=joint,heads=own)", "heads=own would keep"),
        std::pair("lathe(ratio=8,keys=block,maps=joint,heads=joint)", "heads=joint would keep"),
        std::pair("lathe(ratio=8,keys=block,maps=joint)+lowrank", "lowrank would keep"),
        std::pair("lathe(ratio=8,keys=block,maps=joint,classes=3)",
                  "classes=3 leaves entries elsewhere"),
        std::pair("lathe(ratio=8,keys=block,maps=joint)+h2o", "h2o leaves entries elsewhere")}) {
    EXPECT_THAT(MessageOf(CheckSupported(*Spec::Parse(text))), HasSubstr(cause)) << text;
  }
  for (const char* text : {"lathe(ratio=8,classes=3)", "lathe(ratio=8,classes=3,keys=before)",
                           "lathe(ratio=8,classes=3)+snapkv"}) {
    EXPECT_TRUE(CheckSupported(*Spec::Parse(text)).ok()) << text;
    EXPECT_TRUE(FactsOf(Spec::Parse(text)->sealing()).has_classes);
  }
  for (const char* text : {"lathe(ratio=4,under_pressure=8)", "lathe(ratio=1,under_pressure=1.5)",
                           "lathe(ratio=4,keys=before,under_pressure=8)",
                           "lathe(ratio=4,keys=block,heads=joint,under_pressure=8)"}) {
    EXPECT_TRUE(CheckSupported(*Spec::Parse(text)).ok()) << text;
    EXPECT_TRUE(SealPlanOf(*Spec::Parse(text))->has_pressed_runs);
  }
  EXPECT_FALSE(SealPlanOf(*Spec::Parse("lathe(ratio=4)"))->has_pressed_runs);
  for (const auto& [text, cause] :
       {std::pair("lathe(ratio=4,bits=16,under_pressure=8)", "leave out bits=16"),
        std::pair("lathe(ratio=4,under_pressure=8)+kivi", "the quantizer"),
        std::pair("lathe(ratio=4,under_pressure=8,classes=3)", "classes=3 makes something else"),
        std::pair("lathe(ratio=4,under_pressure=8)+lowrank", "lowrank makes something else"),
        std::pair("lathe(ratio=4,under_pressure=8)+window", "window makes something else"),
        std::pair("lathe(rate=0.5,classes=3)", "give ratio"),
        std::pair("lathe(ratio=8,classes=3)+kivi", "give ratio"),
        std::pair("lathe(ratio=8,classes=3)+h2o", "h2o drops or merges"),
        std::pair("lathe(ratio=8,classes=3,heads=own)+pool", "pool drops or merges"),
        std::pair("lathe(ratio=8,classes=3)+window", "window drops or merges"),
        std::pair("lathe(ratio=8,classes=3,keys=before)+snapkv", "take keys=after"),
        std::pair("lathe(ratio=8,classes=3)+lowrank", "lowrank repairs runs"),
        std::pair("lathe(ratio=8,keys=block,classes=3)", "classes=3 leaves entries elsewhere"),
        std::pair("lathe(ratio=8,keys=centred,classes=3)", "keys=centred finds the position"),
        std::pair("lathe(keys=centred)+h2o", "keys=centred finds the position"),
        std::pair("lathe(keys=block)+h2o", "h2o leaves entries elsewhere"),
        std::pair("lathe(ratio=8,keys=block)+window", "window leaves entries elsewhere")}) {
    const Status status = CheckSupported(*Spec::Parse(text));
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(cause));
  }
  for (const char* text :
       {"gear(recent=0.5)", "gear-l(recent=0)+window", "pool+int8+lowrank(recent=0.5)",
        "lathe(ratio=4)+lowrank(recent=0.5)", "gear(run=prompt)+h2o"}) {
    EXPECT_TRUE(CheckSupported(*Spec::Parse(text)).ok()) << text;
  }
  for (const auto& [text, cause] : {std::pair("gear(recent=0.5,run=prompt)", "run=prompt"),
                                    std::pair("gear(recent=0)+h2o", "h2o"),
                                    std::pair("lathe(ratio=4)+lowrank(recent=0)+tova", "tova")}) {
    const Status status = CheckSupported(*Spec::Parse(text));
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(fmt::format("recent or {}", cause)));
  }
  for (const char* text :
       {"kf-f(score=exact)", "keyformer-z(score=exact)", "fdc+snapkv(score=exact)+gear",
        "lathe(ratio=8)+tova(score=exact)", "lathe(resident=full)+h2o(score=exact)",
        "fdc+h2o(score=exact)+kvquant", "h2o(score=stored)"}) {
    EXPECT_TRUE(CheckSupported(*Spec::Parse(text)).ok()) << text;
  }
  EXPECT_TRUE(BudgetOf(*Spec::Parse("kf-f(score=exact)")->retention())->reads_whole_keys);
  for (const char* text :
       {"h2o(score=exact)", "tova(score=exact)+kivi", "snapkv(score=exact)+token(hadamard=on)"}) {
    const Status status = CheckSupported(*Spec::Parse(text));
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr("leave score out")) << text;
  }
  for (const char* text : {"palu+h2o(score=exact)", "lathe(keys=before)+tova(score=exact)",
                           "lathe(ratio=8,keys=before)+snapkv(score=exact)"}) {
    const Status status = CheckSupported(*Spec::Parse(text));
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr("keys from before RoPE")) << text;
  }
  for (const char* text : {"window(score=exact)", "pool(score=exact)", "kf-p(score=exact)"}) {
    EXPECT_EQ(Spec::Parse(text).status().code(), StatusCode::kInvalidArgument) << text;
  }
  EXPECT_EQ(Spec::Parse("lathe")->keys(4), Keys(MappedKeys{4}));
  EXPECT_EQ(Spec::Parse("kf-p")->keys(), Keys(LatentKeys{}));
  EXPECT_EQ(Spec::Parse("palu(group=2)")->keys(), Keys(LatentKeys{.heads_per_latent = 2}));
  EXPECT_EQ(Spec::Parse("svd-online")->keys(), Keys(TurnedKeys{}));
}
}  // namespace
}  // namespace kvlathe
