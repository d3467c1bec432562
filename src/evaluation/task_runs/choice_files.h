// Data sets of questions with choices are asked as lm-evaluation-harness asks them. The metric is
// choice; every choice begins with the space that parts it from the prompt, and the prompt does not
// end in one.
//
// HellaSwag, PIQA and ARC compare choices of different lengths, and what is published of them is
// the accuracy by likelihood per character: norm_leads is set.
#pragma once

#include <string>

#include "base/status.h"
#include "evaluation/task_runs/task_files.h"

namespace kvlathe {

// JSON Lines with "activity_label", "ctx_a" and "ctx_b" (or "ctx"), "endings" and "label", or plain
// text with six lines a task: activity and context, label, four endings. White space, "[title]" and
// what stands in brackets are cleaned from all texts. The letters of "ctx_b" are lower-cased but
// the first, in ASCII only.
StatusOr<TaskFile> ReadHellaSwag(const std::string& path);

// {"goal", "sol1", "sol2", "label"}. Where a line of NAME.jsonl has no "label", NAME-labels.lst
// beside it has one on the same line.
StatusOr<TaskFile> ReadPiqa(const std::string& path);

// {"question", "choices": {"text": [...], "label": [...]}, "answerKey"} or
// {"centerpiece", "options": [...], "correct_options_idx": [0]}.
StatusOr<TaskFile> ReadArc(const std::string& path);

// {"sentence", "option1", "option2", "answer": "1"} or, as for ARC, "centerpiece" and so on; the
// options fill in the first "_" of the sentence. Weighed is what follows it (partial evaluation):
// choice_prompts are used.
StatusOr<TaskFile> ReadWinoGrande(const std::string& path);

}  // namespace kvlathe
