// A loss curve holds the losses of a run by step, and is written as CSV and as a picture.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace kvlathe {

struct LossPoint {
  int64_t step = 0;
  int64_t tokens = 0;  // read up to and with this step
  int context = 0;
  double learning_rate = 0;
  double loss = 0;             // nats per token, of the step's batch
  double validation_bpb = -1;  // bits per byte; below 0: not measured at this step
  double kept_share = -1;      // of the positions, those that begin an entry; below 0: no merging
};

// Columns step,tokens,context,learning_rate,loss,validation_bits_per_byte,kept_share (the last two
// empty where not measured).
std::string LossCurveCsv(const std::vector<LossPoint>& points);
// Loss (moving average) and validation over tokens; a picture of 800 x 420.
std::string LossCurveSvg(const std::vector<LossPoint>& points, const std::string& title);

// curve.csv and curve.svg in `directory`.
Status WriteLossCurve(const std::vector<LossPoint>& points, const std::string& title,
                      const std::string& directory);

}  // namespace kvlathe
