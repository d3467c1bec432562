#include "kv/spec/spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace kvlathe {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

std::string Resolved(std::string_view text) {
  const StatusOr<Spec> spec = Spec::Parse(text);
  return spec.ok() ? spec->ToString() : MessageOf(spec.status());
}

std::string ErrorOf(std::string_view text) {
  const StatusOr<Spec> spec = Spec::Parse(text);
  if (spec.ok()) return "accepted as " + spec->ToString();
  EXPECT_EQ(spec.status().code(), StatusCode::kInvalidArgument);
  return MessageOf(spec.status());
}

TEST(Spec, ResolvesEveryStageWithTheseDefaults) {
  const std::pair<const char*, const char*> kExpected[] = {
      {"none", "none"},
      {"zack", "zack(rate=0.5,ranks=adaptive,round=16,normalise=off,sink=4)"},
      {"zack(online=on)", "zack(rate=0.5,ranks=adaptive,round=16,normalise=off,online=on,sink=4)"},
      {"fdc", "fdc(rate=0.5,ranks=adaptive,round=16,whiten=on,sink=4)"},
      {"palu", "palu(rate=0.5,ranks=adaptive,round=32,group=1,whiten=on,sink=4)"},
      {"eigen", "eigen(rate=0.5,ranks=adaptive,round=16,sink=4)"},
      {"spectral", "spectral(heads=shared,centre=auto,sink=4)"},
      {"svd-online", "svd-online(rate=0.5,sink=4)"},
      {"lathe",
       "lathe(rate=0.5,ranks=adaptive,round=16,centre=on,keys=after,heads=auto,bits=auto,"
       "scales=auto,open=auto,classes=1,run=512,"
       "buffer=64,newest=auto,"
       "sink=4)"},
      {"h2o", "h2o(keep=0.2,recent=0.5,prune=run,score=stored,sink=4)"},
      {"mas", "mas(keep=0.2,recent=0.5,prune=run,score=stored,sink=4)"},
      {"tova", "tova(budget=512,heads=shared,prune=run,score=stored,sink=4)"},
      {"keyformer",
       "keyformer(keep=0.6,recent=0.3,tau_init=1,tau_end=2,interval=1,prune=run,score=stored,"
       "sink=4)"},
      {"snapkv", "snapkv(budget=1024,window=32,kernel=5,score=stored,sink=4)"},
      {"kvzip", "kvzip(keep=0.5,window=32,heads=joint,chunk=2048,score=stored,sink=4)"},
      {"window", "window(size=1024,sink=4)"},
      {"pool", "pool(n=4,sink=4)"},
      {"dmc", "dmc(window=12,sink=4)"},
      {"dms", "dms(window=model,offset=model,run=256,interval=64,sink=4)"},
      {"token", "token(bits=4,group=64,hadamard=off,run=512,buffer=64,newest=0,sink=4)"},
      {"kcvt", "kcvt(bits=4,run=512,buffer=64,newest=0,sink=4)"},
      {"kivi", "kivi(bits=2,group=32,run=512,buffer=64,newest=0,sink=4)"},
      {"kvarn",
       "kvarn(key_bits=4,value_bits=2,group=128,hadamard=on,run=512,buffer=128,newest=0,sink=4)"},
      {"kvquant", "kvquant(bits=4,outliers=0.01,qnorm=auto,run=512,buffer=64,newest=0,sink=4)"},
      {"turboquant",
       "turboquant(bits=4,value_bits=same,keys=mse,norms=corrected,run=512,buffer=64,newest=0,"
       "sink=4)"},
      {"int8", "int8(hadamard=off,run=512,buffer=64,newest=0,sink=4)"},
      {"q8_0", "q8_0(hadamard=off,run=512,buffer=64,newest=0,sink=4)"},
      {"q4_0", "q4_0(hadamard=off,run=512,buffer=64,newest=0,sink=4)"},
      {"int8+lowrank+sparse",
       "int8(hadamard=off,run=512,buffer=64,newest=0,sink=4)+lowrank(prefill=4,decode=2,recent=1,"
       "loops=3)+"
       "sparse(share=0.02)"},
  };
  for (const auto& [text, resolved] : kExpected) EXPECT_EQ(Resolved(text), resolved);
}

