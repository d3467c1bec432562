#include "chat/chat_ends.h"

namespace kvlathe {

ChatEnds FindChatEnds(const Tokenizer& tokenizer, std::span<const std::string> ends) {
  ChatEnds found;
  for (const std::string& text : ends) {
    const std::vector<int32_t> ids = tokenizer.Tokenize(text, /*add_bos=*/false);
    if (ids.size() == 1 && tokenizer.TokenBytes(ids[0], /*keep_special=*/true) == text) {
      found.ids.push_back(ids[0]);
    } else {
      found.texts.push_back(text);
    }
  }
  return found;
}

}  // namespace kvlathe
