// ROUGE-L of summaries: sentences are compared one with the other, and what they share is a set of
// words (Lin 2004, section 3.2, with sets where it has bags, as LongBench scores).
#include <algorithm>
#include <cstdint>
#include <set>
#include <vector>

#include "evaluation/ascii.h"
#include "evaluation/metrics.h"

namespace kvlathe {
namespace {

using Sentence = std::vector<std::string_view>;
using WordSet = std::set<std::string_view>;

// What stands between full stops, unless that is nothing. One of white space alone has one word,
// the empty one, as in the package.
std::vector<Sentence> SentencesOf(std::string_view text) {
  std::vector<Sentence> sentences;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('.', begin), text.size());
    Sentence words;
    for (size_t i = begin; i < end;) {
      size_t word_end = i;
      while (word_end < end && !IsSpace(text[word_end])) ++word_end;
      if (word_end > i) words.push_back(text.substr(i, word_end - i));
      i = word_end + 1;
    }
    if (end > begin && words.empty()) words.emplace_back();
    if (!words.empty()) sentences.push_back(std::move(words));
    begin = end + 1;
  }
  return sentences;
}

WordSet WordsOf(const std::vector<Sentence>& sentences) {
  WordSet words;
  for (const Sentence& sentence : sentences) words.insert(sentence.begin(), sentence.end());
  return words;
}

// Adds the words of a longest common subsequence. Where there are several it is the one that goes
// backwards from the ends and prefers to leave out words of `b`.
void AddCommon(const Sentence& a, const Sentence& b, WordSet* words) {
  enum Step : uint8_t { kBoth, kLeaveA, kLeaveB };
  const size_t width = b.size();
  std::vector<Step> steps(a.size() * width);
  std::vector<int> row(width + 1, 0);  // of the words of `a` so far
  for (size_t i = 0; i < a.size(); ++i) {
    int diagonal = 0;
    for (size_t j = 0; j < width; ++j) {
      const int above = row[j + 1];
      if (a[i] == b[j]) {
        row[j + 1] = diagonal + 1;
        steps[i * width + j] = kBoth;
      } else {
        steps[i * width + j] = above > row[j] ? kLeaveA : kLeaveB;
        row[j + 1] = std::max(above, row[j]);
      }
      diagonal = above;
    }
  }
  for (size_t i = a.size(), j = width; i > 0 && j > 0;) {
    const Step step = steps[(i - 1) * width + j - 1];
    if (step == kBoth) words->insert(a[i - 1]);
    if (step != kLeaveB) --i;
    if (step != kLeaveA) --j;
  }
}

}  // namespace

double RougeLUnion(std::string_view output, std::string_view reference) {
  const std::vector<Sentence> written = SentencesOf(output), wanted = SentencesOf(reference);
  if (written.empty() || wanted.empty()) return 0;
  WordSet common;
  for (const Sentence& sentence : wanted) {
    for (const Sentence& other : written) AddCommon(sentence, other, &common);
  }
  const size_t n_words = WordsOf(written).size() + WordsOf(wanted).size();
  return 2.0 * static_cast<double>(common.size()) / static_cast<double>(n_words);
}

}  // namespace kvlathe
