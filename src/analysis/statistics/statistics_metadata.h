// What files that are made of a calibration say in their metadata: their format, and what the
// statistics come from.
#pragma once

#include <map>
#include <string>

#include "analysis/statistics/statistics.h"
#include "base/status.h"
#include "io/safetensors/safetensors.h"

namespace kvlathe {

inline constexpr const char* kRecalibrate = "write a new one with kvlathe calibrate";

struct FileFormat {
  const char* name;
  const char* version;
  const char* holds;  // as an error says it
};

// Shape, source and counts.
std::map<std::string, std::string> MetadataOf(const CalibrationStatistics& statistics,
                                              const FileFormat& format);

// Whether a file says that it has this format, whatever its version.
bool HasFormat(const SafetensorsReader& file, const FileFormat& format);

// kDataLoss, with the way out, for a file of another format or version, and for a damaged one.
Status CheckFormat(const SafetensorsReader& file, const FileFormat& format);

// What MetadataOf wrote. kDataLoss where something is missing, or no number that can be.
Status ReadMetadata(const SafetensorsReader& file, CalibrationStatistics* statistics);

}  // namespace kvlathe
