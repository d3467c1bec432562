#include "tokenizer/chat/chat_ends.h"

namespace kvlathe {

ChatEnds FindChatEnds(const Tokenizer& tokenizer, const ChatFormat& format) {
  ChatEnds ends;
  for (const std::string& text : format.ends) {
    const std::vector<int32_t> ids = tokenizer.Tokenize(text, /*add_bos=*/false);
    if (ids.size() == 1 && tokenizer.TokenBytes(ids[0], /*keep_special=*/true) == text) {
      ends.ids.push_back(ids[0]);
    } else {
      ends.texts.push_back(text);
    }
  }
  return ends;
}

}  // namespace kvlathe
