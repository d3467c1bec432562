#include "kvlathe/draft_options.h"

#include "engine/drafts/draft_room.h"

namespace kvlathe {

void AddDraftOption(CLI::App* verb, std::string* text) {
  verb->add_option("--draft", *text,
                   "guess tokens from the text so far and check several in one step: ngram, or "
                   "ngram:tokens=8,min=2,max=4; the text stays the same, one that repeats itself "
                   "comes faster")
      ->check([](const std::string& given) -> std::string {
        const Status status = DraftOptions::Parse(given).status();
        return status.ok() ? "" : std::string(MessageOf(status));
      })
      ->capture_default_str();
}

std::optional<DraftOptions> ParseDraft(const std::string& text) {
  return DraftOptions::Parse(text).value();
}

Status CheckDraft(const std::optional<DraftOptions>& draft, const SpecModel& spec_model) {
  if (!draft.has_value()) return OkStatus();
  const std::string_view why = WhyNothingIsDrafted(spec_model.model->layout());
  if (why.empty()) return OkStatus();
  return Error(StatusCode::kInvalidArgument,
               "--draft does not go with --kv '{}': {}; leave --draft out, or choose another cache",
               spec_model.spec.text(), why);
}

}  // namespace kvlathe
