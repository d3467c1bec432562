#include "training/corpus_building/task_rows.h"

#include <algorithm>

#include "base/random.h"
#include "training/corpus/corpus.h"

namespace kvlathe {
namespace {

std::string TextOf(const TaskExample& example) {
  return example.prompt + example.references.front() + example.stop;
}

}  // namespace

StatusOr<TaskRowPacker> TaskRowPacker::Create(const std::map<std::string, double>& weights,
                                              int row_tokens, uint64_t seed,
                                              const Tokenizer* tokenizer) {
  TaskRowPacker packer;
  packer.row_tokens_ = row_tokens;
  packer.shortest_ = row_tokens;
  packer.seed_ = seed;
  packer.tokenizer_ = tokenizer;
  double sum = 0;
  for (const auto& [name, weight] : weights) {
    KVL_ASSIGN_OR_RETURN(const Task* task, FindTask(name));
    // One token goes to BOS.
    if (task->min_length() >= row_tokens) {
      return Error(StatusCode::kInvalidArgument,
                   "task {} needs {} tokens; rows of {} are too short for it", name,
                   task->min_length(), row_tokens);
    }
    sum += weight;
    packer.shortest_ = std::min(packer.shortest_, task->min_length());
    packer.choices_.push_back({task, sum});
  }
  return packer;
}

const Task& TaskRowPacker::Draw() {
  const double at = Random(seed_, n_drawn_++).Uniform() * choices_.back().cumulative;
  const auto found = std::find_if(choices_.begin(), choices_.end(),
                                  [&](const Choice& c) { return at < c.cumulative; });
  return *(found == choices_.end() ? choices_.back() : *found).task;
}

StatusOr<TaskExample> TaskRowPacker::Generate(const Task& task, int length) {
  TaskOptions options;
  options.split = TaskSplit::kTrain;
  options.seed = seed_;
  options.length = length;
  const TokenCounter count = [&](std::string_view text) {
    return static_cast<int>(tokenizer_->Tokenize(text, /*add_bos=*/false).size());
  };
  return task.Generate(options, n_generated_++, count);
}

std::vector<uint32_t> TaskRowPacker::Tokens(const TaskExample& example) const {
  const std::string text = TextOf(example);
  const std::vector<int32_t> ids = tokenizer_->Tokenize(text, /*add_bos=*/true);
  std::vector<uint32_t> tokens(ids.begin(), ids.end());
  if (!answers_only_) return tokens;
  std::vector<TextRange> answers = example.earlier_answers;
  answers.push_back({example.prompt.size(), text.size() - example.stop.size()});
  for (TextRange& answer : answers) answer.end += example.stop.size();
  size_t n_bytes = 0;
  for (const int32_t id : ids) n_bytes += tokenizer_->TokenBytes(id).size();
  // Tokenizers may put a space in front of a text.
  size_t begin = 0, end = 0, next = 0;
  const size_t n_added = n_bytes - text.size();
  for (size_t i = 0; i < ids.size(); ++i, begin = end) {
    end = begin + tokenizer_->TokenBytes(ids[i]).size();
    while (next < answers.size() && answers[next].end + n_added <= begin) ++next;
    const bool is_learned = next < answers.size() && answers[next].begin + n_added < end;
    if (!is_learned) tokens[i] |= kNotLearned;
  }
  return tokens;
}

Status TaskRowPacker::NextRow(std::vector<uint32_t>* row, int64_t* n_bytes) {
  row->clear();
  // Tries that fail cost a generation each; a few leave little of a row empty.
  int n_tries = 0;
  while (static_cast<int>(row->size()) < row_tokens_) {
    const int left = row_tokens_ - static_cast<int>(row->size());
    const Task& task = Draw();
    Random random(seed_ + 1, n_generated_);
    // One token for BOS, some for what tokenising prompt and answer together may add.
    const int longest = left - 4, shortest = task.min_length();
    const bool fits = longest >= shortest;
    if (!fits && longest >= shortest_ && ++n_tries < 20) continue;
    const int length =
        fits ? shortest + static_cast<int>(random.Below(longest - shortest + 1)) : shortest;
    KVL_ASSIGN_OR_RETURN(const TaskExample example, Generate(task, length));
    const std::vector<uint32_t> tokens = Tokens(example);
    if (static_cast<int>(tokens.size()) > left && fits && ++n_tries < 20) continue;
    const size_t n_taken = std::min(tokens.size(), static_cast<size_t>(left));
    row->insert(row->end(), tokens.begin(), tokens.begin() + static_cast<int64_t>(n_taken));
    *n_bytes += static_cast<int64_t>(TextOf(example).size() * n_taken / tokens.size());
    n_tries = 0;
  }
  return OkStatus();
}

}  // namespace kvlathe
