// A tokenizer is trained on sentences, which are cut out of texts here.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace kvlathe {

// The bytes that a sentence may have; the trainer passes over longer ones.
inline constexpr size_t kMaxSentenceBytes = 4096;

// The lines of the files, in order, without what no learned piece may hold: a line ends at any
// control character ("\n" and "\t" among them) and at ill-formed UTF-8. Longer lines are cut after
// kMaxSentenceBytes bytes, at a space if there is one. Of more than max_text_bytes bytes, lines
// spread evenly over the files are taken.
StatusOr<std::vector<std::string>> ReadTrainingText(std::span<const std::string> paths,
                                                    int64_t max_text_bytes);

}  // namespace kvlathe
