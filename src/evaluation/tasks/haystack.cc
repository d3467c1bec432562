#include "evaluation/tasks/haystack.h"

#include <algorithm>

#include "evaluation/tasks/prose.h"

namespace kvlathe {
namespace {

// What has no end for so long is cut between words, or in a script without spaces between
// characters.
constexpr size_t kLongestSentence = 400;

bool IsSpace(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool IsInsideCharacter(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

// Whether a text ends in a mark that ends sentences, quotes and brackets behind it passed over.
bool EndsSentence(std::string_view text) {
  constexpr std::string_view kClosers[] = {"\"",           "'",           ")", "]", "*", "_",
                                           "\xE2\x80\x9D", "\xE2\x80\x99"};
  for (bool closed = true; closed;) {
    closed = false;
    for (const std::string_view closer : kClosers) {
      if (!text.ends_with(closer)) continue;
      text.remove_suffix(closer.size());
      closed = true;
    }
  }
  return text.ends_with('.') || text.ends_with('!') || text.ends_with('?');
}

// "Mr." and "J." end no sentence.
bool IsAbbreviation(std::string_view text) {
  constexpr std::string_view kTitles[] = {"Mr.", "Mrs.", "Dr.", "St.", "Ms.", "Prof."};
  const std::string_view word = text.substr(text.rfind(' ') + 1);
  return std::ranges::find(kTitles, word) != std::end(kTitles) ||
         (word.size() == 2 && word[0] >= 'A' && word[0] <= 'Z' && word[1] == '.');
}

// Cuts a text at the ends of sentences and at blank lines; a run of white space becomes one space.
class SentenceCutter {
 public:
  std::vector<std::string> Cut(std::string_view text) {
    for (size_t i = 0; i < text.size();) {
      if (!IsSpace(text[i])) {
        Add(text[i++]);
        continue;
      }
      int n_lines = 0;
      for (; i < text.size() && IsSpace(text[i]); ++i) n_lines += text[i] == '\n';
      const bool ends = EndsSentence(sentence_) && !IsAbbreviation(sentence_);
      if (n_lines > 1 || ends || sentence_.size() >= kLongestSentence) {
        End();
      } else if (!sentence_.empty()) {
        sentence_ += ' ';
      }
    }
    End();
    return std::move(sentences_);
  }

 private:
  void Add(char c) {
    if (sentence_.size() >= 2 * kLongestSentence && !IsInsideCharacter(c)) End();
    sentence_ += c;
  }
  void End() {
    if (sentence_.ends_with(' ')) sentence_.pop_back();
    if (!sentence_.empty()) sentences_.push_back(std::move(sentence_));
    sentence_.clear();
  }

  std::string sentence_;
  std::vector<std::string> sentences_;
};

}  // namespace

StatusOr<Haystack> Haystack::FromText(const std::string& text) {
  Haystack haystack;
  haystack.sentences_ = SentenceCutter().Cut(text);
  if (!haystack.is_text()) {
    return Error(StatusCode::kInvalidArgument,
                 "the text to hide things in has no words; give another one");
  }
  return haystack;
}

std::vector<std::string> Haystack::Draw(const TaskRequest& request, uint64_t stream, int n) const {
  Random rng = request.Stream(stream);
  std::vector<std::string> drawn;
  const uint64_t start = is_text() ? rng.Below(sentences_.size()) : 0;
  for (int i = 0; i < n; ++i) {
    if (is_text()) {
      drawn.push_back(sentences_[(start + i) % sentences_.size()]);
    } else {
      AppendSentence(ProseStyle::kNatural, rng, drawn.emplace_back());
    }
  }
  return drawn;
}

std::string Hide(std::vector<HiddenSentence> hidden, const std::vector<std::string>& sentences) {
  const size_t n = sentences.size();
  const auto place = [&](const HiddenSentence& sentence) {
    return std::min(n, static_cast<size_t>(sentence.depth * static_cast<double>(n + 1)));
  };
  std::ranges::stable_sort(hidden, {}, place);
  std::string text;
  const auto append = [&](const std::string& sentence) {
    text += text.empty() ? "" : " ";
    text += sentence;
  };
  size_t next = 0;
  for (size_t i = 0; i <= n; ++i) {
    for (; next < hidden.size() && place(hidden[next]) == i; ++next) append(hidden[next].text);
    if (i < n) append(sentences[i]);
  }
  return text;
}

}  // namespace kvlathe
