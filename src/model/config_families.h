// What each family's config.json says, and what its code in Hugging Face Transformers assumes where
// the file says nothing.
#pragma once

#include "base/status.h"
#include "model/config.h"
#include "model/config_fields.h"

namespace kvlathe {

// Fills everything but the ids of special tokens. Errors as ParseModelConfig.
Status ReadFamily(const ConfigFields& fields, ModelConfig* config);

// rope_theta and rope_scaling; config->head_dim, rotary_fraction and max_seq_len are known.
Status ReadRope(const ConfigFields& fields, ModelConfig* config);

}  // namespace kvlathe
