#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "evaluation/tasks/definition.h"
#include "evaluation/tasks/words.h"

namespace kvlathe {
namespace {

constexpr int kAspectsPerReview = 3;
// All have to be right: one verdict alone survives nearly every cache.
constexpr int kAskedOfTest = 8;
// Names of one word come first, so that one word finds a review; longer lists go on with two.
constexpr size_t kOneWordNames = 60;
constexpr std::string_view kHouses[] = {"inn", "hotel", "lodge", "tavern"};

struct Review {
  std::string name;  // "river", "river inn"
  std::string text;  // "lovely food , not bad garden and very fine room"
  bool good;

  std::string Line() const { return fmt::format("{} {} .", name, text); }
};

// One word in six is denied ("not bad"), so that words alone do not decide.
std::string DrawOpinion(bool good, Random& rng) {
  const WordList words = good ? GoodWords() : BadWords();
  switch (rng.Below(6)) {
    case 0:
      return fmt::format("not {}", Pick(good ? BadWords() : GoodWords(), rng));
    case 1:
      return fmt::format("very {}", Pick(words, rng));
    case 2: {
      const std::string_view first = Pick(words, rng);
      return fmt::format("{} and {}", first, Pick(words, rng));
    }
    default:
      return std::string(Pick(words, rng));
  }
}

// The first opinion is a plain word: it stands where a look-up of the name ends.
Review DrawReview(bool has_long_name, Random& rng) {
  Review review{.good = rng.Below(2) == 0};
  do {
    review.name = Pick(Nouns(), rng);
  } while (std::ranges::count(Aspects(), review.name) > 0);
  if (has_long_name) review.name += fmt::format(" {}", Pick(kHouses, rng));
  std::array<std::string_view, kAspectsPerReview> aspects;
  for (size_t i = 0; i < aspects.size(); ++i) {
    do {
      aspects[i] = Pick(Aspects(), rng);
    } while (std::count(aspects.begin(), aspects.begin() + i, aspects[i]) > 0);
    const std::string_view joint = i == 0 ? "" : i + 1 < aspects.size() ? " , " : " and ";
    const std::string opinion =
        i > 0 ? DrawOpinion(review.good, rng)
              : std::string(Pick(review.good ? GoodWords() : BadWords(), rng));
    review.text += fmt::format("{}{} {}", joint, opinion, aspects[i]);
  }
  return review;
}

// Draws reviews no two of which have the same name.
class ReviewSource {
 public:
  ReviewSource(TaskSplit split, Random rng) : split_(split), rng_(rng) {}

  Review Draw() {
    const auto draw_new = [&] {
      const bool has_long_name = names_.size() >= kOneWordNames;
      Review review = DrawReview(has_long_name, rng_);
      while (names_.contains(review.name)) review = DrawReview(has_long_name, rng_);
      return review;
    };
    Review review = DrawFor(split_, draw_new, [](const Review& drawn) { return drawn.Line(); });
    names_.insert(review.name);
    return review;
  }

 private:
  TaskSplit split_;
  Random rng_;
  std::set<std::string> names_;
};

TaskExample GenerateClassify(const TaskRequest& request) {
  Random rng = request.Stream(0);
  // Training examples ask for most of their reviews: an answer is what they teach.
  const bool is_training = request.split == TaskSplit::kTrain;
  const int max_asked = std::max(2, request.length / 32);
  const int n_asked = is_training ? 2 + static_cast<int>(rng.Below(max_asked - 1)) : kAskedOfTest;
  ReviewSource source(request.split, request.Stream(1));
  std::vector<Review> reviews;
  // Beyond a few hundred reviews the names would run out.
  return FitLength(request, {.min = 1, .max = 320, .tokens = 24}, [&](int n_reviews) {
    while (static_cast<int>(reviews.size()) < n_reviews) reviews.push_back(source.Draw());
    TaskExample example{.choices = {" good", " bad"}, .stop = " ."};
    std::vector<const Review*> order;
    for (int i = 0; i < n_reviews; ++i) {
      example.prompt += reviews[i].Line() + "\n";
      order.push_back(&reviews[i]);
    }
    example.prompt += "verdict\n";
    Random questions = request.Stream(2);
    for (int i = 0; i < std::min(n_asked, n_reviews); ++i) {
      if (i > 0) AppendAnswer(" .\n", example);
      std::swap(order[i], order[i + questions.Below(n_reviews - i)]);
      example.prompt += order[i]->name;
      example.references = {order[i]->good ? " good" : " bad"};
    }
    return example;
  });
}

}  // namespace

TaskDefinition ClassifyTask() {
  return {.name = "classify",
          .description = "tell of eight of many reviews whether they praise or blame",
          .metric = TaskMetric::kChoice,
          .chance = 1.0 / 256,
          .default_length = 500,
          .min_length = 80,
          .generate = GenerateClassify};
}

}  // namespace kvlathe