TEST(Spec, ExpandsPresetsToTheirCompositions) {
  const std::string kcvt = "kcvt(bits=4,run=512,buffer=64,newest=0,sink=4)";
  const std::string kivi = "kivi(bits=2,group=64,run=512,buffer=64,newest=0,sink=4)";
  const std::string lowrank = "+lowrank(prefill=4,decode=2,recent=1,loops=3)";
  const std::string sparse = "+sparse(share=0.02)";
  EXPECT_EQ(Resolved("gear"), kcvt + lowrank + sparse);
  EXPECT_EQ(Resolved("gear(bits=4)"), kcvt + lowrank + sparse);
  EXPECT_EQ(Resolved("gear(bits=2)"), kivi + lowrank + sparse);
  EXPECT_EQ(Resolved("gear-l(bits=2)"), kivi + lowrank);
  EXPECT_EQ(Resolved("gear-l(decode=0)"), kcvt + "+lowrank(prefill=4,decode=0,recent=1,loops=3)");
  EXPECT_EQ(Resolved("gear(bits=2,recent=0.25)"),
            kivi + "+lowrank(prefill=4,decode=2,recent=0.25,loops=3)" + sparse);
  EXPECT_EQ(Resolved("outlier-aware"), kivi + sparse);
  EXPECT_EQ(Resolved("gear(run=prompt,share=0.05,sink=0)"),
            "kcvt(bits=4,run=prompt,buffer=64,newest=0,sink=0)" + lowrank + "+sparse(share=0.05)");

  const std::string kvquant =
      "+kvquant(bits=4,outliers=0.01,qnorm=auto,run=512,buffer=64,newest=0,sink=4)";
  EXPECT_EQ(Resolved("kvq-f"), "fdc(rate=0.5,ranks=adaptive,round=16,whiten=on,sink=4)" + kvquant);
  EXPECT_EQ(Resolved("kvquant-z"),
            "zack(rate=0.5,ranks=adaptive,round=16,normalise=off,sink=4)" + kvquant);
  EXPECT_EQ(Resolved("kvq-p(rate=0.25)"),
            "palu(rate=0.25,ranks=adaptive,round=32,group=1,whiten=on,sink=4)" + kvquant);
  EXPECT_EQ(Resolved("kvq-f(bits=2,ranks=uniform,sink=1)"),
            "fdc(rate=0.5,ranks=uniform,round=16,whiten=on,sink=1)+"
            "kvquant(bits=2,outliers=0.01,qnorm=auto,run=512,buffer=64,newest=0,sink=1)");
}

// The shares, the group and the open positions are those of the published configuration.
TEST(Spec, OscarIsItsRotationsAndClippedCodes) {
  EXPECT_EQ(Resolved("oscar"),
            "spectral(heads=shared,centre=auto,sink=64)+token(bits=2,group=128,hadamard=off,key_"
            "clip=0.96,"
            "value_clip=0.92,run=512,buffer=64,newest=256,sink=64)");
  EXPECT_EQ(Resolved("oscar(bits=4,heads=own,key_clip=1,newest=32,sink=4)"),
            "spectral(heads=own,centre=auto,sink=4)+token(bits=4,group=128,hadamard=off,key_clip=1,"
            "value_clip=0.92,run=512,buffer=64,newest=32,sink=4)");
  EXPECT_EQ(Spec::Parse("token(value_clip=0.5)")->quantizer_as<TokenOptions>()->value_clip, 0.5);
  EXPECT_EQ(Spec::Parse("token(value_clip=0.5)")->quantizer_as<TokenOptions>()->key_clip, 1);
  EXPECT_NE(ErrorOf("token(key_clip=0)").find("key_clip"), std::string::npos);
}

