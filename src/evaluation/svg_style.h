// All charts have this in common (svg_chart.h, svg_picture.h).
#pragma once

#include <string>
#include <string_view>

namespace kvlathe {

// Of a value from 0 to 1, from dark to bright as in the terminal's heat maps: the order survives on
// paper and for the colour-blind.
std::string HeatColour(double heat);

// The beginning of an SVG file: its style, a white background and its title. "</svg>" ends it.
std::string OpenSvgFile(double width, double height, std::string_view title);

}  // namespace kvlathe
