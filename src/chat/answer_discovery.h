// Finds how a template writes answers, by rendering some with known texts and looking where these
// stand.
#pragma once

#include "chat/reading/answer_format.h"
#include "chat/template_traits.h"

namespace kvlathe {

// A template that cannot be read so leaves calls empty and says why.
AnswerFormat FindAnswerFormat(const TemplateProber& prober, const TemplateTraits& traits);

}  // namespace kvlathe