TEST(Spec, EvictAndRotatePresetsRemoveTheRateTogether) {
  for (const auto& [preset, basis] :
       {std::pair("kf-f", "fdc"), std::pair("keyformer-z", "zack"), std::pair("kf-p", "palu")}) {
    for (double rate : {0.7, 0.0, 0.19, 0.99}) {
      const std::string text =
          rate == 0.7 ? std::string(preset) : fmt::format("{}(rate={})", preset, rate);
      const StatusOr<Spec> spec = Spec::Parse(text);
      ASSERT_TRUE(spec.ok()) << spec.status();
      ASSERT_NE(spec->basis(), nullptr);
      EXPECT_EQ(spec->NameOf(Axis::kBasis), basis);
      EXPECT_DOUBLE_EQ(RanksOf(*spec->basis())->value, 1 - std::sqrt(1 - rate));
      ASSERT_NE(spec->retention(), nullptr);
      ASSERT_TRUE(std::holds_alternative<KeyformerOptions>(*spec->retention()));
      EXPECT_DOUBLE_EQ(BudgetOf(*spec->retention())->keep, std::sqrt(1 - rate));
      // FDC's authors drop by whole keys.
      EXPECT_EQ(BudgetOf(*spec->retention())->reads_whole_keys, std::string(basis) == "fdc");
    }
  }
  EXPECT_EQ(Spec::Parse("kf-p(ranks=uniform,round=16)")->stage(Axis::kBasis)->ToString(),
            fmt::format("palu(rate={},ranks=uniform,round=16,group=1,whiten=on,sink=4)",
                        1 - std::sqrt(1 - 0.7)));
}

TEST(Spec, FisherRanksArePalusAlone) {
  for (const char* text : {"palu(ranks=fisher)", "kvq-p(ranks=fisher)"}) {
    EXPECT_EQ(RanksOf(*Spec::Parse(text)->basis())->choice, RankOptions::Choice::kFisher) << text;
  }
  for (const char* text :
       {"fdc(ranks=fisher)", "zack(ranks=fisher)", "lathe(ranks=fisher)", "kvq-f(ranks=fisher)"}) {
    EXPECT_FALSE(Spec::Parse(text).ok()) << text;
  }
}

TEST(Spec, ResidentIsRefusedWhereRowsHangOnRanks) {
  for (const char* text :
       {"zack(resident=full)", "fdc(rate=0.3,resident=full)+kivi", "lathe(resident=full)+h2o",
        "lathe(ratio=2,bits=16,resident=full)", "fdc(resident=full)+token(hadamard=off)"}) {
    const Spec spec = *Spec::Parse(text);
    EXPECT_TRUE(IsResident(*spec.basis())) << text;
    EXPECT_TRUE(CheckSupported(spec).ok()) << text;
  }
  for (const auto& [text, cause] :
       {std::pair("lathe(keys=before,resident=full)", "keys=before"),
        std::pair("lathe(keys=block,resident=full)", "keys=block"),
        std::pair("lathe(ratio=4,resident=full)", "ratio"),
        std::pair("zack(resident=full)+kvquant", "kvquant"),
        std::pair("zack(resident=full)+turboquant", "turboquant"),
        std::pair("fdc(resident=full)+int8(hadamard=on)", "hadamard=on")}) {
    const Status status = CheckSupported(*Spec::Parse(text));
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(fmt::format("resident=full: {}", cause)));
  }
  EXPECT_FALSE(Spec::Parse("palu(resident=full)").ok());
}

