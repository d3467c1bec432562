#include "evaluation/compare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "evaluation/kv_parts.h"

namespace kvlathe {
namespace {

using testing::HasSubstr;

KvBytes AllParts() {
  return {.blocks = 4096,
          .sinks = 512,
          .run_records = 320,
          .layer_records = 64,
          .tables = 128,
          .entries = 32};
}

TEST(KvParts, SumToTheTotal) {
  const nlohmann::ordered_json json = PartsJson(AllParts());
  int64_t sum = 0;
  for (const auto& part : json) sum += part.get<int64_t>();
  EXPECT_EQ(sum, AllParts().total());
  EXPECT_EQ(
      json.dump(),
      R"({"blocks":4096,"sinks":512,"run_records":320,"layer_records":64,"tables":128,"entries":32})");
}

TEST(KvParts, ErrorsOfWhatIsEncodedAgainAreSharesOfItsNorm) {
  EXPECT_EQ(
      ReencodingJson(
          {.n_times = 2, .n_rows = 300, .k_error = 1, .k_norm = 16, .v_error = 0, .v_norm = 3})
          .dump(),
      R"({"times":2,"rows":300,"k_error":0.25,"v_error":0.0})");
  EXPECT_EQ(ReencodingJson({}).dump(), R"({"times":0,"rows":0,"k_error":0.0,"v_error":0.0})");
}

TEST(KvParts, AreNamedWhereTheyAreThere) {
  EXPECT_EQ(PartsText({.blocks = 4096, .tables = 128}), "blocks 4096, tables 128");
  EXPECT_THAT(PartsText(AllParts()), HasSubstr("run records 320, layer records 64"));
}

TEST(Compare, ShowsTailsBesideTheMean) {
  Comparison comparison{"m", "t", 7, {}};
  comparison.rows.resize(1);
  comparison.rows[0].kv = "int8";
  comparison.rows[0].quality.kl = 0.125;
  comparison.rows[0].quality.kl_tail = {0.0625, 1.5, 2.5, 0.25, 0.875};
  const auto json = ToJson(comparison)["rows"][0];
  EXPECT_EQ(json["kl"], 0.125);
  EXPECT_EQ(json["kl_median"], 0.0625);
  EXPECT_EQ(json["kl_p99"], 1.5);
  EXPECT_EQ(json["kl_p999"], 2.5);
  EXPECT_EQ(json["kl_worst_window"], 0.25);
  EXPECT_EQ(json["top1_worst_window"], 0.875);
  const std::string table = ToTailsTable(comparison);
  for (const char* text : {"int8", "0.12500", "0.062500", "1.5000", "2.5000", "0.25000", "87.50"}) {
    EXPECT_THAT(table, HasSubstr(text));
  }
}

TEST(Compare, ShowsTheParts) {
  Comparison comparison{"m", "t", 7, {}};
  comparison.rows.resize(2);
  comparison.rows[0].kv = "none";
  comparison.rows[1].kv = "fdc(rate=0.5)";
  comparison.rows[1].quality.kv_bytes = AllParts();
  EXPECT_EQ(ToJson(comparison)["rows"][1]["kv_parts"], PartsJson(AllParts()));
  const std::string table = ToPartsTable(comparison);
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 3);
  for (const char* text : {"run records", "4096", "512", "320", "5152"}) {
    EXPECT_THAT(table, HasSubstr(text));
  }
}

}  // namespace
}  // namespace kvlathe
