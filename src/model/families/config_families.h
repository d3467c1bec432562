// Each family has a function that reads what its config.json says, and what its code in Hugging
// Face Transformers assumes where the file says nothing.
#pragma once

#include "base/status.h"
#include "model/config.h"
#include "model/families/config_fields.h"

namespace kvlathe {

// Fills everything but the ids of special tokens. Errors as ParseModelConfig.
Status ReadFamily(const ConfigFields& fields, ModelConfig* config);

// The fields of config.json that say how a type of layers turns its rows.
struct RopeNames {
  const char* theta = "rope_theta";
  double default_theta = 10000;
  const char* scaling = "rope_scaling";  // empty: there is none
  // Newer files hold all of it in rope_parameters, or in an object of this name in there.
  const char* layer_type = "";
};

// Reads the angles of a kind of attention of `config`, whose head_dim, rotary_fraction and
// max_seq_len are known.
Status ReadRope(const ConfigFields& fields, const RopeNames& names, const ModelConfig& config,
                RopeConfig* rope);
// The same for a model whose layers are all of one kind.
inline Status ReadRope(const ConfigFields& fields, ModelConfig* config) {
  return ReadRope(fields, {}, *config, &config->attention.kinds[0].rope);
}

}  // namespace kvlathe