TEST(Spec, GivesConsumersStagesAndValues) {
  const Spec spec = *Spec::Parse("gear(bits=4)+h2o(keep=0.5)+fdc(ratio=8,ranks=uniform,sink=2)");
  EXPECT_EQ(spec.text(), "gear(bits=4)+h2o(keep=0.5)+fdc(ratio=8,ranks=uniform,sink=2)");
  EXPECT_EQ(spec.stages().size(), 5u);
  ASSERT_NE(spec.basis(), nullptr);
  EXPECT_EQ(*spec.basis(),
            BasisStage(FdcOptions{.ranks = {.goal = RankOptions::Goal::kRatio,
                                            .value = 8,
                                            .choice = RankOptions::Choice::kUniform}}));
  EXPECT_EQ(*spec.retention(), RetentionStage(H2oOptions{.budget = {.keep = 0.5}, .recent = 0.5}));
  EXPECT_EQ(*spec.quantizer(), QuantizerStage(KcvtOptions{.bits = 4, .runs = {512, 64, 0}}));
  EXPECT_EQ(*spec.lowrank(), LowrankOptions());
  EXPECT_EQ(spec.sparse()->share, 0.02);
  EXPECT_EQ(spec.n_sink(), 2);
  EXPECT_EQ(KeyValues(spec.stage(Axis::kQuantizer)->values).Integer("sink"), 2);  // holds for all

  const Spec none = *Spec::Parse("none");
  EXPECT_TRUE(none.is_none());
  EXPECT_EQ(none.basis(), nullptr);
  EXPECT_EQ(none.sparse(), nullptr);
  EXPECT_EQ(none.n_sink(), 0);
  EXPECT_EQ(none, Spec());
  EXPECT_EQ(Spec().text(), "none");
}

TEST(Spec, OrderAndSpellingOfNumbersHaveNoMeaning) {
  EXPECT_EQ(*Spec::Parse("fdc(rate=0.50,sink=4)+int8"), *Spec::Parse("int8+fdc(rate=5e-1)"));
  EXPECT_EQ(Resolved("fdc(rate=-0)"), "fdc(rate=0,ranks=adaptive,round=16,whiten=on,sink=4)");
  EXPECT_FALSE(*Spec::Parse("fdc(rate=0.5)") == *Spec::Parse("fdc(rate=0.51)"));
}

TEST(Spec, RefusesWithThePositionAndWhatIsAllowedThere) {
  std::string stages;
  for (const StageInfo& stage : AllStages()) {
    if (!stages.empty()) stages += ", ";
    stages += stage.name;
  }
  EXPECT_EQ(ErrorOf("fdc(rat=0.5)"),
            "--kv 'fdc(rat=0.5)': position 5: unknown key 'rat'; fdc takes rate, ratio, accuracy, "
            "ranks, round, whiten, resident, sink");
  EXPECT_EQ(ErrorOf("fcd"),
            "--kv 'fcd': position 1: unknown stage 'fcd'; none, or stages of " + stages);
  EXPECT_EQ(ErrorOf("fdc(rate=1)"),
            "--kv 'fdc(rate=1)': position 10: '1' is not allowed; rate is 0 <= x < 1");
  EXPECT_EQ(ErrorOf("int8(run=100)"),
            "--kv 'int8(run=100)': position 10: '100' is not allowed; run is a multiple of 64 from "
            "64 to 1048576 or prompt");
  EXPECT_EQ(
      ErrorOf("gear(bits=4,buffer=20)"),
      "--kv 'gear(bits=4,buffer=20)': position 20: '20' is not allowed; buffer is a multiple of "
      "64 from 64 to 4096");
  EXPECT_EQ(ErrorOf("kcvt(bits=5)"),
            "--kv 'kcvt(bits=5)': position 11: '5' is not allowed; bits is 2, 3, 4 or 8");
  EXPECT_EQ(
      ErrorOf("fdc+zack"),
      "--kv 'fdc+zack': position 5: fdc and zack are both of the basis axis, which takes one");
  EXPECT_EQ(ErrorOf("fdc+sparse"),
            "--kv 'fdc+sparse': position 5: sparse repairs a quantizer and there is none; add "
            "token, kcvt, kivi, kvquant or int8");
}

