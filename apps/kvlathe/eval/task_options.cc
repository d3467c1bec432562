#include "kvlathe/eval/task_options.h"

#include <fmt/format.h>

namespace kvlathe {

void AddTaskChoiceOptions(CLI::App* verb, TaskChoiceOptions* options) {
  CLI::Option* task = verb->add_option(
      "--task", options->tasks,
      fmt::format("a built-in task, as needle or needle(keys=4), all (those without parameters), "
                  "list, FILE.jsonl, or {}; may repeat",
                  TaskFileFormNames()));
  verb->add_option(
          "--task-length", options->length,
          "tokens of prompt and answer, of longbench at most of the prompt, whose middle is "
          "cut out (default: the task's, as far as the context goes)")
      ->check(CLI::Range(1, 1 << 30))
      ->needs(task);
  verb->add_option("--task-count", options->count, "examples")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str()
      ->needs(task);
  verb->add_option("--task-text", options->text_path,
                   "text in which needle and variables hide things (default: made-up prose)")
      ->needs(task);
  verb->add_option("-s,--seed", options->seed, "seed of the examples of built-in tasks")
      ->capture_default_str()
      ->needs(task);
  verb->add_option(
          "--shots", options->shots,
          "solved questions before each of a file: how many of the same file or, for gsm8k, "
          "aqua and bbh, a prompt file (of gsm8k and aqua also a train set)")
      ->needs(task);
  verb->add_option("--shot-tokens", options->shot_tokens,
                   "as many solved questions as it takes until the prompt has this many tokens")
      ->check(CLI::Range(1, 1 << 30))
      ->needs(task);
}

}  // namespace kvlathe
