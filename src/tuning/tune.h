// `kvlathe tune` finds the best of every method and of their compositions, and writes a profile.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "tuning/search.h"

namespace kvlathe {

struct TuneJob {
  TuneEvaluator* evaluator = nullptr;
  double accuracy = 0.99;
  // The methods as they were typed (ParseMethod). If the list is empty, DefaultMethods() are
  // searched, and then compositions of the smallest of each axis: basis and quantizer, retention
  // and quantizer, basis and retention, and all three.
  std::vector<std::string> methods;
  PointRecorder::Save save;
  std::function<void(const std::string& method)> on_method;  // when its search begins; may be null
};

// Adds to what the profile has: points are not measured again, and the target is replaced method by
// method. kInvalidArgument for a method that does not parse, and for a goal on which the baseline
// scores nothing.
Status Tune(const TuneJob& job, Profile* profile);

}  // namespace kvlathe