TEST(Spec, RefusesEveryBreachOfTheGrammar) {
  const std::pair<const char*, int> kBroken[] = {
      {"", 1},
      {" fdc", 1},
      {"fdc ", 4},
      {"FDC", 1},
      {"+fdc", 1},
      {"fdc+", 5},
      {"fdc++int8", 5},
      {"fdc(", 5},
      {"fdc()", 5},
      {"fdc(rate)", 9},
      {"fdc(rate=)", 10},
      {"fdc(rate=0.5", 13},
      {"fdc(rate=0.5,)", 14},
      {"fdc(rate=0.5)(", 14},
      {"fdc(rate=0.5)int8", 14},
      {"fdc(rate=0.5,rate=0.5)", 14},
      {"fdc(rate= 0.5)", 10},
      {"fdc(=0.5)", 5},
      {"fdc)", 4},
      {"fdc,int8", 4},
      {"none()", 1},
      {"none+fdc", 1},
      {"fdc+none", 5},
      {"none ", 1},
      {"fdc+fdc", 5},
      {"h2o+fdc+tova", 9},
      {"lowrank", 1},
      {"gear+sparse", 6},
      {"gear+kivi", 6},
      {"kf-f+fdc", 6},
      {"int8+sparse+sparse", 13},
  };
  for (const auto& [text, position] : kBroken) {
    EXPECT_THAT(ErrorOf(text), HasSubstr(fmt::format(": position {}: ", position))) << text;
  }
}

TEST(Spec, RefusesValuesOutsideTheirRanges) {
  for (const char* value : {"-0.1", "1", "1.5", "nan", "inf", "-inf", "1e999", "1e-999", "0x1", ".",
                            "0.5.5", "0..5", "+0.5", "1e", "half", "0,5", "5e-1e"}) {
    EXPECT_THAT(ErrorOf(fmt::format("fdc(rate={})", value)), HasSubstr(": position ")) << value;
  }
  for (const char* text : {"fdc(ratio=0.9)", "fdc(accuracy=0)",         "fdc(accuracy=1.01)",
                           "fdc(round=4)",   "fdc(ranks=16)",           "fdc(sink=-1)",
                           "fdc(sink=2.5)",  "fdc(sink=1025)",          "h2o(keep=0)",
                           "h2o(budget=0)",  "tova(budget=1.5)",        "gear(bits=3)",
                           "gear(bits=8)",   "lowrank(prefill=0)+int8", "sparse(share=0)+int8",
                           "int8(run=0)",    "int8(run=all)",           "kivi(group=16)",
                           "pool(n=1)",      "snapkv(kernel=4)",        "keyformer(tau_init=0)",
                           "kf-f(rate=1)"}) {
    EXPECT_THAT(ErrorOf(text), HasSubstr("is not allowed")) << text;
  }
}

TEST(Spec, AccuracyStandsForHowFarAStageCompresses) {
  EXPECT_EQ(Resolved("fdc(accuracy=0.99)+kivi(accuracy=0.99)"),
            "fdc(accuracy=0.99,ranks=adaptive,round=16,whiten=on,sink=4)+"
            "kivi(accuracy=0.99,group=32,run=512,buffer=64,newest=0,sink=4)");
  EXPECT_EQ(Spec::Parse("int8+h2o(accuracy=0.9)")->accuracy(), 0.9);
  EXPECT_FALSE(Spec::Parse("fdc(rate=0.5)")->accuracy().has_value());
  // What a preset becomes hangs on its bits: it waits for the answer.
  EXPECT_EQ(Resolved("gear(accuracy=0.95,share=0.05)"), "gear(accuracy=0.95,share=0.05)");
  EXPECT_EQ(Resolved("kvq-f(accuracy=0.95,bits=2)"), "kvq-f(accuracy=0.95,bits=2)");
  EXPECT_TRUE(Spec::Parse("gear-l(accuracy=0.95)+sparse").ok());

  EXPECT_THAT(ErrorOf("kivi(bits=2,accuracy=0.9)"),
              HasSubstr("position 13: kivi takes either bits or accuracy, not both"));
  EXPECT_THAT(ErrorOf("gear(accuracy=0.9,bits=2)"), HasSubstr("gear takes either"));
  EXPECT_THAT(ErrorOf("fdc(accuracy=0.9)+kivi(accuracy=0.8)"),
              HasSubstr("position 24: accuracy is 0.9 on one stage and 0.8 on another"));
  const Status status = CheckSupported(*Spec::Parse("kivi(accuracy=0.9)"));
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("profile"));
}

