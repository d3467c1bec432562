#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "load_generation/workload.h"

namespace kvlathe {
namespace {

// Where the window of a request begins in a text of n places: a walk by a stride that shares no
// divisor with n, so that n requests begin at n different places, far from each other.
class WindowStarts {
 public:
  WindowStarts(int64_t n_places, uint64_t seed)
      : n_places_(n_places),
        first_(static_cast<int64_t>(
            Random(seed, kStream).Below(static_cast<uint64_t>(std::max<int64_t>(1, n_places))))) {
    constexpr double kGolden = 0.6180339887498949;
    stride_ = std::max<int64_t>(1, static_cast<int64_t>(kGolden * static_cast<double>(n_places)));
    while (std::gcd(stride_, n_places_) > 1) ++stride_;
  }
  int64_t At(int64_t index) const {
    return static_cast<int64_t>((static_cast<__int128>(index) * stride_ + first_) %
                                static_cast<__int128>(n_places_));
  }

 private:
  static constexpr uint64_t kStream = 0x73746172;  // apart from the draws of lengths
  int64_t n_places_, first_, stride_;
};

bool IsBoundary(const std::string& text, size_t at) {
  return at >= text.size() || (static_cast<unsigned char>(text[at]) & 0xc0) != 0x80;
}

// About n_bytes from `start` on, around the end; whole characters, and a whole first word where one
// begins near.
std::string PieceOf(const std::string& text, int64_t start, int64_t n_bytes) {
  auto from = static_cast<size_t>(start);
  constexpr size_t kNear = 32;
  for (size_t i = 0; i < kNear && from + i < text.size(); ++i) {
    if (text[from + i] != ' ') continue;
    from += i + 1;
    break;
  }
  while (!IsBoundary(text, from)) ++from;
  if (from >= text.size()) from = 0;
  std::string piece;
  while (static_cast<int64_t>(piece.size()) < n_bytes) {
    size_t to = std::min(text.size(), from + (static_cast<size_t>(n_bytes) - piece.size()));
    while (!IsBoundary(text, to)) ++to;
    piece += text.substr(from, to - from);
    from = 0;
  }
  return piece;
}

int64_t PlacesOf(const PromptSource& source) {
  if (const auto* text = std::get_if<TextTokens>(&source)) {
    return static_cast<int64_t>(text->ids.size());
  }
  if (const auto* text = std::get_if<PlainText>(&source)) {
    return static_cast<int64_t>(text->text.size());
  }
  return std::get<RandomIds>(source).vocab_size;
}

class DrawnWorkload : public Workload {
 public:
  DrawnWorkload(PromptSource source, LengthRange input, LengthRange output, uint64_t seed)
      : source_(std::move(source)),
        input_(input),
        output_(output),
        seed_(seed),
        starts_(PlacesOf(source_), seed) {}

  LoadRequest RequestAt(int64_t index) const override {
    Random random(seed_, static_cast<uint64_t>(index) + 1);
    LoadRequest request;
    request.n_input = DrawLength(input_, &random);
    request.n_output = DrawLength(output_, &random);
    if (const auto* text = std::get_if<PlainText>(&source_)) {
      request.prompt = PieceOf(text->text, starts_.At(index),
                               std::lround(request.n_input * text->bytes_per_token));
      return request;
    }
    request.prompt_ids.reserve(static_cast<size_t>(request.n_input));
    const auto* text = std::get_if<TextTokens>(&source_);
    const int64_t n_places = PlacesOf(source_), start = starts_.At(index);
    for (int i = 0; i < request.n_input; ++i) {
      if (text != nullptr) {
        request.prompt_ids.push_back(text->ids[static_cast<size_t>((start + i) % n_places)]);
      } else {  // the first ids differ from request to request
        request.prompt_ids.push_back(
            static_cast<int32_t>(i == 0 ? start : random.Below(static_cast<uint64_t>(n_places))));
      }
    }
    return request;
  }

 private:
  PromptSource source_;
  LengthRange input_, output_;
  uint64_t seed_;
  WindowStarts starts_;
};

}  // namespace

StatusOr<std::unique_ptr<Workload>> MakeDrawnWorkload(PromptSource source, LengthRange input,
                                                      LengthRange output, uint64_t seed) {
  if (PlacesOf(source) < 1) {
    return Error(StatusCode::kInvalidArgument,
                 "prompts: the text or the vocabulary that they are drawn from is empty");
  }
  return std::make_unique<DrawnWorkload>(std::move(source), input, output, seed);
}

}  // namespace kvlathe
