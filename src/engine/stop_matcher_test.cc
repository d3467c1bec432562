#include "engine/stop_matcher.h"

#include <gtest/gtest.h>

#include "base/random.h"

namespace kvlathe {
namespace {

using Strings = std::vector<std::string>;

// What comes out of each piece, and of the end.
Strings Streamed(const Strings& stops, const Strings& pieces) {
  StopMatcher matcher(stops);
  Strings out;
  for (const std::string& piece : pieces) out.push_back(matcher.Push(piece));
  out.push_back(matcher.Finish());
  return out;
}

TEST(StopMatcher, WithoutStopsEverythingPassesAtOnce) {
  EXPECT_EQ(Streamed({}, {"a", "", "bc"}), (Strings{"a", "", "bc", ""}));
}

TEST(StopMatcher, HoldsBackWhatMayBeTheBeginning) {
  // "E", "EN" and "END" are undecided; "ENX" is not, and only its "X" could not begin a stop.
  EXPECT_EQ(Streamed({"END."}, {"the E", "N", "D", "S"}), (Strings{"the ", "", "", "ENDS", ""}));
  EXPECT_EQ(Streamed({"END."}, {"the E", "ND", "."}), (Strings{"the ", "", "", ""}));
  // What the end leaves undecided is text.
  EXPECT_EQ(Streamed({"END."}, {"the END"}), (Strings{"the ", "END"}));
  // After a false start another one may have begun within it.
  EXPECT_EQ(Streamed({"aab"}, {"a", "a", "a", "b", "c"}), (Strings{"", "", "a", "", "", ""}));
}

TEST(StopMatcher, NothingComesAfterAStop) {
  StopMatcher matcher({"\n\n", "###"});
  EXPECT_EQ(matcher.Push("one\ntwo\n"), "one\ntwo");
  EXPECT_FALSE(matcher.stopped());
  EXPECT_EQ(matcher.stop(), "");
  EXPECT_EQ(matcher.Push("\nthree"), "");
  EXPECT_TRUE(matcher.stopped());
  EXPECT_EQ(matcher.stop(), "\n\n");
  EXPECT_EQ(matcher.Push("four"), "");
  EXPECT_EQ(matcher.Finish(), "");
}

TEST(StopMatcher, TheStopThatIsCompleteFirstCounts) {
  // "b" is complete one byte before "abc", although it begins later.
  EXPECT_EQ(Streamed({"abc", "b"}, {"xabcd"}), (Strings{"xa", ""}));
  EXPECT_EQ(Streamed({"abc", "b"}, {"x", "a", "b"}), (Strings{"x", "", "a", ""}));
  // Both are complete at "c": the longer one.
  EXPECT_EQ(Streamed({"c", "abc"}, {"xabcd"}), (Strings{"x", ""}));
  EXPECT_EQ(Streamed({"abc", "bc"}, {"xab", "c"}), (Strings{"x", "", ""}));
}

TEST(StopMatcher, ComparesWholeCharacters) {
  // é is C3 A9, è is C3 A8: they share the first byte, and it is not let out alone.
  EXPECT_EQ(Streamed({"é"}, {"caf", "è", " é"}), (Strings{"caf", "è", " ", ""}));
  EXPECT_EQ(Streamed({"日本"}, {"今日", "は", "日", "本"}), (Strings{"今", "日は", "", "", ""}));
  // Half a character in waits for the other half.
  EXPECT_EQ(Streamed({"é!"}, {"\xC3", "\xA9", "?"}), (Strings{"", "", "é?", ""}));
}

TEST(StopMatcher, RefusesTheEmptyStop) {
  EXPECT_TRUE(StopMatcher::CheckStops({}).ok());
  EXPECT_TRUE(StopMatcher::CheckStops(Strings{"a"}).ok());
  EXPECT_EQ(StopMatcher::CheckStops(Strings{"a", ""}).code(), StatusCode::kInvalidArgument);
}

// The text before the stop that is complete first, looking at the whole text.
std::string Literal(const Strings& stops, const std::string& text) {
  for (size_t end = 1; end <= text.size(); ++end) {
    for (size_t begin = 0; begin < end; ++begin) {
      for (const std::string& stop : stops) {
        if (text.substr(begin, end - begin) == stop) return text.substr(0, begin);
      }
    }
  }
  return text;
}

TEST(StopMatcher, DoesNotDependOnHowTheTextIsCut) {
  Random random(1);
  const auto word = [&](uint64_t max_length) {
    std::string s;
    for (uint64_t n = 1 + random.Below(max_length); n > 0; --n) s += "ab"[random.Below(2)];
    return s;
  };
  int n_stopped = 0;
  for (int i = 0; i < 3000; ++i) {
    Strings stops;
    for (uint64_t n = 1 + random.Below(3); n > 0; --n) stops.push_back(word(7));
    const std::string text = word(40);
    StopMatcher matcher(stops);
    std::string out;
    for (size_t at = 0; at < text.size();) {
      const size_t n = 1 + random.Below(5);
      out += matcher.Push(text.substr(at, n));
      // Nothing comes out that has to be taken back.
      ASSERT_TRUE(Literal(stops, text).starts_with(out)) << text;
      at += n;
    }
    out += matcher.Finish();
    ASSERT_EQ(out, Literal(stops, text)) << text;
    n_stopped += matcher.stopped();
  }
  EXPECT_GT(n_stopped, 1000);
  EXPECT_LT(n_stopped, 2900);
}

}  // namespace
}  // namespace kvlathe
