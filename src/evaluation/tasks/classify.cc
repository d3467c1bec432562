#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "evaluation/tasks/definition.h"
#include "evaluation/tasks/words.h"

namespace kvlathe {
namespace {

constexpr int kAspectsPerReview = 3;

struct Judgement {
  std::string_view aspect;
  bool good;
};

struct Review {
  std::string text;  // "the river inn : the food was lovely . ..."
  std::array<Judgement, kAspectsPerReview> judgements;
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

Review DrawReview(Random& rng) {
  Review review;
  const std::string_view noun = Pick(Nouns(), rng);
  review.text = fmt::format("the {} {} :", noun, rng.Below(2) == 0 ? "inn" : "hotel");
  for (size_t i = 0; i < review.judgements.size(); ++i) {
    Judgement& judgement = review.judgements[i];
    const auto said = [&](const Judgement& other) { return other.aspect == judgement.aspect; };
    do {
      judgement.aspect = Pick(Aspects(), rng);
    } while (std::any_of(review.judgements.begin(), review.judgements.begin() + i, said));
    judgement.good = rng.Below(2) == 0;
    review.text +=
        fmt::format(" the {} was {} .", judgement.aspect, DrawOpinion(judgement.good, rng));
  }
  return review;
}

TaskExample Generate(const TaskRequest& request) {
  Random rng = request.Stream(0);
  const int n_asked = 1 + std::min<int>(1 + rng.Below(4), request.length / 100);
  std::vector<Review> reviews;
  Random content = request.Stream(1);
  return FitLength(request, {.min = 2, .tokens = 32}, [&](int n_reviews) {
    while (static_cast<int>(reviews.size()) < n_reviews) {
      reviews.push_back(DrawFor(
          request.split, [&] { return DrawReview(content); },
          [](const Review& review) { return review.text; }));
    }
    TaskExample example{.choices = {" good", " bad"}, .stop = " ."};
    for (int i = 0; i < n_reviews; ++i) {
      example.prompt += fmt::format("review {} of {}\n", i + 1, reviews[i].text);
    }
    Random questions = request.Stream(2);
    for (int i = 0; i < n_asked; ++i) {
      if (i > 0) example.prompt += example.references[0] + " .\n";
      const size_t number = questions.Below(n_reviews);
      const Judgement& judgement = reviews[number].judgements[questions.Below(kAspectsPerReview)];
      example.prompt += fmt::format("in review {} the {} was", number + 1, judgement.aspect);
      example.references = {judgement.good ? " good" : " bad"};
    }
    return example;
  });
}

}  // namespace

TaskDefinition ClassifyTask() {
  return {.name = "classify",
          .description = "tell whether one of many reviews praises or blames something",
          .metric = TaskMetric::kChoice,
          .chance = 0.5,
          .default_length = 500,
          .min_length = 140,
          .generate = Generate};
}

}  // namespace kvlathe
