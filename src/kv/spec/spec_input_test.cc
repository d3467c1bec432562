// Specs from outside: hostile text, damaged text, and random specs as they are written.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/random.h"
#include "kv/spec/spec.h"
#include "kv/spec/spec_table.h"

namespace kvlathe {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

TEST(Spec, HostileInputGivesOneShortPrintableLine) {
  const std::string inputs[] = {
      std::string(10 << 20, '('),
      std::string(10 << 20, 'f'),
      std::string("fdc\0", 4),
      std::string("\0", 1),
      "fdc(rate=\xc3\xa9)",
      "\xff\xfe",
      "fdc(" + std::string(4000, 'x'),
      "fdc(rate=" + std::string(4000, '9') + ")",
      std::string("fdc\n(rate=0.5)"),
      std::string(4096, '+'),
      "fdc(rate=0." + std::string(4000, '1') + "\x7f)",
  };
  for (const std::string& input : inputs) {
    const Status status = Spec::Parse(input).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    const std::string message(MessageOf(status));
    EXPECT_THAT(message, StartsWith("--kv '"));
    EXPECT_LT(message.size(), 1000u);
    EXPECT_TRUE(std::ranges::all_of(message, [](char c) { return c >= 32 && c < 127; }));
  }
}

// --- properties over random specs drawn from the table ---

std::string DrawValue(const KeyInfo& key, Random* random) {
  const size_t n_choices = key.choices.empty() ? 0 : 1 + std::ranges::count(key.choices, '|');
  const bool has_range = key.min <= key.max;
  uint64_t draw = random->Below(n_choices + has_range);
  if (draw < n_choices) {
    std::string_view rest = key.choices;
    while (draw-- > 0) rest.remove_prefix(rest.find('|') + 1);
    return std::string(rest.substr(0, rest.find('|')));
  }
  const double x = key.min + random->Uniform() * (key.max - key.min);
  if (key.multiple_of == 0) return fmt::format("{}", x);
  return fmt::format("{}", static_cast<int64_t>(x) / key.multiple_of * key.multiple_of);
}

std::string DrawStage(const StageInfo& stage, Random* random) {
  std::string text(stage.name);
  char separator = '(';
  bool has_alternative = false;
  for (const KeyInfo* key : stage.keys) {
    if (key->name == "sink" || random->Below(2) == 0) continue;
    if (key->excludes_others && std::exchange(has_alternative, true)) continue;
    text += fmt::format("{}{}={}", separator, key->name, DrawValue(*key, random));
    separator = ',';
  }
  return separator == '(' ? text : text + ")";
}

TEST(Spec, CanonicalTextParsesBackToTheSameSpec) {
  Random random(17);
  int n_accepted = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    for (uint64_t n = 1 + random.Below(4); n > 0; --n) {
      if (!text.empty()) text += '+';
      text += DrawStage(AllStages()[random.Below(AllStages().size())], &random);
    }
    const StatusOr<Spec> spec = Spec::Parse(text);
    if (!spec.ok()) continue;  // axes that clash
    ++n_accepted;
    const std::string canonical = spec->ToString();
    const StatusOr<Spec> again = Spec::Parse(canonical);
    ASSERT_TRUE(again.ok()) << text << " -> " << canonical << ": " << again.status();
    ASSERT_EQ(*again, *spec) << text;
    ASSERT_EQ(again->ToString(), canonical);
  }
  EXPECT_GT(n_accepted, 5000);
}

TEST(Spec, DamagedTextNeverBreaksTheParser) {
  Random random(23);
  const std::string alphabet = "fdcgearkivi-0123456789.,=()+e\xc3";
  for (int round = 0; round < 50000; ++round) {
    std::string text = "fdc(rate=0.5)+h2o(keep=0.5)+gear(bits=4,run=prompt)";
    for (uint64_t n = 1 + random.Below(6); n > 0; --n) {
      const size_t at = random.Below(text.size());
      if (random.Below(2)) {
        text[at] = alphabet[random.Below(alphabet.size())];
      } else {
        text.erase(at, random.Below(8));
      }
      if (text.empty()) break;
    }
    const StatusOr<Spec> spec = Spec::Parse(text);
    if (spec.ok()) {
      EXPECT_EQ(Spec::Parse(spec->ToString())->ToString(), spec->ToString());
    } else {
      EXPECT_THAT(spec.status().message(), HasSubstr("': position "));
    }
  }
}
}  // namespace
}  // namespace kvlathe
