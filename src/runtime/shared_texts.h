// The texts and maps that come with kvlathe, for models that bring none.
#pragma once

#include <string>

#include "analysis/statistics/statistics.h"
#include "base/status.h"

namespace kvlathe {

// The path of calibration.txt or sample.txt: the model's own (BesideModel) where there is one, else
// the one that comes with kvlathe: in share/kvlathe beside the program or beside its folder (an
// installed prefix), in that of the prefix that the library lies in, or in share/ of the source
// tree that it was built from. kNotFound says how to give a text.
StatusOr<std::string> TextOfModel(const std::string& model, const std::string& name);
// The one that comes with kvlathe.
StatusOr<std::string> SharedText(const std::string& name);

// The file of lathe's maps that comes with kvlathe for a model with this ModelHash(), in folder
// maps of the same places; empty where there is none.
std::string MapsOfModel(const std::string& model_hash, KeyRows keys);

}  // namespace kvlathe
