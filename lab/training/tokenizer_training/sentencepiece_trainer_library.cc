#include "training/tokenizer_training/sentencepiece_trainer_library.h"

#include <sentencepiece_trainer.h>

#include <algorithm>

namespace kvlathe {
namespace {

class SentencesOf : public sentencepiece::SentenceIterator {
 public:
  explicit SentencesOf(const std::vector<std::string>* sentences) : sentences_(sentences) {}
  bool done() const override { return next_ == sentences_->size(); }
  void Next() override { ++next_; }
  const std::string& value() const override { return (*sentences_)[next_]; }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  const std::vector<std::string>* sentences_;
  size_t next_ = 0;
};

// "file.cc(12) [condition] What is wrong" without the place in the library's source.
std::string OneLine(std::string message) {
  if (const size_t end = message.find(") ["); end != std::string::npos) {
    const size_t text = message.find("] ", end);
    if (text != std::string::npos && text + 2 < message.size()) message.erase(0, text + 2);
  }
  std::replace(message.begin(), message.end(), '\n', ' ');
  message.erase(message.find_last_not_of(" .") + 1);
  return message;
}

}  // namespace

bool TrainWithSentencePiece(const std::unordered_map<std::string, std::string>& settings,
                            const std::vector<std::string>& sentences,
                            std::string* serialized_model, std::string* error) {
  SentencesOf iterator(&sentences);
  const auto status =
      sentencepiece::SentencePieceTrainer::Train(settings, &iterator, serialized_model);
  if (!status.ok()) *error = OneLine(status.error_message());
  return status.ok();
}

}  // namespace kvlathe
