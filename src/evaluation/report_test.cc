#include "evaluation/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stack>

namespace kvlathe {
namespace {

using testing::HasSubstr;
using testing::Not;

Report SmallReport() {
  Report report;
  report.model = "models/<odd & name>";
  report.facts = {{"layers", "2"}, {"context", "1024"}};
  report.n_layers = 2;
  report.n_kv_heads = 1;
  report.comparison = {"models/x", "novel.txt", 4096, {}};
  CompareRow none{.kv = "none"};
  none.quality.kv_fraction = 1.0005;
  CompareRow half{.kv = "fdc(rate=0.5)"};
  half.quality.kv_fraction = 0.5034;
  half.quality.kl = 0.08261;
  half.quality.perplexity = 37.822;
  half.quality.kv_bytes.blocks = 123456;
  report.comparison.rows = {none, half};
  Profile profile{"0123", "context 1024", {}, {}, {}};
  profile.goals = {{"passkey", "exact_match", ""}};
  profile.points = {{"none", "none", 1.02, {{0.8, 0, 1}}, 1},
                    {"kivi(bits=4)", "kivi(bits=4,...)", 0.2817, {{0.796, 0, 1}}, 0.9}};
  profile.targets = {{0.99, {{"kivi", "kivi(accuracy=0.99)", "kivi(bits=4)"}, {"h2o", "h2o", ""}}}};
  report.profile_path = "p.json";
  report.profile = profile;
  report.caches = {{"none", "none", {}, {}},
                   {"fdc(rate=0.5)",
                    "fdc(rate=0.5,ranks=adaptive)",
                    {{"rank of keys", {48, 80}}},
                    {{{9, 3, 1}, {4, 2, 1}}, {{8, 2, 1}, {5, 1, 0}}}}};
  return report;
}

// Whether every element is closed where it should be.
void ExpectWellFormed(const std::string& html) {
  std::stack<std::string> open;
  for (size_t at = html.find('<'); at != std::string::npos; at = html.find('<', at + 1)) {
    const size_t end = html.find('>', at);
    ASSERT_NE(end, std::string::npos);
    const std::string tag = html.substr(at + 1, end - at - 1);
    if (tag[0] == '!' || tag.back() == '/') continue;
    const bool closes = tag[0] == '/';
    const std::string name = tag.substr(closes, tag.find(' ') - closes);
    if (!closes) {
      open.push(name);
      continue;
    }
    ASSERT_FALSE(open.empty()) << tag;
    ASSERT_EQ(open.top(), name);
    open.pop();
  }
  EXPECT_TRUE(open.empty());
}

TEST(ReportTest, HoldsTheNumbersAndIsWellFormed) {
  const std::string html = ToHtml(SmallReport());
  ExpectWellFormed(html);
  for (const char* text :
       {"models/&lt;odd &amp; name&gt;", "50.34", "0.08261", "37.822", "123456", "28.17", "0.9950",
        "none of those tried", "rank of keys 48 to 80", "layer 1, KV head 0: 80", "QK, layer 1",
        "V, layer 0", "fdc(rate=0.5,ranks=adaptive)", "Smallest of each method that keeps 0.99"}) {
    EXPECT_THAT(html, HasSubstr(text));
  }
}

TEST(ReportTest, LoadsAndRunsNothing) {
  const std::string html = ToHtml(SmallReport());
  for (const char* text : {"http", "<script", "src=", "href=", "@import", "url(", "onload"}) {
    EXPECT_THAT(html, Not(HasSubstr(text)));
  }
  EXPECT_THAT(html, HasSubstr("prefers-color-scheme: dark"));
}

TEST(ReportTest, GoesWithoutProfileAndMaps) {
  Report report = SmallReport();
  report.profile.reset();
  report.caches.resize(1);
  report.comparison.rows.resize(1);
  const std::string html = ToHtml(report);
  ExpectWellFormed(html);
  EXPECT_THAT(html, Not(HasSubstr("Tuned caches")));
  EXPECT_THAT(html, Not(HasSubstr("By layer and head")));
}

}  // namespace
}  // namespace kvlathe
