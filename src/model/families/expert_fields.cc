// What config.json says of experts.
#include <algorithm>

#include "model/families/family_readers.h"

namespace kvlathe {
namespace {

constexpr int kMaxExperts = 1024;

}  // namespace

Status ReadExperts(const ConfigFields& fields, const ExpertFieldNames& names, ModelConfig* c) {
  ExpertsConfig experts;
  const char* const count = fields.Has(names.count) ? names.count : names.other_count;
  KVL_ASSIGN_OR_RETURN(experts.n_experts, fields.Integer(count, 1, kMaxExperts));
  KVL_ASSIGN_OR_RETURN(experts.n_used, fields.Integer(names.used, 1, experts.n_experts));
  KVL_ASSIGN_OR_RETURN(experts.ffn_dim, fields.Integer(names.ffn, 1, kMaxDim));
  experts.of_layer.assign(c->n_layers, true);
  c->experts = experts;
  return OkStatus();
}

Status ReadExpertGroups(const ConfigFields& fields, ModelConfig* c) {
  ExpertsConfig& e = *c->experts;
  KVL_ASSIGN_OR_RETURN(e.n_groups, fields.IntegerOr("n_group", 1, 1, e.n_experts));
  KVL_ASSIGN_OR_RETURN(e.n_used_groups, fields.IntegerOr("topk_group", 1, 1, e.n_groups));
  if (e.n_experts % e.n_groups != 0) {
    return Error(StatusCode::kDataLoss, "{}: {} experts do not make {} groups of equal size",
                 fields.where(), e.n_experts, e.n_groups);
  }
  const int n_open = e.n_experts / e.n_groups * e.n_used_groups;
  if (e.n_used > n_open) {
    return Error(
        StatusCode::kDataLoss,
        "{}: a token goes to {} experts, but the {} groups that it may choose from have {}",
        fields.where(), e.n_used, e.n_used_groups, n_open);
  }
  return OkStatus();
}

Status ReadDenseLayers(const ConfigFields& fields, const char* key, ModelConfig* c) {
  KVL_ASSIGN_OR_RETURN(const int n_dense, fields.IntegerOr(key, 0, 0, c->n_layers));
  std::fill_n(c->experts->of_layer.begin(), n_dense, false);
  return OkStatus();
}

void DropUnusedExperts(ModelConfig* c) {
  const std::vector<bool>& of_layer = c->experts->of_layer;
  if (std::ranges::find(of_layer, true) == of_layer.end()) c->experts.reset();
}

}  // namespace kvlathe
