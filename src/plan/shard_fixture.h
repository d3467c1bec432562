// Specs and a small model, of which tests cut caches.
#pragma once

#include "plan/drawn_source_fixture.h"

namespace kvlathe {

inline constexpr int kLayersToCut = 3;

// A composition of each axis and more, of which nothing is made of several heads.
inline constexpr const char* kOfOneHead[] = {"none",
                                             "zack(rate=0.4)",
                                             "zack(rate=0.5,online=on)",
                                             "fdc(rate=0.5)",
                                             "palu(rate=0.5)",
                                             "eigen(rate=0.4)",
                                             "svd-online(rate=0.5)",
                                             "lathe(rate=0.25)",
                                             "lathe(rate=0.25,keys=before)",
                                             "lathe(rate=0.25,heads=own)",
                                             "lathe(ratio=4)",
                                             "lathe(ratio=4,heads=own)+lowrank",
                                             "lathe(ratio=6,keys=before)",
                                             "lathe(ratio=8,keys=block)",
                                             "lathe(ratio=4,classes=3)",
                                             "lathe(ratio=4,under_pressure=8)",
                                             "lathe(rate=0.25)+kivi(bits=4)",
                                             "lathe(ratio=4)+h2o(keep=0.5)",
                                             "h2o(keep=0.5)",
                                             "mas(keep=0.5)",
                                             "keyformer(keep=0.5)",
                                             "snapkv(keep=0.5)",
                                             "kvzip(keep=0.5,heads=own)",
                                             "tova(keep=0.5,heads=own)",
                                             "window(size=256)",
                                             "pool(n=4)",
                                             "dmc",
                                             "dmc+outlier-aware",
                                             "token(bits=4)",
                                             "token(bits=4,hadamard=on)",
                                             "kivi(bits=2,group=64)",
                                             "kivi(bits=4,group=64)+lowrank",
                                             "gear-l(bits=2)",
                                             "int8",
                                             "q8_0",
                                             "q4_0",
                                             "mxfp4",
                                             "turboquant(keys=product)",
                                             "window(size=256)+kivi",
                                             "fdc(rate=0.5)+snapkv(keep=0.5,score=exact)",
                                             "keyformer-z(rate=0.5)",
                                             "fdc(rate=0.5)+kivi(bits=4)+lowrank",
                                             "zack(rate=0.5)+h2o(keep=0.5)+token(bits=4)"};

// Of these something is: scales, exact entries or votes.
inline constexpr const char* kOfAllHeads[] = {"kcvt",           "kvquant",
                                              "gear(bits=4)",   "gear(bits=2)",
                                              "gear-l(bits=4)", "outlier-aware",
                                              "tova(keep=0.5)", "kvquant-z(rate=0.5)",
                                              "snapkv+kcvt",    "palu(rate=0.5)+tova(keep=0.5)"};

inline ModelFacts FactsToCut(int n_kv_heads, int n_ranks = 1) {
  ModelFacts model = SmallModel(kLayersToCut, n_kv_heads);
  model.has_dmc = true;
  model.dms_window = 100;
  model.tensor_ranks = n_ranks;
  return model;
}

}  // namespace kvlathe
