// The trainer of the SentencePiece library stands behind standard types here: its header declares
// names in Abseil's namespace that clash with the real Abseil, so only one source file includes it.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

namespace kvlathe {

// Trains on `sentences` with the library's options by their names. False if the library refuses;
// *error then says why in one line.
bool TrainWithSentencePiece(const std::unordered_map<std::string, std::string>& settings,
                            const std::vector<std::string>& sentences,
                            std::string* serialized_model, std::string* error);

}  // namespace kvlathe
