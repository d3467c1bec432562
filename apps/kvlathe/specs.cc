// kvlathe specs: every stage of the grammar.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "kv/spec/spec_table.h"
#include "kvlathe/options.h"

namespace kvlathe {
namespace {

nlohmann::ordered_json StagesAsJson() {
  nlohmann::ordered_json stages = nlohmann::ordered_json::array();
  for (const StageInfo& stage : AllStages()) {
    nlohmann::ordered_json keys = nlohmann::ordered_json::array();
    for (const KeyInfo* key : stage.keys) {
      keys.push_back({{"name", key->name},
                      {"default", key->default_text},
                      {"allowed", AllowedValues(*key)},
                      {"doc", key->doc}});
    }
    stages.push_back({{"name", stage.name},
                      {"axis", AxisName(stage.axis)},
                      {"doc", stage.doc},
                      {"paper", stage.paper},
                      {"keys", std::move(keys)}});
  }
  return {{"stages", std::move(stages)}};
}

}  // namespace

void AddSpecsVerb(Verbs* verbs) {
  auto json = std::make_shared<bool>(false);
  CLI::App* verb =
      verbs->Add("specs", "The methods, their keys and defaults", "kvlathe specs", [json] {
        if (*json) {
          fmt::print("{}\n", StagesAsJson().dump());
        } else {
          fmt::print("{}", DescribeStages());
        }
        return OkStatus();
      });
  verb->add_flag("--json", *json, "one JSON object");
}

}  // namespace kvlathe
