#include "server/api/api_fixture.h"

#include "runtime/machines/machine_choice.h"

namespace kvlathe::api {

NanoModel::NanoModel() {
  const std::string folder = std::string(KVLATHE_SOURCE_DIR) + "/models/lathe-nano";
  auto config = LoadModelConfig(folder);
  auto reader = SafetensorsReader::OpenModel(folder);
  EXPECT_TRUE(config.ok() && reader.ok());
  auto weights = ModelWeights::Load(*config, DType::kBf16, MakeFileSource(*std::move(reader)),
                                    MakeMachine(&threads_, SelectIsa().value()));
  EXPECT_TRUE(weights.ok()) << weights.status();
  const std::shared_ptr<ModelWeights> shared = *std::move(weights);
  plain_ = Make(shared, "none");
  sealed_ = Make(shared, "int8");
  tokenizer_ = Tokenizer::Load(folder).value();
  chat_template_ =
      LoadChatTemplateFile(std::string(KVLATHE_SOURCE_DIR) + "/share/chat_templates/chatml.jinja",
                           TokensByName(*tokenizer_, ""))
          .value();
}

std::unique_ptr<Model> NanoModel::Make(const std::shared_ptr<ModelWeights>& weights,
                                       const std::string& spec) {
  auto model = CreateModel(weights, PartsOf(Spec::Parse(spec).value(), nullptr));
  EXPECT_TRUE(model.ok()) << model.status();
  return *std::move(model);
}

}  // namespace kvlathe::api