TEST(Spec, QuestionsAskForWhatIsNotGiven) {
  const auto question = [](std::string_view text) {
    return Spec::ParseQuestion(text, 0.9)->ToString();
  };
  EXPECT_EQ(question("fdc"), Resolved("fdc(accuracy=0.9)"));
  EXPECT_EQ(question("fdc(rate=0.5)+kivi"), Resolved("fdc(rate=0.5)+kivi(accuracy=0.9)"));
  EXPECT_EQ(question("h2o(budget=prompt)"), Resolved("h2o(accuracy=0.9,budget=prompt)"));
  EXPECT_EQ(question("h2o(budget=64)"), Resolved("h2o(budget=64)"));
  EXPECT_EQ(question("int8+sparse"), Resolved("int8+sparse"));
  EXPECT_EQ(question("gear"), "gear(accuracy=0.9)");
  EXPECT_EQ(question("none"), "none");
  EXPECT_FALSE(Spec::ParseQuestion("fcd", 0.9).ok());
}

TEST(Spec, RefusesContradictions) {
  EXPECT_THAT(ErrorOf("fdc(rate=0.5,ratio=2)"),
              HasSubstr("position 14: fdc takes either rate or ratio, not both"));
  EXPECT_THAT(ErrorOf("h2o(budget=5,keep=0.5)"), HasSubstr("position 14: h2o takes either"));
  EXPECT_TRUE(Spec::Parse("h2o(budget=prompt,keep=0.5)").ok());
  // Where no share is the default it must be given.
  EXPECT_TRUE(Spec::Parse("h2o(budget=prompt)").ok());
  EXPECT_TRUE(Spec::Parse("tova(budget=prompt,keep=0.5)").ok());
  EXPECT_TRUE(Spec::Parse("snapkv(accuracy=0.9,budget=prompt)").ok());
  EXPECT_THAT(ErrorOf("tova(budget=prompt)"), HasSubstr("position 6: budget=prompt makes keep"));
  EXPECT_THAT(ErrorOf("fdc+snapkv(budget=prompt)"), HasSubstr("give keep too"));
  EXPECT_THAT(ErrorOf("fdc(sink=0)+int8(sink=4)"),
              HasSubstr("position 18: sink is 0 on one stage and 4 on another"));
  EXPECT_THAT(ErrorOf("gear(sink=0)+fdc(sink=1)"), HasSubstr("position 18: sink is"));
  EXPECT_THAT(ErrorOf("kivi(group=128)"),
              HasSubstr("position 6: group=128 does not divide buffer=64"));
  EXPECT_THAT(ErrorOf("kivi(group=128,buffer=128,run=576)"), HasSubstr("does not divide run=576"));
  EXPECT_THAT(ErrorOf("kvarn(buffer=64)"),
              HasSubstr("position 7: group=128 does not divide buffer=64"));
  EXPECT_THAT(ErrorOf("kvarn(run=192)"), HasSubstr("does not divide run=192"));
  EXPECT_EQ(
      Resolved("kvarn(group=64,buffer=64,run=192)"),
      "kvarn(key_bits=4,value_bits=2,group=64,hadamard=on,run=192,buffer=64,newest=0,sink=4)");
  EXPECT_EQ(Resolved("kivi(group=128,buffer=128,run=prompt)"),
            "kivi(bits=2,group=128,run=prompt,buffer=128,newest=0,sink=4)");
}

TEST(Spec, ABasisMaySplitBitsInPlaceOfAQuantizer) {
  EXPECT_TRUE(FactsOf(Spec::Parse("lathe(ratio=4)")->sealing()).splits_bits);
  EXPECT_TRUE(Spec::Parse("lathe(ratio=4)")->runs()->newest_grows);
  EXPECT_TRUE(FactsOf(Spec::Parse("lathe(ratio=4,bits=mixed)")->sealing()).splits_bits);
  EXPECT_FALSE(FactsOf(Spec::Parse("lathe(rate=0.5)")->sealing()).splits_bits);
  EXPECT_FALSE(FactsOf(Spec::Parse("lathe(ratio=4,bits=16)")->sealing()).splits_bits);
  EXPECT_FALSE(FactsOf(Spec::Parse("lathe(ratio=4)+kivi")->sealing()).splits_bits);
  EXPECT_FALSE(FactsOf(Spec::Parse("fdc(ratio=4)")->sealing()).splits_bits);
  EXPECT_TRUE(FactsOf(Spec::Parse("lathe(ratio=4)+lowrank")->sealing()).splits_bits);
  EXPECT_EQ(Spec::Parse("lathe(ratio=4,scales=token)")->basis_as<LatheOptions>()->unit,
            StoredUnit::kToken);
  EXPECT_THAT(ErrorOf("lathe(ratio=4,scales=block)"), HasSubstr("auto, static or token"));
  EXPECT_THAT(ErrorOf("lathe(bits=mixed)"), HasSubstr("position 7: bits=mixed shares out"));
  EXPECT_THAT(ErrorOf("lathe(ratio=4,bits=mixed)+kivi"),
              HasSubstr("position 27: lathe(bits=mixed)"));
  EXPECT_THAT(ErrorOf("lathe(rate=0.5)+lowrank"), HasSubstr("there is none"));
  // The answer may be a ratio.
  EXPECT_TRUE(Spec::Parse("lathe(accuracy=0.9,bits=mixed)+lowrank").ok());
}

TEST(Spec, TheStepUnderPressureIsOneToAHigherRatio) {
  const auto spec = Spec::Parse("lathe(under_pressure=8.50,ratio=4)");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->basis_as<LatheOptions>()->under_pressure, 8.5);
  EXPECT_THAT(spec->ToString(), HasSubstr(",under_pressure=8.5,run=512,"));
  EXPECT_EQ(Spec::Parse("lathe(ratio=4)")->ToString().find("pressure"), std::string::npos);
  EXPECT_THAT(ErrorOf("lathe(ratio=4,under_pressure=4)"),
              HasSubstr("position 15: under_pressure=4 makes nothing smaller than ratio=4 does; "
                        "give more than 4"));
  EXPECT_THAT(ErrorOf("lathe(under_pressure=2,ratio=4)"), HasSubstr("position 7: under_pressure"));
  EXPECT_THAT(ErrorOf("lathe(ratio=4,under_pressure=1)"), HasSubstr("1 < x <= 1000"));
  for (const char* text : {"lathe(under_pressure=8)", "lathe(rate=0.5,under_pressure=8)",
                           "lathe(accuracy=0.9,under_pressure=8)"}) {
    EXPECT_THAT(ErrorOf(text), HasSubstr("give ratio")) << text;
  }
  EXPECT_THAT(ErrorOf("fdc(ratio=4,under_pressure=8)"), HasSubstr("under_pressure"));
}

TEST(SpecTable, EveryDefaultIsAllowedAndEveryStageIsDocumented) {
  for (const StageInfo& stage : AllStages()) {
    EXPECT_FALSE(stage.doc.empty() || stage.paper.empty()) << stage.name;
    EXPECT_EQ(stage.axis == Axis::kPreset, stage.expand != nullptr) << stage.name;
    int n_alternative_defaults = 0;
    for (const KeyInfo* key : stage.keys) {
      EXPECT_FALSE(key->doc.empty()) << key->name;
      EXPECT_FALSE(AllowedValues(*key).empty()) << key->name;
      n_alternative_defaults += key->excludes_others && !key->default_text.empty();
      if (key->default_text.empty()) continue;
      EXPECT_TRUE(ParseValue(*key, key->default_text)) << stage.name << " " << key->name;
    }
    EXPECT_LE(n_alternative_defaults, 1) << stage.name;
    EXPECT_EQ(FindStage(stage.name), &stage);
  }
  EXPECT_EQ(FindStage("none"), nullptr);
}

TEST(SpecTable, DescriptionListsEveryStageKeyDefaultAndPaper) {
  const std::string text = DescribeStages();
  for (const StageInfo& stage : AllStages()) {
    EXPECT_THAT(text, HasSubstr(fmt::format("\n{} [{}]", stage.name, AxisName(stage.axis))));
    EXPECT_THAT(text, HasSubstr(stage.paper));
  }
  EXPECT_THAT(text, HasSubstr("    rate=0.5        share of K and V elements removed"));
}

}  // namespace
}  // namespace kvlathe
